"""What the doctor looks for: every fault by name, and none that hides another."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.domain.messages import encode_parts
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    REPO_ID,
    SESSION_ID,
    a_call,
    a_cost,
    a_message,
    a_model,
    a_repo,
    a_transcript,
    an_event,
    an_id,
)
from tests.commits import append_rows, new_messages
from tests.houses import raw, unlocked
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

ROWS = a_transcript(a_message("one"), a_message("two"), a_message("three"))


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


@pytest.fixture
async def filled(store: SqliteStore, head: SessionState) -> SqliteStore:
    """Write something into every table."""

    async def work(tx: Tx) -> None:
        await tx.models.add(a_model())
        await tx.repos.add(a_repo())
        await append_rows(
            tx,
            head,
            calls=(a_call(),),
            costs=(a_cost(),),
            messages=new_messages(ROWS, [2, 3, 4]),
            events=[an_event(turn=1), an_event(sequence=5, turn=1)],
            state={"messages": 3, "events": 5, "chain": bytes.fromhex(ROWS[-1].hash)},
        )

    await store.write(work)
    return store


async def test_a_sound_store_has_no_fault(filled: SqliteStore) -> None:
    assert await filled.check() == []


async def test_an_empty_store_has_no_fault(store: SqliteStore) -> None:
    assert await store.check() == []


FAULTS = {
    "agent": ("UPDATE agents SET checksum = 0", "agent"),
    "model": ("UPDATE models SET body = x'7b7d'", "model"),
    "opening": ("UPDATE openings SET checksum = 0", f"session {SESSION_ID}"),
    "event": ("UPDATE events SET turn = 9 WHERE sequence = 1", "event 1 of session"),
    "message": ("UPDATE messages SET turn = 9 WHERE sequence = 2", "message 2 of session"),
    "missing message": ("DELETE FROM messages WHERE sequence = 3", "message 3 of session"),
    "past the end": ("UPDATE events SET key = key + 94 WHERE sequence = 5", "event 99 of session"),
    "session": ("UPDATE sessions SET status = 'failed'", f"session {SESSION_ID} is damaged"),
    "event of a message": (
        "UPDATE messages SET event_checksum = 0 WHERE sequence = 2",
        "event 3 of session",
    ),
    "stray message": ("UPDATE messages SET key = key + (9 << 32)", "A row of messages belongs"),
    "stray event": ("UPDATE events SET key = key + (9 << 32)", "A row of events belongs"),
    "call": ("UPDATE calls SET effect = 'pure'", "call call-1 is damaged"),
    "cost": ("UPDATE costs SET turn = 9", f"cost entry {an_id(5)} is damaged"),
    "repository": ("UPDATE repos SET path = '/elsewhere'", f"repository {REPO_ID} is damaged"),
    "orphan": ("DELETE FROM sessions", "belongs to nothing in sessions"),
}


@pytest.mark.parametrize(("sql", "told"), FAULTS.values(), ids=list(FAULTS))
async def test_every_kind_of_damage_is_named(
    filled: SqliteStore, home: Path, sql: str, told: str
) -> None:
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(sql)

    assert [fault for fault in await filled.check() if told in fault]


LACKING = {
    "first": ("= 1", "did not remove: 1."),
    "last": ("= 5", "did not remove: 5."),
    "all": ("> 0", "did not remove: 1, 5."),
}


@pytest.mark.parametrize(("which", "expected"), LACKING.values(), ids=list(LACKING))
async def test_missing_events_are_named_and_are_no_fault_of_the_record(
    filled: SqliteStore, home: Path, which: str, expected: str
) -> None:
    assert await filled.missing_events() == []
    with raw(home) as connection:
        connection.execute(f"DELETE FROM events WHERE sequence {which}")

    assert await filled.check() == []
    (found,) = await filled.missing_events()
    assert expected in found


async def test_one_fault_does_not_hide_another(filled: SqliteStore, home: Path) -> None:
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE agents SET checksum = 0")
        connection.execute("UPDATE events SET turn = 9")
        connection.execute("UPDATE messages SET turn = 9 WHERE sequence = 2")

    faults = " ".join(await filled.check())

    assert all(told in faults for told in ("agent ", "event 1 ", "event 5 ", "message 2 "))


async def test_every_damaged_event_of_a_message_is_named(filled: SqliteStore, home: Path) -> None:
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET event_checksum = 0 WHERE sequence < 3")
        connection.execute("UPDATE messages SET event = 0 WHERE sequence = 3")

    faults = [fault for fault in await filled.check() if fault.startswith("event ")]

    assert faults == [f"event {number} of session {SESSION_ID} is damaged." for number in (0, 2, 3)]


async def test_a_page_that_was_overwritten_is_found(file: Path) -> None:
    store = SqliteStore(file, KEY)
    for number in range(50):
        await store.write(lambda tx, n=number: tx.models.add(a_model(f"a:{n}{'x' * 500}")))
    await store.close()
    _flip(file, 10 * 4096 + 100)

    damaged = SqliteStore(file, KEY)
    faults = await damaged.check()
    await damaged.close()

    assert faults


def _flip(file: Path, at: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))


async def test_a_last_message_that_was_replaced_with_a_fitting_one_is_found(
    filled: SqliteStore, home: Path
) -> None:
    (other,) = a_transcript(a_message("other"), previous=bytes.fromhex(ROWS[1].hash), first=3)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(
            "UPDATE messages SET parts = ?, hash = ? WHERE sequence = 3",
            (encode_parts(other.parts), bytes.fromhex(other.hash)),
        )

    assert await filled.check() == [f"Session {SESSION_ID} does not end with its last message."]
