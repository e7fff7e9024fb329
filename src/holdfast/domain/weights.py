"""How much work a value is, guessed without looking at all of it."""

from typing import Any, Final

# So much is worked through in less time than it takes to have somebody else do it.
LIGHT: Final = 64 << 10
_OF_A_VALUE: Final = 16


def is_light(value: Any) -> bool:
    """Tell whether a value can be looked through at once; a heavy one is soon given up."""
    left, waiting = LIGHT, [value]
    while waiting and left > 0:
        each = waiting.pop()
        left -= _OF_A_VALUE
        if isinstance(each, str | bytes | bytearray | memoryview):
            left -= len(each)
        elif isinstance(each, dict | list | tuple):
            left -= _OF_A_VALUE * len(each)
            # What is too many is not even put down to be looked at.
            if left > 0:
                waiting += each.values() if isinstance(each, dict) else each
    return left > 0
