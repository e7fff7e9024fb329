"""Somebody else's agent behind a session: how many updates a second, and what a turn costs more."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure, below, measures, middle
from holdfast import Holdfast, Session, SessionRequest, StopReason, open_holdfast
from holdfast.config import Config
from holdfast.domain.events import TurnEnded

UPDATES = 50_000
GOAL = 10_000
TURNS = 40
WORDS = "a few words of an answer, "
# Written apart from our code, and fast: an agent that answers at once, with as much as it is told.
AGENT = """
import json, sys
updates, text = int(sys.argv[1]), sys.argv[2]
out = sys.stdout.buffer
def send(**message):
    out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")
content = {"type": "text", "text": text}
chunk = {"sessionUpdate": "agent_message_chunk", "content": content}
for line in sys.stdin.buffer:
    message = json.loads(line)
    if message.get("method") == "initialize":
        send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}})
    elif message.get("method") == "session/new":
        send(id=message["id"], result={"sessionId": "s"})
    elif message.get("method") == "session/prompt":
        params = {"sessionId": "s", "update": chunk}
        update = {"jsonrpc": "2.0", "method": "session/update", "params": params}
        whole = json.dumps(update).encode() + b"\\n"
        for start in range(0, updates, 1000):
            out.write(whole * min(1000, updates - start))
        send(id=message["id"], result={"stopReason": "end_turn"})
    out.flush()
"""


@measures("acp_updates")
def updates(folder: Path) -> dict[str, Figure]:
    """Let an agent say as much as it can; all of it is on disk when the turn ends."""
    return asyncio.run(_updates(folder))


async def _updates(folder: Path) -> dict[str, Figure]:
    async with _stage(folder, UPDATES) as (holdfast, session):
        rates = [UPDATES / await _turn(holdfast, session) for _ in range(4)]
    # The first turn starts the program.
    rate = middle(rates[1:])
    figure = Figure(
        value=rate,
        unit="updates/s",
        yardstick=GOAL,
        ratio=rate / GOAL,
        goal=f"≥ {GOAL:,}/s",
        met=rate >= GOAL,
        note=f"{len(WORDS)} characters each",
    )
    return {"acp_updates": figure}


@measures("acp_overhead_ms")
def overhead(folder: Path) -> dict[str, Figure]:
    """Compare a turn with the same agent asked over its pipes and nothing written down."""
    return asyncio.run(_overhead(folder))


async def _overhead(folder: Path) -> dict[str, Figure]:
    agent = _Bare(_program(folder, 5))
    bare, ours = [], []
    async with _stage(folder, 5) as (holdfast, session):
        await _turn(holdfast, session)
        for _ in range(TURNS):
            bare.append(await asyncio.to_thread(agent.turn))
            ours.append(await _turn(holdfast, session))
    agent.close()
    figure = below((middle(ours) - middle(bare)) * 1000, "ms", 10)
    told = f"{middle(ours) * 1000:.1f} ms with us, {middle(bare) * 1000:.1f} ms without"
    return {"acp_overhead_ms": replace(figure, note=f"{told}; the tree is looked at twice in each")}


def _program(folder: Path, count: int) -> list[str]:
    file = folder / "agent.py"
    file.write_text(AGENT)
    return [sys.executable, "-I", "-S", str(file), str(count), WORDS]


@asynccontextmanager
async def _stage(folder: Path, count: int) -> AsyncIterator[tuple[Holdfast, Session]]:
    repository = folder / "work" / "repository"
    repository.mkdir(parents=True)
    await asyncio.to_thread(subprocess.run, ["git", "init", "-q", str(repository)], check=True)
    command, *arguments = _program(folder, count)
    fields = {"name": "Bench", "runtime": {"type": "acp", "command": command, "args": arguments}}
    config = Config(home=folder / "home", workspace_root=folder / "work")
    async with open_holdfast(config=config) as holdfast:
        agent = await holdfast.agents.create(holdfast.owner, fields)
        repo = await holdfast.repos.add(holdfast.owner, str(repository))
        request = SessionRequest(repo_id=repo.id, turn_cap=100_000)
        yield holdfast, await holdfast.open(agent.slug, request)


async def _turn(holdfast: Holdfast, session: Session) -> float:
    """Play a turn and return its seconds; deltas are not read, because that has other figures."""
    started = time.perf_counter()
    await holdfast.send(session.id, "Go.")
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    async with aclosing(holdfast.follow(session.id, after=now.last_event)) as news:
        async for event in news:
            if isinstance(getattr(event, "payload", None), TurnEnded):
                break
    taken = time.perf_counter() - started
    now = await holdfast.sessions.get(holdfast.owner, session.id)
    if now.last_stop is not StopReason.STOP:
        raise AssertionError(now)
    return taken


class _Bare:
    """The same agent, asked by hand."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ask("initialize")
        self._ask("session/new")

    def turn(self) -> float:
        started = time.perf_counter()
        self._ask("session/prompt")
        return time.perf_counter() - started

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, method: str) -> None:
        source, target = self._process.stdout, self._process.stdin
        if source is None or target is None:
            raise AssertionError("the agent has no pipes")
        target.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method}).encode() + b"\n")
        target.flush()
        while b'"result"' not in source.readline():
            pass
