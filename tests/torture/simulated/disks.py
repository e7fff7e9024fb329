"""One disk for all processes of a world, and the store as each of them sees it.

A transaction is the real one: the tables, the statements and SQLite's own rollback. What is
simulated is when it happens, whether it happens, and who learns of it.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast.domain.errors import Code, StorageFull, Unavailable
from holdfast.ports.store import Tx
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.jobs import drive
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

    async def read(self, work: Work[T]) -> T:
        """Look at the disk as it is when the wait is over."""
        await self._process.breathe(0.001)
        return self._disk.look(work)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Write, unless this is the moment at which something goes wrong."""
        await self._process.breathe(0.01)
        fate = self._disk.luck.randrange(1_000) if self._disk.is_stormy else 1_000
        if fate < DIES_BEFORE:
            self._process.die()
        elif DIES_AFTER <= fate < FINDS_NO_ROOM and not urgent:
            raise StorageFull(Code.STORAGE_FULL, "The disk is full; nothing was changed.")
        elif FINDS_NO_ROOM <= fate < FINDS_NO_STORE:
            raise Unavailable(Code.STORE_BUSY, "The store is busy; try again.")
        else:
            done = self._disk.transact(work)
            if fate < DIES_AFTER:
                self._process.die()
            await self._process.breathe(0.002)
            return done
        raise asyncio.CancelledError
