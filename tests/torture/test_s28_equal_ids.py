"""S28: many MCP clients count their requests alike, and each hears its own answers only."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from tests.http.v1.client import Visitor, visiting
from tests.marks import proves
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

CLIENTS = 100
Frame = dict[str, Any]
Post = Callable[[Visitor, Frame], Awaitable[Frame]]


@proves("S28")
def test_nobody_hears_an_answer_to_somebody_else(tmp_path: Path, sized: Sized, tell: Tell) -> None:
    requests = sized(quick=100, test=500, torture=5_000, release=10_000)

    wrong = asyncio.run(talked(tmp_path, requests, posted))

    tell(f"{requests} requests of {CLIENTS} clients, {wrong} answers to somebody else")
    assert wrong == 0


@proves("S28")
def test_a_server_that_tells_answers_apart_by_their_number_is_found(tmp_path: Path) -> None:
    waiting: dict[int, asyncio.Future[Frame]] = {}

    async def mixed(client: Visitor, frame: Frame) -> Frame:
        waiting[frame["id"]] = mine = asyncio.get_running_loop().create_future()
        answer = await posted(client, frame)
        if not waiting[frame["id"]].done():
            waiting[frame["id"]].set_result(answer)
        return mine.result() if mine.done() else answer

    assert asyncio.run(talked(tmp_path, 200, mixed)) > 0


async def posted(client: Visitor, frame: Frame) -> Frame:
    """Return what the server answers."""
    answer: Frame = (await client.post("/mcp", frame)).document
    return answer


async def talked(folder: Path, requests: int, post: Post) -> int:
    """Let all ask at once, each about its own past under one name; count foreign answers."""
    async with AsyncExitStack() as stack:
        house = await stack.enter_async_context(open_holdfast(folder / "home"))
        visitor = await stack.enter_async_context(visiting(house))
        clients = [await visitor.as_(f"owner-{number}") for number in range(CLIENTS)]
        for number, client in enumerate(clients):
            await client.post("/mcp", _call(0, "submit_agent_session", _past(number)))
        wrong = 0
        for round in range(requests // CLIENTS):
            asked = _call(round + 1, "query_agent_history", {"session_id": "the same"})
            answers = await asyncio.gather(*(post(each, asked) for each in clients))
            wrong += sum(
                not _is_meant(answer, number, round + 1) for number, answer in enumerate(answers)
            )
        return wrong


def _is_meant(answer: Frame, number: int, id: int) -> bool:
    (action,) = answer["result"]["structuredContent"]["snapshot"]["actions"]
    return bool(answer["id"] == id and action["type"] == f"done by {number}")


def _past(number: int) -> Frame:
    return {
        "session_id": "the same",
        "actions": [{"type": f"done by {number}", "result": "success"}],
        "started_at": "2026-01-01T00:00:00Z",
    }


def _call(id: int, name: str, arguments: Frame) -> Frame:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
