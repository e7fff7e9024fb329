"""Keeping the writer of a store busy, or its disk, while a test looks at what others do."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.store.sqlite.store import SqliteStore
from tests.store.conftest import KEY
from tests.store.faulty_vfs import DISK, VFS


@asynccontextmanager
async def held(store: SqliteStore) -> AsyncIterator[None]:
    """Keep the writer busy, so that all that is submitted meanwhile is one group."""
    busy, free = threading.Event(), threading.Event()

    async def wait() -> None:
        busy.set()
        free.wait()

    holding = asyncio.create_task(store.write(lambda tx: wait()))
    await asyncio.to_thread(busy.wait)
    try:
        yield
        await asyncio.sleep(0)
    finally:
        free.set()
    await holding


class SlowDisk:
    """A log that is on its way to the disk until the test says that it has arrived."""

    def __init__(self) -> None:
        self._syncing, self._on_disk = threading.Event(), threading.Event()

    async def is_reached(self) -> None:
        """Wait until a commit is on its way."""
        await asyncio.to_thread(self._syncing.wait)

    def arrive(self) -> None:
        """Let it arrive, and every later one."""
        self._on_disk.set()

    def behave(self, operation: str, path: Path) -> None:
        if operation == "sync" and path.name.endswith("-wal"):
            self._syncing.set()
            self._on_disk.wait()


@asynccontextmanager
async def on_a_slow_disk(file: Path) -> AsyncIterator[tuple[SqliteStore, SlowDisk]]:
    """Open a store whose next commit takes as long as the test wants."""
    store, disk = SqliteStore(file, KEY, vfs=VFS), SlowDisk()
    try:
        DISK.behave(disk.behave)
        yield store, disk
    finally:
        disk.arrive()
        DISK.behave()
        await store.close()
