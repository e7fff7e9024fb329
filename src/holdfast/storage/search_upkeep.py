"""Who sees to it that the index is not far behind: beside the work of others, and unasked."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from holdfast.domain.errors import HoldfastError
from holdfast.ports import Tx
from holdfast.ports.search import Backlog

log = logging.getLogger(__name__)

# Commits between two looks; each look takes as long as a small read.
EVERY: Final = 64
# So much may wait: whoever searches reads it through, which takes some milliseconds.
WAITING_MOST: Final = Backlog(256, 1 << 20)
# Removed ones are slower, because each of their words is looked for.
BURIED_TOGETHER: Final = 32
BURIAL_SECONDS: Final = 1.0

Asked = Callable[[Callable[[Tx], Any]], Awaitable[Any]]


class Upkeep:
    """Has the index catch up after some commits, while others go on writing."""

    def __init__(self, read: Asked, write: Asked) -> None:
        self._read = read
        self._write = write
        # The first commit of a process counts as many: it may be one of few.
        self._left = 1
        self._task: asyncio.Task[None] | None = None

    def count(self) -> None:
        """Notice a commit."""
        self._left -= 1
        if self._left > 0 or (self._task is not None and not self._task.done()):
            return
        self._left = EVERY
        # Nobody asked for this, so nobody is told that it has to wait for memory.
        with suppress(MemoryError):
            self._task = asyncio.get_running_loop().create_task(self._keep_up())

    async def has_forgotten(self) -> bool:
        """Take words of removed documents out of the index; `False` when some are left for later.

        For a second at most, because somebody waits.
        """
        deadline = time.monotonic() + BURIAL_SECONDS
        try:
            while await self._write(lambda tx: tx.search.bury(BURIED_TOGETHER)):
                if time.monotonic() > deadline:
                    return False
        except HoldfastError as error:
            log.warning("the index has not forgotten what was removed: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Wait for what was begun on this loop."""
        task = self._task
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait((task,))

    async def _keep_up(self) -> None:
        try:
            waiting: Backlog = await self._read(lambda tx: tx.search.backlog())
            if waiting.documents < WAITING_MOST.documents and waiting.size < WAITING_MOST.size:
                return
            together = waiting.together
            while await self._write(lambda tx: tx.search.catch_up(together)) >= together:
                log.debug("the index catches up")
        except (HoldfastError, MemoryError) as error:
            log.warning("the index is behind what was written: %s", error)
