"""Turns as programs play them, each with its own way to talk and to call, and the rows they leave.

One program plays them all, one after the other, and each is judged by itself.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.messages import (
    Message,
    Plan,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from tests.acp.client.test_permissions import ALL, asking
from tests.acp.harness import END, aboard

Row = tuple[Any, ...]


def chunk(kind: str, text: str, **beside: Any) -> dict[str, Any]:
    """Return the step that says a piece of something."""
    content = {"type": "text", "text": text}
    return {"update": {"sessionUpdate": kind, "content": content, **beside}}


def call(id_: str, **fields: Any) -> dict[str, Any]:
    """Return the step that announces a call."""
    return {"update": {"sessionUpdate": "tool_call", "toolCallId": id_, **fields}}


def news(id_: str, **fields: Any) -> dict[str, Any]:
    """Return the step that tells more of a call."""
    return {"update": {"sessionUpdate": "tool_call_update", "toolCallId": id_, **fields}}


def plan(*texts: str) -> dict[str, Any]:
    """Return the step that tells a plan."""
    return {"update": {"sessionUpdate": "plan", "entries": [{"content": text} for text in texts]}}


TURNS: dict[str, tuple[list[Any], list[Row]]] = {
    "text": ([{"text": "He"}, {"text": "llo"}], [("text", "Hello")]),
    "a thought and text": (
        [{"thought": "Hm."}, {"text": "So."}],
        [("thought", "Hm."), ("text", "So.")],
    ),
    "another message id": (
        [
            chunk("agent_message_chunk", "one", messageId="a"),
            chunk("agent_message_chunk", "two", messageId="b"),
        ],
        [("text", "one"), ("text", "two")],
    ),
    "empty chunks": ([{"text": ""}, {"text": "x"}, {"text": ""}], [("text", "x")]),
    "nothing at all": ([], []),
    "an echo": ([chunk("user_message_chunk", "an echo"), {"text": "x"}], [("text", "x")]),
    "a call that is announced": (
        [
            call("a", kind="read", title="Look", rawInput={"n": 1}),
            news("a", status="in_progress"),
            news("a", status="completed", rawOutput={"m": 2}),
        ],
        [("call", "Look", {"n": 1}), ("ok", "Look", {"m": 2})],
    ),
    "a call that is not announced": (
        [news("b", kind="read", rawInput={"n": 1}, status="completed", rawOutput="out")],
        [("call", "read", {"n": 1}), ("ok", "read", "out")],
    ),
    "a call that only a permission tells of": (
        [asking(ALL, name="c"), news("call-c", status="completed", rawOutput="made")],
        [("call", "execute", {"command": "make"}), ("ok", "execute", "made")],
    ),
    "two calls at once": (
        [
            call("d", kind="read", rawInput={"n": 1}),
            call("e", kind="search", rawInput={"n": 2}),
            news("e", status="completed", rawOutput="e"),
            news("d", status="completed", rawOutput="d"),
        ],
        [
            ("call", "read", {"n": 1}),
            ("call", "search", {"n": 2}),
            ("ok", "search", "e"),
            ("ok", "read", "d"),
        ],
    ),
    "a call that fails": (
        [call("f", kind="read", rawInput={}), news("f", status="failed", rawOutput="no")],
        [("call", "read", {}), ("error", "read", "no")],
    ),
    "a call that never ends": (
        [call("g", kind="read", rawInput={}), {"text": "x"}],
        [("call", "read", {}), ("text", "x"), ("ok", "read", None)],
    ),
    "a call that ends twice": (
        [
            call("h", kind="read", rawInput={}, status="completed", rawOutput="first"),
            news("h", status="failed", rawOutput="second"),
        ],
        [("call", "read", {}), ("ok", "read", "first")],
    ),
    "an input that is no object": (
        [call("i", kind="read", title="Look", rawInput=["x"], status="completed", rawOutput=1)],
        [("call", "Look", {"title": "Look", "rawInput": ["x"]}), ("ok", "Look", 1)],
    ),
    "plans": (
        [plan("a"), plan("a"), plan("a", "b"), plan("c"), plan("c")],
        [("plan", "a"), ("plan", "a", "b"), ("plan", "c")],
    ),
}


def shown(row: Message) -> list[Row]:
    """Return what a row holds, a few words for each part."""
    found: list[Row] = []
    for part in row.parts:
        match part:
            case Text():
                found.append(("text", part.text))
            case Reasoning():
                found.append(("thought", part.text))
            case ToolCall():
                found.append(("call", part.name, dict(part.arguments)))
            case ToolResult():
                found.append((str(part.status), part.name, part.result))
            case Plan():
                found.append(("plan", *(step.text for step in part.steps)))
            case _:
                found.append(("other", part))
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Row]]:
    """Have all turns played in one session, and return what is in the record of each."""
    return asyncio.run(_played(tmp_path_factory.mktemp("turns")))


async def _played(folder: Path) -> dict[int, list[Row]]:
    steps = [[*steps, END] for steps, _ in TURNS.values()]
    async with aboard(
        folder, on={"session/prompt": steps}, config_approval=ApprovalMode.AUTO
    ) as ship:
        session = await ship.open(approval=ApprovalMode.AUTO)
        for name in TURNS:
            await ship.tell(session, name)
        found = await ship.house.read(session.id)
    said = [row for row in found if row.role is not Role.USER]
    return {
        turn: [each for row in said if row.turn == turn for each in shown(row)]
        for turn in range(1, len(TURNS) + 1)
    }


@pytest.mark.parametrize("case", TURNS)
def test_a_turn_leaves_the_rows_of_what_was_told(rows: dict[int, list[Row]], case: str) -> None:
    assert rows[list(TURNS).index(case) + 1] == TURNS[case][1]
