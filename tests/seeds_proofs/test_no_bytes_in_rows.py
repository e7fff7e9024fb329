"""What a tool gives back as bytes is stored as a handle; what was asked of it stays as asked."""

import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session, SessionRequest
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.events import ToolEnded, ToolStarted, TurnEnded
from holdfast.domain.messages import ToolCall, ToolResult, media_handle
from holdfast.domain.sessions import SessionContext
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.tools.tool import CallPlan, LocalTool
from tests.houses import news_until, payloads, played
from tests.marks import demands
from tests.tooled import a_config, asks, call, open_tooled, says

pytestmark = pytest.mark.anyio

ASKED = b"\x89PNG asked for " * 20
LINKED = b"\x89PNG linked " * 20
RETURNED = b"\x89PNG returned " * 20


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def picture(content: bytes) -> dict[str, Any]:
    return {"mimeType": "image/png", "data": encoded(content)}


def handled(content: bytes) -> dict[str, Any]:
    size = len(content)
    return {"mimeType": "image/png", "ref": media_handle(content), "byte_length": size}


async def look_only(_: ToolWorkspace, __: Any) -> CallPlan:
    return CallPlan(tool_class=ToolClass.READ)


async def drawn(_: ToolWorkspace, __: Any, asked: RequestedCall) -> dict[str, Any]:
    return {
        "pictures": [picture(RETURNED)],
        "link": f"see data:image/png;base64,{encoded(LINKED)}!",
    }


DRAW = LocalTool(
    name="draw",
    description="Draws.",
    arguments=dict,  # type: ignore[type-var]
    effect=lambda _: Effect.PURE,
    plan=look_only,
    act=drawn,
)


@demands("S0-037")
async def test_bytes_in_a_result_are_a_handle_in_rows_and_news(home: Path) -> None:
    arguments = {"like": picture(ASKED)}
    steps = (asks(call("draw", "c1", **arguments)), says("drawn"))
    config = a_config(home, *steps, approval=ApprovalMode.AUTO)
    async with open_tooled(config, DRAW) as house:
        tools = [{"name": "draw", "description": "Draws."}]
        await house.agents.create(house.owner, {"name": "Painter", "tools": tools, "grant": None})
        context = SessionContext(working_dir=str(home.parent))
        session: Session = await house.open("painter", SessionRequest(context=context))
        await house.send(session.id, "go")
        rows = await played(house, session.id)
        news = payloads(await news_until(house, session.id, TurnEnded))

    result = {"pictures": [handled(RETURNED)], "link": f"see {media_handle(LINKED)}!"}
    parts = [part for row in rows for part in row.parts]
    assert [part.arguments for part in parts if isinstance(part, ToolCall)] == [arguments]
    assert [part.result for part in parts if isinstance(part, ToolResult)] == [result]
    assert [each.arguments for each in news if isinstance(each, ToolStarted)] == [arguments]
    assert [each.result for each in news if isinstance(each, ToolEnded)] == [result]
    told = str((rows, news))
    assert [encoded(each)[:40] in told for each in (LINKED, RETURNED)] == [False, False]
