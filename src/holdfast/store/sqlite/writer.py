"""The single writer of a process: group commit, with fsync in a thread."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.domain.errors import Code, HoldfastError, Internal, Unavailable
from holdfast.store.sqlite.connection import Connection, translate_error
from holdfast.store.sqlite.disk_reserve import DiskReserve, disk_full_error
from holdfast.store.sqlite.jobs import (
    BREATH,
    PATIENCE,
    Job,
    Kind,
    Work,
    drive,
    tell_everywhere,
    unheard,
)

log = logging.getLogger(__name__)


class _SpoiledError(Exception):
    """Work failed after it had changed rows inside a transaction shared with other jobs."""


class Committer:
    """Owns the writer's connection; not thread-safe."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: DiskReserve
    ) -> None:
        self.connection = connection
        self.generation = 0
        self.reserve = reserve
        self._reopen = reopen
        self._poisoned = False

    @property
    def is_well(self) -> bool:
        """Return whether the store is sound, in place, and has disk space."""
        anchor = self.connection.anchor
        is_displaced = anchor is not None and anchor.is_displaced
        return not self._poisoned and not is_displaced and self.reserve.has_room

    def is_played(self, jobs: Sequence[Job]) -> bool:
        """Run jobs without a commit; return `False` if all must run again with lock waits."""
        try:
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            writing = [job for job in jobs if job.kind is not Kind.LOOK]
            if writing:
                with self.connection.at_once():
                    self._begin()
            for job in writing:
                self._play_trusting(job)
        except (apsw.Error, MemoryError, _SpoiledError):
            # `run` repeats the jobs and reports the error, because it may block.
            self._undo()
            for job in jobs:
                job.result = job.error = None
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except apsw.Error as error:
            # Closing may checkpoint the log and fail; acknowledged commits do not depend on it.
            log.warning("the store was not closed cleanly: %s", error)

    def run(self, jobs: Sequence[Job], *, is_played: bool) -> None:
        """Run and commit jobs, and record their results or errors; raises only MemoryError."""
        try:
            writing = [job for job in jobs if job.kind is not Kind.LOOK]
            if is_played:
                self._commit(writing, is_played=True)
                return
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            self._commit(self._admitted(writing))
        except MemoryError:
            self.give_up(jobs)
        except Exception:
            # If the writer thread died, every caller would wait forever.
            self._poisoned = True
            for job in jobs:
                job.error = Internal(Code.INTERNAL, "The store's writer failed; try again.")
            log.exception("the writer was stopped by a fault of ours")

    def give_up(self, jobs: Sequence[Job]) -> None:
        """Fail jobs with an unknown commit status; may raise MemoryError."""
        self._poisoned = True
        told = translate_error(apsw.NoMemError("out of memory"))
        for job in jobs:
            job.error = told

    def _look(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.result = drive(job.work())
            except (apsw.Error, MemoryError) as error:
                job.error = translate_error(error)

    def _admitted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that the disk has room for; the others get an error."""
        if not jobs or self.reserve.has_room or self.reserve.take():
            return jobs
        urgent = [job for job in jobs if job.kind is Kind.URGENT]
        for job in jobs:
            job.error = None if job in urgent else disk_full_error()
        return urgent

    def _commit(self, jobs: Sequence[Job], *, is_played: bool = False) -> None:
        """Run all jobs in one transaction; an error of the transaction fails all of them."""
        if not jobs:
            return
        try:
            if not is_played:
                self._require_sound()
                self._require_in_place()
                self._begin()
                for job in jobs:
                    self._play(job)
            self.connection.commit()
        except apsw.FullError as error:
            self._fail(jobs, error)
            self._commit_from_reserve([job for job in jobs if job.kind is Kind.URGENT])
        except apsw.Error as error:
            self._fail(jobs, error)
        except MemoryError:
            # Raised outside of a job, so it is unknown whether the commit was applied.
            self._fail(jobs, apsw.NoMemError("out of memory"))
        except HoldfastError as error:
            for job in jobs:
                job.error = error

    def _begin(self) -> None:
        # A previous caller may have failed to end its transaction for lack of memory.
        if self.connection.raw.in_transaction:
            self.connection.query("ROLLBACK")
        self.connection.query("BEGIN IMMEDIATE")

    def _commit_from_reserve(self, jobs: Sequence[Job]) -> None:
        if not self.reserve.is_held:
            return
        self.reserve.give_up()
        for job in jobs:
            job.error = None
        self._commit(jobs)

    def _play(self, job: Job) -> None:
        """Run one job in a savepoint, so that a failed job does not affect the others."""
        # This may be a retry: clear the error of the first run.
        job.error = None
        query = self.connection.query
        query("SAVEPOINT job")
        try:
            job.result = drive(job.work())
        except apsw.ConstraintError as error:
            job.error = translate_error(error)
            log.exception("a statement broke a constraint")
        except apsw.Error:
            raise
        except MemoryError as error:
            job.error = translate_error(error)
        except BaseException as error:  # noqa: BLE001 — raised again in the caller
            job.error = error
        else:
            query("RELEASE job")
            return
        query("ROLLBACK TO job")
        query("RELEASE job")

    def _play_trusting(self, job: Job) -> None:
        """Run one job without a savepoint, because most failing jobs have changed nothing."""
        before = self.connection.raw.total_changes()
        try:
            job.result = drive(job.work())
        except (apsw.Error, MemoryError):
            raise
        except BaseException as error:
            if self.connection.raw.total_changes() != before:
                raise _SpoiledError from error
            job.error = error

    def _fail(self, jobs: Sequence[Job], error: apsw.Error) -> None:
        told = translate_error(error)
        log.error("a commit failed: %s (%s)", error, told.code)
        for job in jobs:
            job.error = told
        # An error while a poisoned store is verified must not clear the flag.
        self._poisoned = self._poisoned or told.code is Code.STORE_POISONED
        self._undo()

    def _undo(self) -> None:
        try:
            if self.connection.raw.in_transaction:
                self.connection.query("ROLLBACK")
        except apsw.Error:
            self._poisoned = True

    def _require_in_place(self) -> None:
        """Raise while the files of the store are missing or replaced."""
        anchor = self.connection.anchor
        if anchor is not None and anchor.is_displaced:
            anchor.require_in_place()

    def _require_sound(self) -> None:
        """Reopen and verify the store after a failure; raises while it cannot be trusted."""
        if not self._poisoned:
            return
        self.connection.close()
        self.connection = self._reopen()
        self.generation += 1
        # After a failed fsync the kernel may mark lost pages as clean, so copy and sync the whole
        # log into the database file before acknowledging anything.
        self.connection.empty_log()
        faults = self.connection.query("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise translate_error(apsw.CorruptError("quick_check"))
        self._poisoned = False
        log.warning("the store was reopened and verified")


# Limit on a group, so that its first job does not wait for a steady stream of later ones.
GROUP_MOST: Final = 256
T = TypeVar("T")


class Following(Enum):
    """Owner of the connection after the current group."""

    NOBODY = auto()
    LOOP = auto()
    THREAD = auto()
    END = auto()


class Stage(Enum):
    """Progress of a group."""

    TAKEN = auto()
    PLAYED = auto()
    COMMITTING = auto()
    ENDED = auto()


class Writer:
    """Runs work on the writer's connection, in order, with group commit."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: DiskReserve
    ) -> None:
        self._committer = Committer(connection, reopen, reserve)
        self._reserve = reserve
        # Guards the queue, the ownership of the connection and the event loop that gets it next.
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_taken = False
        self._host: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whether the invited event loop is using the connection for a read, and the first waiting
        # job of that loop at the thread's last check.
        self._is_in_use = False
        self._noticed: Job | None = None
        # Current group and its progress. Stored only here, so that no job is lost on a MemoryError.
        # The bell is released when the thread must act.
        self._jobs: Sequence[Job] = ()
        self._stage = Stage.TAKEN
        # Only used by the thread: jobs to notify, jobs notified, and the next owner.
        self._untold: Sequence[Job] = ()
        self._told: Sequence[Job] = ()
        self._next: Following | None = None
        self._bell = threading.Lock()
        self._bell.acquire()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        """Return the connection; it is replaced after a failure."""
        return self._committer.connection

    @property
    def generation(self) -> int:
        """Return how often the connection was reopened."""
        return self._committer.generation

    async def submit(self, work: Work, *, urgent: bool = False, is_brief: bool = False) -> Any:
        """Run work in a transaction; return its result after the commit is durable."""
        kind = Kind.URGENT if urgent else Kind.ORDINARY
        return await self._submitted(Job(work, kind, is_brief=is_brief))

    async def look(self, look: Callable[[Connection], T]) -> T:
        """Use the connection between two transactions, without taking the write lock."""

        async def work() -> T:
            return look(self.connection)

        return cast("T", await self._submitted(Job(work, Kind.LOOK, is_brief=True)))

    def lent(self, use: Callable[[Connection | None], T]) -> T:
        """Pass the connection to `use` on this loop, or None if it is busy or unsound."""
        with self._lock:
            # This loop was invited and has not started, so only this loop may use the connection.
            is_host = self._host is not None and self._host is asyncio.get_running_loop()
            is_well = not self._closed and self._committer.is_well
            is_lent = is_well and (is_host or self._take_if_free())
            self._is_in_use |= is_lent and is_host
        try:
            return use(self.connection if is_lent else None)
        finally:
            if is_lent and is_host:
                self._is_in_use = False
            elif is_lent:
                self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            # A job may have been submitted from another loop meanwhile.
            is_wanted = self._is_taken = bool(self._waiting) or self._closed
        if is_wanted:
            self._bell.release()

    async def close(self) -> None:
        """Finish submitted work, stop the thread and close the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            is_mine = self._take_if_free()
        if is_mine:
            self._bell.release()
        try:
            await asyncio.to_thread(self._thread.join)
        except RuntimeError:
            # No thread is available to wait in, so poll.
            while self._thread.is_alive():  # noqa: ASYNC110 — a thread's end sets no event
                await asyncio.sleep(BREATH)

    async def _submitted(self, job: Job) -> Any:
        with self._lock:
            if self._closed:
                raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
            self._waiting.append(job)
            is_mine = self._take_if_free()
            if is_mine and job.is_brief:
                self._host = job.loop
        if is_mine:
            self._start(job)
        return await job.future

    def _take_if_free(self) -> bool:
        """Take the connection if it is free; a closed event loop no longer owns it."""
        is_free = not self._is_taken or (self._host is not None and self._host.is_closed())
        if is_free:
            self._is_taken, self._host = True, None
        return is_free

    def _start(self, job: Job) -> None:
        if job.is_brief:
            try:
                # Deferred, so that other writes that are ready on this loop join the group.
                job.loop.call_soon(self._play_here)
                return
            except MemoryError:
                self._host = None
        self._bell.release()

    def _play_here(self) -> None:
        """Run a group on this loop; the thread commits it, or repeats it after a failure."""
        with self._lock:
            # A repeated or late callback: the connection has another owner.
            if self._host is not asyncio.get_running_loop():
                return
            self._host = None
        try:
            if self._committer.is_well and self._is_brief():
                self._jobs = self._group()
                # Skip an empty group: jobs submitted meanwhile have not been run with it.
                if self._jobs and self._committer.is_played(self._jobs):
                    self._stage = Stage.PLAYED
        finally:
            self._bell.release()

    def _is_brief(self) -> bool:
        with self._lock:
            return all(job.is_brief for job in self._waiting)

    def _group(self) -> list[Job]:
        """Return the next group, without the jobs that were cancelled before they started."""
        with self._lock:
            count = min(len(self._waiting), GROUP_MOST)
            first = islice(self._waiting, count)
            jobs = [job for job in first if not job.future.cancelled()]
            # Removed only after the list exists, so that no job is lost on a MemoryError.
            for _ in range(count):
                self._waiting.popleft()
        return jobs

    def _run(self) -> None:
        is_called = False
        while True:
            try:
                is_called = is_called or self._bell.acquire(timeout=PATIENCE)
                if not is_called:
                    self._remind()
                    is_called = self._is_overdue()
                if is_called and not self._serve():
                    break
                is_called = False
            except MemoryError:
                # Continue from the same state; if the thread died, every caller would wait forever.
                time.sleep(BREATH)
        self._committer.close()

    def _remind(self) -> None:
        """Repeat notifications that an event loop dropped."""
        self._told = unheard(self._told)
        tell_everywhere(self._told)

    def _is_overdue(self) -> bool:
        """Take the connection back from an invited event loop that has not started.

        The loop may be busy, or it may have lost the callback to a MemoryError.
        """
        with self._lock:
            is_awaited = self._host is not None and not self._is_in_use
            first = self._waiting[0] if is_awaited and self._waiting else None
            is_overdue = first is not None and first is self._noticed
            self._noticed = first
            if is_overdue:
                self._host = None
        return is_overdue

    def _serve(self) -> bool:
        """Run groups until the queue is empty or a loop takes over; return `False` to close."""
        while True:
            if self._next is None:
                self._end()
                # Decide before notifying, because a notified caller may submit again at once.
                self._decide()
            tell_everywhere(self._untold)
            self._told = (*unheard(self._told), *self._untold)
            self._untold = ()
            following = self._next
            if following is Following.LOOP and not self._is_invited():
                following = Following.THREAD
            self._next = None
            if following is not Following.THREAD:
                return following is not Following.END

    def _end(self) -> None:
        """Commit the current group or the next one; never runs a group twice."""
        if self._stage is Stage.COMMITTING:
            # A MemoryError interrupted the commit, so its status is unknown.
            self._committer.give_up(self._jobs)
        elif self._stage is not Stage.ENDED:
            self._jobs = self._jobs or self._group()
            is_played = self._stage is Stage.PLAYED
            self._stage = Stage.COMMITTING
            self._committer.run(self._jobs, is_played=is_played)
        self._stage = Stage.ENDED

    def _decide(self) -> None:
        """Choose the owner of the connection after this group."""
        with self._lock:
            is_brief = all(job.is_brief for job in self._waiting)
            # From here on another owner may change the group.
            self._untold, self._jobs, self._stage = self._jobs, (), Stage.TAKEN
            if not self._waiting:
                self._is_taken = self._closed
                self._next = Following.END if self._closed else Following.NOBODY
            elif self._closed or not is_brief:
                self._next = Following.THREAD
            else:
                self._host = self._waiting[0].loop
                self._next = Following.LOOP

    def _is_invited(self) -> bool:
        """Invite the event loop to continue; return `False` if it is closed and the thread must."""
        host = self._host
        while host is not None:
            try:
                host.call_soon_threadsafe(self._play_soon)
                return True
            except MemoryError:
                time.sleep(BREATH)
            except RuntimeError:
                with self._lock:
                    is_mine = self._host is host
                    self._host = None if is_mine else self._host
                return not is_mine
        return True

    def _play_soon(self) -> None:
        """Run after the callers notified just now, so that their next writes join the group."""
        try:
            asyncio.get_running_loop().call_soon(self._play_here)
        except MemoryError:
            self._play_here()
