"""One cell of the kill table for the OpenAI Agents SDK: `FOLDER own|store|durable kill|again`.

The model asks for two calls until its history has a result of one. `kill` ends the process by
SIGKILL inside the second call; `again` starts it anew and prints what was seen.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from holdfast import CallState, open_holdfast
from holdfast.integrations.openai_agents import HoldfastSession, durable_tools

set_tracing_disabled(True)
FOLDER, COLUMN, PHASE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
REQUESTS: list[list[Any]] = []


@function_tool
async def charge(number: int) -> str:
    """Charge."""
    await asyncio.sleep(number * 0.2)
    with (FOLDER / "effects").open("a") as file:
        file.write(f"{number}\n")
        file.flush()
        os.fsync(file.fileno())
    if PHASE == "kill" and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"charged {number}"


def answer(call: ModelCall) -> list[Any]:
    """Ask for the two calls unless one of them has a result."""
    items = call.input if isinstance(call.input, list) else []
    REQUESTS.append(items)
    if any("charged" in str(item.get("output")) for item in items if isinstance(item, dict)):
        return [assistant_message("done")]
    asked = f"{PHASE}{len(REQUESTS)}"
    return [function_call("charge", {"number": n}, call_id=f"{asked}-{n}") for n in (1, 2)]


async def main() -> None:
    """Run the agent once."""
    model = ScriptedModel([ModelStep(responder=answer)] * 3)
    async with AsyncExitStack() as stack:
        hf, hooks, tools = None, None, [charge]
        session: Any = None
        if COLUMN == "own":
            session = SQLiteSession("s", FOLDER / "own.db")
        else:
            hf = await stack.enter_async_context(open_holdfast(FOLDER / "home"))
            session = HoldfastSession("s", hf)
        if COLUMN == "durable":
            tools = durable_tools(tools)
            hooks = await stack.enter_async_context(session.run())
        agent = Agent(name="A", model=model, tools=tools)
        await Runner.run(agent, f"Charge ({PHASE}).", session=session, hooks=hooks)
        await report(hf, session)


async def report(hf: Any, session: Any) -> None:
    """Print what came of it."""
    unknown = []
    if hf is not None:
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        unknown = [call.id for call in found.items]
    lines = (FOLDER / "effects").read_text().split()
    outputs = [item.get("output") for item in REQUESTS[0] if item.get("output")]
    asked = [item for item in await session.get_items() if item.get("role") == "user"]
    print(
        json.dumps(
            {
                "effects": len(lines),
                "shown": outputs,
                "unknown": unknown,
                "lost": 2 - len(asked),
            }
        )
    )


asyncio.run(main())
