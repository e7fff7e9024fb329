"""A run of LangGraph that kills itself inside a durable tool: `FOLDER sync|async`.

The store takes 20 ms for each checkpoint, so that a tool could overtake it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from holdfast import open_holdfast
from holdfast.integrations.langgraph import HoldfastSaver

FOLDER, DURABILITY = Path(sys.argv[1]), sys.argv[2]


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Slow(HoldfastSaver):
    """Takes its time for each checkpoint."""

    async def aput(self, *given: Any) -> Any:
        await asyncio.sleep(0.02)
        return await super().aput(*given)


@tool
async def pay(cents: int) -> str:
    """Pay."""
    with (FOLDER / "effects").open("a") as file:
        file.write("paid\n")
        file.flush()
        os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {cents}"


def ask(state: Talk) -> Any:
    """Ask for a call."""
    call = {"id": "c1", "name": "pay", "args": {"cents": 5}}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def main() -> None:
    """Run the graph; it does not get to its end."""
    async with open_holdfast(FOLDER / "home") as hf:
        saver = Slow(hf)
        graph = StateGraph(Talk)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([pay], awrap_tool_call=saver.aguard))
        graph.add_edge(START, "ask")
        graph.add_edge("ask", "tools")
        config = {"configurable": {"thread_id": "t"}}
        await graph.compile(checkpointer=saver).ainvoke(
            {"messages": [HumanMessage("Pay 5")]}, config, durability=DURABILITY
        )


asyncio.run(main())
