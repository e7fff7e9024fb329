"""The record in the store: appended, read back row by row, and kept from every other hand."""

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.domain.commits import VersionConflictError
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Internal
from holdfast.domain.events import TurnEnded, encode_stored
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Role, encode_parts
from holdfast.domain.sessions import ForkPoint, SessionState, StopReason
from holdfast.ports.store import Segment, Tx
from holdfast.store.events import event_sum, join_payload
from holdfast.store.postgres.migrate import DatabaseSchema
from holdfast.store.sqlite.connection import connect
from holdfast.store.sqlite.migrate import down, up
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    MODEL_ID,
    SESSION_ID,
    a_head,
    a_message,
    a_session,
    a_transcript,
    an_event,
    an_id,
)
from tests.commits import append_rows, new_messages
from tests.houses import raw
from tests.marks import demands, each_case
from tests.stand_ins import streamed
from tests.store.conftest import KEY
from tests.stores import VARIABLE

pytestmark = pytest.mark.anyio

# The migration that gave messages and events one key.
KEYED = 11
ROWS = a_transcript(
    a_message("one"),
    a_message("two", role=Role.ASSISTANT, model_id=MODEL_ID),
    a_message(role=Role.TOOL_CALL),
    a_message(role=Role.TOOL_RESULT, turn=2),
    a_message("five", role=Role.SYSTEM, turn=0),
)


@pytest.fixture
async def written(store: SqliteStore, head: SessionState) -> SessionState:
    """Write the rows."""

    async def work(tx: Tx) -> SessionState:
        await append_rows(tx, head, messages=new_messages(ROWS))
        return head

    return await store.write(work)


async def _span(
    store: SqliteStore, head: SessionState, first: int, last: int, **how: Any
) -> list[Message]:
    segment = Segment(head.key, head.session_id, first, last)
    wanted = {"limit": -1, **how}
    return await store.read(lambda tx: tx.messages.span(segment, **wanted))


@demands("S0-060b", "S0-030", "S0-034", "S2-050", "S2-050d", "S2-120k")
async def test_rows_come_back_as_they_were_written(
    store: SqliteStore, written: SessionState
) -> None:
    assert await _span(store, written, 1, 5) == list(ROWS)
    assert await _span(store, written, 2, 4) == list(ROWS[1:4])
    assert await _span(store, written, 1, 5, limit=2) == list(ROWS[:2])
    assert await _span(store, written, 1, 5, limit=2, newest=True) == list(ROWS[3:])


async def test_a_stretch_that_lacks_a_row_is_refused(
    store: SqliteStore, written: SessionState
) -> None:
    for first, last, missing in ((6, 9, 6), (4, 6, 6)):
        with pytest.raises(Internal) as caught:
            await _span(store, written, first, last)
        assert caught.value.message.startswith(f"message {missing} of session {SESSION_ID}")


async def test_a_row_is_found_by_its_id(store: SqliteStore, written: SessionState) -> None:
    async def work(tx: Tx) -> list[Message | None]:
        ids = [*(row.id for row in ROWS), MessageId(an_id(99))]
        return [await tx.messages.by_id(written, each) for each in ids]

    assert await store.read(work) == [*ROWS, None]


async def test_a_row_of_a_fork_chains_to_the_row_it_inherits(
    store: SqliteStore, written: SessionState
) -> None:
    child = a_session(
        id=SessionId(an_id(7)), forked_from=ForkPoint(session_id=SESSION_ID, sequence=2)
    )
    (own,) = a_transcript(
        a_message("own", session_id=child.id), previous=bytes.fromhex(ROWS[1].hash), first=3
    )

    async def work(tx: Tx) -> tuple[Message | None, list[Message]]:
        head = await tx.sessions.add(child, a_head(session_id=child.id, messages=3), b"")
        await append_rows(tx, head, messages=new_messages((own,)))
        found = await tx.messages.by_id(head, own.id)
        return found, await tx.messages.span(Segment(head.key, child.id, 3, 3), limit=-1)

    assert await store.write(work) == (own, [own])


@demands("S2-054")
async def test_two_rows_cannot_have_one_number_or_one_id(
    store: SqliteStore, written: SessionState
) -> None:
    same_number = a_transcript(a_message(id=MessageId(an_id(98))))
    same_id = a_transcript(a_message(id=ROWS[1].id), first=6)

    for rows in (new_messages(same_number), new_messages(same_id)):
        with pytest.raises(VersionConflictError):
            await store.write(lambda tx, rows=rows: append_rows(tx, written, messages=rows))
    assert await _span(store, written, 1, 5) == list(ROWS)


@demands("S0-031", "S2-120f")
@each_case(
    "sql",
    [
        "UPDATE messages SET parts = CAST('[]' AS BLOB) WHERE sequence = 1",
        "UPDATE messages SET turn = 9",
        "UPDATE messages SET key = key + 10",
        "DELETE FROM messages WHERE sequence = 5",
        "DELETE FROM messages",
    ],
)
async def test_the_database_itself_refuses_to_change_a_row(
    store: SqliteStore, written: SessionState, home: Path, sql: str
) -> None:
    with raw(home) as connection, pytest.raises(apsw.ConstraintError, match="append-only"):
        connection.execute(sql)

    assert await _span(store, written, 1, 5) == list(ROWS)


def _dump(home: Path, *queries: str) -> list[Any]:
    with raw(home) as connection:
        return [connection.execute(each).fetchall() for each in queries]


def _move(home: Path, *, is_up: bool) -> None:
    """Apply or revert the migration that gave messages and events one key."""
    if url := os.environ.get(VARIABLE):
        schema = DatabaseSchema(url)
        if is_up:
            schema.up()
        else:
            schema.down(KEYED - 1)
        return
    connection = connect(home / "history.db", KEY)
    try:
        if is_up:
            up(connection)
        else:
            down(connection, KEYED - 1)
    finally:
        connection.close()


async def test_rows_are_moved_down_and_up_byte_by_byte(
    store: SqliteStore, written: SessionState, home: Path
) -> None:
    events = [an_event(sequence=6, turn=1), an_event(streamed("42"), sequence=7, turn=1)]
    await store.write(lambda tx: append_rows(tx, written, events=events))
    # An encrypted store has no checksums of events, and gets them on the way down.
    event = "key, turn, at, name, ids, payload"
    columns = {"messages": "*", "events": event, "deltas": event}
    tables = [f"SELECT {names} FROM {table} ORDER BY key" for table, names in columns.items()]
    before = _dump(home, *tables)

    _move(home, is_up=False)
    moved = _dump(
        home,
        "SELECT session_key, stays, sequence, name FROM events ORDER BY sequence",
        "SELECT sequence, parts, hash, event, told FROM messages ORDER BY sequence",
        "SELECT sequence, name FROM session_events ORDER BY sequence",
        "SELECT sequence, turn, at, name, ids, payload, checksum FROM events",
    )
    _move(home, is_up=True)

    assert moved[0] == [(1, 1, 6, "turn.started"), (1, 0, 7, "step.delta")]
    assert [row[:2] for row in moved[1]] == [
        (row.sequence, encode_parts(row.parts)) for row in ROWS
    ]
    assert [row[2].hex() for row in moved[1]] == [row.hash for row in ROWS]
    assert [row for row in moved[2] if row[1] != "message.appended"] == [
        (6, "turn.started"),
        (7, "step.delta"),
    ]
    for *place, ids, payload, stored in moved[3]:
        assert event_sum(tuple(place), join_payload(place[3], ids, payload)) == stored
    assert _dump(home, *tables) == before
    assert [len(rows) for rows in before] == [5, 1, 1]
    assert await _span(store, written, 1, 5) == list(ROWS)


async def test_fields_of_events_are_spelled_out_on_the_way_down(
    store: SqliteStore, written: SessionState, home: Path
) -> None:
    ended = TurnEnded(stop_reason=StopReason.STOP, usage=Usage(input=100, output=7))
    event = an_event(ended, sequence=6, turn=1)
    await store.write(lambda tx: append_rows(tx, written, events=[event]))
    shown = "SELECT payload FROM session_events WHERE sequence = 6"
    whole = encode_stored(ended).decode()

    stored = "SELECT payload FROM events"
    before = _dump(home, shown, stored)
    _move(home, is_up=False)
    moved = _dump(home, shown, stored)
    _move(home, is_up=True)

    rest = whole.removeprefix('{"type":"turn.ended"').encode()
    assert before == [[(whole,)], [(b"\3\x04100\x057}}",)]]
    assert moved == [[(whole,)], [(rest,)]]
    assert _dump(home, shown, stored) == before
    assert await store.read(lambda tx: tx.events.since(written, 6, ["turn.ended"])) == [event]


@demands("S0-031", "S2-120f", "S1-100h", "S1-100n", "S1-100j", "S1-103b")
async def test_rows_go_together_with_their_session(
    store: SqliteStore, written: SessionState
) -> None:
    await store.write(lambda tx: tx.sessions.remove(written, ROWS[0].created_at))

    assert await store.read(lambda tx: tx.messages.by_id(written, ROWS[0].id)) is None
