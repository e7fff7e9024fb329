"""Work that is not left half done, however often it is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T], *, stop: Callable[[], None] | None = None) -> T:
    """Wait for the work; cancelling tells it to `stop`, and is heard when it is over."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        # Looked at, or the loop would complain that nobody did.
        if not task.cancelled():
            task.exception()
        raise
