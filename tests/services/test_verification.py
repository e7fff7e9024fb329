"""Verifying a session: its record is what was written, or the fault is named."""

from pathlib import Path

import msgspec
import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Internal
from holdfast.domain.messages import CHAIN_START, Text, encode_parts
from holdfast.services.sessions import Verification
from tests.builders import hash_of
from tests.houses import raw, unlocked

pytestmark = pytest.mark.anyio


async def test_a_sound_session_names_its_head(quiet: Holdfast) -> None:
    session = await quiet.open()
    assert await quiet.sessions.verify(quiet.owner, session.id) == Verification(
        session_id=session.id, messages=0, head=CHAIN_START.hex()
    )

    rows = [await quiet.send(session.id, text) for text in ("one", "two")]

    assert await quiet.sessions.verify(quiet.owner, session.id) == Verification(
        session_id=session.id, messages=2, head=rows[-1].hash
    )


FAULTS = {
    "an edited text": (
        "UPDATE messages SET parts = CAST(replace(parts, 'two', 'ten') AS BLOB)",
        "message 2 of session {id} is damaged",
    ),
    "a moved time": (
        "UPDATE messages SET created_at = created_at + 1 WHERE sequence = 1",
        "message 1 of session {id} is damaged",
    ),
    "a role nobody has": (
        "UPDATE messages SET role = 'wizard' WHERE sequence = 3",
        "message 3 of session {id} is damaged",
    ),
    "content nobody can read": (
        "UPDATE messages SET parts = CAST('[' AS BLOB) WHERE sequence = 1",
        "message 1 of session {id} is damaged",
    ),
    "a row taken out": (
        "DELETE FROM messages WHERE sequence = 2",
        "message 2 of session {id} is damaged",
    ),
    "a row cut off": (
        "DELETE FROM messages WHERE sequence = 3",
        "message 3 of session {id} is damaged",
    ),
    "two rows in each other's place": (
        "UPDATE messages SET key = 1 - key WHERE sequence < 3;"
        " UPDATE messages SET key = (1 << 33) + 2 + key WHERE key < 0",
        "message 1 of session {id} is damaged",
    ),
}


@pytest.mark.parametrize(("sql", "told"), FAULTS.values(), ids=list(FAULTS))
async def test_what_was_changed_behind_our_back_is_found(
    home: Path, outside: Environment, sql: str, told: str
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        for text in ("one", "two", "three"):
            await house.send(session.id, text)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(sql)

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        found = await house.sessions.verify(house.owner, session.id)

    assert found.faults[0].startswith(told.format(id=session.id))


@pytest.mark.usefixtures("plain")
async def test_a_changed_head_is_found_before_anything_is_read_through_it(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
    with raw(home) as connection:
        connection.execute("UPDATE sessions SET turn = turn + 1")

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        with pytest.raises(Internal) as caught:
            await house.sessions.verify(house.owner, session.id)

    assert caught.value.code is Code.CORRUPT_ROW


async def test_a_fault_in_an_inherited_row_is_a_fault_of_the_fork(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        parent = await house.open()
        await house.send(parent.id, "one")
        fork = await house.sessions.fork(house.owner, parent.id)
        await house.send(fork.id, "two")
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET turn = 9 WHERE sequence = 1")

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        found = await house.sessions.verify(house.owner, fork.id)

    assert found.faults[0].startswith(f"message 1 of session {parent.id} is damaged")


async def test_an_ancestor_that_vanished_leaves_no_row_that_proves_itself(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        parent = await house.open()
        await house.send(parent.id, "one")
        fork = await house.sessions.fork(house.owner, parent.id)
        await house.send(fork.id, "two")
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("DELETE FROM messages WHERE sequence = 1")

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        found = await house.sessions.verify(house.owner, fork.id)

    assert found.faults[0].startswith(f"message 1 of session {parent.id} is damaged")


async def test_a_last_message_that_was_replaced_with_a_fitting_one_is_found(
    home: Path, outside: Environment
) -> None:
    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        first, last = [await house.send(session.id, text) for text in ("one", "two")]
    forged = msgspec.structs.replace(last, parts=(Text(text="ten"),))
    forged_hash = hash_of(forged, bytes.fromhex(first.hash))
    with raw(home) as connection:
        unlocked(connection)
        connection.execute(
            "UPDATE messages SET parts = ?, hash = ? WHERE sequence = 2",
            (encode_parts(forged.parts), forged_hash),
        )

    async with open_holdfast(home, outside=outside, scope=RunScope.NONE) as house:
        found = await house.sessions.verify(house.owner, session.id)

    assert found.faults == ("The last stored message is not the one recorded for the session.",)
    assert found.head == last.hash
