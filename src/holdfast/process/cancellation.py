"""Cancellation-safe waiting: on cancellation the work is stopped and awaited before re-raising."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(
    work: "Coroutine[Any, Any, T] | Future[T]", *, stop: Callable[[], None] | None = None
) -> T:
    """Wait for the work; on cancellation call `stop`, wait for the end, and re-raise."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        # Further cancellations must not abandon work that may be writing a file.
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        # Retrieve the exception, because asyncio logs one that is never retrieved.
        if not task.cancelled():
            task.exception()
        raise


async def run_in_thread(work: Callable[[Event], T]) -> T:
    """Run the work in a thread; on cancellation set its stop event and wait until it has ended."""
    stop = Event()
    running = asyncio.get_running_loop().run_in_executor(None, work, stop)
    return await run_to_end(running, stop=stop.set)
