"""R19: two servers and a command line on one file; the one that plays is killed."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.sessions import SessionRequest
from tests.marks import proves
from tests.torture.attempts import Record, read_attempts
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew, wait_until
from tests.torture.recovery import recovered
from tests.torture.servers import Servers, holds

pytestmark = pytest.mark.slow

TAKEOVER_MOST = 10.0
# How long a turn takes: long enough to be met amid it, and longer than any test.
TURN_MS, ENDLESS_MS = 3_000, 3_600_000
# Each round takes some turns, and a session usually has no more than fifty.
ENDURING = SessionRequest(turn_cap=10_000)


@proves("R19")
def test_the_other_server_takes_over_from_the_dead(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    rounds = sized(quick=1, test=5, torture=30, release=100)
    home = tmp_path / "home"
    sessions = [new_id(luck) for _ in range(3)]
    asyncio.run(called(tmp_path, sessions, luck, opening=True))
    servers = Servers(crew, home)
    for name in ("one", "two"):
        servers.start(name, delay_ms=TURN_MS)

    slowest = 0.0
    for _ in range(rounds):
        victim = servers.holder_of_a_turn(lambda: asyncio.run(called(tmp_path, sessions, luck)))
        slowest = max(slowest, killed_and_replaced(servers, victim, sessions, home))
    crew.stop(*servers.running.values())
    asyncio.run(recovered(home))

    result = audit(home, records=tmp_path.glob("*.jsonl"), mark=crew.mark)
    tell(f"{rounds} holders killed, taken over in {slowest:.1f} s at most")
    assert result.is_clean, result
    assert {each.outcome for each in read_attempts(tmp_path.glob("*.jsonl"))} == {"ok"}
    assert "locked" not in servers.logs()
    assert slowest <= sized.within(TAKEOVER_MOST)


@proves("R19")
def test_without_another_server_nobody_takes_over(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    home = tmp_path / "home"
    sessions = [new_id(luck)]
    asyncio.run(called(tmp_path, sessions, luck, opening=True))
    servers = Servers(crew, home)
    servers.start("one", delay_ms=ENDLESS_MS)

    name = servers.holder_of_a_turn(lambda: asyncio.run(called(tmp_path, sessions, luck)))
    victim = servers.running[name]
    victim.kill()
    victim.wait()

    assert audit(home, records=tmp_path.glob("*.jsonl")).counts["STUCK"] > 0


async def called(
    folder: Path, sessions: list[str], luck: random.Random, *, opening: bool = False
) -> None:
    """Do what a command line does: come, say something, and go; it plays nothing itself."""
    record = Record(folder / "cli.jsonl")
    async with open_holdfast(config=settings(folder / "home"), scope=RunScope.NONE) as house:
        client = Client(house, record)
        for session in sessions:
            if opening:
                await client.open(session, ENDURING)
            else:
                await client.send(session, new_id(luck, "short"))
    record.close()


def killed_and_replaced(servers: Servers, victim: str, sessions: list[str], home: Path) -> float:
    """Kill a server, wait until none of its turns is left to it, and start it again."""
    process = servers.running[victim]
    before = holds(home)
    lost = [session for session in sessions if before[session].pid == process.pid]
    process.kill()
    process.wait()
    begun = time.monotonic()
    wait_until(lambda: all(_moved_on(home, each, process.pid) for each in lost))
    passed = time.monotonic() - begun
    servers.start(victim, delay_ms=TURN_MS)
    return passed


def _moved_on(home: Path, session: str, dead: int) -> bool:
    hold = holds(home)[session]
    return hold.pid != dead and (hold.pid is not None or hold.status != "running")
