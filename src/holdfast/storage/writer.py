"""The one writer of a process: a thread that commits in groups.

What arrives while a commit is on its way to the disk goes into the next one, and every caller is
told its own fate after the commit that holds its work. The first failed write or sync poisons the
connection: nothing is acknowledged until it was closed, opened anew and verified. On a full disk
only urgent work is taken, out of a reserve, until there is room again.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, auto
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.domain.errors import Code, HoldfastError, Internal, Unavailable
from holdfast.storage.reserve import Reserve, full
from holdfast.storage.sqlite import Connection, meaning

log = logging.getLogger(__name__)

# A group is bounded, so that the first of it does not wait for an endless stream of others.
GROUP_MOST: Final = 256

# Made ahead, because where there is no memory left it could not be made.
_STARVED: Final = meaning(apsw.NoMemError("out of memory"))
_BREATH: Final = 0.01

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]


class Kind(Enum):
    """What a job needs: a transaction, one even on a full disk, or only a look."""

    ORDINARY = auto()
    URGENT = auto()
    LOOK = auto()


class Job:
    """One caller's work and where its fate is told."""

    __slots__ = ("error", "future", "kind", "loop", "result", "work")

    def __init__(self, work: Work, kind: Kind) -> None:
        self.work = work
        self.kind = kind
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def tell(self) -> None:
        """Tell the caller, unless it has stopped waiting."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Runs work on the writer's connection, in order, in groups."""

    def __init__(
        self, connection: Connection, reopen: Callable[[], Connection], reserve: Reserve
    ) -> None:
        self.connection = connection
        self.generation = 0
        self._reopen = reopen
        self._reserve = reserve
        self._poisoned = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._closed = False
        self._thread.start()

    async def submit(self, work: Work, *, urgent: bool = False) -> Any:
        """Run work in a transaction and return its result once it is on disk."""
        return await self._submitted(Job(work, Kind.URGENT if urgent else Kind.ORDINARY))

    async def look(self, look: Callable[[Connection], T]) -> T:
        """Look at the connection between two transactions, without taking the write lock."""

        async def work() -> T:
            return look(self.connection)

        return cast(T, await self._submitted(Job(work, Kind.LOOK)))

    async def close(self) -> None:
        """Finish what was submitted and let go of the connection."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _submitted(self, job: Job) -> Any:
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        self._jobs.put(job)
        return await job.future

    def _run(self) -> None:
        going_on = True
        while going_on:
            group = [self._jobs.get()]
            while len(group) < GROUP_MOST and not self._jobs.empty():
                group.append(self._jobs.get())
            going_on = None not in group
            # Who has stopped waiting before the work began is spared it.
            jobs = [job for job in group if job is not None and not job.future.cancelled()]
            self._run_group(jobs)
            _tell(jobs)
        self._let_go()

    def _let_go(self) -> None:
        try:
            self.connection.close()
        except apsw.Error as error:
            # The last one out moves the log; nothing that was acknowledged depends on it.
            log.warning("the store was not closed cleanly: %s", error)

    def _run_group(self, jobs: Sequence[Job]) -> None:
        try:
            self._look([job for job in jobs if job.kind is Kind.LOOK])
            self._commit(self._admitted([job for job in jobs if job.kind is not Kind.LOOK]))
        except MemoryError:
            self._poisoned = True
            for job in jobs:
                job.error = _STARVED
        except Exception:
            # A writer that dies would leave every caller waiting for ever.
            log.exception("the writer was stopped by a fault of ours")
            self._poisoned = True
            for job in jobs:
                job.error = Internal(Code.INTERNAL, "The store's writer failed; try again.")

    def _look(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.result = drive(job.work())
            except (apsw.Error, MemoryError) as error:
                job.error = meaning(error)

    def _admitted(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that the disk has room for; the others are told so."""
        if not jobs or self._reserve.has_room or self._reserve.take():
            return jobs
        urgent = [job for job in jobs if job.kind is Kind.URGENT]
        for job in jobs:
            job.error = None if job in urgent else full()
        return urgent

    def _commit(self, jobs: Sequence[Job]) -> None:
        """Play all jobs in one transaction; whatever goes wrong with it goes wrong for all."""
        if not jobs:
            return
        try:
            self._require_sound()
            self.connection.query("BEGIN IMMEDIATE")
            for job in jobs:
                self._play(job)
            self.connection.query("COMMIT")
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

    def _commit_from_reserve(self, jobs: Sequence[Job]) -> None:
        if not self._reserve.is_held:
            return
        self._reserve.give_up()
        for job in jobs:
            job.error = None
        self._commit(jobs)

    def _play(self, job: Job) -> None:
        """Run one job in a savepoint: a refused one takes nothing else with it."""
        query = self.connection.query
        query("SAVEPOINT job")
        try:
            job.result = drive(job.work())
        except apsw.ConstraintError as error:
            job.error = meaning(error)
            log.exception("a statement broke a constraint")
        except apsw.Error:
            raise
        except MemoryError as error:
            job.error = meaning(error)
        except BaseException as error:  # noqa: BLE001 — the caller's own, told to the caller
            job.error = error
        else:
            query("RELEASE job")
            return
        query("ROLLBACK TO job")
        query("RELEASE job")

    def _fail(self, jobs: Sequence[Job], error: apsw.Error) -> None:
        told = meaning(error)
        log.error("a commit failed: %s (%s)", error, told.code)
        for job in jobs:
            job.error = told
        # Whatever goes wrong while a poisoned store is verified does not make it sound.
        self._poisoned = self._poisoned or told.code is Code.STORE_POISONED
        try:
            if self.connection.raw.in_transaction:
                self.connection.query("ROLLBACK")
        except apsw.Error:
            self._poisoned = True

    def _require_sound(self) -> None:
        """Reopen and verify after a failure; raises while the store cannot be trusted."""
        if not self._poisoned:
            return
        self.connection.close()
        self.connection = self._reopen()
        self.generation += 1
        # After a failed sync the system may call lost pages clean: all that is readable is written
        # and synced once more, into the database file itself, before anything is acknowledged.
        self.connection.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        faults = self.connection.query("PRAGMA quick_check(1)")
        if faults != [("ok",)]:
            raise meaning(apsw.CorruptError("quick_check"))
        self._poisoned = False
        log.warning("the store was reopened and verified")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but its transaction, which on SQLite never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    work.close()
    raise RuntimeError("work inside a transaction awaited something other than the transaction")


def _tell(jobs: Sequence[Job]) -> None:
    """Tell all callers, however long it takes: whoever is not told waits for ever."""
    while True:
        try:
            _wake(jobs)
        except MemoryError:
            time.sleep(_BREATH)
        else:
            return


def _wake(jobs: Sequence[Job]) -> None:
    """Wake all callers up; once for each loop, however many callers it has."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, waiting in loops.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_tell_here, waiting)


def _tell_here(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.tell()
