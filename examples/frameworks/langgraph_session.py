"""A thread of LangGraph in Holdfast, with a durable tool and a scripted model.

Needs `pip install 'holdfast[langgraph]'`, and neither a key nor a network.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from holdfast import open_holdfast
from holdfast.integrations.langgraph import HoldfastSaver


@tool
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order}"


def model(state: MessagesState) -> dict[str, Any]:
    """Ask for the refund, then say that it is done."""
    if isinstance(state["messages"][-1], ToolMessage):
        return {"messages": [AIMessage("Done: 5.00 is on its way.")]}
    call = {"id": "call_1", "name": "refund", "args": {"order": "17", "cents": 500}}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_holdfast(Path(folder) / "home") as hf:
            saver = HoldfastSaver(hf, agent="Support")
            tools = ToolNode([refund], wrap_tool_call=saver.guard, awrap_tool_call=saver.aguard)
            builder = StateGraph(MessagesState)
            builder.add_node("model", model)
            builder.add_node("tools", tools)
            builder.add_edge(START, "model")
            builder.add_conditional_edges("model", tools_condition)
            builder.add_edge("tools", "model")
            graph = builder.compile(checkpointer=saver)
            result = await graph.ainvoke(
                {"messages": [HumanMessage("Refund it.")]},
                {"configurable": {"thread_id": "customer-17"}},
                durability="sync",
            )
            print(result["messages"][-1].content)
            for call in (await hf.calls.list(hf.owner)).items:
                print(call.name, call.arguments, call.state)


asyncio.run(main())
