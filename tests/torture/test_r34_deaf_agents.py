"""R34: an agent that says nothing, or does not listen, keeps nobody waiting and is not kept."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.events import FailureCode
from holdfast.domain.sessions import Session, Status, StopReason
from tests.acp.harness import END, Aboard, aboard, codes, hasty
from tests.acp.scripted_agents import Peer
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import wait_until
from tests.torture.machine import start_of

pytestmark = pytest.mark.slow

INTERRUPTED_WITHIN, GONE_WITHIN = 5.0, 10.0
# How long the phases last here; what is interrupted has the time that it has everywhere.
PHASE = 1.0
DEADLINES = hasty(start=PHASE, session=PHASE, silence=PHASE, cancel=5.0)
NEW: list[Any] = [{"text": "new"}, END]
ENDLESS: list[Any] = [{"text": "la"}, {"mark": "in"}, "hang"]


@dataclass(frozen=True)
class Agent:
    """A kind of agent: what it does, and what becomes of its turn and of itself."""

    name: str
    script: dict[str, Any]
    failure: FailureCode | None = None
    stop: StopReason = StopReason.ERROR
    status: Status = Status.FAILED
    said: tuple[str, ...] = field(default=())


AGENTS = (
    Agent("never starts", {"on": {"initialize": []}}, FailureCode.AGENT_START_TIMEOUT),
    Agent("never opens", {"on": {"session/new": []}}, FailureCode.AGENT_START_TIMEOUT),
    Agent("ends at its start", {"start": [{"exit": 3}]}, FailureCode.AGENT_DIED),
    Agent(
        "silent",
        {"on": {"session/prompt": [[{"text": "la"}, {"mark": "in"}, "until_cancel"], NEW]}},
        stop=StopReason.ABORTED,
        status=Status.IDLE,
        said=("agent_silent",),
    ),
    Agent(
        "ignores cancel",
        {"on": {"session/prompt": ENDLESS}, "ignore": ["cancel"]},
        stop=StopReason.ABORTED,
        status=Status.IDLE,
    ),
    Agent(
        "ignores everything",
        {"on": {"session/prompt": ENDLESS}, "ignore": ["cancel", "TERM", "INT", "HUP", "eof"]},
        stop=StopReason.ABORTED,
        status=Status.IDLE,
    ),
)


@dataclass(frozen=True)
class Seen:
    """What became of one agent, and in how many seconds."""

    stop: StopReason | None
    status: Status
    failure: FailureCode | None
    said: list[str]
    interrupted: float
    gone: float
    again: str


@proves("R34")
@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_nobody_waits_for_an_agent_that_does_not_listen(
    tmp_path: Path, sized: Sized, tell: Tell, agent: Agent
) -> None:
    rounds = sized(test=1, torture=5, release=20)
    seen = [asyncio.run(_met(tmp_path / str(number), agent)) for number in range(rounds)]

    slowest = max(each.interrupted for each in seen), max(each.gone for each in seen)
    tell(f"{agent.name}: ended within {slowest[0]:.2f} s, gone within {slowest[1]:.2f} s")
    for each in seen:
        assert (each.stop, each.status, each.failure) == (agent.stop, agent.status, agent.failure)
        assert set(agent.said) <= set(each.said)
        assert each.again == "new"
    assert slowest[0] < sized.within(INTERRUPTED_WITHIN)
    assert slowest[1] < sized.within(GONE_WITHIN)


async def _met(folder: Path, agent: Agent) -> Seen:
    """Let an agent do what it does, interrupt it if it would go on, and talk to the next one."""
    async with aboard(folder, config_acp=DEADLINES, **agent.script) as ship:
        session = await ship.open()
        began = await _begun(ship, session, agent)
        rows = await ship.settled(session)
        interrupted = time.monotonic() - began
        now = await ship.now(session)
        failure = (await ship.ended(session)).failure
        ship.peer.write(on={"session/prompt": NEW})
        gone = await asyncio.to_thread(_gone, ship.peer, agent)
        if agent.status is Status.FAILED:
            session = await ship.house.sessions.fork(ship.house.owner, session.id)
        again = await ship.tell(session, "again")
    return Seen(
        stop=now.last_stop,
        status=now.status,
        failure=failure.code if failure else None,
        said=codes(rows),
        interrupted=interrupted,
        gone=gone - began,
        again=again[-1].text,
    )


async def _begun(ship: Aboard, session: Session, agent: Agent) -> float:
    """Begin a turn, and return from when on nobody should have to wait."""
    await ship.house.send(session.id, "go")
    if agent.failure is not None:
        return time.monotonic()
    await ship.logged("mark", name="in")
    if "agent_silent" in agent.said:
        await _told(ship, session)
    began = time.monotonic()
    await ship.house.sessions.interrupt(ship.house.owner, session.id)
    return began


async def _told(ship: Aboard, session: Session) -> None:
    """Wait until somebody is told that the agent says nothing."""
    async with asyncio.timeout(60):
        while True:
            if "agent_silent" in codes(await ship.house.read(session.id)):
                return
            await asyncio.sleep(0.02)


def _gone(peer: Peer, agent: Agent) -> float:
    """Wait until a program is gone that has to go, and return when that was."""
    if agent.name != "silent":
        pids = [each["pid"] for each in peer.log("start")]
        wait_until(lambda: all(start_of(pid) is None for pid in pids))
    return time.monotonic()


@proves("R34")
def test_control_a_plain_program_stays(tmp_path: Path, tell: Tell) -> None:
    stays = asyncio.run(_asked_to_go(Peer(tmp_path / "peer", **AGENTS[-1].script)))

    tell(f"control: asked to go it is there after {stays:.1f} s")
    assert stays > 1


async def _asked_to_go(peer: Peer) -> float:
    process = await asyncio.create_subprocess_exec(*peer.argv, stdin=asyncio.subprocess.PIPE)
    await asyncio.to_thread(peer.wait_for, "start")
    began = time.monotonic()
    assert process.stdin is not None
    process.stdin.close()
    process.terminate()
    waiting = asyncio.ensure_future(process.wait())
    await asyncio.wait([waiting], timeout=1.5)
    stays = time.monotonic() - began if not waiting.done() else 0.0
    process.kill()
    await waiting
    return stays
