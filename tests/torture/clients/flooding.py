"""A house in which one agent floods while somebody talks to another one.

Writes down what became of the flood, how much memory it took, and how long the others waited.
"""

import asyncio
import json
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.events import Event, TurnEnded
from holdfast.domain.sessions import Session, SessionRequest
from tests.acp.harness import END, Aboard, aboard
from tests.acp.scripted_agents import Peer
from tests.houses import played

NEW: list[Any] = [{"text": "new"}, END]
# A flood of two gibibytes takes as long as the machine lets it.
PATIENCE = 300.0


async def main(folder: str, steps: str, answer: str, calm: int) -> None:
    """Play the steps of a flood as one turn, and the same agent's next turn after it.

    `calm` is the least number of turns with the other agent, before the flood and during it.
    """
    flood = await asyncio.to_thread(Path(steps).read_text, "utf-8")
    prompts = [json.loads(flood), NEW]
    async with aboard(Path(folder), on={"session/prompt": prompts}) as ship:
        told = await _told(ship, Path(folder), calm)
    await asyncio.to_thread(Path(answer).write_text, json.dumps(told), "utf-8")


async def _told(ship: Aboard, folder: Path, turns: int) -> dict[str, Any]:
    calm = await _calm(ship, folder)
    before = [await _waited(ship, calm) for _ in range(turns)]
    session = await ship.open()
    await ship.house.send(session.id, "go")
    flood = asyncio.create_task(_ended(ship, session))
    during = [await _waited(ship, calm)]
    while not flood.done() or len(during) < turns:
        during.append(await _waited(ship, calm))
    end = await flood
    await ship.house.send(session.id, "again")
    rows = await played(ship.house, session.id)
    now = await ship.now(session)
    return end | {
        "again": rows[-1].text,
        "status": str(now.status),
        "peak": _peak(),
        "before": _p99(before),
        "during": _p99(during),
    }


async def _calm(ship: Aboard, place: Path) -> Session:
    """Open a session with an agent that does nothing special."""
    peer = Peer(place / "calm")
    options = {"writable": [str(peer.folder)]}
    runtime = AcpRuntime(command=peer.argv[0], args=peer.argv[1:], options=options)
    fields = {"name": "Calm", "slug": "calm", "runtime": runtime}
    await ship.house.agents.create(ship.house.owner, fields)
    return await ship.house.open("calm", SessionRequest(repo_id=ship.repo.id))


async def _waited(ship: Aboard, session: Session) -> float:
    began = time.monotonic()
    now = await ship.now(session)
    await ship.house.send(session.id, "hello")
    # From here on only: whoever read all news again would wait longer with every turn.
    await _heard(ship, session, after=now.last_event)
    return time.monotonic() - began


async def _heard(ship: Aboard, session: Session, *, after: int) -> TurnEnded:
    """Follow a session to the end of a turn, however long that takes, and return how it ended."""
    async with (
        asyncio.timeout(PATIENCE),
        aclosing(ship.house.follow(session.id, after=after)) as news,
    ):
        async for event in news:
            if isinstance(event, Event) and isinstance(event.payload, TurnEnded):
                return event.payload
    raise AssertionError("a stream of news does not end by itself")


async def _ended(ship: Aboard, session: Session) -> dict[str, Any]:
    ended = await _heard(ship, session, after=0)
    return {
        "stop": str(ended.stop_reason),
        "failure": str(ended.failure.code) if ended.failure else None,
    }


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * 0.99))]


def _peak() -> int:
    """Return the most memory that this process ever had, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10
