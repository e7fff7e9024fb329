"""A run of the OpenAI Agents SDK that kills itself: `FOLDER before|in|after|result|plain`."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, function_call

from holdfast import open_holdfast
from holdfast.integrations.openai_agents import HoldfastHooks, HoldfastSession, durable_tools

set_tracing_disabled(True)
FOLDER, POINT = Path(sys.argv[1]), sys.argv[2]


def die(point: str) -> None:
    """End the process at once, if this is the point."""
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


@function_tool
def pay(cents: int) -> str:
    """Pay."""
    with (FOLDER / "effects").open("a") as file:
        file.write("paid\n")
        file.flush()
        os.fsync(file.fileno())
        die("in")
        die("plain")
    die("after")
    return f"paid {cents}"


class Hooks(HoldfastHooks):
    """Kills the run between the steps of a call."""

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        die("before")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: object) -> None:
        die("result")


async def main() -> None:
    """Run the agent; it does not get to its end."""
    model = ScriptedModel([[function_call("pay", {"cents": 5}, call_id="c1")]])
    async with open_holdfast(FOLDER / "home") as hf:
        session = HoldfastSession("s", hf)
        agent = Agent(
            name="A", model=model, tools=[pay] if POINT == "plain" else durable_tools([pay])
        )
        async with session.run():
            await Runner.run(agent, "Pay 5", session=session, hooks=Hooks(session))


asyncio.run(main())
