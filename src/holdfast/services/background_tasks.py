"""Tasks that live as long as a block: what every part with work of its own is built on."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from holdfast.domain.errors import Code, Unavailable


class Background:
    """A context manager; leaving it stops whatever was started in it and waits for its end."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over = True
        for task in self._tasks:
            task.cancel()
        # Told of no error: one that the block raised is its caller's, and must not become a group.
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that is stopped, at the latest, when the block is left."""
        if self._is_over:
            work.close()
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        task = self._group.create_task(_alone(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that was stopped before it began has not been awaited by anybody.
        task.add_done_callback(lambda _: work.close())
        return task


async def rest(seconds: float) -> None:
    """Wait before the next round, however little memory there is."""
    try:
        await asyncio.sleep(seconds)
    except MemoryError:
        # Waiting takes more of it than to let others go first.
        await asyncio.sleep(0)


async def _alone(work: Coroutine[Any, Any, None]) -> None:
    """Do work; a lack of memory ends it alone, and not with it everything that goes on beside."""
    # Met by its own words about a failure: there was no memory to log it, so there is none here.
    with suppress(MemoryError):
        await work
