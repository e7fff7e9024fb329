"""Calls that a client runs, over HTTP: requested in the stream, answered once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from holdfast.domain.tokens import Scope
from holdfast.http.app import V1_ROUTES
from holdfast.http.routing import Route
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio

REFUND: dict[str, Any] = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    "effect": "idempotent",
    "timeout_s": 60,
}
OK = {"status": "ok", "result": {"refunded": True}}


@pytest.fixture
async def visitor(home: Path, outside: Environment) -> AsyncIterator[Visitor]:
    config = a_config(home, asks(call("refund", "c1", order="17")), says("Done."))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as found:
        yield found


async def waiting(visitor: Visitor) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a session whose turn waits for a client, and the call."""
    agent = await visitor.agent(tools=[REFUND])
    session = await visitor.session(agent["id"])
    body = {"role": "user", "content": {"text": "Refund order 17"}}
    await visitor.post(f"/v1/sessions/{session['id']}/messages", body)
    async with asyncio.timeout(PATIENCE):
        while True:
            found = (await visitor.get("/v1/calls?state=requested")).document["data"]
            if found:
                return session, found[0]
            await asyncio.sleep(0.005)


@demands("S2-020j")
async def test_a_call_is_requested_listed_and_answered(visitor: Visitor) -> None:
    session, requested = await waiting(visitor)
    base = f"/v1/agents/{session['agent_id']}/sessions/{session['id']}"
    shown = (await visitor.get(base)).document
    found = await visitor.get(f"{base}/events?format=json&types=tool.requested")
    events = found.document["data"]
    one = (await visitor.get(f"{base}/calls/c1")).document
    answered = await visitor.post(f"{base}/calls/c1/result", OK)
    await visitor.settled(session)
    again = await visitor.post(f"{base}/calls/c1/result", OK)
    other = await visitor.post(f"{base}/calls/c1/result", {"status": "ok", "result": 2})
    rows = await visitor.messages(session)

    assert requested == one
    assert (requested["state"], requested["started_at"]) == ("requested", None)
    assert shown["waiting"]["reason"] == "client"
    assert shown["waiting"]["call_ids"] == ["c1"]
    assert shown["waiting"]["until"] == requested["deadline_at"]
    assert [each["data"] for each in events] == [
        {
            "turn": 1,
            "tool_call_id": "c1",
            "name": "refund",
            "arguments": {"order": "17"},
            "effect": "idempotent",
            "attempt": 1,
            "deadline_at": requested["deadline_at"],
        }
    ]
    assert (answered.status, answered.document["state"]) == (200, "finished")
    assert answered.document["deadline_at"] is None
    assert "idempotency-replayed" not in answered.headers
    assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.document == answered.document
    assert refusal(other) == (409, "call_not_open")
    assert [row["role"] for row in rows] == ["user", "tool_call", "tool_result", "assistant"]
    assert rows[2]["content"]["result"] == {"refunded": True}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"status": "ok", "result": 1, "error": {"message": "no"}}, 400, "invalid_input"),
        ({"status": "ok", "result": None, "error": {"message": "no"}}, 400, "invalid_input"),
        ({"status": "error"}, 400, "invalid_input"),
        ({"status": "ok", "error": {"message": "no"}}, 400, "invalid_input"),
        ({"status": "unknown", "result": 1}, 400, "invalid_input"),
        ({"status": "done"}, 400, "invalid_body"),
        ({"result": 1}, 400, "invalid_body"),
        ({"status": "error", "error": "no"}, 400, "invalid_body"),
        ({"status": "error", "error": {"message": "x" * 5_000}}, 400, "invalid_body"),
        ({"status": "ok", "claim": "x"}, 400, "invalid_body"),
    ],
)
async def test_an_unclear_answer_changes_nothing(
    visitor: Visitor, body: dict[str, Any], status: int, code: str
) -> None:
    session, requested = await waiting(visitor)
    path = f"/v1/sessions/{session['id']}/calls/c1"
    refused = await visitor.post(f"{path}/result", body)

    assert refusal(refused) == (status, code)
    assert (await visitor.get(path)).document == requested


async def test_only_the_owner_with_write_access_answers(visitor: Visitor) -> None:
    session, requested = await waiting(visitor)
    path = f"/v1/sessions/{session['id']}/calls"
    reader = await visitor.as_("local", Scope.READ)
    stranger = await visitor.as_("eve")

    assert refusal(await reader.post(f"{path}/c1/result", OK)) == (403, "forbidden")
    assert refusal(await stranger.post(f"{path}/c1/result", OK)) == (404, "session_not_found")
    assert refusal(await visitor.post(f"{path}/c9/result", OK)) == (404, "call_not_found")
    assert (await visitor.get(f"{path}/c1")).document == requested


async def test_a_token_for_tools_sees_and_answers_requested_calls(visitor: Visitor) -> None:
    session, requested = await waiting(visitor)
    path = f"/v1/sessions/{session['id']}/calls"
    worker = await visitor.as_("local", Scope.TOOLS)
    stranger = await visitor.as_("eve", Scope.TOOLS)

    listed = (await worker.get("/v1/calls?state=requested")).document["data"]
    mine = (await worker.get(f"{path}?state=requested")).document["data"]
    assert listed == mine == [requested]
    assert (await worker.get(f"{path}/c1")).document == requested
    narrowed = [
        len((await worker.get(f"/v1/calls?state=requested&{words}")).document["data"])
        for words in ("agent=helper&tool=refund", "tool=lookup")
    ]
    assert narrowed == [1, 0]
    assert refusal(await worker.get("/v1/calls?state=requested&agent=other"))[0] == 404
    for other in ("/v1/calls", "/v1/calls?state=finished", path):
        assert refusal(await worker.get(other)) == (403, "forbidden")
    assert (await stranger.get("/v1/calls?state=requested")).document["data"] == []
    assert refusal(await stranger.post(f"{path}/c1/result", OK)) == (404, "session_not_found")
    assert (await worker.post(f"{path}/c1/result", OK)).status == 200
    await visitor.settled(session)
    assert refusal(await worker.get(f"{path}/c1")) == (403, "forbidden")


@each_case("route", V1_ROUTES, ids=lambda route: route.name)
async def test_a_token_for_tools_opens_nothing_else(visitor: Visitor, route: Route) -> None:
    worker = await visitor.as_("local", Scope.TOOLS)
    path = route.path.replace("{agent_id}", A_STRANGER).replace("{session_id}", A_STRANGER)
    answered = await worker.ask(route.method, path.replace("{", "").replace("}", ""), {})
    is_theirs = Scope.TOOLS in {route.needs, route.also}
    expected = {400, 403, 404} if is_theirs else {403}
    assert answered.status in expected, (route.name, answered.status)


async def test_a_definition_with_a_bad_schema_is_refused(visitor: Visitor) -> None:
    body = {"name": "Clerk", "system_prompt": ""}
    for change, code in (
        ({"parameters": {"type": "string"}}, "tool_invalid"),
        ({"name": "read_file"}, "tool_name_taken"),
        ({"timeout_s": 10**9}, "tool_invalid"),
    ):
        refused = await visitor.post("/v1/agents", body | {"tools": [REFUND | change]})
        assert refusal(refused) == (400, code), refused.body
