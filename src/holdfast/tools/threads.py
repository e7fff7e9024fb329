"""The one seam between the loop and work that blocks on files."""

import asyncio
from collections.abc import Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[Event], T]) -> T:
    """Run the work apart; when cancelled it is told to stop, and is over before this returns."""
    stop = Event()
    running = asyncio.get_running_loop().run_in_executor(None, work, stop)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        stop.set()
        await _over(running)
        raise


async def _over(running: "asyncio.Future[T]") -> None:
    while not running.done():
        try:
            await asyncio.wait([running])
        # Cancelled already; a file that is half written must not be left to itself.
        except asyncio.CancelledError:
            continue
    # Looked at, or the loop would complain that nobody did.
    if not running.cancelled():
        running.exception()
