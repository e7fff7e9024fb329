"""Cancellation-safe waiting: on cancellation the work is stopped and awaited before re-raising."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T], *, stop: Callable[[], None] | None = None) -> T:
    """Wait for the work; on cancellation call `stop`, wait for the end, and re-raise."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if stop is not None:
            stop()
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
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await _wait_until_done(running)
        raise


async def _wait_until_done(running: "asyncio.Future[T]") -> None:
    while not running.done():
        try:
            await asyncio.wait([running])
        # Already cancelled; returning now would abandon a thread that may be writing a file.
        except asyncio.CancelledError:
            continue
    # Retrieve the exception, because asyncio logs one that is never retrieved.
    if not running.cancelled():
        running.exception()
