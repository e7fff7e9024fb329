"""Keeping the writer of a store busy, so that what a test submits meanwhile becomes one group."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.storage.store import SqliteStore


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
