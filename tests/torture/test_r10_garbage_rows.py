"""R10: garbage in rows and pages of a long session hides nothing but the rows that it hit."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import Holdfast, RunScope, SessionId, open_holdfast
from holdfast.config import Config
from tests.marks import proves
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.ruins import COST, KINDS, Told, faults_of, ruined, told_of
from tests.torture.test_r11_flipped_bits import FORM

pytestmark = pytest.mark.slow

SENT_AT_ONCE = 100


@pytest.fixture(params=list(FORM))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A home, encrypted and plain."""
    return settings(tmp_path / "home", encryption=FORM[request.param])


async def _written(house: Holdfast, luck: random.Random, events: int) -> SessionId:
    """Write a session of so many events, most of them short and some of many pages."""
    session = await house.open()
    for start in range(1, events, SENT_AT_ONCE):
        sizes = [luck.choice((200, 1_500, 4_000)) for _ in range(min(SENT_AT_ONCE, events - start))]
        await asyncio.gather(*(house.send(session.id, f"{size} " * (size // 5)) for size in sizes))
    await house.send((await house.open()).id, "another session")
    return session.id


async def _truth(house: Holdfast, session: SessionId) -> Told:
    known = await house.sessions.get(house.owner, session)
    truth = Told()
    while len(truth.messages) < known.message_count:
        page = await house.messages.list(
            house.owner, session, after=len(truth.messages), limit=SENT_AT_ONCE
        )
        truth.messages |= {each.sequence: each for each in page.items}
    after: str | None = "0"
    while after is not None:
        news = await house.events.list(house.owner, session, after=int(after))
        truth.events |= {each.sequence: each for each in news.items}  # type: ignore[union-attr]
        after = news.next_cursor
    return truth


@proves("R10")
def test_garbage_hides_nothing_but_the_rows_that_it_hit(
    config: Config, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    trials = sized(quick=2, test=5, torture=25, release=500)
    events = sized(test=400, torture=10_667)
    session, truth = asyncio.run(_prepared(config, luck, events))
    store = config.home / "history.db"
    whole = store.read_bytes()
    done: Counter[str] = Counter()
    faults: list[str] = []
    for _ in range(trials):
        kinds = luck.choices(KINDS, k=luck.randrange(1, 4))
        for kind in kinds:
            ruined(config.home, luck, kind)
        told = asyncio.run(_told(config, session, truth))
        most = sum(COST.get(kind, 1) for kind in kinds)
        faults += [f"{kinds}: {each}" for each in faults_of(truth, told, session, most)]
        done.update(kinds)
        store.write_bytes(whole)

    tell(f"{config.encryption}: {dict(done)} in {len(whole) >> 20} MB, every other row shown")
    assert faults == []
    assert len(truth.events) == events


async def _prepared(config: Config, luck: random.Random, events: int) -> tuple[SessionId, Told]:
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        session = await _written(house, luck, events)
        return session, await _truth(house, session)


async def _told(config: Config, session: SessionId, truth: Told) -> Told:
    ids = {number: message.id for number, message in truth.messages.items()}
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        return await told_of(house, session, ids, len(truth.events))


@proves("R10")
def test_the_judge_sees_neighbours_that_are_hidden_and_rows_that_are_changed(
    config: Config, luck: random.Random
) -> None:
    session, truth = asyncio.run(_prepared(config, luck, 50))
    kept = {number: each for number, each in truth.messages.items() if number != 20}
    named = {20: f"message 20 of session {session}"}
    right = Told(messages=kept, events=truth.events, refused=named)
    first = {number: each for number, each in kept.items() if number < 20}
    changed = {**kept, 5: kept[6]}

    assert faults_of(truth, right, session, 1) == []
    for wrong in (
        replace(right, messages=first),
        replace(right, messages=changed),
        replace(right, refused={20: "the store"}),
        replace(right, events={}),
        truth,
    ):
        assert faults_of(truth, wrong, session, 1) != []
