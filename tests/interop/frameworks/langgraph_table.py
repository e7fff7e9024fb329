"""One cell of the kill table for LangGraph: `FOLDER own|store|durable kill|again`.

The model asks for two calls until its history has a result of one. `kill` ends the process by
SIGKILL inside the second call; `again` resumes the thread and prints what was seen.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from holdfast import CallState, open_holdfast
from holdfast.integrations.langgraph import HoldfastSaver

FOLDER, COLUMN, PHASE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
CONFIG: Any = {"configurable": {"thread_id": "t"}}
REQUESTS: list[list[Any]] = []


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]


@tool
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


def answer(state: Talk) -> Any:
    """Ask for the two calls unless one of them has a result."""
    REQUESTS.append(state["messages"])
    if any("charged" in str(each.content) for each in state["messages"]):
        return {"messages": [AIMessage("done")]}
    calls = [{"id": f"{PHASE}-{n}", "name": "charge", "args": {"number": n}} for n in (1, 2)]
    return {"messages": [AIMessage("", tool_calls=calls)]}


async def main() -> None:
    """Run the graph once, or resume it."""
    async with AsyncExitStack() as stack:
        hf, saver, tools = None, None, ToolNode([charge])
        if COLUMN == "own":
            opened = AsyncSqliteSaver.from_conn_string(str(FOLDER / "own.db"))
            saver = await stack.enter_async_context(opened)
        else:
            hf = await stack.enter_async_context(open_holdfast(FOLDER / "home"))
            saver = HoldfastSaver(hf)
        if COLUMN == "durable":
            tools = ToolNode([charge], awrap_tool_call=saver.aguard)
        graph = StateGraph(Talk)
        graph.add_node("answer", answer)
        graph.add_node("tools", tools)
        graph.add_edge(START, "answer")
        graph.add_conditional_edges(
            "answer", lambda state: "tools" if state["messages"][-1].tool_calls else END
        )
        graph.add_edge("tools", "answer")
        given = {"messages": [HumanMessage("Charge.")]} if PHASE == "kill" else None
        compiled = graph.compile(checkpointer=saver)
        result = await compiled.ainvoke(given, CONFIG, durability="sync")
        await report(hf, result["messages"])


async def report(hf: Any, messages: list[Any]) -> None:
    """Print what came of it."""
    unknown = []
    if hf is not None:
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        unknown = [call.id for call in found.items]
    results = [each.content for each in REQUESTS[0] if isinstance(each, ToolMessage)]
    asked = [each for each in messages if isinstance(each, HumanMessage)]
    print(
        json.dumps(
            {
                "effects": len((FOLDER / "effects").read_text().split()),
                "shown": results,
                "unknown": unknown,
                "lost": 1 - len(asked),
            }
        )
    )


asyncio.run(main())
