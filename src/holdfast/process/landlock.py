"""Landlock rulesets: file access rules that a process applies to itself and its children.

This module builds the rules; `supervisor/restrictions.py` applies them.
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
# Write, create and remove everything except device nodes; also refer and truncate if supported.
WRITE: Final = 1 << 1 | 0b1_0111_1011_0000 | 1 << 13 | 1 << 14
CONTROL: Final = 1 << 15
EVERYTHING: Final = (1 << 16) - 1

# Number of access rights that each ABI version supports.
_KNOWN: Final = {1: 13, 2: 14, 3: 15, 4: 15}
# Since version 6, signals and abstract sockets can be scoped to the sandbox.
_OUTSIDE: Final = 0b11


def version() -> int:
    """Return the Landlock ABI version of this kernel; 0 if there is no Landlock."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULES, None, 0, _ASK_VERSION)))


def ruleset(
    version: int, rules: Iterable[tuple[str, int]], *, keeps_outside: bool
) -> tuple[bytes, list[tuple[str, int]]]:
    """Return the ruleset attributes and rules, reduced to rights that the version supports."""
    handled = (1 << _KNOWN.get(version, 16)) - 1
    words = [handled]
    if version >= 6:
        words += [0, 0 if keeps_outside else _OUTSIDE]
    attributes = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    return attributes, [(path, rights & handled) for path, rights in rules]
