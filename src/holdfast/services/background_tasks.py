"""Background tasks whose lifetime is a context manager block."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from holdfast.domain.errors import Code, Unavailable

log = logging.getLogger(__name__)


class Background:
    """A context manager; leaving it cancels the tasks started in it and waits for their end."""

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
        # Passes no error, because the block's own exception must not become an exception group.
        await self._group.__aexit__(None, None, None)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that is cancelled, at the latest, when the block exits."""
        if self._is_over:
            work.close()
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        task = self._group.create_task(_alone(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Closed here, because a task cancelled before it started never awaited its coroutine.
        task.add_done_callback(lambda _: work.close())
        return task


async def sleep_despite_memory_error(seconds: float) -> None:
    """Sleep before the next round, even when memory is exhausted."""
    try:
        await asyncio.sleep(seconds)
    except MemoryError:
        # A timer needs memory; yielding to the event loop needs less.
        await asyncio.sleep(0)


async def _alone(work: Coroutine[Any, Any, None]) -> None:
    """Run work; a failure ends this task only and not the whole task group."""
    try:
        await work
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except MemoryError:
        # Not logged, because there was no memory to log the failure with.
        return
    except BaseException:
        log.exception("a background task failed with an internal error")
