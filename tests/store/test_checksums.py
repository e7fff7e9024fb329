"""Where pages are authenticated rows have no checksums, and what leaves such a store has them."""

from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import HoldfastError
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.sqlite import checks
from holdfast.store.sqlite.checksums import fill_checksums
from holdfast.store.sqlite.connection import Connection, connect
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    a_call,
    a_cost,
    a_head,
    a_message,
    a_session,
    a_transcript,
    an_agent,
    an_event,
)
from tests.commits import append_rows, new_messages
from tests.houses import raw
from tests.stand_ins import streamed
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

TABLES = ("sessions", "events", "deltas", "calls", "costs")
ROWS = a_transcript(a_message("one"))


async def _fill(store: SqliteStore) -> SessionState:
    async def work(tx: Tx) -> SessionState:
        await tx.agents.add(an_agent())
        head = await tx.sessions.add(a_session(), a_head(), b"digest")
        events = [an_event(turn=1), an_event(streamed("42"), sequence=3, turn=1)]
        state = {"messages": 1, "events": 3, "chain": bytes.fromhex(ROWS[-1].hash)}
        return await append_rows(
            tx,
            head,
            calls=(a_call(),),
            costs=(a_cost(),),
            events=events,
            messages=new_messages(ROWS, [2]),
            state=state,
        )

    return await store.write(work)


def _checksums(home: Path) -> list[int]:
    with raw(home) as connection:
        return [connection.execute(f"SELECT checksum FROM {table}").get for table in TABLES]


def _flip(file: Path, whole: bytes, at: int) -> None:
    damaged = bytearray(whole)
    damaged[at] ^= 1
    file.write_bytes(damaged)


async def _reopen(file: Path, head: SessionState) -> None:
    store = SqliteStore(file, KEY)
    try:
        await _read(store, head)
    finally:
        await store.close()


async def _read(store: SqliteStore, head: SessionState) -> None:
    async def work(tx: Tx) -> None:
        await tx.sessions.state_by_key(head.key)
        await tx.events.after(head, 0, limit=9)
        await tx.calls.of_session(head)
        await tx.costs.of_session(head)

    await store.read(work)


async def test_only_a_store_without_encryption_has_checksums(file: Path, tmp_path: Path) -> None:
    sealed, plain = SqliteStore(file, KEY), SqliteStore(tmp_path / "history.db", None)
    for store in (sealed, plain):
        head = await _fill(store)
        await _read(store, head)
        assert await store.check() == []
        await store.close()

    assert _checksums(file.parent) == [0] * len(TABLES)
    assert 0 not in _checksums(tmp_path)


async def test_a_flipped_bit_of_an_encrypted_store_is_found_without_them(file: Path) -> None:
    store = SqliteStore(file, KEY)
    head = await _fill(store)
    await store.close()
    with raw(file.parent) as connection:
        connection.pragma("wal_checkpoint", "truncate")
        pages = [
            connection.execute(f"SELECT max(pageno) FROM dbstat WHERE name = '{table}'").get
            for table in TABLES
        ]
    whole = file.read_bytes()  # noqa: ASYNC240 — nothing else runs

    for page in pages:
        _flip(file, whole, page * 4096 - 2_000)
        with pytest.raises((HoldfastError, apsw.Error)):
            await _reopen(file, head)


async def test_what_is_computed_later_is_what_would_have_been_stored(file: Path) -> None:
    store = SqliteStore(file, KEY)
    await _fill(store)
    await store.close()
    connection = connect(file, KEY)
    connection.query("BEGIN IMMEDIATE")

    fill_checksums(connection)

    checked = Connection(connection.raw)
    assert checked.checks_rows
    assert checks.check_rows(checked, checks.ROWS) == []
    connection.query("ROLLBACK")
    assert checks.check_rows(checked, checks.ROWS) != []
    connection.close()
