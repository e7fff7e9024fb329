"""The single writer of a process on Postgres: group commit with optimistic drafts.

Jobs that can run on cached rows go into a draft; the next draft runs while the previous one is
being written. The other jobs of a group run in a transaction when no draft is being written.
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

# Limit on a group, so that its first job does not wait for a steady stream of later ones.
GROUP_MOST: Final = 256
# From this size a group is split in two, so that one half runs while the other is written.
WORTH_PARTING: Final = 32
# Seconds that a job waits for a row lock of another process.
LATEST: Final = 30.0


class PostgresWriter:
    """Runs work on the writer's connection, in order, with group commit."""

    def __init__(self, link: Link, word: Callable[[set[int]], tuple[str, str | None]]) -> None:
        """`word` returns the channel and the notification for sessions with new events."""
        self._lane = Lane(link, word)
        self._waiting: deque[Job] = deque()
        # Jobs blocked by another process, with their deadlines.
        self._late: deque[tuple[Job, float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        # The draft being filled, and the one being written.
        self._drafts = deque((Draft(self._lane.known), Draft(self._lane.known)))
        self._flight: asyncio.Task[list[Job]] | None = None
        self._is_drafting = False

    async def submit(self, work: Work) -> Any:
        """Run work in a transaction; return its result after the commit is durable."""
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        job = Job(work, Kind.ORDINARY)
        self._waiting.append(job)
        if self._task is None or self._task.done():
            self._start()
        return await job.future

    async def close(self) -> None:
        """Finish submitted work and close the connection."""
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
            # The loop cancelled all its tasks; jobs submitted since then need a new task.
            try:
                await self._stop()
            finally:
                if self._waiting or self._late:
                    self._start()
            raise

    async def _stop(self) -> None:
        """Cancel the running draft and drop the connection, so that no partial state remains."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.cancel()
            await asyncio.wait((flight,))
        self._lane.drop()

    async def _work(self) -> None:
        while self._waiting or self._late or self._flight is not None:
            # Yield first, so that other writes that are ready on this loop join the group.
            await asyncio.sleep(0)
            left = self._drafted(self._next())
            left = await self._landed() + left
            if self._drafts[0].jobs:
                self._take_off()
            if left or self._late:
                # A transaction needs the connection, so wait for the draft.
                left = await self._landed() + left
                await self._end(left, time.monotonic() + LATEST)
            # One at a time, because each job may be blocked by a different lock.
            if self._late:
                job, deadline = self._late.popleft()
                await self._end([job], deadline)

    def _next(self) -> list[Job]:
        count = min(len(self._waiting), GROUP_MOST)
        if self._is_drafting and self._flight is None and count > WORTH_PARTING:
            count = (count + 1) // 2
        first = [self._waiting.popleft() for _ in range(count)]
        # Skip jobs that were cancelled before they started.
        return [job for job in first if not job.future.cancelled()]

    def _drafted(self, jobs: Sequence[Job]) -> list[Job]:
        """Run jobs on cached rows; return those that cannot."""
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
                # The draft is full: this job and all later ones go into the next.
                self._waiting.extendleft(reversed(jobs[place:]))
                break
            left.append(job)
        return left

    def _take_off(self) -> None:
        draft = self._drafts[0]
        self._drafts.rotate()
        self._flight = asyncio.get_running_loop().create_task(self._flown(draft))

    async def _landed(self) -> list[Job]:
        """Wait for the draft being written; return the jobs that must run again."""
        if self._flight is None:
            return []
        left = await self._flight
        self._flight = None
        return left

    async def _flown(self, draft: Draft) -> list[Job]:
        jobs = draft.jobs
        try:
            is_written = await self._lane.is_written(draft)
        except Exception as error:  # noqa: BLE001 — raised in the callers
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
        """Complete a group and deliver every result, even after an error: callers wait for it."""
        group = Group(jobs)
        try:
            await self._lane.play(group)
        except Exception as error:  # noqa: BLE001 — raised in the callers
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
