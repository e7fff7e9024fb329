"""A store of its own for each test."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import a_head, a_session, an_agent
from tests.new_homes import put_store
from tests.postgres import Databases
from tests.stores import VARIABLE

KEY = bytes(range(32))


@pytest.fixture
def file(home: Path) -> Path:
    """Name a store that does not exist yet, in a folder that holds its key."""
    home.mkdir()
    (home / "key").write_text(KEY.hex())
    return home / "history.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """Open an empty store: an encrypted file, or a database where the run says so."""
    url = os.environ.get(VARIABLE)
    if url is None:
        put_store(file, KEY)
    store: Any = SqliteStore(file, KEY) if url is None else await PostgresStore.open(url)
    yield store
    await store.close()


@pytest.fixture
async def head(store: SqliteStore) -> SessionState:
    """Add the agent and the session of the builders, and return where the session stands."""

    async def add(tx: Tx) -> SessionState:
        await tx.agents.add(an_agent())
        return await tx.sessions.add(a_session(), a_head(), b"digest")

    return await store.write(add)


@pytest.fixture
def url(databases: Databases) -> str:
    """Name a database with nothing in it."""
    return databases.empty()


@pytest.fixture
async def stores(url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Open a database twice, as two processes would."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(2):
            store = await PostgresStore.open(url)
            stack.push_async_callback(store.close)
            opened.append(store)
        yield opened[0], opened[1]
