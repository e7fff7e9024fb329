"""MCP over HTTP: the doors of every other route, one message to a request, nothing kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.table import Route
from holdfast.mcp.endpoint import Endpoint
from tests.http.asgi import Answer, ask
from tests.http.v1.visitor import HOST, Visitor, refusal, visiting
from tests.mcp.sayings import MINIMAL
from tests.mcp.talking import INITIALIZE, Poster, told
from tests.mcp.test_table import CHANGING

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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"])
async def test_there_is_no_stream_and_no_session_to_end(visitor: Visitor, method: str) -> None:
    answer = await visitor.ask(method, "/mcp")

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"[1]",
        b'"x"',
        b"{}",
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"ping"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\u0000"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 200,
    ],
)
async def test_what_is_no_message_is_refused(visitor: Visitor, body: bytes) -> None:
    answer = await visitor.ask("POST", "/mcp", body, headers={"content_type": "application/json"})

    assert refusal(answer)[0] == 400


async def test_only_json_is_a_message_and_whoever_takes_something_else_gets_json(
    visitor: Visitor,
) -> None:
    text = await visitor.post("/mcp", PING, content_type="text/plain")
    picky = await visitor.post("/mcp", PING, accept="text/event-stream")

    assert refusal(text) == (400, "invalid_body")
    assert (picky.status, picky.document["result"]) == (200, {})


async def test_a_message_may_have_so_many_bytes(visitor: Visitor) -> None:
    large = call("submit_agent_session", MINIMAL | {"note": "x" * (8 << 20)})

    assert refusal(await visitor.post("/mcp", large)) == (400, "invalid_body")


async def test_whoever_may_only_read_reads(visitor: Visitor) -> None:
    reader = await visitor.as_("local", Scope.READ)
    refused = told(
        "submit_agent_session",
        (await reader.post("/mcp", call("submit_agent_session", MINIMAL))).document,
    )
    listed = await Poster(reader).tool("query_agent_history")

    assert (refused.error, listed.words) == ("forbidden", [])
    assert refused.form["details"] == {"needed": "write", "scope": "read"}


@pytest.mark.parametrize("name", sorted(CHANGING))
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
    answers = await asyncio.gather(*(visitor.post("/mcp", PING | {"id": n}) for n in range(50)))

    assert [each.document["id"] for each in answers] == list(range(50))


async def test_the_protocol_is_loaded_when_it_is_first_spoken(quiet: Holdfast) -> None:
    async with Endpoint(quiet, "0") as endpoint:
        assert endpoint._talks is None
    caller = Caller(owner=quiet.owner, scope=Scope.READ, token_id="t")
    async with Endpoint(quiet, "0") as endpoint:
        reply = await endpoint(caller, json.dumps(PING).encode(), {})
    assert (reply.status, json.loads(reply.body)["result"]) == (200, {})


async def test_the_route_is_described(visitor: Visitor) -> None:
    described = (await visitor.get("/openapi.json")).document["paths"]["/mcp"]

    assert set(described) == {"post"}
    assert set(described["post"]["responses"]) >= {"200", "202", "400", "401", "403", "404", "405"}
    routes: tuple[Route, ...] = visitor.app.routes
    assert [each.needs for each in routes if each.path == "/mcp"] == [Scope.READ]
