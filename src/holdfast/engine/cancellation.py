"""The abort signal as asyncio knows it: a task that somebody wants to end.

Nobody in between may lose it, and nobody may make one up.
"""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Seconds that work which loses something when it is stopped may still take after the signal.
PATIENCE: Final = 1.0


class CancelledItselfError(Exception):
    """Something we waited for was cancelled, but nobody has cancelled us."""


def is_cancelled() -> bool:
    """Tell whether somebody wants the current task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def stop_if_cancelled() -> None:
    """End the current task if somebody wants it to end and somebody else has not listened."""
    if is_cancelled():
        raise asyncio.CancelledError


async def clear_cancellation(work: Awaitable[T]) -> T:
    """Wait for work of others; a cancellation that is not ours is their failure."""
    try:
        return await work
    except asyncio.CancelledError:
        if is_cancelled():
            raise
        # Passed on it would end a turn that nobody wants to end, and leave nobody to play it.
        raise CancelledItselfError from None


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work of ours to its end, also after the signal, which is only patient for a while.

    Whoever calls this has to look for the signal before it waits for anybody else.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((task,), timeout=PATIENCE)
        finally:
            task.cancel()
        if not task.done():
            raise
        return task.result()
