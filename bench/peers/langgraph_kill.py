"""LangGraph with its SQLite checkpointer: killed after a tool's effect, then told to go on."""

import os
import signal
import sqlite3
import sys
from pathlib import Path

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.prebuilt import create_react_agent

folder, is_killed = Path(sys.argv[1]), sys.argv[2] == "kill"


class Scripted(GenericFakeChatModel):
    """A model whose answers are listed; it takes tools and does not look at them."""

    def bind_tools(self, tools: object, **_: object) -> "Scripted":
        return self


@tool
def deploy() -> str:
    """Deploy: one line in a file is the effect that everybody can see."""
    with (folder / "effects").open("a") as effects:
        effects.write("deployed\n")
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    return "deployed"


def _calls(row: object) -> list[object]:
    return getattr(row, "tool_calls", None) or []


CALL = AIMessage(content="", tool_calls=[{"name": "deploy", "args": {}, "id": "c1"}])
answers = [CALL, AIMessage(content="done")] if is_killed else [AIMessage(content="done")] * 3
saver = SqliteSaver(sqlite3.connect(folder / "peer.db", check_same_thread=False))
agent = create_react_agent(Scripted(messages=iter(answers)), [deploy], checkpointer=saver)
where = {"configurable": {"thread_id": "one"}}
agent.invoke({"messages": [("user", "Deploy it.")]} if is_killed else None, where)
calls = [call for row in agent.get_state(where).values["messages"] for call in _calls(row)]
print("remembered" if calls else "forgotten")
