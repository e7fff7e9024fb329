"""The single writer of a process: group commit.

Rows of all waiting jobs are written on the event loop, because a thread switch takes longer than
writing them; one COMMIT makes them durable, in a thread unless commits are quick. Work that may
take long, and every group that failed, runs in the thread.
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.domain.commits import SessionCommit, VersionConflictError, join_commits
from holdfast.domain.errors import Code, HoldfastError, Internal, Unavailable
from holdfast.domain.ids import SessionKey
from holdfast.store.sqlite.commit import write_commit, write_commits
from holdfast.store.sqlite.connection import (
    Connection,
    drive,
    translate_error,
)
from holdfast.store.sqlite.disk_reserve import DiskReserve, disk_full_error

log = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]
# Limit on a group, so that its first job does not wait for a steady stream of later ones.
GROUP_MOST: Final = 256
# A few jobs are committed on the event loop while commits take less than this many seconds.
INLINE_COMMIT_SECONDS: Final = 0.001
INLINE_JOBS_MOST: Final = 2
# Weight of the newest commit in the mean duration.
_NEWEST: Final = 0.2
_CLOSE_POLL_SECONDS: Final = 0.002
# How long a callback may be under way before it is sent again: an event loop drops one for which
# it finds no memory, and its caller would wait forever.
RECHECK_SECONDS: Final = 1.0


class _SpoiledError(Exception):
    """Work failed after it had changed rows inside a transaction shared with other jobs."""


class Job:
    """A commit, work in a transaction or a read of the connection; and its caller's future."""

    __slots__ = (
        "commit",
        "error",
        "future",
        "inspect",
        "is_brief",
        "is_urgent",
        "loop",
        "result",
        "work",
    )  # fmt: skip

    def __init__(
        self,
        *,
        commit: SessionCommit | None = None,
        work: Work | None = None,
        inspect: Callable[[Connection], Any] | None = None,
        is_urgent: bool = False,
        is_brief: bool = True,
    ) -> None:
        self.commit = commit
        self.work = work
        self.inspect = inspect
        self.is_urgent = is_urgent
        self.is_brief = is_brief
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None


class Writer:
    """Runs jobs on the writer's connection, in order, with group commit."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: DiskReserve
    ) -> None:
        self.connection = connection
        # How often the connection was reopened after a failure.
        self.generation = 0
        self._reopen = reopen
        self._reserve = reserve
        self._is_poisoned = False
        # Guards the queue and the loop that runs the next group; `None` while none waits.
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_busy = False
        self._host: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        # Held while the connection is in use.
        self._use = threading.Lock()
        self._mean = 2 * INLINE_COMMIT_SECONDS
        # Finished jobs whose callers have not been resumed yet.
        self._finished: dict[asyncio.AbstractEventLoop, deque[Job]] = {}
        self._groups: SimpleQueue[tuple[list[Job], bool] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="holdfast-writer", daemon=True)
        self._thread.start()

    async def run(self, work: Work, *, is_urgent: bool = False, is_brief: bool = False) -> Any:
        """Run work in a transaction; return its result after the commit is durable."""
        return await self.submit(Job(work=work, is_urgent=is_urgent, is_brief=is_brief))

    async def inspect(self, inspect: Callable[[Connection], T]) -> T:
        """Use the connection between two transactions, without taking the write lock."""
        return cast("T", await self.submit(Job(inspect=inspect)))

    def borrow(self) -> Connection | None:
        """Return the connection for use on this thread, or `None` if it is busy or unsound.

        `give_back` ends the use.
        """
        is_free = not self._is_closed and self._is_well() and self._use.acquire(blocking=False)
        return self.connection if is_free else None

    def give_back(self) -> None:
        """End the use of a borrowed connection."""
        self._use.release()

    async def close(self) -> None:
        """Finish submitted work, stop the thread and close the connection."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if not self._is_busy or (self._host is not None and self._host.is_closed()):
                self._groups.put(None)
        # Not `to_thread`: no further thread may be available.
        while self._thread.is_alive():
            await asyncio.sleep(0)
            await asyncio.sleep(_CLOSE_POLL_SECONDS)

    def submit(self, job: Job) -> asyncio.Future[Any]:
        """Queue a job; the future completes when what it writes is on disk."""
        with self._lock:
            if self._is_closed:
                raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
            self._waiting.append(job)
            # A loop that was invited may be blocked or closed; the group is still complete.
            is_first = not self._is_busy or self._host not in {None, job.loop}
            if is_first:
                self._is_busy, self._host = True, job.loop
        if is_first:
            try:
                job.loop.call_soon(self._gather)
            except MemoryError:
                os.abort()
        return job.future

    def _gather(self) -> None:
        """Wait one more round of the loop, so that writes that are ready now join the group."""
        try:
            asyncio.get_running_loop().call_soon(self._run_group)
        except MemoryError:
            os.abort()

    def _run_group(self) -> None:
        """Write the rows of the next group on this loop; the thread does what may block."""
        try:
            here = asyncio.get_running_loop()
            with self._lock:
                # A late callback: another loop took over.
                if self._host is not here:
                    return
                self._host = None
                jobs: list[Job] = []
                is_brief = True
                for _ in range(min(len(self._waiting), GROUP_MOST)):
                    job = self._waiting.popleft()
                    # A commit is never skipped, because later ones may build on it.
                    if job.commit is not None or not job.future.cancelled():
                        jobs.append(job)
                        is_brief = is_brief and job.is_brief
            self._use.acquire()
            is_written = is_inline = False
            try:
                is_written = is_brief and self._is_well() and self._write(jobs)
                is_inline = (
                    is_written
                    and len(jobs) <= INLINE_JOBS_MOST
                    and self._mean < INLINE_COMMIT_SECONDS
                )
            finally:
                # In any case: the callers of a group that is not finished wait forever.
                if not is_inline:
                    self._groups.put((jobs, is_written))
            if is_inline:
                self._finish(jobs, is_written=True, here=here)
        except MemoryError:
            # Callers would wait forever; the next process recovers.
            os.abort()

    def _serve(self) -> None:
        while True:
            try:
                group = self._groups.get(timeout=RECHECK_SECONDS)
            except (Empty, MemoryError):
                self._call_again()
                continue
            if group is None:
                break
            try:
                self._finish(group[0], is_written=group[1])
            except MemoryError:
                # Callers would wait forever; the next process recovers.
                os.abort()
        try:
            self.connection.close()
        except apsw.Error as error:
            # Closing may checkpoint the log and fail; acknowledged commits do not depend on it.
            log.warning("the store was not closed cleanly: %s", error)

    def _finish(
        self, jobs: list[Job], *, is_written: bool, here: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Make a group durable, deliver its results, and invite the next group.

        `here` is the event loop of this thread.
        """
        try:
            if is_written:
                self._commit(jobs)
            else:
                inspect_connection(self.connection, jobs)
                self._run(self._admit(_write_jobs(jobs)))
        except BaseException as error:
            # If this raised, every caller would wait forever.
            self._is_poisoned = True
            failure = (
                translate_error(error)
                if isinstance(error, MemoryError)
                else Internal(Code.INTERNAL, "The store's writer failed; try again.")
            )
            for job in jobs:
                job.error = failure
            log.exception("the writer failed with an internal error")
        finally:
            self._use.release()
        self._deliver(jobs, here)
        with self._lock:
            host = None
            for job in self._waiting:
                if not job.loop.is_closed():
                    host = job.loop
                    break
            self._host, self._is_busy = host, host is not None
            is_over = self._is_closed and host is None
        if is_over:
            self._groups.put(None)
        elif host is not None:
            # After the callers that were just resolved, so that their next writes join the group.
            _call(host, self._gather)

    def _deliver(self, jobs: Sequence[Job], here: asyncio.AbstractEventLoop | None) -> None:
        """Resolve all futures, with one call per event loop; `here` is that of this thread."""
        finished: dict[asyncio.AbstractEventLoop, deque[Job]] = {}
        for job in jobs:
            finished.setdefault(job.loop, deque()).append(job)
        for loop, mine in finished.items():
            if loop is here:
                _resolve(mine)
            else:
                waiting = self._finished.setdefault(loop, deque())
                waiting.extend(mine)
                _call(loop, partial(_resolve, waiting))

    def _call_again(self) -> None:
        """Repeat the calls that event loops have not made yet; a call too many does nothing."""
        with suppress(MemoryError):
            for loop, waiting in list(self._finished.items()):
                if loop.is_closed():
                    del self._finished[loop]
                elif waiting:
                    _call(loop, partial(_resolve, waiting))
            host = self._host
            if host is not None:
                _call(host, self._gather)

    def _run(self, jobs: Sequence[Job]) -> None:
        """Run jobs in one transaction, or one by one if one of them fails."""
        if not jobs:
            return
        is_shared = len(jobs) > 1
        try:
            self._require_sound()
            if is_shared:
                self.connection.begin()
        except (HoldfastError, apsw.Error) as error:
            self._fail(jobs, error)
            return
        if is_shared and self._apply_all(jobs):
            self._commit(jobs)
            return
        while jobs:
            job, *jobs = jobs
            failure = self._run_alone(job)
            if failure is not None:
                self._fail([job, *jobs], failure)
                return
            if not self._is_sound():
                # After a failed commit, nothing is acknowledged before the store was verified.
                for later in jobs:
                    later.error = job.error
                return
            # The reserve may have been released for urgent jobs only.
            jobs = self._admit(jobs)

    def _write(self, jobs: Sequence[Job]) -> bool:
        """Write the rows of jobs without a commit or a wait; `False` if the thread must do it."""
        writing = jobs
        for job in jobs:
            if job.inspect is not None:
                inspect_connection(self.connection, jobs)
                writing = _write_jobs(jobs)
                break
        if not writing:
            return True
        try:
            # Without waiting for locks, because this may run on the event loop.
            self.connection.patience.is_off = True
            self.connection.begin()
        except apsw.Error:
            self._undo()
            return False
        finally:
            self.connection.patience.is_off = False
        return self._apply_all(writing)

    def _apply_all(self, jobs: Sequence[Job]) -> bool:
        """Write the rows of all jobs, or of none."""
        try:
            commits: list[Job] = []
            for job in jobs:
                if job.commit is not None and len(jobs) > 1:
                    commits.append(job)
                    continue
                if commits:
                    self._apply_commits(commits)
                    commits = []
                self._apply(job)
            if commits:
                self._apply_commits(commits)
        except (apsw.Error, MemoryError, _SpoiledError):
            self._undo()
            for job in jobs:
                job.result = job.error = None
            return False
        return True

    def _apply_commits(self, jobs: Sequence[Job]) -> None:
        """Write the rows of commits together; those that are outdated change none."""
        connection, parts = self.connection, _parts(jobs)
        commits = [join_commits(part) for part, _ in parts]
        try:
            outdated = write_commits(connection.cursor, commits, checks=connection.checks_rows)
        except (apsw.Error, MemoryError):
            raise
        except BaseException as error:
            raise _SpoiledError from error
        for place in outdated:
            for job in parts[place][1]:
                job.error = VersionConflictError()

    def _apply(self, job: Job) -> None:
        """Write the rows of one job; an error without changed rows is the job's own."""
        connection = self.connection
        before = connection.raw.total_changes()
        try:
            if job.commit is not None:
                write_commit(connection.cursor, job.commit, checks=connection.checks_rows)
            else:
                job.result = drive(job.work())  # type: ignore[misc]
        except (apsw.Error, MemoryError):
            raise
        except BaseException as error:
            if connection.raw.total_changes() != before:
                raise _SpoiledError from error
            job.error = error

    def _run_alone(self, job: Job) -> apsw.Error | None:
        """Run one job in a transaction of its own; return an error of the store itself."""
        job.result = job.error = None
        try:
            self.connection.begin()
            self._apply(job)
        except apsw.ConstraintError as error:
            self._undo()
            log.exception("a statement violated a constraint")
            job.error = translate_error(error)
        except _SpoiledError as error:
            self._undo()
            job.error = error.__cause__
        except MemoryError as error:
            self._undo()
            job.error = translate_error(error)
        except apsw.Error as error:
            return error
        else:
            self._commit([job])
        return None

    def _commit(self, jobs: Sequence[Job]) -> None:
        """Commit the open transaction; an error of the commit fails all its jobs."""
        for job in jobs:
            if job.inspect is None:
                break
        else:
            return
        start = time.perf_counter()
        try:
            self.connection.commit()
        except apsw.Error as error:
            self._fail(_write_jobs(jobs), error)
        except HoldfastError as error:
            # The commit is durable only if the files of the store are still in place.
            for job in _write_jobs(jobs):
                job.error = error
        self._mean += _NEWEST * (time.perf_counter() - start - self._mean)

    def _run_from_reserve(self, jobs: Sequence[Job]) -> None:
        if not self._reserve.is_held:
            return
        self._reserve.give_up()
        for job in jobs:
            job.error = None
        self._run(jobs)

    def _admit(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that the disk has room for; the others get an error."""
        if not jobs or self._reserve.has_room or self._reserve.take():
            return jobs
        for job in jobs:
            job.error = None if job.is_urgent else disk_full_error()
        return [job for job in jobs if job.is_urgent]

    def _fail(self, jobs: Sequence[Job], error: HoldfastError | apsw.Error) -> None:
        shown = error if isinstance(error, HoldfastError) else translate_error(error)
        log.error("a commit failed: %s (%s)", error, shown.code)
        for job in jobs:
            job.error = shown
        # Not for removed files: reopening would close the log, which is to be copied back.
        if isinstance(error, apsw.Error) and shown.code is Code.STORE_POISONED:
            self._is_poisoned = True
        self._undo()
        if isinstance(error, apsw.FullError):
            self._run_from_reserve([job for job in jobs if job.is_urgent])

    def _undo(self) -> None:
        try:
            if self.connection.raw.in_transaction:
                self.connection.query("ROLLBACK")
        except apsw.Error:
            self._is_poisoned = True

    def _is_well(self) -> bool:
        """Return whether the store is sound and has disk space."""
        return self._is_sound() and self._reserve.has_room

    def _is_sound(self) -> bool:
        """Return whether no commit failed since the store was verified, and its files are there."""
        anchor = self.connection.anchor
        return not self._is_poisoned and not (anchor is not None and anchor.is_displaced)

    def _require_sound(self) -> None:
        """Raise while the store cannot be trusted; reopen and verify it after a failure."""
        anchor = self.connection.anchor
        if self._is_poisoned:
            self.connection.close()
            self.connection = self._reopen()
            self.generation += 1
            # After a failed fsync the kernel may mark lost pages as clean, so copy and sync the
            # whole log into the database file before acknowledging anything.
            self.connection.empty_log()
            faults = self.connection.query("PRAGMA quick_check(1)")
            if faults != [("ok",)]:
                raise translate_error(apsw.CorruptError("quick_check"))
            self._is_poisoned = False
            log.warning("the store was reopened and verified")
        elif anchor is not None and anchor.is_displaced:
            anchor.require_in_place()


def _parts(jobs: Sequence[Job]) -> list[tuple[list[SessionCommit], list[Job]]]:
    """Return the commits of jobs with these, those together that build on each other."""
    parts: list[tuple[list[SessionCommit], list[Job]]] = []
    last: dict[SessionKey, tuple[list[SessionCommit], list[Job]]] = {}
    for job in jobs:
        if (commit := job.commit) is None:
            continue
        part = last.get(commit.before.key)
        if part is None or part[0][-1].state is not commit.before:
            part = last[commit.before.key] = [], []
            parts.append(part)
        part[0].append(commit)
        part[1].append(job)
    return parts


def _write_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that do more than read the connection."""
    return [job for job in jobs if job.inspect is None]


def inspect_connection(connection: Connection, jobs: Sequence[Job]) -> None:
    """Run the jobs that only read the connection."""
    for job in jobs:
        if job.inspect is not None:
            try:
                job.result = job.inspect(connection)
            except (apsw.Error, MemoryError) as error:
                job.error = translate_error(error)


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        log.debug("an event loop was closed; it has no waiting callers")


def _resolve(jobs: deque[Job]) -> None:
    """Deliver the results to the callers; runs on their event loop."""
    try:
        while jobs:
            # Removed afterwards: a job that is not resolved is tried again.
            job = jobs[0]
            if not job.future.done():
                if job.error is not None:
                    job.future.set_exception(job.error)
                else:
                    job.future.set_result(job.result)
            jobs.popleft()
    except MemoryError:
        os.abort()
