"""The one writer of a process: it commits in groups, and the disk is waited for in a thread."""

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
    """Work was refused in its middle, and what it had changed is among the work of others."""


class Committer:
    """Has the writer's connection; whoever calls it must be alone with it."""

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
        """Tell whether nothing has to be mended or made room for."""
        anchor = self.connection.anchor
        is_displaced = anchor is not None and anchor.is_displaced
        return not self._poisoned and not is_displaced and self.reserve.has_room

    def is_played(self, jobs: Sequence[Job]) -> bool:
        """Play jobs without a commit; `False` where all has to be done anew, with patience."""
        try:
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            writing = [job for job in jobs if job.kind is not Kind.LOOK]
            if writing:
                with self.connection.at_once():
                    self._begin()
            for job in writing:
                self._play_trusting(job)
        except (apsw.Error, MemoryError, _SpoiledError):
            # Met again, judged and told by `run`, which has the time for it.
            self._undo()
            for job in jobs:
                job.result = job.error = None
            return False
        return True

    def close(self) -> None:
        """Let go of the connection."""
        try:
            self.connection.close()
        except apsw.Error as error:
            # The last one out moves the log; nothing that was acknowledged depends on it.
            log.warning("the store was not closed cleanly: %s", error)

    def run(self, jobs: Sequence[Job], *, is_played: bool) -> None:
        """Bring jobs to their end, on disk or not; nothing but a lack of memory is raised."""
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
            # A writer that dies would leave every caller waiting for ever.
            self._poisoned = True
            for job in jobs:
                job.error = Internal(Code.INTERNAL, "The store's writer failed; try again.")
            log.exception("the writer was stopped by a fault of ours")

    def give_up(self, jobs: Sequence[Job]) -> None:
        """End jobs of which nobody knows how far they came; where memory is short it is raised."""
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
        """Return the jobs that the disk has room for; the others are told so."""
        if not jobs or self.reserve.has_room or self.reserve.take():
            return jobs
        urgent = [job for job in jobs if job.kind is Kind.URGENT]
        for job in jobs:
            job.error = None if job in urgent else disk_full_error()
        return urgent

    def _commit(self, jobs: Sequence[Job], *, is_played: bool = False) -> None:
        """Play all jobs in one transaction; whatever goes wrong with it goes wrong for all."""
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
            # Outside of anybody's work, so nobody can tell whether the commit was made.
            self._fail(jobs, apsw.NoMemError("out of memory"))
        except HoldfastError as error:
            for job in jobs:
                job.error = error

    def _begin(self) -> None:
        # Left open by somebody who had no memory even for its end.
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
        """Run one job in a savepoint: a refused one takes nothing else with it."""
        # Once more, perhaps: what was said of the first time counts no longer.
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
        except BaseException as error:  # noqa: BLE001 — the caller's own, told to the caller
            job.error = error
        else:
            query("RELEASE job")
            return
        query("ROLLBACK TO job")
        query("RELEASE job")

    def _play_trusting(self, job: Job) -> None:
        """Run one job without a savepoint: mostly a refused one has changed nothing yet."""
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
        # Whatever goes wrong while a poisoned store is verified does not make it sound.
        self._poisoned = self._poisoned or told.code is Code.STORE_POISONED
        self._undo()

    def _undo(self) -> None:
        try:
            if self.connection.raw.in_transaction:
                self.connection.query("ROLLBACK")
        except apsw.Error:
            self._poisoned = True

    def _require_in_place(self) -> None:
        """Refuse to write into files that were seen to be gone, until they are back."""
        anchor = self.connection.anchor
        if anchor is not None and anchor.is_displaced:
            anchor.require_in_place()

    def _require_sound(self) -> None:
        """Reopen and verify after a failure; raises while the store cannot be trusted."""
        if not self._poisoned:
            return
        self.connection.close()
        self.connection = self._reopen()
        self.generation += 1
        # After a failed sync the system may call lost pages clean: all that is readable is written
        # and synced once more, into the database file itself, before anything is acknowledged.
        self.connection.empty_log()
        faults = self.connection.query("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise translate_error(apsw.CorruptError("quick_check"))
        self._poisoned = False
        log.warning("the store was reopened and verified")


# A group is bounded, so that the first of it does not wait for an endless stream of others.
GROUP_MOST: Final = 256
T = TypeVar("T")


class Following(Enum):
    """Who has the connection next."""

    NOBODY = auto()
    LOOP = auto()
    THREAD = auto()
    END = auto()


class Stage(Enum):
    """How far a group has come."""

    TAKEN = auto()
    PLAYED = auto()
    COMMITTING = auto()
    ENDED = auto()


class Writer:
    """Runs work on the writer's connection, in order, in groups."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: DiskReserve
    ) -> None:
        self._committer = Committer(connection, reopen, reserve)
        self._reserve = reserve
        # Guards who waits, whether somebody has the connection, and which loop is to have it next.
        self._lock = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._is_taken = False
        self._host: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Whether the loop that is to have the connection looks at something with it, and who was
        # the first to wait for that loop when the thread last looked.
        self._is_in_use = False
        self._noticed: Job | None = None
        # The group in hand, and how far it has come: noted here and nowhere else, so that nobody
        # is forgotten when there is no memory to go on. The bell rings when the thread is to act.
        self._jobs: Sequence[Job] = ()
        self._stage = Stage.TAKEN
        # The thread's own: whom it has to tell, whom it has told, and who it decided is next.
        self._untold: Sequence[Job] = ()
        self._told: Sequence[Job] = ()
        self._next: Following | None = None
        self._bell = threading.Lock()
        self._bell.acquire()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> Connection:
        """Return the connection; after a failure it is another one."""
        return self._committer.connection

    @property
    def generation(self) -> int:
        """Return how often the connection was opened anew."""
        return self._committer.generation

    async def submit(self, work: Work, *, urgent: bool = False, is_brief: bool = False) -> Any:
        """Run work in a transaction and return its result once it is on disk."""
        kind = Kind.URGENT if urgent else Kind.ORDINARY
        return await self._submitted(Job(work, kind, is_brief=is_brief))

    async def look(self, look: Callable[[Connection], T]) -> T:
        """Look at the connection between two transactions, without taking the write lock."""

        async def work() -> T:
            return look(self.connection)

        return cast(T, await self._submitted(Job(work, Kind.LOOK, is_brief=True)))

    def lent(self, use: Callable[[Connection | None], T]) -> T:
        """Lend the connection to this loop for one use, if it is well and nobody else uses it."""
        with self._lock:
            # Invited and not begun: until it begins, nobody but this loop can.
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
            # On another loop somebody may have come meanwhile.
            is_wanted = self._is_taken = bool(self._waiting) or self._closed
        if is_wanted:
            self._bell.release()

    async def close(self) -> None:
        """Finish what was submitted and let go of the connection."""
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
            # No thread can be had to wait in.
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
        """Take the connection, if nobody has it; a loop that is gone has nothing any more."""
        is_free = not self._is_taken or (self._host is not None and self._host.is_closed())
        if is_free:
            self._is_taken, self._host = True, None
        return is_free

    def _start(self, job: Job) -> None:
        if job.is_brief:
            try:
                # Not at once: whatever else is ready on this loop to be written comes along.
                job.loop.call_soon(self._play_here)
                return
            except MemoryError:
                self._host = None
        self._bell.release()

    def _play_here(self) -> None:
        """Play a group on this loop and leave its commit to the thread, or else all of it."""
        with self._lock:
            # Asked twice, or too late: somebody else has the connection.
            if self._host is not asyncio.get_running_loop():
                return
            self._host = None
        try:
            if self._committer.is_well and self._is_brief():
                self._jobs = self._group()
                # An empty group is none: who comes meanwhile has not been played with it.
                if self._jobs and self._committer.is_played(self._jobs):
                    self._stage = Stage.PLAYED
        finally:
            self._bell.release()

    def _is_brief(self) -> bool:
        with self._lock:
            return all(job.is_brief for job in self._waiting)

    def _group(self) -> list[Job]:
        """Return who is next; who has stopped waiting before the work began is spared it."""
        with self._lock:
            count = min(len(self._waiting), GROUP_MOST)
            first = islice(self._waiting, count)
            jobs = [job for job in first if not job.future.cancelled()]
            # Only now: without the memory for a list nobody is lost.
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
                # Where it was it goes on: a writer that dies leaves every caller waiting for ever.
                time.sleep(BREATH)
        self._committer.close()

    def _remind(self) -> None:
        """Tell again whose loop has lost the word."""
        self._told = unheard(self._told)
        tell_everywhere(self._told)

    def _is_overdue(self) -> bool:
        """Take the connection from a loop that was invited and has not come.

        It may be busy, or have had no memory to remember that it was asked.
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
        """Serve until nobody waits or a loop goes on; `False` when the connection can be closed."""
        while True:
            if self._next is None:
                self._end()
                # Decided before anybody is told: whoever is told may come back at once.
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
        """Bring a group to its end, the one in hand or the next; never anything twice."""
        if self._stage is Stage.COMMITTING:
            # There was no memory to find out what became of it.
            self._committer.give_up(self._jobs)
        elif self._stage is not Stage.ENDED:
            self._jobs = self._jobs or self._group()
            is_played = self._stage is Stage.PLAYED
            self._stage = Stage.COMMITTING
            self._committer.run(self._jobs, is_played=is_played)
        self._stage = Stage.ENDED

    def _decide(self) -> None:
        """Decide who has the connection after this group."""
        with self._lock:
            is_brief = all(job.is_brief for job in self._waiting)
            # From here on it may be somebody else's, and so may the group in hand.
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
        """Let a loop go on; `False` when it is gone and the thread has to."""
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
        """Play behind those who were told just now: what they write next comes along."""
        try:
            asyncio.get_running_loop().call_soon(self._play_here)
        except MemoryError:
            self._play_here()
