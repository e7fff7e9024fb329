"""Stored content that is not what was written is refused with its name, and only that."""

import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import AgentId, CallId, MessageId, SessionId
from holdfast.domain.messages import CHAIN_START, Message, hash_row
from holdfast.domain.queries import AgentQuery, SessionOrder, SessionQuery
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import microseconds
from holdfast.ports.store import Segment, Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    AGENT_ID,
    SESSION_ID,
    a_call,
    a_cost,
    a_head,
    a_message,
    a_model,
    a_session,
    a_transcript,
    an_agent,
    an_event,
    an_id,
)
from tests.commits import append_rows, new_messages
from tests.houses import raw, unlocked

pytestmark = pytest.mark.anyio

Reading = Callable[[Tx, SessionState], Coroutine[Any, Any, Any]]
NEWS = f"event 1 of session {SESSION_ID}"
# What is done to the file, how it is read then, and what the refusal names.
DAMAGE: dict[str, tuple[str, Reading, str]] = {
    "agent": (
        "UPDATE agents SET body = CAST(replace(body, 'terse', 'tense') AS BLOB)",
        lambda tx, _: tx.agents.by_id(an_agent().owner, AGENT_ID),
        f"agent {AGENT_ID}",
    ),
    "agent's checksum": (
        "UPDATE agents SET checksum = checksum + 1",
        lambda tx, _: tx.agents.by_slug(an_agent().owner, "helper"),
        f"agent {AGENT_ID}",
    ),
    "model": (
        "UPDATE models SET body = zeroblob(9)",
        lambda tx, _: tx.models.by_id(a_model().id),
        f"model {a_model().id}",
    ),
    "opening": (
        "UPDATE openings SET body = CAST(replace(body, 'sandboxed', 'full') AS BLOB)",
        lambda tx, head: tx.sessions.get_by_key(head.key),
        f"session {SESSION_ID}",
    ),
    "call": (
        "UPDATE calls SET arguments = CAST('{}' AS BLOB)",
        lambda tx, head: tx.calls.by_id(head, CallId("call-1")),
        "call call-1",
    ),
    "call's state": (
        "UPDATE calls SET state = 'finished'",
        lambda tx, head: tx.calls.of_turn(head, 1),
        "call call-1",
    ),
    "cost": (
        "UPDATE costs SET microcents = 0",
        lambda tx, head: tx.costs.of_session(head),
        f"cost entry {an_id(5)}",
    ),
    "cost's usage": (
        "UPDATE costs SET output = output + 1",
        lambda tx, head: tx.costs.of_turn(head, 1),
        f"cost entry {an_id(5)}",
    ),
    "event": (
        "UPDATE events SET payload = CAST(',\"more\":1}' AS BLOB)",
        lambda tx, head: tx.events.after(head, 0, limit=9),
        NEWS,
    ),
    "event's name": (
        "UPDATE events SET name = 'turn.ended'",
        lambda tx, head: tx.events.after(head, 0, limit=9),
        NEWS,
    ),
    "event's ids": (
        "UPDATE events SET ids = zeroblob(16)",
        lambda tx, head: tx.events.after(head, 0, limit=9),
        NEWS,
    ),
    "event that is decoded": (
        "UPDATE events SET at = at + 1",
        lambda tx, head: tx.events.since(head, 1, ["turn.started"]),
        NEWS,
    ),
    "message": (
        "UPDATE messages SET model_id = 'x'",
        lambda tx, head: tx.messages.by_id(head, a_transcript(a_message())[0].id),
        f"message 1 of session {SESSION_ID}",
    ),
    "news of a message": (
        "UPDATE messages SET role = 'assistant'",
        lambda tx, head: tx.events.after(head, 1, limit=9),
        f"event 2 of session {SESSION_ID}",
    ),
}


@pytest.fixture
def file(home: Path) -> Path:
    """Name a store without a key: in an encrypted one rows have no checksums to be wrong."""
    home.mkdir()
    return home / "history.db"


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """Open an empty store that is not encrypted."""
    store = SqliteStore(file, None)
    yield store
    await store.close()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
async def test_what_was_changed_in_the_file_is_never_shown(
    store: SqliteStore, head: SessionState, home: Path, damage: tuple[str, Reading, str]
) -> None:
    sql, read, named = damage
    rows = new_messages(a_transcript(a_message()), [2])

    async def fill(tx: Tx) -> SessionState:
        await tx.models.add(a_model())
        await append_rows(
            tx,
            head,
            calls=(a_call(),),
            costs=(a_cost(),),
            events=[an_event(turn=1)],
            messages=rows,
            state={"messages": 1, "events": 2},
        )
        found = await tx.sessions.state_by_key(head.key)
        assert found is not None
        return found

    filled = await store.write(fill)
    await store.read(lambda tx: read(tx, filled))
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(sql)

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: read(tx, filled))

    assert (caught.value.code, caught.value.details) == (Code.CORRUPT_ROW, {"row": named})
    assert named in caught.value.message


BODIES: dict[str, Reading] = {
    "agents": lambda tx, _: tx.agents.by_slug(an_agent().owner, "helper"),
    "models": lambda tx, _: tx.models.by_id(a_model().id),
    "openings": lambda tx, head: tx.sessions.get_by_key(head.key),
}


@pytest.mark.parametrize(("table", "read"), BODIES.items(), ids=list(BODIES))
async def test_content_of_another_shape_is_refused_even_with_a_fitting_checksum(
    store: SqliteStore, head: SessionState, home: Path, table: str, read: Reading
) -> None:
    await store.write(lambda tx: tx.models.add(a_model()))
    with raw(home) as connection:
        fitting = zlib.crc32(b"[]")
        connection.execute(f"UPDATE {table} SET body = ?, checksum = ?", (b"[]", fitting))

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: read(tx, head))

    assert caught.value.code is Code.CORRUPT_ROW


async def test_a_damaged_session_hides_none_of_its_neighbours(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    other = a_session(id=SessionId(an_id(8)))
    await store.write(lambda tx: tx.sessions.add(other, a_head(session_id=other.id), b""))
    with raw(home) as connection:
        connection.execute("UPDATE openings SET checksum = 0 WHERE session_key = ?", (head.key,))

    found = await store.read(lambda tx: tx.sessions.get(other.owner, other.id))

    assert found is not None
    assert found[0] == other


async def test_an_event_of_a_kind_nobody_knows_is_refused_even_with_a_fitting_checksum(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    await store.write(lambda tx: append_rows(tx, head, events=[an_event(turn=1)]))
    at = microseconds(an_event().at)
    strange = b'{"type":"turn.danced"}'
    with raw(home) as connection:
        fitting = zlib.crc32(strange, zlib.crc32(f"1|1|{at}|turn.danced".encode()))
        connection.execute("UPDATE events SET name = 'turn.danced', checksum = ?", (fitting,))

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: tx.events.since(head, 1, ["turn.danced"]))

    assert caught.value.code is Code.CORRUPT_ROW


async def test_a_message_of_a_role_nobody_has_is_refused_even_with_a_fitting_hash(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    (row,) = new_messages(a_transcript(a_message()))
    await store.write(lambda tx: append_rows(tx, head, messages=(row,)))
    columns = (row.message.id, 1, 1, "wizard", None, microseconds(row.message.created_at))
    with raw(home) as connection:
        unlocked(connection)
        fitting = hash_row(CHAIN_START, columns, row.content)
        connection.execute("UPDATE messages SET role = 'wizard', hash = ?", (fitting,))

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: tx.messages.by_id(head, row.message.id))

    assert caught.value.details == {"row": f"message 1 of session {SESSION_ID}"}


async def test_a_message_whose_columns_are_no_text_is_named_in_a_bounded_read(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    rows = new_messages(a_transcript(a_message("one"), a_message("two")))
    await store.write(lambda tx: append_rows(tx, head, messages=rows))
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET role = CAST(x'ff' AS TEXT) WHERE sequence = 2")

    segment = Segment(head.key, head.session_id, 1, 2)
    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: tx.messages.span(segment, limit=2, size=1 << 20))

    assert caught.value.details == {"row": f"message 2 of session {SESSION_ID}"}


async def test_a_message_is_found_by_its_id_where_the_index_is_damaged(
    file: Path, head: SessionState, home: Path
) -> None:
    messages = a_transcript(a_message("one"), a_message("two"), a_message("three"))
    store = SqliteStore(file, None)
    await store.write(lambda tx: append_rows(tx, head, messages=new_messages(messages)))
    await store.scrub()
    await store.close()
    with raw(home) as connection:
        root = "SELECT rootpage FROM sqlite_schema WHERE name = 'messages_by_id'"
        page, size = connection.execute(root).get, connection.pragma("page_size")
    with file.open("r+b") as stream:
        stream.seek((page - 1) * size)
        stream.write(b"\xff" * size)

    async def work(tx: Tx) -> list[Message | None]:
        return [await tx.messages.by_id(head, each.id) for each in messages]

    damaged = SqliteStore(file, None)
    found = await damaged.read(work)
    with pytest.raises(Internal) as unknown:
        await damaged.read(lambda tx: tx.messages.by_id(head, MessageId(an_id(99))))
    await damaged.close()

    assert found == [*messages]
    # It may have been there.
    assert unknown.value.message.startswith("Table messages is inconsistent")


async def test_a_missing_message_breaks_the_news_by_its_name(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    rows = new_messages(a_transcript(a_message("one"), a_message("two")))
    await store.write(lambda tx: append_rows(tx, head, messages=rows))
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("DELETE FROM messages WHERE sequence = 2")

    with pytest.raises(Internal) as caught:
        await store.read(lambda tx: tx.events.after(a_head(key=head.key, messages=2), 0, limit=9))

    assert caught.value.details == {"row": f"message 2 of session {SESSION_ID}"}


async def test_a_damaged_record_never_hides_its_neighbours(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    sound = a_session(id=SessionId(an_id(70)))

    async def fill(tx: Tx) -> None:
        await tx.sessions.add(sound, a_head(session_id=sound.id, turn=1), b"")
        await tx.agents.add(an_agent(id=AgentId(an_id(71)), slug="other"))
        await tx.models.add(a_model())
        await tx.models.add(a_model("a:other"))

    await store.write(fill)
    with raw(home) as connection:
        connection.execute(f"UPDATE sessions SET turn = 7 WHERE id = '{head.session_id}'")
        connection.execute(f"UPDATE agents SET checksum = 0 WHERE id = '{AGENT_ID}'")
        connection.execute("UPDATE models SET checksum = 0 WHERE provider = 'a'")

    async def read(tx: Tx) -> tuple[list[str], list[str], list[str], list[str]]:
        page = await tx.sessions.page(SessionQuery(owner=head.owner, limit=1))
        agents = await tx.agents.page(AgentQuery(owner=head.owner, limit=1))
        return (
            [each.id for each, _ in page],
            [each.session_id for each in await tx.sessions.unsettled()],
            [each.slug for each in agents],
            [each.ref for each in await tx.models.all()],
        )

    assert await store.read(read) == ([sound.id], [sound.id], ["other"], [a_model().ref])


@pytest.mark.parametrize("order", list(SessionOrder))
async def test_a_page_of_sessions_is_filled_past_damaged_ones(
    store: SqliteStore,
    head: SessionState,
    home: Path,
    order: SessionOrder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    others = [a_session(id=SessionId(an_id(number))) for number in range(10, 15)]

    async def add(tx: Tx) -> None:
        for session in others:
            await tx.sessions.add(session, a_head(session_id=session.id), b"")

    await store.write(add)
    damaged = {others[1].id, others[3].id}
    with raw(home) as connection:
        connection.execute(
            "UPDATE openings SET checksum = 0 WHERE session_key IN"
            " (SELECT key FROM sessions WHERE id IN (?, ?))",
            tuple(damaged),
        )

    query = SessionQuery(owner=head.owner, order=order, limit=4)
    page = await store.read(lambda tx: tx.sessions.page(query))

    assert [session.id for session, _ in page] == [
        others[4].id,
        others[2].id,
        others[0].id,
        head.session_id,
    ]
    assert {f"session {each} is damaged" for each in damaged} == {
        message.split(" and ")[0] for message in caplog.messages
    }
