"""Running turns on this machine."""
