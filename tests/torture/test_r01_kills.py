"""R01: eight processes are killed at random moments under load, start again and ask again."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from holdfast import open_holdfast
from tests.marks import proves
from tests.torture.attempts import ORDINARY, Record, read_attempts, read_lines
from tests.torture.audit import Audit, audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.loads import Loads
from tests.torture.recovery import recovered
from tests.torture.strict import refused_projections

pytestmark = pytest.mark.slow

CLIENTS = 8
READY_MOST = 5.0


@proves("R01")
def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kills = sized(quick=4, test=15, torture=100, release=10_000)

    killing_spree(tmp_path, crew, luck, kills=kills)
    result = settled_audit(tmp_path, crew)
    lines = list(read_lines(tmp_path.glob("c*.jsonl")))
    slowest = max(line["ready_ms"] for line in lines if "ready_ms" in line)
    attempts = read_attempts(tmp_path.glob("*.jsonl"))

    tell(f"{kills} kills, {result.acknowledged} acknowledged, 0 lost, ready in {slowest} ms")
    assert result.is_clean, result
    assert {each.outcome for each in attempts if each.outcome} <= ORDINARY
    assert slowest <= sized.within(READY_MOST) * 1000
    assert asyncio.run(refused_projections(tmp_path / "home")) == []


@proves("R01")
def test_the_killing_finds_a_store_that_answers_too_early(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    killing_spree(tmp_path, crew, luck, kills=6, fault="lying")

    assert settled_audit(tmp_path, crew).counts["LOST"] > 0


def killing_spree(
    folder: Path, crew: Crew, luck: random.Random, *, kills: int, fault: str = ""
) -> None:
    """Kill clients one by one, now and then all together, and start them again."""
    shared = asyncio.run(shared_sessions(folder, luck))
    loads = Loads(crew, folder, luck, home=folder / "home", shared=shared, fault=fault)
    loads.start(*range(CLIENTS))
    done = 0
    while done < kills:
        everyone = luck.random() < 0.1 and kills - done >= CLIENTS
        victims = list(range(CLIENTS)) if everyone else [luck.randrange(CLIENTS)]
        # Most die amid their work, however long it takes them to get there; some while they start.
        if luck.random() < 0.8:
            loads.wait_for_a_yes(*victims)
        # From then on any moment is as good as another.
        time.sleep(luck.uniform(0.05, 0.6))
        loads.kill(*victims)
        loads.start(*victims)
        done += len(victims)
    loads.wait_for_a_yes(*range(CLIENTS), verb="send")
    loads.kill(*range(CLIENTS))


def settled_audit(folder: Path, crew: Crew) -> Audit:
    """Let one last process play what waits, then judge."""
    asyncio.run(recovered(folder / "home"))
    return audit(
        folder / "home",
        records=folder.glob("*.jsonl"),
        streams=folder.glob("*.stream"),
        mark=crew.mark,
    )


async def shared_sessions(folder: Path, luck: random.Random) -> list[str]:
    """Open a few sessions that all clients use."""
    record = Record(folder / "parent.jsonl")
    async with open_holdfast(config=settings(folder / "home")) as house:
        client = Client(house, record)
        keys = [new_id(luck) for _ in range(4)]
        for key in keys:
            await client.open(key)
    record.close()
    return keys
