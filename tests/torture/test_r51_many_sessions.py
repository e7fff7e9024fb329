"""R51: a server starts after a kill, in a store with many sessions and very many messages."""

import asyncio
import random
import signal
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from tests.marks import proves
from tests.torture.attempts import read_lines
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.recovery import recovered
from tests.torture.stocks import stock

pytestmark = pytest.mark.slow

READY_MOST, QUIET_MOST = 5.0, 60.0
RUNNING = 30


@proves("R51")
def test_a_large_store_is_ready_soon_after_a_kill(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    sessions = sized(quick=40, test=500, torture=10_000)
    home = tmp_path / "home"
    ids = asyncio.run(stock(home, luck, sessions=sessions, messages=100))
    victims = luck.sample(ids, RUNNING)

    record = tmp_path / "killed.jsonl"
    assert crew.run("starter", home=home, record=record, talk_to=victims) == -signal.SIGKILL
    named = asyncio.run(named_by_the_report(home))
    record = tmp_path / "started.jsonl"
    assert crew.run("starter", home=home, record=record, talk_to=[]) == 0

    ready = next(line["ready_ms"] for line in read_lines([record]) if "ready_ms" in line)
    tell(f"{sessions} sessions, {sessions * 100} messages, {RUNNING} cut off, ready in {ready} ms")
    assert named == sorted(victims)
    assert ready <= sized.within(READY_MOST) * 1000
    assert asyncio.run(recovered(home))[1] <= sized.within(QUIET_MOST)


@proves("R51")
def test_the_report_names_nothing_where_nothing_was_cut_off(
    tmp_path: Path, luck: random.Random
) -> None:
    asyncio.run(stock(tmp_path / "home", luck, sessions=3, messages=5))

    assert asyncio.run(named_by_the_report(tmp_path / "home")) == []


async def named_by_the_report(home: Path) -> list[str]:
    """Look, without playing anything, which turns recovery would take up."""
    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        return sorted((await house.maintenance.recover()).sessions)
