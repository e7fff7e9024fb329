"""The one writer of a process on Postgres: it commits in groups, and tells every caller its fate.

What can be played on what is remembered is drafted, and while one draft is on its way the next is
played. The rest of a group is played in a transaction, when no draft is on its way.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.drafts import Draft
from holdfast.store.postgres.errors import busy, meaning
from holdfast.store.postgres.groups import Group
from holdfast.store.postgres.lane import Lane
from holdfast.store.sqlite.jobs import Job, Kind, Work

log = logging.getLogger(__name__)

# A group is bounded, so that the first of it does not wait for an endless stream of others.
GROUP_MOST: Final = 256
# So many are worth being written in two parts, of which one is played while the other is written.
WORTH_PARTING: Final = 32
# Seconds that a job waits for a row that another process holds.
LATEST: Final = 30.0


class PostgresWriter:
    """Runs work on the writer's connection, in order, in groups."""

    def __init__(self, link: Link, word: Callable[[set[int]], tuple[str, str | None]]) -> None:
        """`word` returns the channel and what is said there of sessions that have news."""
        self._lane = Lane(link, word)
        self._waiting: deque[Job] = deque()
        # Jobs that another process is in the way of, and until when they are tried.
        self._late: deque[tuple[Job, float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        # The draft that is being played, and the one that is on its way.
        self._drafts = deque((Draft(self._lane.known), Draft(self._lane.known)))
        self._flight: asyncio.Task[list[Job]] | None = None
        self._is_drafting = False

    async def submit(self, work: Work) -> Any:
        """Run work in a transaction and return its result once it is on disk."""
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        job = Job(work, Kind.ORDINARY)
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._start()
        return await job.future

    async def close(self) -> None:
        """Finish what was asked for, and let go of the connection."""
        self._closed = True
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))
        await self._lane.close()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._work()
        except BaseException:
            # All tasks of the loop were cancelled, and with them whoever waited until then.
            try:
                await self._stop()
            finally:
                if self._waiting or self._late:
                    self._start()
            raise

    async def _stop(self) -> None:
        """Leave nothing behind that others could find in its middle."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.cancel()
            await asyncio.wait((flight,))
        self._lane.drop()

    async def _work(self) -> None:
        while self._waiting or self._late or self._flight is not None:
            # Not at once: whatever else is ready on this loop to be written comes along.
            await asyncio.sleep(0)
            left = self._drafted(self._next())
            left = await self._landed() + left
            if self._drafts[0].jobs:
                self._take_off()
            if left or self._late:
                # In a transaction, which needs the connection.
                left = await self._landed() + left
                await self._end(left, time.monotonic() + LATEST)
            # One at a time: whoever is in the way of it is in nobody else's.
            if self._late:
                job, deadline = self._late.popleft()
                await self._end([job], deadline)

    def _next(self) -> list[Job]:
        count = min(len(self._waiting), GROUP_MOST)
        if self._is_drafting and self._flight is None and count > WORTH_PARTING:
            count = (count + 1) // 2
        first = [self._waiting.popleft() for _ in range(count)]
        # Who has stopped waiting before the work began is spared it.
        return [job for job in first if not job.future.cancelled()]

    def _drafted(self, jobs: Sequence[Job]) -> list[Job]:
        """Play what can be played on what is remembered; return the others."""
        draft, other = self._drafts
        draft.begin(other.keys)
        try:
            left = self._played(draft, jobs)
        except Exception:
            log.exception("a draft was stopped by a fault of ours")
            draft.begin(())
            left = list(jobs)
        self._is_drafting = bool(draft.jobs)
        return left

    def _played(self, draft: Draft, jobs: Sequence[Job]) -> list[Job]:
        left = []
        for place, job in enumerate(jobs):
            if draft.is_played(job):
                continue
            if draft.is_full:
                # This one and all behind it come next.
                self._waiting.extendleft(reversed(jobs[place:]))
                break
            left.append(job)
        return left

    def _take_off(self) -> None:
        draft = self._drafts[0]
        self._drafts.rotate()
        self._flight = asyncio.get_running_loop().create_task(self._flown(draft))

    async def _landed(self) -> list[Job]:
        """Wait for the draft that is on its way; return the jobs that have to be played again."""
        if self._flight is None:
            return []
        left = await self._flight
        self._flight = None
        return left

    async def _flown(self, draft: Draft) -> list[Job]:
        jobs = draft.jobs
        try:
            is_written = await self._lane.is_written(draft)
        except Exception as error:  # noqa: BLE001 — told to those who wait
            self._fail(jobs, error)
            return []
        finally:
            draft.begin(())
        if not is_written:
            return jobs
        for job in jobs:
            job.tell()
        return []

    async def _end(self, jobs: list[Job], deadline: float) -> None:
        """Bring a group to its end, whatever comes: callers that are not told wait for ever."""
        group = Group(jobs)
        try:
            await self._lane.play(group)
        except Exception as error:  # noqa: BLE001 — told to those who wait
            self._fail(group.left, error)
        if time.monotonic() > deadline:
            self._fail(group.late, busy())
        else:
            self._late.extend((job, deadline) for job in group.late)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        if isinstance(error, HoldfastError):
            told = error
        else:
            log.error("the writer was stopped by a fault of ours", exc_info=error)
            told = meaning(error)
            self._lane.drop()
        for job in jobs:
            job.error = told
            job.tell()
