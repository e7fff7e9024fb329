"""Judging claims: at once where that takes no time, else beside the loop, so that nobody waits."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from holdfast.domain.acceptances import Accepted

# So many values, or so much text for each of them, are judged within a moment.
LIGHT_MOST: Final = 1_000
_LETTERS: Final = 64
_LISTS: Final = (list, tuple)


async def judged(judge: Callable[..., Accepted], *given: Any, **named: Any) -> Accepted:
    """Return what a judge accepts of what was given, or raise its refusal."""
    if is_light(given):
        return judge(*given, **named)
    return await asyncio.to_thread(partial(judge, *given, **named))


def is_light(value: Any) -> bool:
    """Tell whether there is little to look at; what is heavy is not looked at whole."""
    left, waiting = LIGHT_MOST, [value]
    while waiting:
        each = waiting.pop()
        left -= 1
        if isinstance(each, str):
            left -= len(each) // _LETTERS
        elif isinstance(each, dict):
            left -= len(each)
            waiting += each.values()
        elif isinstance(each, _LISTS):
            left -= len(each)
            waiting += each
        if left < 0:
            return False
    return True
