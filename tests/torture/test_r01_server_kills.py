"""R01 over HTTP: the server is killed under eight clients, who ask again with the same ids."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest

from tests.marks import demands, proves
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

Blows = AsyncIterator[float]

CLIENTS = 8
READY_MOST = 5.0


@demands("S3-112")
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
        f"{tale.claims} claims, {tale.repeats} asked again, {tale.tidied} answers and "
        "settlements, 0 lost, "
        f"ready in {max(tale.ready) * 1000:.0f} ms"
    )
    assert result.is_clean, result
    assert {each.outcome for each in attempts} <= ORDINARY
    assert max(tale.ready) <= sized.within(READY_MOST)
    assert asyncio.run(refused_projections(tmp_path / "home")) == []
    assert min(tale.repeats, tale.tidied, tale.claims) > 0
    assert tale.lost_claims == 0


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
    claims: int = 0
    lost_claims: int = 0


async def killing_spree(
    folder: Path, crew: Crew, luck: random.Random, tale: Tale, *, kills: int, fault: str = ""
) -> None:
    """Kill the server again and again while everybody works, and let all of it come to an end."""
    server = Server(crew, folder / "home", fault=fault)
    server.start()
    await under_load([server], luck, tale, deaths([server], luck, kills))
    server.kill() if fault else server.stop()


async def deaths(servers: Sequence[Server], luck: random.Random, kills: int) -> Blows:
    """Kill one of the servers so often, and yield each time the seconds until it was back."""
    for _ in range(kills):
        server = luck.choice(servers)
        server.kill()
        yield await asyncio.to_thread(server.start)


async def under_load(
    servers: Sequence[Server], luck: random.Random, tale: Tale, blows: Blows
) -> None:
    """Have everybody work, with a while between blows, and let all of it come to an end."""
    home = servers[0].home
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        names = [home.parent / f"h{number}.jsonl" for number in range(CLIENTS)]
        records = [stack.enter_context(closing(Record(name, synced=False))) for name in names]
        callers = [
            await stack.enter_async_context(Caller(server, record, others=servers))
            for server, record in zip(cycle(servers), records, strict=False)
        ]
        shared = [new_id(luck) for _ in range(3)]
        for key in shared:
            await callers[0].open(key)
        members = [Member(each, shared, luck) for each in callers]
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(each.work(done)) for each in members]
            tidying = tasks.create_task(clerk(callers[0], luck, done))
            await a_while(members, luck)
            async for seconds in blows:
                tale.ready.append(seconds)
                await a_while(members, luck)
            done.set()
            await asyncio.wait([*working, tidying])
        tale.repeats = sum(each.repeats for each in callers)
        tale.tidied = tidying.result() + await come_to_rest(callers[0], home, luck)
        tale.claims = sum(len(each.told) for each in members)
        tale.lost_claims = sum([len(await each.lost()) for each in members])


async def a_while(members: list[Member], luck: random.Random) -> None:
    """Wait until most have done something, and then for any moment."""
    before = [each.deeds for each in members]
    pairs = list(zip(members, before, strict=True))
    await until(lambda: all(each.deeds > then for each, then in pairs))
    await asyncio.sleep(luck.uniform(0, 0.4))


async def come_to_rest(caller: Caller, home: Path, luck: random.Random) -> int:
    """Answer what is asked until no turn is open or waits; return how much that was."""
    count = 0
    async with asyncio.timeout(PATIENCE):
        while waiting(home):
            count += await tidy(caller, luck)
            await asyncio.sleep(0.05)
    return count


def judged(folder: Path, crew: Crew) -> Audit:
    """Judge the home by what the clients were told."""
    return audit(folder / "home", records=folder.glob("h*.jsonl"), mark=crew.mark)
