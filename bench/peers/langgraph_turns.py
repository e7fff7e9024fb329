"""Turns a second of LangGraph: `FOLDER`; prints ours and its own saver on SQLite as JSON."""

import asyncio
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from holdfast import open_holdfast
from holdfast.integrations.langgraph import HoldfastSaver

FOLDER = Path(sys.argv[1])
ROUNDS, TURNS = 7, 30


def answer(state: MessagesState) -> dict[str, Any]:
    """Answer at once."""
    return {"messages": [AIMessage("A short answer.")]}


async def rate(saver: Any, thread: str) -> float:
    """Return how many turns a second a graph plays that answers at once."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": thread}}
    started = time.perf_counter()
    for number in range(TURNS):
        said = {"messages": [HumanMessage(f"Question {number}")]}
        await graph.ainvoke(said, config, durability="sync")
    return TURNS / (time.perf_counter() - started)


async def main() -> None:
    """Alternate, in new threads of one store each; the first round warms up."""
    ours, own = [], []
    async with (
        open_holdfast(FOLDER / "home") as hf,
        AsyncSqliteSaver.from_conn_string(str(FOLDER / "own.db")) as saver,
    ):
        for number in range(ROUNDS + 1):
            ours.append(await rate(HoldfastSaver(hf), f"t{number}"))
            own.append(await rate(saver, f"t{number}"))
    print(json.dumps([median(ours[1:]), median(own[1:])]))


asyncio.run(main())
