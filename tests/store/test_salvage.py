"""Rows beside damage are shown: found without looking for them, where looking fails."""

import random
from pathlib import Path

import pytest

from holdfast import Holdfast, RunScope, SessionId, open_holdfast
from holdfast.domain.errors import Code, Internal, NotFound
from tests.houses import raw
from tests.torture.clients.house import settings
from tests.torture.ruins import OVERFLOW, Told, faults_of, ruined, told_of

pytestmark = pytest.mark.anyio

SENT = 60


async def _written(house: Holdfast) -> tuple[SessionId, Told]:
    session = (await house.open()).id
    for number in range(SENT):
        await house.send(session, f"{number} " * 3_000)
    truth = Told()
    page = await house.messages.list(house.owner, session, limit=100)
    truth.messages = {each.sequence: each for each in page.items}
    news = await house.events.list(house.owner, session)
    truth.events = {each.sequence: each for each in news.items}  # type: ignore[union-attr]
    return session, truth


@pytest.mark.parametrize("seed", range(4))
async def test_an_unreadable_page_costs_the_message_on_it_alone(tmp_path: Path, seed: int) -> None:
    config = settings(tmp_path / "home")
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        session, truth = await _written(house)
    ids = {number: each.id for number, each in truth.messages.items()}

    ruined(config.home, random.Random(seed), OVERFLOW)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        told = await told_of(house, session, ids, len(truth.events))
        with pytest.raises(NotFound):
            await house.messages.get(house.owner, session, house.zones.stamping.id_factory.new())

    assert faults_of(truth, told, session, 1) == []
    assert told.events == truth.events


@pytest.mark.parametrize("numbers", ["= 30", "IN (30, 31)", "> 0", "= 1", f"= {SENT}"])
async def test_news_beside_damaged_messages_are_told(quiet: Holdfast, numbers: str) -> None:
    session, truth = await _written(quiet)
    with raw(quiet.config.home) as file:
        file.execute("DROP TRIGGER messages_are_never_edited")
        file.execute(f"UPDATE messages SET created_at = 1 WHERE sequence {numbers}")
        hit = [
            row[0] for row in file.execute(f"SELECT event FROM messages WHERE sequence {numbers}")
        ]
    heard, unheard = {}, {}
    for number in truth.events:
        try:
            page = await quiet.events.list(quiet.owner, session, after=number - 1, limit=1)
            heard[number] = page.items[0]
        except Internal as error:
            unheard[number] = error.code

    assert unheard == dict.fromkeys(hit, Code.CORRUPT_ROW)
    assert heard == {number: each for number, each in truth.events.items() if number not in hit}
