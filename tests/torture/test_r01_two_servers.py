"""R01 with two servers on one Postgres: one is killed under load, and clients go to the other."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.marks import proves
from tests.postgres import Databases
from tests.torture.attempts import ORDINARY, read_attempts
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.machine import DATABASE
from tests.torture.served import Server
from tests.torture.strict import refused_projections
from tests.torture.test_r01_server_kills import (
    CLIENTS,
    READY_MOST,
    Tale,
    deaths,
    judged,
    killing_spree,
    under_load,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def database(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the rows of every process kept in one database, with nothing in it."""
    monkeypatch.setenv(DATABASE, databases.empty())


@proves("R01")
def test_nothing_acknowledged_is_lost_when_one_of_two_servers_on_postgres_is_killed(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kills = sized(test=3, torture=100, release=1_000)
    tale = Tale()

    asyncio.run(twofold_spree(tmp_path, crew, luck, tale, kills=kills))
    result = judged(tmp_path, crew)
    attempts = read_attempts(tmp_path.glob("h*.jsonl"))

    tell(
        f"{kills} kills of one of two servers, {result.acknowledged} acknowledged to {CLIENTS} "
        f"clients, {tale.repeats} asked again, 0 lost, ready in {max(tale.ready) * 1000:.0f} ms"
    )
    assert result.is_clean, result
    assert {each.outcome for each in attempts} <= ORDINARY
    assert max(tale.ready) <= sized.within(READY_MOST)
    assert asyncio.run(refused_projections(tmp_path / "home")) == []
    assert (tale.repeats > 0, tale.lost_claims) == (True, 0)


@proves("R01")
def test_the_killing_finds_a_server_on_postgres_that_answers_too_early(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asyncio.run(killing_spree(tmp_path, crew, luck, Tale(), kills=1, fault="hasty"))

    assert judged(tmp_path, crew).counts["LOST"] > 0


async def twofold_spree(
    folder: Path, crew: Crew, luck: random.Random, tale: Tale, *, kills: int
) -> None:
    """Kill one of two servers again and again while everybody works."""
    servers = [Server(crew, folder / "home") for _ in range(2)]
    for server in servers:
        server.start()
    await under_load(servers, luck, tale, deaths(servers, luck, kills))
    for server in servers:
        server.stop()
