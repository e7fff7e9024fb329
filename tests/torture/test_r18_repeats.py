"""R18: one key, one effect: at once, from several processes, after a restart, after 30 days."""

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Conflict, Holdfast, SessionRequest, open_holdfast
from holdfast.app import Environment
from holdfast.domain.ids import SessionId
from tests.marks import proves
from tests.torture.attempts import Record, read_attempts
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.clients.repeats import ask
from tests.torture.clocks import SettableClock
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.notebooks import read_books
from tests.torture.recovery import recovered

pytestmark = pytest.mark.slow

PROCESSES = 4
Asked = tuple[str, str, str]


@proves("R18")
def test_a_key_has_one_effect_for_ever(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    keys, copies = sized(quick=6, test=20, torture=200), sized(quick=10, test=20, torture=50)
    home = tmp_path / "home"
    asked = asyncio.run(prepared(tmp_path, luck, keys))

    storm(crew, tmp_path, asked, copies - 2)
    refused = asyncio.run(other_bodies(home, asked))
    asyncio.run(once_more(tmp_path, asked, "restart", timedelta(0)))
    asyncio.run(once_more(tmp_path, asked, "month", timedelta(days=30)))
    asyncio.run(recovered(home))

    result = audit(home, records=tmp_path.glob("*.jsonl"), mark=crew.mark)
    tell(f"{keys} keys × {copies}, {result.acknowledged} equal answers, {refused} refused")
    assert result.is_clean, result
    assert {each.outcome for each in read_attempts(tmp_path.glob("*.jsonl"))} == {"ok"}
    assert refused == keys
    assert effects(home) == keys


@proves("R18")
def test_the_storm_finds_a_client_that_has_no_keys(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asked = asyncio.run(prepared(tmp_path, luck, 10))
    sends = [each for each in asked if each[0] == "send"]

    # A new key for every copy is what a client without keys amounts to.
    for number in range(2):
        changed = [(verb, session, new_id(luck, "short")) for verb, session, _ in sends]
        storm(crew, tmp_path, changed, 1, name=f"keyless{number}-")

    assert effects(tmp_path / "home") > len(sends)


async def prepared(folder: Path, luck: random.Random, keys: int) -> list[Asked]:
    """Open a few sessions with something in them, and choose what will be asked again and again."""
    record = Record(folder / "parent.jsonl")
    async with open_holdfast(config=settings(folder / "home")) as house:
        client = Client(house, record)
        sessions = [new_id(luck) for _ in range(4)]
        for session in sessions:
            await client.open(session)
    record.close()
    verbs = ["open", "fork", "send", "send", "send"]
    return [
        (verbs[number % 5], luck.choice(sessions), new_id(luck, "short")) for number in range(keys)
    ]


def storm(
    crew: Crew, folder: Path, asked: list[Asked], copies: int, *, name: str = "storm"
) -> None:
    """Ask everything from several processes at once, so many times in all."""
    shares = [copies // PROCESSES + (n < copies % PROCESSES) for n in range(PROCESSES)]
    processes = [
        crew.start(
            "repeats",
            home=folder / "home",
            record=folder / f"{name}{number}.jsonl",
            asked=asked,
            copies=share,
            seed=number,
        )
        for number, share in enumerate(shares)
        if share
    ]
    for process in processes:
        assert process.wait(timeout=PATIENCE) == 0, crew.log_of(process)


async def once_more(folder: Path, asked: list[Asked], name: str, later: timedelta) -> None:
    """Ask everything once more in a new process's place, with a clock set forward."""
    clock = SettableClock()
    clock.step(timedelta(days=3650) + later)
    record = Record(folder / f"{name}.jsonl")
    async with open_holdfast(
        config=settings(folder / "home"), outside=Environment(clock=clock)
    ) as house:
        await house.maintenance.prune()
        client = Client(house, record)
        await asyncio.gather(*(ask(client, *each) for each in asked))
    record.close()


async def other_bodies(home: Path, asked: list[Asked]) -> int:
    """Use every key with another body; return how many were refused as conflicts."""
    async with open_holdfast(config=settings(home)) as house:
        return sum([await _is_refused(house, *each) for each in asked])


async def _is_refused(house: Holdfast, verb: str, session: str, key: str) -> bool:
    try:
        match verb:
            case "open":
                await house.open(request=SessionRequest(title="another"), id=key)
            case "fork":
                await house.sessions.fork(house.owner, SessionId(session), title="other", id=key)
            case _:
                await house.send(SessionId(session), "another body", id=key)
    except Conflict:
        return True
    return False


def effects(home: Path) -> int:
    """Return how many sessions beyond the first four and messages of users there are."""
    books = read_books(home).notebooks.values()
    sent = sum(row.role == "user" and row.event > 0 for book in books for row in book.rows)
    return len(books) - 4 + sent
