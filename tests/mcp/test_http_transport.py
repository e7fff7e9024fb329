"""MCP over HTTP: the doors of every other route, one message to a request, nothing kept."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Invalid
from holdfast.domain.tokens import Caller, Scope
from holdfast.mcp.http_transport import McpEndpoint
from tests.http.asgi import Answer, ask
from tests.http.v1.client import HOST, Visitor, refusal, visiting
from tests.marks import each_case
from tests.mcp.clients import INITIALIZE, Poster, told
from tests.mcp.payloads import MINIMAL
from tests.mcp.test_tools import CHANGING

pytestmark = pytest.mark.anyio

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
MODERN = "2026-07-28"


@pytest.fixture
async def visitor(quiet: Holdfast) -> AsyncIterator[Visitor]:
    async with visiting(quiet) as somebody:
        yield somebody


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the message that calls a tool."""
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_a_handshake_gives_no_session_because_none_is_kept(visitor: Visitor) -> None:
    body = {"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": INITIALIZE}
    met = await visitor.post("/mcp", body)
    noted = await visitor.post("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"})
    listed = await visitor.post("/mcp", PING | {"method": "tools/list"}, mcp_session_id="stale")

    assert (met.status, met.document["id"]) == (200, "a")
    assert met.document["result"]["serverInfo"]["name"] == "holdfast"
    assert "mcp-session-id" not in met.headers
    assert (noted.status, noted.body) == (202, b"")
    assert listed.status == 200
    assert met.headers["content-type"] == "application/json"
    assert met.headers["cache-control"] == "no-store"


async def test_who_has_no_token_or_a_wrong_one_is_refused_before_anything_is_read(
    visitor: Visitor,
) -> None:
    for headers in ([], [(b"authorization", b"Bearer hf_" + b"x" * 43)]):
        sent = [(b"host", HOST.encode()), (b"content-type", b"application/json"), *headers]
        answer = await ask(visitor.app, "/mcp", method="POST", headers=sent, body=[])
        assert refusal(answer) == (401, "unauthenticated")


@each_case(
    ("headers", "expected"),
    [
        ({"host": "evil.example"}, (400, "invalid_host")),
        ({"origin": "https://evil.example"}, (403, "foreign_origin")),
        ({"sec_fetch_site": "cross-site"}, (403, "foreign_origin")),
    ],
)
async def test_other_names_and_other_pages_are_refused(
    visitor: Visitor, headers: dict[str, str], expected: tuple[int, str]
) -> None:
    assert refusal(await visitor.post("/mcp", PING, **headers)) == expected


@each_case("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
async def test_there_is_no_stream_and_no_session_to_end(visitor: Visitor, method: str) -> None:
    answer = await visitor.ask(method, "/mcp")

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_an_invalid_message_is_answered_with_its_id(visitor: Visitor) -> None:
    for body, number, code in ((b"[1]", None, -32600), (b'{"id":7,"method":[[}', 7, -32600)):
        answer = await visitor.ask(
            "POST", "/mcp", body, headers={"content_type": "application/json"}
        )

        assert (answer.status, answer.document["id"]) == (400, number)
        assert (answer.document["jsonrpc"], answer.document["error"]["code"]) == ("2.0", code)


MANY = [{"type": "work", "result": "success", "details": {"n": [0] * 60}} for _ in range(2_000)]


@each_case(
    ("changes", "refused"),
    [
        ({"note": "NUL \x00 is kept"}, None),
        ({"note": 10**30}, None),
        ({"actions": MANY}, None),
        ({"note": 10**1_000}, "finite"),
        ({"session_id": "nul\x00here"}, "no_control_characters"),
        ({"actions": []}, "min_length: 1"),
        ({"note": ["x" * 60_000] * 18}, "max_bytes: 1048576"),
    ],
    ids=["nul", "large", "many", "long", "key", "empty", "heavy"],
)
async def test_whatever_history_takes_is_taken_and_what_not_is_a_result(
    visitor: Visitor, changes: dict[str, Any], refused: str | None
) -> None:
    payload = MINIMAL | changes
    plain = await visitor.post("/v1/history", MINIMAL | changes)
    found = told(
        "submit_agent_session",
        (await visitor.post("/mcp", call("submit_agent_session", payload))).document,
    )

    if refused is None:
        assert (plain.status, found.form["deduplicated"]) == (201, True)
    else:
        assert found.form["message"] == plain.document["message"]
        assert found.form["details"]["expected"] == refused


async def test_what_was_refused_is_not_logged(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "never-to-be-written-down"
    wrong: dict[str, Any] = MINIMAL | {"duration": secret, "actions": [{"type": 5, secret: secret}]}
    with caplog.at_level(logging.DEBUG):
        answers = [
            await visitor.post("/v1/history", wrong),
            await visitor.post("/v1/history/abc123/correct", {"field": secret, "value": secret}),
            await visitor.post("/v1/entities", {"entity_type": "release", "fields": wrong}),
            await visitor.post("/mcp", call("submit_agent_session", wrong)),
            await visitor.post("/mcp", call("query_agent_history", {"limit": secret})),
            await visitor.post("/mcp", call(secret, {})),
            await visitor.post("/mcp", {"secret": secret}),
        ]
        with pytest.raises(Invalid):
            await visitor.house.observations.submit(visitor.house.owner, wrong)

    assert secret in answers[0].body.decode()
    assert secret in answers[3].body.decode()
    assert secret not in caplog.text


async def test_only_json_is_a_message_and_whoever_takes_something_else_gets_json(
    visitor: Visitor,
) -> None:
    text = await visitor.post("/mcp", PING, content_type="text/plain")
    picky = await visitor.post("/mcp", PING, accept="text/event-stream")

    error = text.document["error"]
    assert (text.status, text.document["id"], error["code"]) == (400, None, -32600)
    assert error["data"]["error"] == "invalid_body"
    assert (picky.status, picky.document["result"]) == (200, {})


async def test_a_message_may_have_so_many_bytes(visitor: Visitor) -> None:
    large = call("submit_agent_session", MINIMAL | {"note": "x" * (8 << 20)})

    answer = await visitor.post("/mcp", large)

    assert (answer.status, answer.document["error"]["code"]) == (400, -32600)
    assert answer.document["error"]["message"].endswith("it is larger than 8 MiB.")


@each_case("name", sorted(CHANGING))
async def test_whoever_may_only_read_changes_nothing(visitor: Visitor, name: str) -> None:
    reader = await visitor.as_("local", Scope.READ)

    refused = told(name, (await reader.post("/mcp", call(name, {}))).document)

    assert refused.error == "forbidden"


async def test_the_token_says_whose_it_is(visitor: Visitor) -> None:
    eve = Poster(await visitor.as_("eve"))
    await Poster(visitor).tool("submit_agent_session", **MINIMAL)
    own = await eve.tool("submit_agent_session", **MINIMAL)

    assert own.form["observation_count"] == 1
    assert own.form["entity_id"] != "ent_31ed4722e1f7ffa6ea9a9ed8"
    assert (await eve.tool("query_agent_history")).form["total"] == 1


async def test_a_revoked_token_ends_with_the_next_message(visitor: Visitor) -> None:
    token, secret = await visitor.house.tokens.create(
        visitor.house.owner, name="soon gone", scope=Scope.WRITE
    )
    gone = Visitor(visitor.house, visitor.app, secret)
    assert (await gone.post("/mcp", PING)).status == 200
    await visitor.house.tokens.revoke(visitor.house.owner, token.id)

    assert refusal(await gone.post("/mcp", PING)) == (401, "unauthenticated")


async def test_the_newest_protocol_is_met_in_each_request(visitor: Visitor) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    async def sent(method: str, params: dict[str, Any] | None = None, **headers: str) -> Answer:
        body = PING | {"method": method, "params": {**(params or {}), "_meta": meta}}
        given = {"mcp_protocol_version": MODERN, "mcp_method": method}
        return await visitor.post("/mcp", body, **given, **headers)

    found = await sent("server/discover")
    listed = await sent("tools/list")
    lost = await sent("nothing/like/this")
    wanted = {"name": "query_agent_history", "arguments": {}}
    asked = await sent("tools/call", wanted, mcp_name="query_agent_history")
    misled = await sent("tools/call", wanted, mcp_name="delete_agent_session")

    assert found.document["result"]["supportedVersions"] == [MODERN]
    assert len(listed.document["result"]["tools"]) > 10
    assert (lost.status, lost.document["error"]["code"]) == (404, -32601)
    assert asked.document["result"]["structuredContent"]["sessions"] == []
    assert (misled.status, misled.document["error"]["code"]) == (400, -32020)
    unknown = await visitor.post("/mcp", PING, mcp_protocol_version="1999-01-01")
    assert (unknown.status, unknown.document["error"]["code"]) == (400, -32602)


async def test_an_agent_that_tells_no_name_is_known_by_its_program(visitor: Visitor) -> None:
    await visitor.post("/mcp", call("submit_agent_session", MINIMAL), user_agent="curl/8.0\x07")
    other = MINIMAL | {"session_id": "other"}
    await visitor.post("/mcp", call("submit_agent_session", other))
    house = visitor.house
    names = [
        (await house.observations.list_observations(house.owner, each)).items[0].source
        for each in ("abc123", "other")
    ]

    assert names == ["curl/8.0", "mcp"]


async def test_many_at_once_are_all_answered(visitor: Visitor) -> None:
    answers = await asyncio.gather(*(visitor.post("/mcp", PING | {"id": n}) for n in range(10)))

    assert [each.document["id"] for each in answers] == list(range(10))


async def test_the_protocol_is_loaded_when_it_is_first_spoken(quiet: Holdfast) -> None:
    async with McpEndpoint(quiet, "0") as endpoint:
        assert endpoint._manager is None
    caller = Caller(owner=quiet.owner, scope=Scope.READ, token_id="t")
    async with McpEndpoint(quiet, "0") as endpoint:
        reply = await endpoint(caller, json.dumps(PING).encode(), {})
    assert (reply.status, json.loads(reply.body)["result"]) == (200, {})
