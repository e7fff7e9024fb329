"""The one writer of a process on Postgres: it commits in groups, and knows what became of them.

What arrives while a commit is on its way goes into the next one, and every caller is told its own
fate after the commit that holds its work.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.storage.jobs import Job, Kind, Work
from holdfast.storage.postgres_connection import PostgresConnection
from holdfast.storage.postgres_errors import LostError, busy, meaning, unknown, unreachable
from holdfast.storage.postgres_fates import Fate
from holdfast.storage.postgres_groups import Group
from holdfast.storage.postgres_link import PATIENCE, Link

log = logging.getLogger(__name__)

# A group is bounded, so that the first of it does not wait for an endless stream of others.
GROUP_MOST: Final = 256
# Seconds that a job waits for a row that another process holds.
LATEST: Final = 30.0
_BREATH: Final = 0.05


class PostgresWriter:
    """Runs work on the writer's connection, in order, in groups."""

    def __init__(self, link: Link, word: Callable[[set[int]], tuple[str, str]]) -> None:
        """`word` returns the channel and what is said there of sessions that have news."""
        self._link = link
        self._word = word
        self._waiting: deque[Job] = deque()
        # Jobs that another process is in the way of, and until when they are tried.
        self._late: deque[tuple[Job, float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._fate = Fate()
        self.connection: PostgresConnection | None = None

    async def submit(self, work: Work) -> Any:
        """Run work in a transaction and return its result once it is on disk."""
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        job = Job(work, Kind.ORDINARY)
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return await job.future

    async def close(self) -> None:
        """Finish what was asked for, and let go of the connection."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait((self._task,))
        if self.connection is not None:
            await self.connection.close()

    async def _run(self) -> None:
        while self._waiting or self._late:
            # Not at once: whatever else is ready on this loop to be written comes along.
            await asyncio.sleep(0)
            await self._end(self._next(), time.monotonic() + LATEST)
            # One at a time: whoever is in the way of it is in nobody else's.
            if self._late:
                job, deadline = self._late.popleft()
                await self._end([job], deadline)

    def _next(self) -> list[Job]:
        count = min(len(self._waiting), GROUP_MOST)
        first = [self._waiting.popleft() for _ in range(count)]
        # Who has stopped waiting before the work began is spared it.
        return [job for job in first if not job.future.cancelled()]

    async def _end(self, jobs: list[Job], deadline: float) -> None:
        """Bring a group to its end, whatever comes: callers that are not told wait for ever."""
        group = Group(jobs, self._commit)
        try:
            await self._play(group)
        except HoldfastError as error:
            _fail(group.left, error)
        except Exception as error:
            log.exception("the writer was stopped by a fault of ours")
            _fail(group.left, meaning(error))
            # Nobody knows what it is in the middle of.
            if self.connection is not None:
                self.connection.raw.terminate()
                self.connection = None
        if time.monotonic() > deadline:
            _fail(group.late, busy())
        else:
            self._late.extend((job, deadline) for job in group.late)

    async def _play(self, group: Group) -> None:
        """Play a group; after a lost connection over another one."""
        deadline = time.monotonic() + PATIENCE
        while group.left:
            self._fate.settle()
            try:
                await group.play(await self._connected())
            except LostError as error:
                log.warning("the connection to Postgres was lost: %r", error.__cause__)
                self.connection = None
                if await self._was_committed():
                    group.committed()
                elif time.monotonic() > deadline:
                    raise unreachable() from error

    async def _connected(self) -> PostgresConnection:
        if self.connection is None:
            self.connection = await self._link.patient(may_write=True)
        return self.connection

    async def _commit(self, connection: PostgresConnection) -> None:
        await connection.flush()
        if connection.touched:
            await self._fate.note(connection, *self._word(connection.touched))
        elif connection.has_written:
            await self._fate.note(connection)
        await connection.command("COMMIT")
        self._fate.settle()

    async def _was_committed(self) -> bool:
        """Find out what became of a commit whose answer was lost, if one was on its way."""
        if not self._fate.is_open:
            return False
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                made = await self._fate.is_made(await self._connected())
            except LostError:
                self.connection = None
                continue
            except Unavailable:
                break
            if made is not None:
                return made
            await asyncio.sleep(_BREATH)
        raise unknown()


def _fail(jobs: list[Job], error: HoldfastError) -> None:
    for job in jobs:
        job.error = error
        job.tell()
