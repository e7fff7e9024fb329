"""What a test with a browser may ask for: the same luck and crew as the rows of the proof."""

from tests.torture.conftest import crew, level, luck, seed, sized, tell

__all__ = ["crew", "level", "luck", "seed", "sized", "tell"]
