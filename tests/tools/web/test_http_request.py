"""`http_request`: what goes out, what comes back, and what never does."""

import asyncio
import gzip
import hashlib
import socket
import ssl
import zlib
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.messages import ResultStatus
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Effect, Grant, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.tools.toolbox import LocalToolbox
from holdfast.tools.web.connection import WebSettings
from holdfast.tools.web.http_request import web_tools
from holdfast.tools.web.ssrf import blocked_reason
from tests.marks import demands, each_case
from tests.tools.http_hosts import (
    HOST,
    OTHER,
    Heard,
    Play,
    a_place,
    asked,
    code_of,
    granting,
    requested,
    says,
    sends,
    serving,
    settings,
)

pytestmark = pytest.mark.anyio


def holding(value: str = "canary-12345") -> Any:
    async def look_up() -> Secret:
        return Secret(value)

    return look_up


async def planned(place: Any = None, **arguments: Any) -> PlannedCall | CallOutcome:
    toolbox = LocalToolbox(web_tools(settings()))
    return await toolbox.plan(place or granting(HOST), asked(**arguments))


async def test_a_request_brings_status_headers_and_text() -> None:
    play = says("grüße".encode(), headers=["Content-Type: text/plain", "X-A: 1", "X-A: 2"])
    async with serving(play) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/a?b=ü"
        )

    assert done == CallOutcome(
        status=ResultStatus.OK,
        result={
            "status": 200,
            "headers": {"content-type": "text/plain", "x-a": "1, 2", "content-length": "7"},
            "body": "grüße",
            "body_bytes": 7,
        },
    )
    assert [each.line for each in host.heard] == ["GET /a?b=%C3%BC"]
    assert host.heard[0].headers == {
        "host": f"{HOST}:{host.port}",
        "accept-encoding": "identity",
        "connection": "close",
    }


async def test_a_body_and_chosen_headers_are_sent_and_those_of_the_connection_are_ours() -> None:
    chosen = {
        "Content-Type": "application/json",
        "X-Mine": "yes",
        "Host": "evil.example",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "Connection": "keep-alive",
        "Keep-Alive": "1",
        "TE": "trailers",
        "Trailer": "X",
        "Upgrade": "h2c",
        "Expect": "100-continue",
        "Proxy-Authorization": "x",
        "Forwarded": "for=1.1.1.1",
        "X-Forwarded-For": "1.1.1.1",
        "Accept-Encoding": "gzip",
        "X-Split": "a\r\nX-Smuggled: 1",
        "X Blank": "a",
        "X-Unsaid": "naïve",
    }
    async with serving(says()) as host:
        done = await requested(
            settings(),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}",
            method="POST",
            headers=chosen,
            body="ä\r\n",
        )

    assert done.status is ResultStatus.OK
    assert [(each.line, each.body) for each in host.heard] == [("POST /", "ä\r\n".encode())]
    assert host.heard[0].headers == {
        "host": f"{HOST}:{host.port}",
        "content-type": "application/json",
        "x-mine": "yes",
        "idempotency-key": "k1",
        "accept-encoding": "identity",
        "connection": "close",
        "content-length": "4",
    }


@each_case(
    ("method", "chosen", "key", "sent"),
    [
        ("GET", {}, "k1", None),
        ("HEAD", {}, "k1", None),
        ("POST", {}, "s1:call_1", "s1:call_1"),
        ("PUT", {}, "k1", "k1"),
        ("PATCH", {}, "k1", "k1"),
        ("DELETE", {}, "k1", "k1"),
        ("POST", {"Idempotency-Key": "mine"}, "k1", "mine"),
        ("GET", {"idempotency-key": "mine"}, "k1", "mine"),
        ("POST", {}, "k" * 255, "k" * 255),
        ("POST", {}, "k" * 256, hashlib.sha256(b"k" * 256).hexdigest()),
        ("POST", {}, "k\r\nX-Smuggled: 1", hashlib.sha256(b"k\r\nX-Smuggled: 1").hexdigest()),
    ],
)
async def test_a_host_can_tell_a_call_that_is_made_again_by_its_key(
    method: str, chosen: dict[str, str], key: str, sent: str | None
) -> None:
    async with serving(says()) as host:
        place, url = granting(f"{HOST}:{host.port}"), f"https://{HOST}:{host.port}"
        asking = replace(asked(url=url, method=method, headers=chosen), idempotency_key=key)
        toolbox = LocalToolbox(web_tools(settings()))
        plan = await toolbox.plan(place, asking)
        assert isinstance(plan, PlannedCall)
        twice = [await toolbox.run(place, plan) for _ in range(2)]

    assert [each.status for each in twice] == [ResultStatus.OK] * 2
    assert [each.headers.get("idempotency-key") for each in host.heard] == [sent] * 2


async def test_somebody_who_agrees_sees_all_of_it_and_nothing_that_hides() -> None:
    plan = await planned(
        url=f"HTTPS://{HOST.upper()}./a",
        method="PUT",
        headers={"x-b": "c", "connection": "close"},
        body="one\nPUT https://api.example.com/ \u202e\x1b[2J",
    )

    assert isinstance(plan, PlannedCall)
    assert plan.question == (
        f"PUT https://{HOST}/a\n"
        "x-b: c\n"
        "with the body\n"
        "  one\n"
        "  PUT https://api.example.com/ \\u202e\\u001b[2J"
    )
    assert (plan.tool_class, plan.effect) == (ToolClass.EGRESS, Effect.IDEMPOTENT)
    assert plan.preview == {"host": HOST}
    assert plan.memory == f"egress:{HOST}:443:PUT"


@each_case(
    ("method", "effect"),
    [
        ("GET", Effect.IDEMPOTENT),
        ("HEAD", Effect.IDEMPOTENT),
        ("POST", Effect.UNSAFE),
        ("PUT", Effect.IDEMPOTENT),
        ("PATCH", Effect.UNSAFE),
        ("DELETE", Effect.IDEMPOTENT),
    ],
)
async def test_what_a_second_time_would_do_depends_on_the_method(
    method: str, effect: Effect
) -> None:
    toolbox = LocalToolbox(web_tools(settings()))

    arguments = {"url": f"https://{HOST}/", "method": method}
    assert toolbox.effect("http_request", arguments, a_place()) is effect


@demands("S0-220")
@each_case(
    ("grants", "url", "code"),
    [
        ([(HOST,)], f"https://{HOST}/", "planned"),
        ([(HOST.upper() + ".",)], f"https://{HOST}/", "planned"),
        ([("bücher.example",)], "https://xn--bcher-kva.example/", "planned"),
        ([(HOST,), (HOST, OTHER)], f"https://{HOST}/", "planned"),
        ([(HOST, OTHER), (HOST,)], f"https://{OTHER}/", "denied/domain_not_allowed"),
        ([(HOST,)], f"https://{HOST}:8443/", "denied/domain_not_allowed"),
        ([(f"{HOST}:8443",)], f"https://{HOST}:8443/", "planned"),
        ([(f"{HOST}:8443",)], f"https://{HOST}/", "denied/domain_not_allowed"),
        ([("example.com",)], f"https://{HOST}/", "denied/domain_not_allowed"),
        ([(HOST,)], f"https://{HOST}.evil.example/", "denied/domain_not_allowed"),
        ([("*.example.com",)], f"https://{HOST}/", "error/unavailable"),
        ([(HOST,)], f"http://{HOST}/", "denied/insecure_url"),
        ([(HOST,)], f"https://me@{HOST}/", "denied/insecure_url"),
        ([()], f"https://{HOST}/", "error/unavailable"),
        ([(HOST,), ()], f"https://{HOST}/", "error/unavailable"),
        ([(HOST,), (OTHER,)], f"https://{HOST}/", "error/unavailable"),
        ([], f"https://{HOST}/", "error/unavailable"),
    ],
)
async def test_a_host_has_to_be_named_exactly_by_every_grant(
    grants: Sequence[tuple[str, ...]], url: str, code: str
) -> None:
    place = a_place(*(Grant(domains=domains) for domains in grants))

    assert code_of(await planned(place, url=url)) == code


async def test_the_tool_is_offered_only_where_a_domain_is_granted() -> None:
    toolbox = LocalToolbox(web_tools(settings()))

    assert [each.name for each in await toolbox.offers(granting(HOST))] == ["http_request"]
    assert await toolbox.offers(granting()) == ()


async def test_nothing_is_resolved_before_somebody_agreed() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        raise AssertionError("a look-up is a message already")

    toolbox = LocalToolbox(web_tools(settings(resolve=resolve)))

    plan = await toolbox.plan(granting(HOST), asked(url=f"https://{HOST}/"))

    assert isinstance(plan, PlannedCall)


@demands("S0-220")
async def test_one_blocked_address_blocks_the_request_and_nothing_is_sent() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return ("93.184.216.34", "127.0.0.1")

    async with serving(says()) as host:
        done = await requested(
            settings(resolve=resolve, address_check=blocked_reason),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert code_of(done) == "denied/address_blocked"
    assert done.error is not None
    assert "127.0.0.1" not in done.error.message
    assert host.connections == 0


async def test_the_certificate_has_to_be_the_hosts_own() -> None:
    async with serving(says(), names=[OTHER]) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert code_of(done) == "error/failed"
    assert host.heard == []


async def test_a_certificate_of_an_unknown_authority_is_not_trusted() -> None:
    async with serving(says()) as host:
        done = await requested(
            settings(tls=ssl.create_default_context),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert code_of(done) == "error/failed"
    assert host.heard == []


async def test_an_address_that_does_not_answer_gives_way_to_the_next() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return ("127.0.0.9", "127.0.0.1")

    async with serving(says()) as host:
        done = await requested(
            settings(resolve=resolve),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert done.status is ResultStatus.OK


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async with serving(says()) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert done.status is ResultStatus.OK


async def test_a_redirect_comes_back_and_is_not_followed() -> None:
    play = says(b"", status="302 Found", headers=[f"Location: https://{OTHER}/next"])
    async with serving(play) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert done.result == {
        "status": 302,
        "headers": {"location": f"https://{OTHER}/next", "content-length": "0"},
        "body": "",
        "body_bytes": 0,
    }
    assert host.connections == 1


async def test_the_credential_of_a_host_goes_there_and_nowhere_else() -> None:
    given = settings(credentials={HOST: holding()})
    async with serving(says()) as host:
        domains = granting(f"{HOST}:{host.port}", f"{OTHER}:{host.port}")
        for name in (HOST, OTHER):
            await requested(given, domains, url=f"https://{name}:{host.port}/")

    assert [each.headers.get("authorization") for each in host.heard] == [
        "Bearer canary-12345",
        None,
    ]


async def test_a_credential_that_names_its_scheme_is_sent_as_it_is() -> None:
    async with serving(says()) as host:
        await requested(
            settings(credentials={HOST: holding("Basic Y2FuYXJ5")}),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert host.heard[0].headers["authorization"] == "Basic Y2FuYXJ5"


async def test_a_credential_is_in_no_question_digest_or_result_even_when_it_is_echoed() -> None:
    async def echo(heard: Heard, writer: asyncio.StreamWriter) -> None:
        said = heard.headers["authorization"].encode()
        answer = says(b"you sent " + said, headers=[f"X-Echo: {said.decode()}", "Set-Cookie: a=b"])
        await answer(heard, writer)

    given = settings(credentials={HOST: holding()})
    async with serving(echo) as host:
        place, url = granting(f"{HOST}:{host.port}"), f"https://{HOST}:{host.port}/"
        toolbox = LocalToolbox(web_tools(given))
        plan = await toolbox.plan(place, asked(url=url))
        assert isinstance(plan, PlannedCall)
        done = await toolbox.run(place, plan)

    assert plan.question == f"GET {url}\nwith the credential for this host"
    assert done.result == {
        "status": 200,
        "headers": {"x-echo": "[secret]", "content-length": "28"},
        "body": "you sent [secret]",
        "body_bytes": 28,
    }
    assert "canary" not in repr((plan, done))


async def test_a_credential_that_appears_or_vanishes_is_another_request() -> None:
    place, call = granting(HOST), asked(url=f"https://{HOST}/")
    plan = await LocalToolbox(web_tools(settings())).plan(place, call)
    assert isinstance(plan, PlannedCall)

    with_one = LocalToolbox(web_tools(settings(credentials={HOST: holding()})))

    assert code_of(await with_one.run(place, plan)) == "denied/target_changed"


async def test_a_credential_that_cannot_be_had_stops_the_request() -> None:
    async def locked() -> Secret:
        raise Unavailable(Code.KEYCHAIN_UNAVAILABLE, "The keychain is locked.")

    async with serving(says()) as host:
        done = await requested(
            settings(credentials={HOST: locked}),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert code_of(done) == "error/unavailable"
    assert host.connections == 0


async def test_a_credential_that_no_header_can_carry_is_not_told() -> None:
    async with serving(says()) as host:
        done = await requested(
            settings(credentials={HOST: holding("canary\r\nX: 1")}),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert code_of(done) == "error/failed"
    assert "canary" not in repr(done)
    assert host.heard == []


@each_case("name", ["Authorization", "cookie"])
async def test_credentials_of_the_model_are_refused_or_give_way_to_the_configured_one(
    name: str,
) -> None:
    call = asked(url=f"https://{HOST}/", headers={name: "mine"})
    without = LocalToolbox(web_tools(settings()))
    with_one = LocalToolbox(web_tools(settings(credentials={HOST: holding()})))

    plan = await with_one.plan(granting(HOST), call)

    assert code_of(await without.plan(granting(HOST), call)) == "error/invalid_arguments"
    assert isinstance(plan, PlannedCall)
    assert plan.question == f"GET https://{HOST}/\nwith the credential for this host"


async def test_cookies_and_log_ins_of_the_answer_are_withheld() -> None:
    withheld = ["Set-Cookie: a=b", "WWW-Authenticate: Basic", "Authentication-Info: x"]
    async with serving(says(b"", headers=[*withheld, "X-Kept: 1"])) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert done.result["headers"] == {"x-kept": "1", "content-length": "0"}


@each_case(
    ("arguments", "code"),
    [
        ({"url": ""}, "error/invalid_arguments"),
        ({"url": f"https://{HOST}/", "method": "TRACE"}, "error/invalid_arguments"),
        ({"url": f"https://{HOST}/", "method": "get"}, "error/invalid_arguments"),
        ({"url": f"https://{HOST}/", "follow": True}, "error/invalid_arguments"),
        ({"url": f"https://{HOST}/", "body": "x" * (1 << 20)}, "planned"),
        ({"url": f"https://{HOST}/", "body": "x" * ((1 << 20) + 1)}, "error/invalid_arguments"),
        ({"url": f"https://{HOST}/", "body": "ä" * (1 << 20)}, "error/too_large"),
        (
            {"url": f"https://{HOST}/", "headers": {f"x-{n}": "v" * 8192 for n in range(5)}},
            "error/too_large",
        ),
    ],
)
async def test_arguments_have_bounds(arguments: dict[str, Any], code: str) -> None:
    assert code_of(await planned(**arguments)) == code


async def test_binary_content_is_told_by_its_size() -> None:
    async with serving(says(b"\x89PNG\x00\x00")) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert code_of(done) == "error/binary"
    assert done.error is not None
    assert "6 bytes" in done.error.message


@each_case(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(b"hello", mtime=0)),
        ("x-gzip", gzip.compress(b"hel", mtime=0) + gzip.compress(b"lo", mtime=0)),
        ("deflate", zlib.compress(b"hello")),
        ("identity", b"hello"),
    ],
)
async def test_a_packed_answer_is_unpacked(encoding: str, packed: bytes) -> None:
    async with serving(says(packed, headers=[f"Content-Encoding: {encoding}"])) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert (done.result["body"], done.result["body_bytes"]) == ("hello", 5)


@each_case(
    ("method", "raw", "expected"),
    [
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Encoding: gzip\r\n\r\n", "204 ''"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n", "200 ''"),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nall", "200 'all'"),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            "200 'ok'",
        ),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nold", "200 'old'"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", "200 'ok'"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "error/failed"),
        (
            "GET",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "error/failed",
        ),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\n\r\nx", "error/failed"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\n\r\nx", "error/failed"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nno gzip", "error/failed"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b\x08", "error/failed"),
        ("GET", b"SSH-2.0-OpenSSH\r\n", "error/failed"),
        ("GET", b"", "error/failed"),
        ("GET", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", "error/failed"),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\n" * 300, "error/failed"),
    ],
)
async def test_an_answer_is_read_strictly(method: str, raw: bytes, expected: str) -> None:
    async with serving(sends(raw)) as host:
        done = await requested(
            settings(),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
            method=method,
        )

    told = f"{done.result['status']} {done.result['body']!r}" if done.result else code_of(done)
    assert told == expected


@each_case(
    ("raw", "code"),
    [
        (b"\r\n" + b"x" * ((4 << 20) + 1), "error/too_large"),
        (b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"x" * (9 << 20)), "error/too_large"),
        (
            b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"x" * 9999, mtime=0),
            "error/too_large",
        ),
        (b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"", mtime=0) * 99, "error/too_large"),
        (b"X: y\r\n" * 300 + b"\r\n", "error/too_large"),
        (b"X: " + b"y" * 99_999 + b"\r\n\r\n", "error/too_large"),
    ],
)
async def test_an_answer_has_a_size(raw: bytes, code: str) -> None:
    async with serving(sends(b"HTTP/1.1 200 OK\r\n" + raw)) as host:
        done = await requested(
            settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
        )

    assert code_of(done) == code


async def test_interim_responses_without_end_are_given_up() -> None:
    async def endless(_: Heard, writer: asyncio.StreamWriter) -> None:
        while not writer.transport.is_closing():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await writer.drain()

    async with serving(endless) as host:
        done = await requested(
            settings(time_limit=60),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert code_of(done) == "error/failed"


async def test_a_name_that_passed_the_check_is_not_looked_up_again() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return ("localhost",)

    async with serving(says()) as host:
        done = await requested(
            settings(resolve=resolve),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
        )

    assert (code_of(done), host.connections) == ("error/failed", 0)


async def test_a_host_that_says_nothing_is_given_up() -> None:
    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    silent: list[asyncio.StreamWriter] = []
    # Not even a handshake: it takes the connection, and that is all.
    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done = await requested(
        settings(time_limit=0.2), granting(f"{HOST}:{port}"), url=f"https://{HOST}:{port}/"
    )
    for writer in silent:
        writer.transport.abort()
    server.close()

    assert code_of(done) == "error/timeout"
    assert len(silent) == 1


async def _breaks(_: Heard, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _hangs(_: Heard, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


_HALF = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")


@each_case("method", ["POST", "PUT", "HEAD"])
@each_case(
    ("play", "code"),
    [(_breaks, "error/failed"), (_hangs, "error/timeout"), (_HALF, "error/failed")],
    ids=["reset", "silence", "half an answer"],
)
async def test_an_unsafe_request_that_was_sent_and_not_answered_whole_is_unknown(
    play: Play, code: str, method: str
) -> None:
    async with serving(play) as host:
        done = await requested(
            settings(time_limit=0.2),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/pay",
            method=method,
        )

    is_unsafe = method in {"POST", "PATCH"}
    if method == "HEAD" and play is _HALF:
        # Whose answer has no body, whatever its length.
        assert done.status is ResultStatus.OK
    else:
        assert code_of(done) == ("unknown/unknown" if is_unsafe else code)
    assert [heard.line for heard in host.heard] == [f"{method} /pay"]


async def test_an_unsafe_request_that_never_left_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = await requested(
        settings(), granting(f"{HOST}:{port}"), url=f"https://{HOST}:{port}/pay", method="POST"
    )

    assert code_of(done) == "error/failed"


async def test_the_machines_own_resolver_and_trust_are_the_default() -> None:
    given = WebSettings()

    assert "127.0.0.1" in await given.resolve("localhost", 443)
    assert given.address_check("127.0.0.1") == "loopback"
    assert given.tls().check_hostname
    assert given.tls().verify_mode is ssl.CERT_REQUIRED


async def test_a_request_that_is_called_off_leaves_no_connection() -> None:
    came = asyncio.Event()
    gone = asyncio.Event()

    async def silent(_: Heard, writer: asyncio.StreamWriter) -> None:
        came.set()
        try:
            while not writer.transport.is_closing():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with serving(silent) as host:
        request = asyncio.create_task(
            requested(
                settings(), granting(f"{HOST}:{host.port}"), url=f"https://{HOST}:{host.port}/"
            )
        )
        await came.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(5):
            await gone.wait()


async def test_a_host_that_nobody_knows_is_told() -> None:
    async def resolve(_: str, __: int) -> Sequence[str]:
        raise OSError("no such host")

    async def nothing(_: str, __: int) -> Sequence[str]:
        return ()

    for how in (resolve, nothing):
        done = await requested(settings(resolve=how), granting(HOST), url=f"https://{HOST}/")
        assert code_of(done) == "error/failed"


async def test_a_large_body_is_answered_by_a_host_that_does_not_read_it() -> None:
    async def hasty(_: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    async with serving(hasty) as host:
        done = await requested(
            settings(),
            granting(f"{HOST}:{host.port}"),
            url=f"https://{HOST}:{host.port}/",
            method="PUT",
            body="x" * 1_000_000,
        )

    assert done.result["status"] == 413
