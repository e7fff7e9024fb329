"""R06: the disk is truly full amid many sessions; what reads, stops and removes still works."""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

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
from holdfast.app import Environment
from holdfast.http.app import AppOptions, create_app
from holdfast.ports.store import Store
from tests.cli.processes import ran, running
from tests.cli.server_probe import card_of, got, wait_until
from tests.http.asgi import ask
from tests.marks import proves, skip_row
from tests.torture.attempts import Record
from tests.torture.audit import Audit, audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.loops import loop_disk, missing_means
from tests.torture.notebooks import read_books
from tests.torture.recovery import quiet, recovered
from tests.torture.spies import DeafStore, WellStore, reckless

pytestmark = pytest.mark.slow

SESSIONS = 50
BACK_IN = 5.0
Wrap = Callable[[Store], Any]

# What a control does to the store, and what must then be found.
BROKEN: dict[str, tuple[Wrap, str]] = {
    "it acknowledges": (partial(DeafStore, heard=StorageFull), "LOST: message"),
    "it keeps nothing in reserve": (reckless, "was refused"),
    "it calls itself well": (WellStore, "healthz is 200 on a full disk"),
}


@dataclass
class Full:
    """What happened on a full disk."""

    filled: int = 0
    refused: int = 0
    back_in: float = 0.0
    wrong: list[str] = field(default_factory=list)


@proves("R06")
def test_on_a_full_disk_reading_stopping_closing_and_deleting_work(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if missing_means():
        skip_row("R06", missing_means())
    rounds = sized(test=1, torture=2, release=20)
    full = Full()

    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        full, result = filled_and_judged(folder, luck)
        assert full.wrong == []
        assert full.refused > 0, "the disk never was full"
        assert full.back_in <= sized.within(BACK_IN)
        assert result.is_clean, result

    told = f"{full.filled >> 20} MiB filled, {full.refused} sends refused, all the rest worked"
    tell(f"{SESSIONS} sessions × {rounds}: {told}")


@proves("R06")
@pytest.mark.parametrize("name", BROKEN)
def test_the_row_finds_a_store_that_lies_about_a_full_disk(
    tmp_path: Path, luck: random.Random, name: str
) -> None:
    if missing_means():
        skip_row("R06", missing_means())
    wrap, found = BROKEN[name]

    full, result = filled_and_judged(tmp_path, luck, wrap)

    assert found in f"{full.wrong} {result}"


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


@proves("R06")
def test_a_server_says_503_while_the_disk_is_full_and_recovers_by_itself(
    tmp_path: Path, sized: Sized
) -> None:
    if missing_means():
        skip_row("R06", missing_means())
    with (
        loop_disk(tmp_path, megabytes=32) as disk,
        running(disk.mount / "home", "serve", "--port", "0", "--json") as server,
    ):
        url = f"{card_of(server)['url']}/healthz"
        before = got(url)
        fill(disk.mount)
        full = got(url)
        (disk.mount / "filler").unlink()
        begun = time.monotonic()
        wait_until(lambda: got(url)[0] == 200)
        back_in = time.monotonic() - begun

    assert (before, full) == ((200, {"status": "ok"}), (503, {"status": "unavailable"}))
    assert back_in <= sized.within(BACK_IN)


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


def filled_and_judged(
    folder: Path, luck: random.Random, wrap: Wrap = lambda store: store
) -> tuple[Full, Audit]:
    """Live on a disk that fills up, and hold what is left of it against the record."""
    with loop_disk(folder, megabytes=32) as disk:
        home = disk.mount / "home"
        full = asyncio.run(lived_on_a_full_disk(folder, home, luck, wrap))
        asyncio.run(recovered(home))
        return full, audit(home, records=folder.glob("*.jsonl"))


async def lived_on_a_full_disk(folder: Path, home: Path, luck: random.Random, wrap: Wrap) -> Full:
    """Fill the disk while sessions are open and turns run; return what happened."""
    record = Record(folder / "a.jsonl")
    full = Full()
    async with open_holdfast(config=settings(home), outside=Environment(wrap=wrap)) as house:
        client = Client(house, record)
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await client.open(session)
            await client.send(session, new_id(luck, "long"))
        await quiet(home)
        running = sessions[0]
        await client.send(running, new_id(luck, "tardy"))
        full.wrong += [each async for each in _misreported(house, is_full=False)]
        full.filled = fill(home.parent)
        full.wrong += [each async for each in _misreported(house, is_full=True)]
        await _refused_sends(client, sessions, luck, full)
        full.wrong += [each async for each in _misreported(house, is_full=True)]
        full.wrong += [each async for each in _misread(house, sessions)]
        full.wrong += [each async for each in _not_stopped(client, sessions, running)]
        (home.parent / "filler").unlink()
        begun = time.monotonic()
        await _accepted(client, sessions[20], luck)
        full.back_in = time.monotonic() - begun
        full.wrong += [each async for each in _misreported(house, is_full=False)]
    record.close()
    return full


async def _refused_sends(
    client: Client, sessions: list[str], luck: random.Random, full: Full
) -> None:
    """Send until the disk refuses, then some more; every refusal says so."""
    refusals: list[HoldfastError] = []
    client.refused = refusals.append
    for number in range(400):
        await client.send(sessions[1 + number % 40], new_id(luck, "long"), "long " + "x" * 20_000)
        if len(refusals) >= 10:
            break
    client.refused = None
    full.refused = len(refusals)
    full.wrong += [repr(error) for error in refusals if not isinstance(error, StorageFull)]


async def _accepted(client: Client, session: str, luck: random.Random) -> None:
    """Send until it is taken."""
    async with asyncio.timeout(PATIENCE):
        while await client.send(session, new_id(luck, "short")) is None:
            pass


async def _misreported(house: Holdfast, *, is_full: bool) -> AsyncIterator[str]:
    """Ask `/healthz` and the doctor, and hold what they say against how the disk is."""
    app = create_app(house, house.store.require_writable, AppOptions(port=8765))
    status = (await ask(app, "/healthz")).status
    if status != (503 if is_full else 200):
        yield f"healthz is {status} on a {'full' if is_full else 'usable'} disk"
    home = house.config.home
    doctor = await asyncio.to_thread(ran, home, "doctor", "--json")
    codes = {each["code"] for each in json.loads(doctor.stdout)["findings"]}
    if ("storage_full" in codes) != is_full:
        yield f"doctor says {sorted(codes)} on a {'full' if is_full else 'usable'} disk"


async def _misread(house: Holdfast, sessions: list[str]) -> AsyncIterator[str]:
    listed = await house.sessions.list(SessionQuery(owner=house.owner, limit=100))
    if len(listed.items) != SESSIONS:
        yield f"{len(listed.items)} sessions are listed"
    for session in sessions:
        if len(await house.read(SessionId(session))) < 2:
            yield f"session {session} lacks messages"
        if not (await house.events.list(house.owner, SessionId(session))).items:
            yield f"session {session} lacks events"


async def _not_stopped(client: Client, sessions: list[str], running: str) -> AsyncIterator[str]:
    """Interrupt the running turn, close some sessions and delete others."""
    stopped: Session | None = await client.act("interrupt", running)
    if stopped is None or stopped.status is Status.RUNNING:
        yield f"interrupt of {running} was refused"
    for session in sessions[41:44]:
        if await client.act("close", session) is None:
            yield f"close of {session} was refused"
    for session in sessions[44:]:
        if await client.act("delete", session) is None:
            yield f"delete of {session} was refused"
    if not set(sessions[44:]) <= read_books(client.house.config.home).tombstones:
        yield "a deletion left no tombstone"


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
