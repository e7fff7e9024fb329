"""R01 over HTTP: the server is killed under eight clients, who ask again with the same ids."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.attempts import ORDINARY, Record, read_attempts
from tests.torture.audit import Audit, audit
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.crowds import Member, clerk, tidy
from tests.torture.recovery import until, waiting
from tests.torture.served import Server
from tests.torture.strict import refused_projections

pytestmark = pytest.mark.slow

CLIENTS = 8
READY_MOST = 5.0


@proves("R01")
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kills = sized(test=15, torture=100, release=10_000)
    tale = Tale()

    asyncio.run(killing_spree(tmp_path, crew, luck, tale, kills=kills))
    result = judged(tmp_path, crew)
    attempts = read_attempts(tmp_path.glob("h*.jsonl"))

    tell(
        f"{kills} kills of a server, {result.acknowledged} acknowledged to {CLIENTS} clients, "
        f"{tale.repeats} asked again, {tale.tidied} answers and settlements, 0 lost, "
        f"ready in {max(tale.ready) * 1000:.0f} ms"
    )
    assert result.is_clean, result
    assert {each.outcome for each in attempts} <= ORDINARY
    assert max(tale.ready) <= sized.within(READY_MOST)
    assert asyncio.run(refused_projections(tmp_path / "home")) == []
    assert min(tale.repeats, tale.tidied) > 0


@proves("R01")
def test_the_killing_finds_a_server_that_answers_too_early(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    asyncio.run(killing_spree(tmp_path, crew, luck, Tale(), kills=3, fault="hasty"))

    assert judged(tmp_path, crew).counts["LOST"] > 0


@dataclass
class Tale:
    """What the killing came to."""

    ready: list[float] = field(default_factory=list)
    repeats: int = 0
    tidied: int = 0


async def killing_spree(
    folder: Path, crew: Crew, luck: random.Random, tale: Tale, *, kills: int, fault: str = ""
) -> None:
    """Kill the server again and again while everybody works, and let all of it come to an end."""
    server = Server(crew, folder / "home", fault=fault)
    server.start()
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        records = [Record(folder / f"h{number}.jsonl", synced=False) for number in range(CLIENTS)]
        callers = [await stack.enter_async_context(Caller(server, record)) for record in records]
        shared = [new_id(luck) for _ in range(3)]
        for key in shared:
            await callers[0].open(key)
        members = [Member(each, shared, luck) for each in callers]
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(each.work(done)) for each in members]
            tidying = tasks.create_task(clerk(callers[0], luck, done))
            for _ in range(kills):
                await a_while(members, luck)
                server.kill()
                tale.ready.append(await asyncio.to_thread(server.start))
            await a_while(members, luck)
            done.set()
            await asyncio.wait([*working, tidying])
        tale.repeats = sum(each.repeats for each in callers)
        tale.tidied = tidying.result() + await come_to_rest(callers[0], server, luck)
    server.kill() if fault else server.stop()
    for record in records:
        record.close()


async def a_while(members: list[Member], luck: random.Random) -> None:
    """Wait until most have done something, and then for any moment."""
    before = [each.deeds for each in members]
    pairs = list(zip(members, before, strict=True))
    await until(lambda: all(each.deeds > then for each, then in pairs))
    await asyncio.sleep(luck.uniform(0, 0.4))


async def come_to_rest(caller: Caller, server: Server, luck: random.Random) -> int:
    """Answer what is asked until no turn is open or waits; return how much that was."""
    count = 0
    async with asyncio.timeout(PATIENCE):
        while waiting(server.home):
            count += await tidy(caller, luck)
            await asyncio.sleep(0.05)
    return count


def judged(folder: Path, crew: Crew) -> Audit:
    """Judge the home by what the clients were told."""
    return audit(folder / "home", records=folder.glob("h*.jsonl"), mark=crew.mark)
