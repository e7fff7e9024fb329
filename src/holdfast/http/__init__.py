"""The surface for programs and browsers."""
