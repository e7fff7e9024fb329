"""Landlock: rules about files that a process puts on itself and that no child gets rid of.

Here the rules are written; `supervisor/restrictions.py` has the kernel hold them.
"""

import ctypes
import sys
from collections.abc import Iterable
from typing import Final

_CREATE_RULES: Final = 444
_ASK_VERSION: Final = 1

EXECUTE: Final = 1 << 0
READ: Final = 1 << 2 | 1 << 3
LIST: Final = 1 << 3
# Writing, and making and removing everything but device nodes; moving and cutting where known.
WRITE: Final = 1 << 1 | 0b1_0111_1011_0000 | 1 << 13 | 1 << 14
CONTROL: Final = 1 << 15
EVERYTHING: Final = (1 << 16) - 1

# How many of the rights above each version knows.
_KNOWN: Final = {1: 13, 2: 14, 3: 15, 4: 15}
# From the sixth on, processes and abstract sockets outside can be out of reach, too.
_OUTSIDE: Final = 0b11


def version() -> int:
    """Return which Landlock this kernel has, 0 for none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULES, None, 0, _ASK_VERSION)))


def ruleset(
    version: int, rules: Iterable[tuple[str, int]], *, keeps_outside: bool
) -> tuple[bytes, list[tuple[str, int]]]:
    """Return the attributes of a ruleset and its rules, each cut to what the version knows."""
    handled = (1 << _KNOWN.get(version, 16)) - 1
    words = [handled]
    if version >= 6:
        words += [0, 0 if keeps_outside else _OUTSIDE]
    attributes = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    return attributes, [(path, rights & handled) for path, rights in rules]
