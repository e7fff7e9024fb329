"""A plain store with inconsistent rows: they are not listed, added to or called missing."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Gap
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.queries import AgentQuery, SessionQuery
from holdfast.domain.sessions import ForkPoint
from holdfast.ports.store import Tx
from holdfast.ports.system import Item, end_of
from holdfast.store.sqlite import integrity
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.integrity import find_faulty_rows
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    SESSION_ID,
    a_call,
    a_head,
    a_message,
    a_model,
    a_session,
    a_transcript,
    an_agent,
    an_id,
)
from tests.commits import append_rows, new_messages
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

OWNER = an_agent().owner
BESIDE, FORK = SessionId(an_id(71)), SessionId(an_id(72))
ROWS = a_transcript(a_message("one"), a_message("two"))

# What is done to the file, and which tables contradict themselves then, for which sessions.
CONTRADICTIONS: dict[str, tuple[str, dict[str, set[int]]]] = {
    "nothing": ("SELECT 1", {}),
    "a fork says it left elsewhere": (
        f"UPDATE sessions SET forked_at = 1 WHERE id = '{FORK}'",
        {"sessions": {3}},
    ),
    "a session was never opened": (
        "DELETE FROM openings WHERE session_key = 2",
        {"sessions": {2}},
    ),
    "a call belongs to nobody": ("UPDATE calls SET session_key = 9", {"calls": set()}),
    "an agent is filed under another status": (
        "UPDATE agents SET status = 'archived'",
        {"agents": set()},
    ),
    "a model is filed under another provider": (
        "UPDATE models SET provider = 'another'",
        {"models": set()},
    ),
    "a damaged agent is refused by itself": ("UPDATE agents SET body = zeroblob(9)", {}),
}


@pytest.fixture
async def plain(file: Path) -> Path:
    """Fill a plain store with two sessions and a fork, and close it."""
    store = SqliteStore(file, None)

    async def work(tx: Tx) -> None:
        await tx.agents.add(an_agent())
        await tx.models.add(a_model())
        head = await tx.sessions.add(a_session(), a_head(messages=2), b"")
        await append_rows(tx, head, messages=new_messages(ROWS), calls=(a_call(),))
        await tx.sessions.add(a_session(id=BESIDE), a_head(session_id=BESIDE), b"")
        left = ForkPoint(session_id=SESSION_ID, sequence=2)
        fork = a_head(session_id=FORK, messages=2, inherited=2)
        await tx.sessions.add(a_session(id=FORK, forked_from=left), fork, b"")

    await store.write(work)
    await store.close()
    return file


@pytest.mark.parametrize("what", CONTRADICTIONS)
async def test_every_contradiction_is_noticed(plain: Path, what: str) -> None:
    sql, expected = CONTRADICTIONS[what]
    changed(plain, sql)

    connection = connect(plain, None)
    try:
        assert find_faulty_rows(connection) == expected
    finally:
        connection.close()


async def test_of_a_table_that_contradicts_itself_only_what_proves_itself_is_shown(
    plain: Path,
) -> None:
    sql = "CREATE INDEX sessions_by_time ON sessions (owner, created_at, id)"
    thinned(plain, "sessions_by_time", sql, "key > 1")
    store = SqliteStore(plain, None)

    beside = await store.read(lambda tx: tx.sessions.state_by_key(SessionKey(2)))
    refusals = [
        await _refusal(store, lambda tx: tx.sessions.page(SessionQuery(owner=OWNER))),
        await _refusal(store, lambda tx: tx.sessions.state(OWNER, SESSION_ID)),
        await _refusal(store, lambda tx: tx.sessions.state(OWNER, SessionId(an_id(99)))),
        # Its parent is the one that is named, and gives it its name.
        await _refusal(store, lambda tx: tx.sessions.get(OWNER, FORK)),
        await _refusal(
            store, lambda tx: tx.sessions.add(a_session(id=an_id(98)), a_head(), b""), write=True
        ),
    ]
    agents = await store.read(lambda tx: tx.agents.page(AgentQuery(owner=OWNER)))
    await store.close()

    assert beside is not None
    assert beside.session_id == BESIDE
    assert refusals == [(Code.CORRUPT_STORE, {"table": "sessions"})] * 5
    assert [agent.id for agent in agents] == [an_agent().id]


async def test_events_that_prove_themselves_are_listed_and_none_is_said_to_be_missing(
    plain: Path,
) -> None:
    sql = "CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key)"
    thinned(plain, "messages_by_id", sql, "sequence > 1")

    async def items(tx: Tx, events: int) -> list[Item]:
        state = await tx.sessions.state_by_key(SessionKey(1))
        assert state is not None
        return await tx.events.items(replace(state, events=events), 0, 10)

    store = SqliteStore(plain, None)
    listed = await store.read(lambda tx: items(tx, 2))
    refusal = await _refusal(store, lambda tx: items(tx, 3))
    await store.close()

    assert [end_of(each) for each in listed] == [1, 2]
    assert not any(isinstance(each, Gap) for each in listed)
    assert refusal == (Code.CORRUPT_STORE, {"table": "events"})


async def test_a_large_store_is_not_looked_at_where_it_grows(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "CREATE UNIQUE INDEX messages_by_id ON messages (id, session_key)"
    thinned(plain, "messages_by_id", sql, "sequence > 1")
    connection = connect(plain, None)
    try:
        small = find_faulty_rows(connection)
        monkeypatch.setattr(integrity, "WHOLE_MOST", 0)
        large = find_faulty_rows(connection)
    finally:
        connection.close()

    # Messages are news, too.
    assert (set(small), large) == ({"messages", "events"}, {})


async def test_an_encrypted_store_proves_itself_page_by_page(store: SqliteStore) -> None:
    assert store.key == KEY
    assert store._faulty == {}


def changed(file: Path, sql: str) -> None:
    """Do something to the file past everything that guards it."""
    connection = apsw.Connection(str(file))
    connection.pragma("foreign_keys", 0)
    connection.execute(sql)
    connection.close()


def thinned(file: Path, index: str, sql: str, condition: str) -> None:
    """Make an index anew with some of its rows only, and do not say so."""
    connection = apsw.Connection(str(file))
    connection.execute(f"DROP INDEX {index}")
    connection.execute(f"{sql} WHERE {condition}")
    connection.pragma("writable_schema", 1)
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, index))
    connection.close()


async def _refusal(
    store: SqliteStore, work: Callable[[Tx], Coroutine[Any, Any, Any]], *, write: bool = False
) -> tuple[Code, dict[str, Any]]:
    with pytest.raises(Internal) as refused:
        await (store.write(work) if write else store.read(work))
    return refused.value.code, refused.value.details
