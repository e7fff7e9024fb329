"""R17: 32 clients send to one session at once, with every wish for when it is busy."""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.attempts import Attempt, Record, read_attempts
from tests.torture.audit import audit
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.notebooks import Notebook, read_books
from tests.torture.recovery import until, waiting
from tests.torture.served import Server

pytestmark = pytest.mark.slow

CLIENTS = 32
WISHES = ("queue", "queue", "interrupt", "reject")


@proves("R17")
def test_one_session_plays_one_turn_at_a_time_and_every_message_once(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=50, test=500, torture=5_000, release=10_000)

    asyncio.run(send_at_once(tmp_path, crew, luck, count=count))
    result = audit(tmp_path / "home", records=tmp_path.glob("s*.jsonl"), mark=crew.mark)
    (book,) = read_books(tmp_path / "home").notebooks.values()
    attempts = sends(tmp_path)
    outcomes = Counter(each.outcome for each in attempts)

    tell(
        f"{count} messages by {CLIENTS} clients, {outcomes['turn_running']} refused, "
        f"{book.settled} turns, one at a time"
    )
    assert result.is_clean, result
    assert faults(book, attempts) == []
    assert set(outcomes) == {"ok", "turn_running"}


@proves("R17")
def test_a_server_that_stores_what_it_refuses_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asyncio.run(send_at_once(tmp_path, crew, luck, count=64, fault="regretful"))
    (book,) = read_books(tmp_path / "home").notebooks.values()

    assert faults(book, sends(tmp_path)) != []


def test_a_message_in_no_turn_or_in_another_one_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asyncio.run(send_at_once(tmp_path, crew, luck, count=32))
    (book,) = read_books(tmp_path / "home").notebooks.values()
    first, *rest = (each for each in sends(tmp_path) if each.acknowledged)
    told = dict(first.answer) | {"turn": book.settled + 1}
    other = Attempt(first.client, 0, "send", first.session, first.key, "", "ok", told)

    assert faults(book, [other, *rest]) == [f"{first.key} was told turn {book.settled + 1}"]


async def send_at_once(
    folder: Path, crew: Crew, luck: random.Random, *, count: int, fault: str = ""
) -> None:
    """Let all clients send to one session, each as fast as it is answered."""
    server = Server(crew, folder / "home", fault=fault, forked=True)
    server.start()
    records = [Record(folder / f"s{number}.jsonl", synced=False) for number in range(CLIENTS)]
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(server, each)) for each in records]
        session = new_id(luck)
        await callers[0].open(session)

        async def send(caller: Caller) -> None:
            for _ in range(count // CLIENTS + 1):
                kind = luck.choice(["short", "short", "long", "broken"])
                await caller.send(session, new_id(luck, kind), on_busy=luck.choice(WISHES))

        await asyncio.gather(*map(send, callers))
        await be_refused(callers[0], session, luck)
        await until(lambda: not waiting(server.home))
    server.stop()
    for record in records:
        record.close()


async def be_refused(caller: Caller, session: str, luck: random.Random) -> None:
    """Send to a busy session until a message is refused; at a small size, none may have been."""
    async with asyncio.timeout(PATIENCE):
        while await caller.send(session, new_id(luck, "slow"), on_busy="reject"):
            pass


def sends(folder: Path) -> list[Attempt]:
    """Return everything that was sent."""
    return [each for each in read_attempts(folder.glob("s*.jsonl")) if each.verb == "send"]


def faults(book: Notebook, attempts: list[Attempt]) -> list[str]:
    """Return each message that is not in exactly the turn its sender was told, or in none."""
    turns: dict[str, list[int]] = {}
    for row in book.rows:
        if row.role == "user":
            turns.setdefault(row.id, []).append(row.turn)
    found = []
    for each in attempts:
        if each.acknowledged and turns.get(each.key) != [each.answer["turn"]]:
            found.append(f"{each.key} was told turn {each.answer['turn']}")
        if not each.acknowledged and each.key in turns:
            found.append(f"{each.key} was refused and is there")
    played = {turn for each in turns.values() for turn in each}
    found += [
        f"turn {turn} was never asked for"
        for turn in range(1, book.settled + 1)
        if turn not in played
    ]
    return found
