"""One disk for all processes of a world, and the store as each of them sees it.

A transaction is the real one: the tables, the statements and SQLite's own rollback. What is
simulated is when it happens, whether it happens, and who learns of it.
"""

import asyncio
import random
import shutil
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import apsw

from holdfast.domain.commits import SessionCommit, VersionConflictError
from holdfast.domain.errors import Code, StorageFull, Unavailable
from holdfast.ports.store import Tx
from holdfast.store.sqlite.connection import connect, drive
from holdfast.store.sqlite.store import Tables

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]

# Of a thousand transactions in a storm.
DIES_BEFORE, DIES_AFTER, FINDS_NO_ROOM, FINDS_NO_STORE = 12, 24, 36, 48


class Mortal(Protocol):
    """A process as its store knows it."""

    async def breathe(self, longest: float) -> None:
        """Let time pass; a process that is stopped does not return before it goes on."""

    def die(self) -> None:
        """Be gone at once: nothing after this happens."""


class Disk:
    """The file that every process of a world has open."""

    def __init__(self, folder: Path, template: Path, luck: random.Random) -> None:
        self.home = folder
        folder.mkdir(parents=True)
        shutil.copyfile(template, folder / "history.db")
        self.luck = luck
        self.is_stormy = True
        self.commits = 0
        # Told of each commit, whoever made it and whether or not it lives.
        self.committed: Callable[[], None] = lambda: None
        self._connection = connect(folder / "history.db", None)
        # Nobody cuts the power here; what is not in the file was never written.
        self._connection.pragma("synchronous", "OFF")
        self._tables: Tx = Tables(self._connection, {})

    def transact(self, work: Work[T]) -> T:
        """Run work in a transaction, to its commit or to nothing."""
        self._connection.query("BEGIN IMMEDIATE")
        try:
            done = drive(work(self._tables))
        except BaseException:
            self._connection.query("ROLLBACK")
            raise
        self._connection.query("COMMIT")
        self.commits += 1
        self.committed()
        return done

    def look(self, work: Work[T]) -> T:
        """Run work on a snapshot."""
        self._connection.query("BEGIN")
        try:
            return drive(work(self._tables))
        finally:
            self._connection.query("ROLLBACK")

    def asked(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a question of the test's own."""
        return self._connection.query(sql, parameters)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


class SimulatedStore:
    """Implements the `Store` port for one process."""

    is_scrubbed = True

    def __init__(self, disk: Disk, process: Mortal) -> None:
        self._disk = disk
        self._process = process
        self._waiting: deque[_Job] = deque()
        self._group: list[_Job] = []
        self._task: asyncio.Task[None] | None = None
        # How many of the disk's commits were this process's own.
        self._commits = 0

    def version_now(self) -> tuple[int, int]:
        """Return a value that changes with every commit of another process."""
        return 0, self._disk.commits - self._commits

    async def read(self, work: Work[T]) -> T:
        """Look at the disk as it is when the wait is over."""
        await self._process.breathe(0.001)
        return self._disk.look(work)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Write behind everything that this process has queued."""
        return cast("T", await self._queue(_Job(work, is_urgent=urgent)))

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit."""
        return self._queue(_Job(lambda tx: tx.append(commit), is_commit=True))

    def _queue(self, job: "_Job") -> asyncio.Future[Any]:
        self._waiting.append(job)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())
            self._task.add_done_callback(self._end)
        return job.done

    def _end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            return
        # The process is gone; whatever unwinds in it waits for nothing.
        self._task = None
        for job in (*self._group, *self._waiting):
            job.done.cancel()
        self._group = []
        self._waiting.clear()

    async def _serve(self) -> None:
        """Write what waits, in order and some of it at once, for as long as something waits."""
        while self._waiting:
            await self._process.breathe(0.01)
            count = self._disk.luck.randint(1, len(self._waiting))
            group = [self._waiting.popleft() for _ in range(count)]
            # Work is not begun for a caller that has left; a commit is never left out.
            self._group = [job for job in group if job.is_commit or not job.done.cancelled()]
            await self._write(self._group)
        self._task = None

    async def _write(self, group: list["_Job"]) -> None:
        """Write a group, unless this is the moment at which something goes wrong."""
        fate = self._disk.luck.randrange(1_000) if self._disk.is_stormy else 1_000
        if fate < DIES_BEFORE:
            self._process.die()
            raise asyncio.CancelledError
        if FINDS_NO_ROOM <= fate < FINDS_NO_STORE:
            busy = Unavailable(Code.STORE_BUSY, "The store is busy; try again.")
            answers = [(job, None, busy) for job in group]
        else:
            is_full = DIES_AFTER <= fate < FINDS_NO_ROOM
            answers = [(job, *self._run(job, is_full=is_full)) for job in group]
            if fate < DIES_AFTER:
                self._process.die()
                raise asyncio.CancelledError
            await self._process.breathe(0.002)
        for job, result, error in answers:
            if job.done.done():
                continue
            if error is None:
                job.done.set_result(result)
            else:
                job.done.set_exception(error)

    def _run(self, job: "_Job", *, is_full: bool) -> tuple[Any, BaseException | None]:
        if is_full and not job.is_urgent:
            return None, StorageFull(Code.STORAGE_FULL, "The disk is full; nothing was changed.")
        try:
            result = self._disk.transact(job.work)
            self._commits += 1
            return result, None
        except apsw.ConstraintError as error:
            return None, VersionConflictError() if job.is_commit else error
        except Exception as error:  # noqa: BLE001 — raised again in the caller
            return None, error


class _Job:
    """A transaction or a commit of one process, and its caller's future."""

    def __init__(
        self, work: Work[Any], *, is_urgent: bool = False, is_commit: bool = False
    ) -> None:
        self.work = work
        self.is_urgent = is_urgent
        self.is_commit = is_commit
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
