"""Turns of a program's own loop, their replay, and turns that start an agent."""

import asyncio
import time
from pathlib import Path
from uuid import uuid4

from bench.figures import Figure, at_least, below, measures, middle
from bench.turns import ROUNDS, TOOL_TURN, UNCAPPED, played
from holdfast import LocalHoldfast, Session, Turn, open_holdfast

ONE, FIFTY = 60, 6
ENTRIES = 1_000
CHILDREN = 30
START = """
- tool_calls: [{name: invoke_agent, arguments: {agent: helper, task: Do it.}}]
  usage: {input: 10, output: 10}
- text: A short answer.
  usage: {input: 10, output: 10}
"""
SAY = """
- text: A short answer.
  usage: {input: 10, output: 10}
"""


async def plan(turn: Turn) -> str:
    """Make one pure call, and answer."""
    return str(await turn.call("look", {"name": "here"}, run=look, effect="pure"))


async def look(name: str) -> str:
    """Return the name."""
    return name


@measures("own_turn_1", "own_turn_50")
def own_turns(folder: Path) -> dict[str, Figure]:
    """Play turns of a registered loop, and alternate with those of a model with a tool."""
    return asyncio.run(_own_turns(folder))


async def _own_turns(folder: Path) -> dict[str, Figure]:
    rates: dict[tuple[str, int], list[float]] = {}
    async with open_holdfast(folder / "home") as hf:
        hf.runtime("planner")(plan)
        turns = (ROUNDS + 1) * (ONE + FIFTY)
        agent = await _agent(hf, folder, "model", TOOL_TURN * turns, tools=["checkpoint"])
        sessions = {}
        for name in ("planner", agent):
            sessions[name, 1] = [await hf.open(name, UNCAPPED)]
            sessions[name, 50] = [await hf.open(name, UNCAPPED) for _ in range(50)]
            await played(hf, sessions[name, 1], ONE)
        for _ in range(ROUNDS):
            for (name, count), group in sessions.items():
                rate = await played(hf, group, ONE if count == 1 else FIFTY)
                rates.setdefault((name, count), []).append(rate)
    middles = {key: middle(each) for key, each in rates.items()}
    return {
        f"own_turn_{count}": at_least(
            middles["planner", count], "turns/s", middles[agent, count], 1
        )
        for count in (1, 50)
    }


async def _agent(hf: LocalHoldfast, folder: Path, name: str, steps: str, **fields: object) -> str:
    script = folder / f"{name}.yaml"
    script.write_text(steps)
    given = {"name": name, "slug": name, "models": [f"scripted:{script}"], **fields}
    return (await hf.agents.create(hf.owner, given)).slug


@measures("replay_1000")
def replay(folder: Path) -> dict[str, Figure]:
    """Run a loop again whose entries are all recorded."""
    return asyncio.run(_replay(folder))


async def _replay(folder: Path) -> dict[str, Figure]:
    spent = []
    async with open_holdfast(folder / "home") as hf:
        for _ in range(ROUNDS):
            session, message = await hf.open(), str(uuid4())
            await _make_calls(hf, session, message)
            before = (await hf.sessions.get(hf.owner, session.id)).last_event
            spent.append(await _make_calls(hf, session, message))
            # Entering a turn again writes two events, and a replayed entry none.
            assert (await hf.sessions.get(hf.owner, session.id)).last_event <= before + 2
    return {"replay_1000": below(middle(spent) * 1000, "ms", 150)}


async def _make_calls(hf: LocalHoldfast, session: Session, message: str) -> float:
    """Make the calls and leave the turn open; return the seconds that they took."""
    took = 0.0
    try:
        async with hf.turn(session.id, "Go", id=message, max_calls=ENTRIES) as turn:
            started = time.perf_counter()
            for number in range(ENTRIES):
                await turn.call("look", {"name": str(number)}, run=look, effect="pure")
            took = time.perf_counter() - started
            raise SystemExit
    except SystemExit:
        pass
    return took


@measures("child_turn")
def child_turns(folder: Path) -> dict[str, Figure]:
    """Play turns that start an agent, and alternate with turns of a plain tool."""
    return asyncio.run(_child_turns(folder))


async def _child_turns(folder: Path) -> dict[str, Figure]:
    starter = {"name": "invoke_agent", "agents": ["helper"]}
    children, bare = [], []
    async with open_holdfast(folder / "home") as hf:
        # Each session plays the script of its agent from the beginning.
        await _agent(hf, folder, "helper", SAY)
        await _agent(hf, folder, "lead", START * CHILDREN, tools=[starter])
        await _agent(hf, folder, "plain", TOOL_TURN * CHILDREN, tools=["checkpoint"])
        for number in range(ROUNDS + 1):
            sessions = [await hf.open(agent, UNCAPPED) for agent in ("lead", "plain")]
            rates = [await played(hf, [each], CHILDREN) for each in sessions]
            # The first round warms up.
            if number:
                children.append(rates[0])
                bare.append(rates[1])
    return {"child_turn": at_least(middle(children), "turns/s", middle(bare), 1 / 2.5)}
