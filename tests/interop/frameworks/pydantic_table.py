"""One cell of the kill table for pydantic-ai: `FOLDER own|store|durable kill|again`.

The model asks for two calls until its history has a result of one. `kill` ends the process by
SIGKILL inside the second call; `again` asks the same and prints what was seen. pydantic-ai has no
durable store of its own: `own` saves the messages to a file when the run is over.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from holdfast import CallState, Role, open_holdfast
from holdfast.integrations.pydantic_ai import HoldfastConversationStore, HoldfastDurability

FOLDER, COLUMN, PHASE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
SAVED = FOLDER / "own.json"
REQUESTS: list[list[Any]] = []
tools: Any = FunctionToolset(id="tools")


@tools.tool_plain
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


def results(messages: list[Any]) -> list[str]:
    """Return what is said of the calls."""
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if part.part_kind == "tool-return"]


def answer(messages: list[Any], info: Any) -> ModelResponse:
    """Ask for the two calls unless one of them has a result."""
    REQUESTS.append(results(messages))
    if any("charged" in each for each in results(messages)):
        return ModelResponse(parts=[TextPart("done")])
    calls = [ToolCallPart("charge", {"number": n}, f"{PHASE}-{n}") for n in (1, 2)]
    return ModelResponse(parts=calls)


async def main() -> None:
    """Run the agent once."""
    capabilities = [HoldfastDurability()] if COLUMN == "durable" else []
    agent = Agent(
        FunctionModel(answer, model_name="scripted"),
        name="cashier",
        toolsets=[tools],
        capabilities=capabilities,
    )
    if COLUMN == "own":
        result = await agent.run("Charge.")
        SAVED.write_bytes(ModelMessagesTypeAdapter.dump_json(result.all_messages()))
        report([], 1)
        return
    async with AsyncExitStack() as stack:
        hf = await stack.enter_async_context(open_holdfast(FOLDER / "home"))
        store = HoldfastConversationStore(hf)
        async with store.turn("c", "Charge.") as turn:
            given = await store.load("c") or Conversation(conversation_id="c")
            await store.save(await agent.run("Charge.", conversation=given))
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        asked = [row for row in await hf.read(turn.session_id) if row.role is Role.USER]
        report([call.id for call in found.items], len(asked))


def report(unknown: list[str], asked: int) -> None:
    """Print what came of it."""
    print(
        json.dumps(
            {
                "effects": len((FOLDER / "effects").read_text().split()),
                "shown": REQUESTS[0],
                "unknown": unknown,
                "lost": 1 - asked,
            }
        )
    )


asyncio.run(main())
