"""R06: the disk is truly full amid many sessions; what reads, stops and removes still works."""

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from holdfast import (
    Holdfast,
    HoldfastError,
    Session,
    SessionId,
    SessionQuery,
    Status,
    StorageFull,
    open_holdfast,
)
from tests.marks import proves, skip_row
from tests.torture.attempts import Record
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.loops import loop_disk, missing_means
from tests.torture.notebooks import read_books
from tests.torture.recovery import quiet, recovered

pytestmark = pytest.mark.slow

SESSIONS = 50
BACK_IN = 5.0


@proves("R06")
def test_on_a_full_disk_reading_stopping_closing_and_deleting_work(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if missing_means():
        skip_row("R06", missing_means())
    rounds = sized(test=1, torture=2, release=20)
    told = ""

    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        with loop_disk(folder, megabytes=32) as disk:
            told = asyncio.run(lived_on_a_full_disk(folder, disk.mount / "home", luck))
            asyncio.run(recovered(disk.mount / "home"))
            result = audit(disk.mount / "home", records=folder.glob("*.jsonl"))
            assert result.is_clean, result

    tell(f"{SESSIONS} sessions × {rounds}: {told}")


@proves("R06")
def test_a_server_that_starts_on_a_full_disk_can_still_read_and_delete(
    tmp_path: Path, luck: random.Random
) -> None:
    if missing_means():
        skip_row("R06", missing_means())
    with loop_disk(tmp_path, megabytes=32) as disk:
        home = disk.mount / "home"
        sessions = asyncio.run(_talked(home, luck))
        fill(disk.mount)

        asyncio.run(_read_and_deleted(home, sessions))

        assert sessions[0] in read_books(home).tombstones


async def _talked(home: Path, luck: random.Random) -> list[str]:
    sessions = [new_id(luck) for _ in range(3)]
    async with open_holdfast(config=settings(home)) as house:
        for session in sessions:
            await house.open(id=session)
            await house.send(SessionId(session), "short words")
        await quiet(home)
    return sessions


async def _read_and_deleted(home: Path, sessions: list[str]) -> None:
    async with open_holdfast(config=settings(home)) as house:
        for session in sessions:
            assert len(await house.read(SessionId(session))) == 2
        await house.sessions.delete(house.owner, SessionId(sessions[0]))


async def lived_on_a_full_disk(folder: Path, home: Path, luck: random.Random) -> str:
    """Fill the disk while sessions are open and turns run; return what happened."""
    record = Record(folder / "a.jsonl")
    async with open_holdfast(config=settings(home)) as house:
        client = Client(house, record)
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await client.open(session)
            await client.send(session, new_id(luck, "long"))
        await quiet(home)
        running = sessions[0]
        await client.send(running, new_id(luck, "tardy"))
        filled = fill(home.parent)
        refused = await _refused_sends(client, sessions, luck)
        await _reads(house, sessions)
        await _stops(house, client, sessions, running)
        (home.parent / "filler").unlink()
        begun = time.monotonic()
        while await client.send(sessions[20], new_id(luck, "short")) is None:
            assert time.monotonic() - begun <= BACK_IN, "still full when there was space"
    record.close()
    return f"{filled >> 20} MiB filled, {refused} sends refused, all the rest worked"


async def _refused_sends(client: Client, sessions: list[str], luck: random.Random) -> int:
    """Send until the disk refuses, then some more; every refusal says so and changes nothing."""
    refusals: list[HoldfastError] = []
    client.refused = refusals.append
    for number in range(400):
        await client.send(sessions[1 + number % 40], new_id(luck, "long"), "long " + "x" * 20_000)
        if len(refusals) >= 10:
            break
    client.refused = None
    assert refusals, "the disk never was full"
    assert [error for error in refusals if not isinstance(error, StorageFull)] == []
    return len(refusals)


async def _reads(house: Holdfast, sessions: list[str]) -> None:
    listed = await house.sessions.list(SessionQuery(owner=house.owner, limit=100))
    assert len(listed.items) == SESSIONS
    for session in sessions:
        assert len(await house.read(SessionId(session))) >= 2
        assert (await house.events.list(house.owner, SessionId(session))).items


async def _stops(house: Holdfast, client: Client, sessions: list[str], running: str) -> None:
    """Interrupt the running turn, close some sessions and delete others."""
    stopped: Session | None = await client.act("interrupt", running)
    assert stopped is not None
    assert stopped.status is not Status.RUNNING
    for session in sessions[41:44]:
        closed = await client.act("close", session)
        assert closed is not None, f"close of {session} was refused"
    for session in sessions[44:]:
        gone = await client.act("delete", session)
        assert gone is not None, f"delete of {session} was refused"
    assert set(sessions[44:]) <= read_books(house.config.home).tombstones


def fill(folder: Path) -> int:
    """Write into a file until the disk takes not a byte more; return how much it took."""
    size = 1 << 20
    with (folder / "filler").open("wb", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
                os.fsync(file.fileno())
            except OSError:
                size //= 2
        return file.tell()
