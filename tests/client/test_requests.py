"""Requests that get through or say why not: broken, slow, foreign and lying servers."""

import asyncio
import json

import pytest

from holdfast.client import Timeouts, connect
from holdfast.client.requests import build_query
from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    LimitReached,
    NotFound,
    StorageFull,
    Unavailable,
)
from holdfast.domain.ids import LOCAL_OWNER, SessionId
from holdfast.wire.session_actions import SessionsQuery
from tests.client.servers import QUICK, Call, answering, impostor, silent
from tests.marks import each_case
from tests.tools.http_hosts import client_tls, says, serving

pytestmark = pytest.mark.anyio

AGENT = {
    "id": "0192f0c1-0000-7000-8000-000000000001",
    "slug": "ada",
    "name": "Ada",
    "description": None,
    "system_prompt": "",
    "default_model_id": None,
    "fallback_model_ids": [],
    "temperature": None,
    "max_tokens": None,
    "tools": [],
    "tags": [],
    "runtime": {"type": "llm"},
    "grant": None,
    "recovery": "stop",
    "status": "active",
    "created_at": "2026-01-02T03:04:05.678901Z",
    "updated_at": "2026-01-02T03:04:05.678901Z",
}


async def test_a_creation_whose_answer_is_lost_is_sent_again_with_the_same_id() -> None:
    made = answering(201, json.dumps(AGENT), "content-type: application/json")
    async with (
        impostor(silent(), silent(), made) as server,
        connect(server.url, "secret", timeouts=QUICK) as client,
    ):
        agent = await client.agents.create(LOCAL_OWNER, {"name": "Ada"})

    bodies = [json.loads(call.body) for call in server.calls]
    assert agent.slug == "ada"
    assert len(bodies) == 3
    assert len({body["id"] for body in bodies}) == 1
    assert {call.headers["authorization"] for call in server.calls} == {"Bearer secret"}


async def test_a_deletion_whose_answer_is_lost_may_find_nothing_the_second_time() -> None:
    gone = answering(404, '{"error":"session_not_found","message":"No.","details":{}}')
    async with impostor(silent(), gone) as server, connect(server.url, timeouts=QUICK) as client:
        await client.sessions.delete(LOCAL_OWNER, SessionId("s"))
    async with impostor(gone) as server, connect(server.url, timeouts=QUICK) as client:
        with pytest.raises(NotFound):
            await client.sessions.delete(LOCAL_OWNER, SessionId("s"))


async def test_a_connection_is_kept_and_one_that_died_meanwhile_is_replaced() -> None:
    served = 0

    async def twice(call: Call) -> None:
        nonlocal served
        await call.answer(200, '{"data":[]}')
        served += 1
        # The first connection takes a second request and dies with it.
        await call.reader.readuntil(b"\r\n\r\n")

    async with impostor(twice) as server, connect(server.url, timeouts=QUICK) as client:
        for _ in range(2):
            assert await client.models.list() == []

    assert (len(server.calls), served) == (2, 2)


@each_case(
    ("status", "code", "kind"),
    [
        (400, "invalid_body", Invalid),
        (401, "unauthenticated", Denied),
        (403, "forbidden", Denied),
        (404, "agent_not_found", NotFound),
        (405, "method_not_allowed", Invalid),
        (409, "slug_taken", Conflict),
        (429, "session_limit", LimitReached),
        (500, "internal", Internal),
        (503, "store_busy", Unavailable),
        (507, "storage_full", StorageFull),
    ],
)
async def test_a_refusal_is_the_error_that_the_server_raised(
    status: int, code: str, kind: type[HoldfastError]
) -> None:
    body = json.dumps({"error": code, "message": "Because.", "details": {"at": 3}})
    async with (
        impostor(answering(status, body)) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        with pytest.raises(HoldfastError) as refused:
            await client.agents.get(LOCAL_OWNER, "ada")

    error = refused.value
    assert (type(error), error.code, error.message) == (kind, Code(code), "Because.")
    assert error.details == {"at": 3}


async def test_how_long_to_wait_stands_in_the_details() -> None:
    body = '{"error":"session_limit","message":"Wait.","details":{}}'
    async with (
        impostor(answering(429, body, "retry-after: 7")) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        with pytest.raises(LimitReached) as refused:
            await client.agents.get(LOCAL_OWNER, "ada")

    assert refused.value.details == {"retry_after": 7}


@each_case(
    ("status", "body", "kind", "told"),
    [
        (502, "<html>Bad gateway</html>", Unavailable, "502"),
        (418, '{"error":"teapot","message":"Short."}', Invalid, "Short."),
        (301, "", Invalid, "301"),
        (200, "<html>Hello</html>", Unavailable, "not valid for a Holdfast server"),
        (200, '{"data":3}', Unavailable, "not valid for a Holdfast server"),
        (200, "[" * 100_000, Unavailable, "not valid for a Holdfast server"),
    ],
)
async def test_an_answer_that_is_none_of_ours_is_told_as_such(
    status: int, body: str, kind: type[HoldfastError], told: str
) -> None:
    async with (
        impostor(answering(status, body)) as server,
        connect(server.url, timeouts=QUICK) as client,
    ):
        with pytest.raises(HoldfastError, match=told) as refused:
            await client.models.list()

    assert (type(refused.value), refused.value.code) == (kind, Code.UNKNOWN_ANSWER)


@each_case(
    "said",
    [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{",
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 200 OK\r\n" + "x: y\r\n" * 300 + "\r\n",
        "",
    ],
)
async def test_half_an_answer_and_other_languages_are_no_answer(said: str) -> None:
    async def act(call: Call) -> None:
        await call.say(said)

    brief = Timeouts(request=0.05, pause=0.01)
    async with impostor(act) as server, connect(server.url, timeouts=brief) as client:
        with pytest.raises(Unavailable, match="holdfast serve") as refused:
            await client.models.list()

    assert refused.value.code is Code.SERVER_UNREACHABLE


async def test_where_nobody_listens_the_remedy_is_named() -> None:
    async with impostor(silent()) as server:
        url = server.url

    async with connect(url, timeouts=Timeouts(request=0.05, pause=0.01)) as client:
        with pytest.raises(
            Unavailable, match=rf"{url} \(connection refused\).*holdfast serve"
        ) as refused:
            await client.models.list()

    assert (refused.value.code, refused.value.details) == (
        Code.SERVER_UNREACHABLE,
        {"server": url},
    )


async def test_a_server_that_takes_too_long_is_not_asked_again() -> None:
    async def dawdles(call: Call) -> None:
        await call.reader.read()

    async with impostor(dawdles) as server, connect(server.url, timeouts=QUICK) as client:
        with pytest.raises(Unavailable, match="timeout"):
            await client.requests.post("/v1/sessions/s/compact", {}, dict, seconds=0.05)

    assert len(server.calls) == 1


async def test_a_server_that_comes_later_is_waited_for() -> None:
    async with impostor(silent()) as gone:
        host, port = gone.url.removeprefix("http://").split(":")
    answered = asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{"data":[]}')
        writer.close()
        answered.set()

    async with connect(gone.url, timeouts=QUICK) as client:
        asking = asyncio.create_task(client.models.list())
        server = await asyncio.start_server(late, host, int(port))
        async with server:
            assert await asking == []
    assert answered.is_set()


@each_case(
    "url",
    [
        "127.0.0.1:8765",
        "ftp://127.0.0.1",
        "http://",
        "http://:80",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://ada:secret@127.0.0.1",
        "http://127.0.0.1?q=1",
        "http://127.0.0.1/#here",
        "http://[::1",
    ],
)
async def test_what_is_no_address_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(Invalid, match="http://HOST:PORT") as refused:
        await connect(url).__aenter__()

    assert "secret" not in refused.value.message


@each_case("token", ["se\ncret", "sé cret"])
async def test_a_token_that_http_cannot_carry_is_refused_without_repeating_it(token: str) -> None:
    async with impostor(silent()) as server, connect(server.url, token) as client:
        with pytest.raises(Invalid) as refused:
            await client.models.list()

    assert "cret" not in refused.value.message
    assert server.calls == []


async def test_a_server_below_a_path_is_asked_there() -> None:
    models = answering(200, '{"data":[]}')
    async with impostor(models) as server, connect(f"{server.url}/holdfast/") as client:
        await client.models.list()

    assert server.calls[0].head.startswith("GET /holdfast/v1/models HTTP/1.1\r\n")


async def test_a_certificate_that_is_not_trusted_is_not_a_matter_of_patience() -> None:
    async with (
        serving(says()) as host,
        connect(f"https://127.0.0.1:{host.port}", timeouts=QUICK) as client,
    ):
        with pytest.raises(Invalid, match="is not trusted: unable to get local") as refused:
            await client.models.list()

    assert (refused.value.code, host.heard) == (Code.SERVER_UNREACHABLE, [])


async def test_a_certificate_of_a_given_authority_is_trusted() -> None:
    async with serving(says(b'{"data":[]}'), names=("localhost",)) as host:
        url = f"https://localhost:{host.port}"
        async with connect(url, tls=client_tls(), timeouts=QUICK) as client:
            assert await client.models.list() == []

    assert [heard.line for heard in host.heard] == ["GET /v1/models"]


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with impostor(answering(200, '{"data":[]}')) as server, connect(server.url) as client:
        assert await client.models.list() == []


async def test_what_is_not_repeatable_uses_a_connection_of_its_own() -> None:
    async def keeps(call: Call) -> None:
        await call.answer(200, "{}")
        await call.reader.read()

    async with impostor(keeps) as server, connect(server.url, timeouts=QUICK) as client:
        await client.requests.get("/v1/a", dict)
        await client.requests.post("/v1/b", {}, dict, seconds=5)
        await client.requests.post("/v1/c", {}, dict, seconds=5)

    # The server counts connections: the first one is kept, and not used for the others.
    assert [call.head.split(" ")[1] for call in server.calls] == ["/v1/a", "/v1/b", "/v1/c"]


def test_a_query_says_only_what_is_not_usual() -> None:
    assert build_query(SessionsQuery()) == ""
    assert build_query(SessionsQuery(tag=("a b", "c"), limit=7)) == "?tag=a+b&tag=c&limit=7"


async def test_paths_carry_any_name() -> None:
    none = answering(404, '{"error":"agent_not_found","message":"No."}')
    async with impostor(none) as server, connect(server.url) as client:
        with pytest.raises(NotFound):
            await client.agents.get(LOCAL_OWNER, "a/../b c?d#é")
        with pytest.raises(NotFound):
            await client.open("..")

    targets = [call.head.split(" ")[1] for call in server.calls]
    assert targets == ["/v1/agents/a%2F..%2Fb%20c%3Fd%23%C3%A9", "/v1/agents/../sessions"]
