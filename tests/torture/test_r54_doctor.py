"""R54: the doctor looks at damaged stores, names each fault and leaves everything as it is."""

import asyncio
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import (
    Role,
    RunScope,
    SessionId,
    SessionQuery,
    SessionRequest,
    open_holdfast,
)
from tests.marks import proves
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.notebooks import key_beside, reading
from tests.torture.recovery import recovered, until
from tests.torture.witness import differences, witnessed

pytestmark = pytest.mark.slow

HURT, NEIGHBOUR, FORK = (new_id(random.Random(number)) for number in range(3))
OWN = f"session_key = (SELECT key FROM sessions WHERE id = '{HURT}')"

# Without the one that only answers questions; what it knows lies in tables of its own.
TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"

# What is done to one record, and the word that the doctor must find for it.
DAMAGE: dict[str, tuple[str, str]] = {
    "a message says something else": (
        f"UPDATE messages SET parts = CAST(replace(CAST(parts AS TEXT), 'message', 'massage') "
        f"AS BLOB) WHERE {OWN}",
        HURT,
    ),
    "a message is gone": (f"DELETE FROM messages WHERE {OWN} AND sequence = 2", HURT),
    "the last message is gone": (
        f"DELETE FROM messages WHERE {OWN} AND sequence = (SELECT messages FROM sessions "
        f"WHERE id = '{HURT}')",
        HURT,
    ),
    "a message is somebody else's": (
        f"UPDATE messages SET role = 'assistant' WHERE {OWN} AND sequence = 1",
        HURT,
    ),
    "a message has another time": (f"UPDATE messages SET created_at = 1 WHERE {OWN}", HURT),
    "a message has another hash": (f"UPDATE messages SET hash = zeroblob(32) WHERE {OWN}", HURT),
    "a message is told by another event": (
        f"UPDATE messages SET event = event + 1 WHERE {OWN} AND sequence = 3",
        HURT,
    ),
    "the chain ends elsewhere": (
        f"UPDATE sessions SET chain = zeroblob(32) WHERE id = '{HURT}'",
        HURT,
    ),
    "a session counts too many messages": (
        f"UPDATE sessions SET messages = messages + 1 WHERE id = '{HURT}'",
        HURT,
    ),
    "a session counts too few events": (
        f"UPDATE sessions SET events = events - 1 WHERE id = '{HURT}'",
        HURT,
    ),
    "a session has another status": (
        f"UPDATE sessions SET status = 'failed' WHERE id = '{HURT}'",
        HURT,
    ),
    "a session has another title": (
        f"UPDATE sessions SET title = 'another' WHERE id = '{HURT}'",
        HURT,
    ),
    "a session has settled another turn": (
        f"UPDATE sessions SET settled = settled - 1 WHERE id = '{HURT}'",
        HURT,
    ),
    "an opening is damaged": (
        f"UPDATE openings SET body = CAST(replace(CAST(body AS TEXT), 'ask', 'auto') AS BLOB) "
        f"WHERE {OWN}",
        HURT,
    ),
    "an event says something else": (
        f"UPDATE events SET payload = CAST('{{}}' AS BLOB) WHERE {OWN} AND name = 'turn.started'",
        HURT,
    ),
    "an event is gone": (f"DELETE FROM events WHERE {OWN} AND name = 'turn.ended'", HURT),
    "an event has another name": (
        f"UPDATE events SET name = 'step.delta' WHERE {OWN} AND name = 'step.ended'",
        HURT,
    ),
    "an agent is damaged": (
        "UPDATE agents SET body = CAST(replace(CAST(body AS TEXT), 'Holdfast', 'Heldfast') "
        "AS BLOB)",
        "agent",
    ),
    "a model is damaged": (
        "UPDATE models SET body = CAST(replace(CAST(body AS TEXT), 'scripted', 'scrapped') "
        "AS BLOB)",
        "model",
    ),
    "a cost is damaged": (f"UPDATE costs SET microcents = 1 WHERE {OWN}", "cost"),
    "rows belong to nobody": (f"DELETE FROM sessions WHERE id = '{HURT}'", "belongs"),
}


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain store in good health, with two sessions and a fork."""
    folder = tmp_path_factory.mktemp("patient")
    asyncio.run(_lived(folder / "home"))
    return folder


async def _lived(home: Path) -> None:
    config = settings(home, encryption="off")
    async with open_holdfast(config=config) as house:
        for session in (HURT, NEIGHBOUR):
            request = SessionRequest(title=f"title {session}", model=config.default_model)
            await house.open(id=session, request=request)
            for word in ("short message one", "long message two"):
                await house.send(SessionId(session), word)
    await recovered(home)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        await house.sessions.fork(house.owner, SessionId(NEIGHBOUR), id=FORK)


@proves("R54")
def test_the_doctor_finds_nothing_in_a_healthy_store(patient: Path, tmp_path: Path) -> None:
    assert asyncio.run(examined(shutil.copytree(patient / "home", tmp_path / "home"))) == []


@proves("R54")
@pytest.mark.parametrize("damage", DAMAGE)
def test_the_doctor_names_the_damage_and_hides_no_neighbour(
    patient: Path, tmp_path: Path, damage: str
) -> None:
    home = shutil.copytree(patient / "home", tmp_path / "home")
    truth = asyncio.run(witnessed(patient / "home", [NEIGHBOUR, FORK]))
    sql, word = DAMAGE[damage]
    hurt(home, sql)
    before = content(home)

    faults = asyncio.run(examined(home))

    assert [fault for fault in faults if word in fault] != [], f"{damage}: {faults}"
    assert content(home) == before
    told = asyncio.run(witnessed(home, [NEIGHBOUR, FORK]))
    shown = {what: told[what] for what in told if NEIGHBOUR in what or FORK in what}
    assert shown == {what: truth[what] for what in shown}
    assert differences(truth, shown) == []


@proves("R54")
def test_the_doctor_names_damaged_pages(
    patient: Path, tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=10, torture=80, release=180)
    silent = []

    for number in range(rounds):
        home = shutil.copytree(patient / "home", tmp_path / str(number))
        what = spoiled(home / "history.db", luck)
        if not asyncio.run(diagnosed(home)):
            silent.append(what)
        shutil.rmtree(home)

    tell(f"{len(DAMAGE)} kinds of damaged rows and {rounds} damaged pages, all named")
    assert silent == []


@proves("R54")
def test_the_command_says_the_same_and_ends_with_one(patient: Path, tmp_path: Path) -> None:
    home = shutil.copytree(patient / "home", tmp_path / "home")
    healthy = _doctor(home)
    hurt(home, DAMAGE["a message is gone"][0])
    sick = _doctor(home)

    assert (healthy.returncode, json.loads(healthy.stdout)["findings"]) == (0, [])
    assert sick.returncode == 1
    assert HURT in str(json.loads(sick.stdout)["findings"])


def _doctor(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "doctor", "--json"],
        env=os.environ | {"HOLDFAST_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@proves("R54")
def test_a_damaged_session_does_not_keep_the_others_from_being_recovered_and_listed(
    patient: Path, tmp_path: Path
) -> None:
    home = shutil.copytree(patient / "home", tmp_path / "home")
    asyncio.run(_left_waiting(home))
    hurt(home, f"UPDATE sessions SET title = 'another' WHERE id = '{HURT}'")

    listed, answered = asyncio.run(_recovered_beside_the_damaged(home))

    assert {NEIGHBOUR, FORK} <= set(listed)
    assert answered


async def _left_waiting(home: Path) -> None:
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        for session in (HURT, NEIGHBOUR):
            await house.send(SessionId(session), "short message three")


async def _recovered_beside_the_damaged(home: Path) -> tuple[list[str], bool]:
    neighbour = SessionId(NEIGHBOUR)
    async with open_holdfast(config=settings(home)) as house:
        await until(lambda: not is_waiting(home, NEIGHBOUR))
        page = await house.sessions.list(SessionQuery(owner=house.owner))
        answered = (await house.read(neighbour))[-1].role is Role.ASSISTANT
        return [session.id for session in page.items], answered


def is_waiting(home: Path, session: str) -> bool:
    """Tell whether a turn is open or waits in one session."""
    with reading(home / "history.db", key_beside(home)) as connection:
        sql = "SELECT turn > settled FROM sessions WHERE id = ?"
        return bool(connection.execute(sql, (session,)).get)


async def examined(home: Path) -> list[str]:
    """Return what the doctor finds in a store."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        return [*await house.store.check(), *await house.store.missing_events()]


async def diagnosed(home: Path) -> list[str]:
    """Return what the doctor finds, a store that does not open counting as found."""
    told: Any = await witnessed(home, [])
    if str(told.get("house", "")).startswith("refused: "):
        return [told["house"]]
    return await examined(home)


def hurt(home: Path, sql: str) -> None:
    """Change a row behind Holdfast's back, past everything that guards it."""
    connection = apsw.Connection(str(home / "history.db"))
    connection.pragma("foreign_keys", 0)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
    guards = [(str(name), str(again)) for name, again in triggers.fetchall()]
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(sql)
    assert connection.changes() > 0
    for _, again in guards:
        connection.execute(again)
    connection.close()


def spoiled(file: Path, luck: random.Random) -> str:
    """Overwrite, blank or cut a page of a file that is in use; return what was done."""
    size = 4096
    data = bytearray(file.read_bytes())
    used = [
        page for page in range(1, len(data) // size) if any(data[page * size : page * size + size])
    ]
    page = luck.choice(used)
    kind = luck.choice(["garbage", "zeros", "cut"])
    if kind == "cut":
        del data[page * size :]
    else:
        fill = luck.randbytes(size) if kind == "garbage" else bytes(size)
        data[page * size : page * size + size] = fill
    file.write_bytes(data)
    return f"{kind} in page {page + 1} of {len(data) // size}"


def content(home: Path) -> str:
    """Return the hash of everything that is stored, wherever SQLite keeps it."""
    connection = apsw.Connection(str(home / "history.db"))
    try:
        digest = hashlib.sha256()
        tables = connection.execute(TABLES)
        for (name,) in tables.fetchall():
            digest.update(repr(connection.execute(f"SELECT * FROM {name}").fetchall()).encode())
        return digest.hexdigest()
    finally:
        connection.close()
