"""A store of its own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.domain.sessions import Head
from holdfast.ports import Tx
from holdfast.storage.store import SqliteStore
from tests.builders import a_head, a_session, an_agent

KEY = bytes(range(32))


@pytest.fixture
def file(home: Path) -> Path:
    """Name a store that does not exist yet, in a folder that holds its key."""
    home.mkdir()
    (home / "key").write_text(KEY.hex())
    return home / "history.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """Open an empty encrypted store."""
    store = SqliteStore(file, KEY)
    yield store
    await store.close()


@pytest.fixture
async def head(store: SqliteStore) -> Head:
    """Add the agent and the session of the builders, and return where the session stands."""

    async def add(tx: Tx) -> Head:
        await tx.agents.add(an_agent())
        return await tx.sessions.add(a_session(), a_head(), b"digest")

    return await store.write(add)
