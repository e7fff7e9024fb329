"""Turns a second of the OpenAI Agents SDK: `FOLDER`; prints ours and the SDK's own as JSON."""

import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from agents import Agent, Runner, SQLiteSession, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message

from holdfast import open_holdfast
from holdfast.integrations.openai_agents import HoldfastSession

set_tracing_disabled(True)
FOLDER = Path(sys.argv[1])
ROUNDS, TURNS = 7, 30


async def rate(session: Any) -> float:
    """Return how many turns a second an agent plays that answers at once."""
    model = ScriptedModel([[assistant_message("A short answer.")] for _ in range(TURNS)])
    agent = Agent(name="A", model=model)
    started = time.perf_counter()
    for number in range(TURNS):
        await Runner.run(agent, f"Question {number}", session=session)
    return TURNS / (time.perf_counter() - started)


async def main() -> None:
    """Alternate, in new sessions of one store each; the first round warms up."""
    ours, own = [], []
    async with open_holdfast(FOLDER / "home") as hf:
        for number in range(ROUNDS + 1):
            ours.append(await rate(HoldfastSession(f"s{number}", hf)))
            own.append(await rate(SQLiteSession(f"s{number}", FOLDER / "own.db")))
    print(json.dumps([median(ours[1:]), median(own[1:])]))


asyncio.run(main())
