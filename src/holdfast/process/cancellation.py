"""Waits that a cancellation does not cut short: the work is told to stop and has ended first."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T], *, stop: Callable[[], None] | None = None) -> T:
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


async def run_in_thread(work: Callable[[Event], T]) -> T:
    """Run the work apart; when cancelled it is told to stop, and is over before this returns."""
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
        # Cancelled already; a file that is half written must not be left to itself.
        except asyncio.CancelledError:
            continue
    # Looked at, or the loop would complain that nobody did.
    if not running.cancelled():
        running.exception()
