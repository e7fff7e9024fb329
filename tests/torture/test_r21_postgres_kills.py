"""R21: Postgres itself is killed and started again under load, and every turn comes out right."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests import postgres
from tests.marks import proves
from tests.torture.attempts import ORDINARY, read_attempts
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.machine import DATABASE
from tests.torture.notebooks import looking
from tests.torture.served import Server
from tests.torture.strict import refused_projections
from tests.torture.test_r01_server_kills import CLIENTS, Tale, judged, under_load

pytestmark = pytest.mark.slow

# Seconds for which it is away.
AWAY_MOST = 2.0
# Nothing is written to the log before somebody needs it: then a promise that is not kept shows.
LAZY = {"wal_writer_delay": "10s"}

SETTLED = """
SELECT CAST(coalesce(sum(settled), 0) AS BIGINT)
  FROM sessions
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[postgres.Server]:
    """Run a Postgres that nobody else uses, and have all rows kept there."""
    with postgres.running() as server:
        monkeypatch.setenv(DATABASE, server.url("postgres"))
        yield server


@proves("R21")
def test_every_turn_is_right_although_postgres_is_killed_under_load(
    crew: Crew, cluster: postgres.Server, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    turns = sized(quick=2, test=20, torture=500, release=5_000)
    tale = Tale()
    server = Server(crew, crew.folder / "home")
    server.start()

    asyncio.run(under_load([server], luck, tale, outages(cluster, luck, turns)))
    server.stop()
    result = judged(crew.folder, crew)
    attempts = read_attempts(crew.folder.glob("h*.jsonl"))

    tell(
        f"{len(tale.ready)} kills of Postgres, {settled(server.home)} turns, "
        f"{result.acknowledged} acknowledged to {CLIENTS} clients, 0 lost"
    )
    assert result.is_clean, result
    assert {each.outcome for each in attempts} <= ORDINARY
    assert asyncio.run(refused_projections(server.home)) == []
    assert (tale.lost_claims, settled(server.home) >= turns) == (0, True)


@proves("R21")
def test_the_killing_finds_a_postgres_that_acknowledges_too_early(
    tmp_path: Path, crew: Crew, cluster: postgres.Server, luck: random.Random
) -> None:
    cluster.stop()
    cluster.start(LAZY)
    server = Server(crew, tmp_path / "home", fault="reckless")
    server.start()
    # What is not about to be lost: the tables themselves, and the token that callers have.
    with looking(server.home) as rows:
        rows.execute("CHECKPOINT")

    asyncio.run(under_load([server], luck, Tale(), outages(cluster, luck, turns=1)))
    server.kill()

    assert judged(tmp_path, crew).counts["LOST"] > 0


async def outages(
    cluster: postgres.Server, luck: random.Random, turns: int
) -> AsyncIterator[float]:
    """Kill Postgres until so many turns were played; yield for how long it was away each time."""
    while True:
        begun = time.monotonic()
        cluster.stop(signal.SIGKILL)
        await asyncio.sleep(luck.uniform(0, AWAY_MOST))
        # Not in a thread: the system ends a server with the thread that started it.
        cluster.start()
        yield time.monotonic() - begun
        if settled(Path()) >= turns:
            return


def settled(home: Path) -> int:
    """Return how many turns have come to their end."""
    with looking(home) as rows:
        return int(rows.execute(SETTLED)[0][0])
