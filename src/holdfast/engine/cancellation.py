"""Cancellation through asyncio: detect it, do not lose it, do not invent it.

Code between the canceller and the turn may neither swallow a cancellation nor raise its own.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Grace period in seconds for work that would lose data when it is cancelled.
PATIENCE: Final = 1.0


class CancelledItselfError(Exception):
    """An awaited operation was cancelled, but the current task was not.

    As a cancellation it would end a turn that was not cancelled and leave it without a runner.
    """


def stop_if_cancelled() -> None:
    """Raise `CancelledError` if a requested cancellation was swallowed by other code."""
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        raise asyncio.CancelledError


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Await work even after cancellation, for at most `PATIENCE` seconds.

    The caller has to check for cancellation before it awaits anything else.
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
