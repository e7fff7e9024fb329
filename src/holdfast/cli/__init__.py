"""The surface for people at a terminal."""
