"""HTTP on a socket: bounds on what is gathered and waited for, and one answer for one request."""

import asyncio
import json
import logging
import re
import resource
import socket
import struct
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from holdfast import Holdfast
from holdfast.http import server
from holdfast.http.limits import connection_limit
from tests.http.sockets import Line, serving
from tests.http.test_app import HARDENED
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

REFUSED = {
    "error": "invalid_request",
    "message": "This is not a valid HTTP/1.1 request: it is malformed, too large, too slow, or "
    "ambiguous.",
    "details": {},
}


@pytest.fixture
async def line(quiet: Holdfast) -> AsyncIterator[Line]:
    """Have a server."""
    async with serving(quiet) as found:
        yield found


def chunked(line: Line, *headers: str, target: str = "/v1/agents") -> bytes:
    """Return the head of a request whose body comes in chunks."""
    return line.request(target, *headers, "Transfer-Encoding: chunked", method="POST")


async def test_what_is_no_request_is_refused_in_our_own_form(line: Line) -> None:
    heard = await line.say(b"hello\r\n\r\n")

    head = heard.head.decode().split("\r\n")
    headers = dict(each.split(": ") for each in head[1:])
    assert (head[0], heard.is_over) == ("HTTP/1.1 400 Bad Request", True)
    assert json.loads(heard.body) == REFUSED
    assert headers == HARDENED | {
        "content-type": "application/json",
        "content-length": str(len(heard.body)),
        "connection": "close",
    }


async def test_a_head_may_have_a_hundred_headers_and_a_size(line: Line) -> None:
    fine = line.request("/healthz", *["X: y"] * 99)
    large = line.request("/healthz", f"X: {'y' * 60_000}")
    too_many = line.request("/healthz", *["X: y"] * 100)
    too_large = line.request("/healthz", f"X: {'y' * 66_000}")
    too_long = line.request(f"/{'x' * 66_000}")

    assert [(await line.say(each, answers=1)).statuses for each in (fine, large)] == [[200]] * 2
    for each in (too_many, too_large, too_long):
        assert (await line.say(each)).statuses == [400]


async def test_a_header_that_never_ends_is_not_gathered(line: Line) -> None:
    head = line.request("/healthz")[:-2] + b"X: "

    heard = await line.say(head, *[b"y" * 8192] * 100)

    assert heard.statuses == [400]


@pytest.mark.parametrize("piece", [b"0\r\nX: ", b"1;"])
async def test_what_stands_behind_a_body_is_not_gathered_either(line: Line, piece: bytes) -> None:
    heard = await line.say(chunked(line, target="/healthz"), piece, *[b"y" * 8192] * 100)

    # It was refused for its credentials before, and the rest is not waited for.
    assert heard.statuses == [401]
    assert heard.is_over


async def test_a_head_that_trickles_is_given_up(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)

    heard = await line.say(*(bytes([each]) for each in line.request("/healthz")), pause=0.05)

    assert (heard.statuses, json.loads(heard.body)) == ([400], REFUSED)


@pytest.mark.parametrize("piece", [b"", b"\r\n"])
async def test_a_caller_that_says_nothing_is_not_waited_for(
    line: Line, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.1)

    heard = await line.say(*[piece] * 1000, pause=0.01)

    assert (heard.raw, heard.is_over) == (b"", True)


async def test_the_second_head_may_not_trickle_either(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = line.request("/healthz")
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)

    heard = await line.say(first, b"GET /heal", *[b"t"] * 1000, pause=0.05)

    assert heard.statuses == [200, 400]


async def test_a_slow_answer_is_not_cut_off_by_the_wait_for_the_next_request(
    quiet: Holdfast, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = line.request("/healthz"), line.request("/healthz")

    # The head of the second is on its way when the first answer ends.
    heard = await line.say(first + second[:10], second[10:], answers=2, pause=0.1)

    assert heard.statuses == [200, 200]


async def test_a_connection_that_is_not_used_is_closed_after_a_while(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.1)

    # The second is answered while the wait behind the first goes on.
    heard = await line.say(2 * line.request("/healthz"))

    assert (heard.statuses, heard.is_over) == ([200, 200], True)


async def test_a_header_behind_the_body_says_nothing(line: Line, quiet: Holdfast) -> None:
    _, secret = await quiet.tokens.ensure_local()
    body = f"2\r\n{{}}\r\n0\r\nAuthorization: Bearer {secret}\r\n\r\n".encode()

    # In one piece, so that all of it is there before the request is looked at.
    heard = await line.say(chunked(line, "Content-Type: application/json") + body, answers=1)

    assert heard.statuses == [401]


async def test_a_body_that_nobody_wants_is_not_waited_for(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "REST_SECONDS", 0.1)
    head = line.request("/healthz", "Content-Length: 1000000")

    heard = await line.say(head, *[b"GET / HTTP/1.1\r\n\r\n"] * 1000, pause=0.01)

    assert (heard.statuses, heard.is_over) == ([200], True)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("POST /v1/agents", (400, "invalid_body")),
        ("POST /v1/agents stranger", (401, "unauthenticated")),
        ("POST /v1/nothing", (404, "path_not_found")),
        ("PUT /v1/agents", (405, "method_not_allowed")),
    ],
)
async def test_a_caller_that_reads_only_after_a_large_body_gets_its_refusal(
    line: Line, quiet: Holdfast, connection: str, asked: str, expected: tuple[int, str]
) -> None:
    _, local = await quiet.tokens.ensure_local()
    method, path, secret = [*asked.split(" "), local][:3]
    headers = {
        "Authorization": f"Bearer {secret}",
        "Content-Type": "application/json",
        "Connection": connection,
    }

    def refused() -> tuple[int, str]:
        caller = HTTPConnection("127.0.0.1", line.port, timeout=PATIENCE)
        try:
            caller.request(method, path, b" " * (16 << 20), headers)
            answer = caller.getresponse()
            return answer.status, json.loads(answer.read())["error"]
        finally:
            caller.close()

    assert await asyncio.to_thread(refused) == expected


async def test_a_reader_that_leaves_before_its_stream_begins_is_no_fault(
    line: Line, quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    _, secret = await quiet.tokens.ensure_local()
    session = await quiet.open()
    target = f"/v1/sessions/{session.id}/events"
    asked = line.request(target, f"Authorization: Bearer {secret}", "Accept: text/event-stream")

    for _ in range(20):
        _, writer = await asyncio.open_connection("127.0.0.1", line.port)
        connection = writer.get_extra_info("socket")
        # Gone at once and with a bang, as a process is that was killed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.write(asked)
        writer.transport.abort()
    await line.say(line.request("/healthz"), answers=1)

    assert caplog.records == []


async def test_an_answer_says_when_it_was_made(line: Line) -> None:
    heard = await line.say(line.request("/healthz"), answers=1)

    assert re.search(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} [\d:]{8} GMT\r\n", heard.head + b"\r\n")


async def test_a_stream_with_a_request_behind_it_ends_with_its_reader(
    line: Line, quiet: Holdfast
) -> None:
    _, secret = await quiet.tokens.ensure_local()
    session = await quiet.open()
    bearer = f"Authorization: Bearer {secret}"
    target = f"/v1/sessions/{session.id}/events"
    reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
    writer.write(line.request(target, bearer, "Accept: text/event-stream"))
    await reader.readuntil(b"event: connected")
    writer.write(line.request("/healthz"))
    await writer.drain()
    writer.transport.abort()

    async with asyncio.timeout(PATIENCE):
        told = b""
        # Each look is a request of its own, so others get their turn.
        while b"holdfast_open_streams 0\n" not in told:
            told = (await line.say(line.request("/metrics", bearer, "Connection: close"))).raw


async def test_only_one_waiting_request_is_read_on_behind(
    line: Line, quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: dict[FlowControl, bool] = {}
    receive = RequestResponseCycle.receive

    async def noted(cycle: RequestResponseCycle) -> Any:
        # When the stream begins; its wait for a disconnect reads on.
        pauses.setdefault(cycle.flow, cycle.flow.read_paused)
        return await receive(cycle)

    monkeypatch.setattr(RequestResponseCycle, "receive", noted)
    _, secret = await quiet.tokens.ensure_local()
    session = await quiet.open()
    target, bearer = f"/v1/sessions/{session.id}/events", f"Authorization: Bearer {secret}"
    streaming = line.request(target, bearer, "Accept: text/event-stream")

    for waiting in (1, 2):
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        # In one piece, so that what waits was taken when the stream begins.
        writer.write(streaming + line.request("/healthz") * waiting)
        await reader.readuntil(b"event: connected")
        writer.close()

    assert list(pauses.values()) == [False, True]


async def test_a_connection_goes_on_when_the_rest_of_a_body_comes_in_time(line: Line) -> None:
    head = line.request("/healthz", "Content-Length: 10")

    heard = await line.say(
        head, b"GET /", b"12345" + line.request("/nothing"), answers=2, pause=0.1
    )

    assert heard.statuses == [200, 401]


async def test_a_body_that_breaks_off_is_answered_at_once(line: Line, quiet: Holdfast) -> None:
    _, secret = await quiet.tokens.ensure_local()
    head = chunked(line, f"Authorization: Bearer {secret}", "Content-Type: application/json")

    heard = await line.say(head, b"2\r\n{}\r\n", b"no chunk", pause=0.1)

    assert (heard.statuses, json.loads(heard.body)) == ([400], REFUSED)


async def test_garbage_behind_a_request_takes_nothing_from_its_answer(line: Line) -> None:
    heard = await line.say(line.request("/healthz") + b"\x16\x03\x01 garbage\r\n\r\n")

    assert (heard.statuses, heard.body, heard.is_over) == ([200], b'{"status":"ok"}', True)


async def test_garbage_behind_waiting_requests_is_answered_by_the_end(line: Line) -> None:
    heard = await line.say(line.request("/healthz") * 2 + b"garbage\r\n\r\n")

    assert set(heard.statuses) == {200}
    assert heard.is_over


async def test_not_everything_waits(line: Line) -> None:
    fine = await line.say(line.request("/healthz") * 50, answers=50)
    many = await line.say(line.request("/healthz") * 5_000)

    assert fine.statuses == [200] * 50
    assert many.is_over
    assert len(many.statuses) < 5_000


async def test_an_upgrade_is_not_taken_and_ends_the_connection(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    asked = line.request("/healthz", "Connection: Upgrade", "Upgrade: websocket")

    heard = await line.say(asked + line.request("/healthz"))

    assert (heard.statuses, heard.is_over) == ([200], True)
    assert caplog.records == []


@pytest.mark.slow
async def test_a_connection_that_is_kept_is_not_kept_for_ever(line: Line) -> None:
    began = asyncio.get_running_loop().time()

    heard = await line.say(line.request("/healthz"))

    assert heard.is_over
    assert asyncio.get_running_loop().time() - began < PATIENCE


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have a server with room for three."""
    monkeypatch.setattr(server, "connection_limit", lambda: 3)
    return 3


async def test_who_finds_no_room_is_told_when_to_come_back(line: Line, room: int) -> None:
    kept = [await asyncio.open_connection("127.0.0.1", line.port) for _ in range(room)]
    try:
        for reader, writer in kept:
            writer.write(line.request("/healthz"))
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200")
        turned_away = await line.say(line.request("/healthz"))

        headers = dict(each.split(": ") for each in turned_away.head.decode().split("\r\n")[1:])
        assert (turned_away.statuses, turned_away.is_over) == ([503], True)
        assert json.loads(turned_away.body) == {
            "error": "system_limit",
            "message": "Too many connections are open; close some, or retry later.",
            "details": {"retry_after": 5},
        }
        assert (headers["retry-after"], headers["connection"]) == ("5", "close")
        # Who was there before does not notice.
        kept[0][1].write(line.request("/healthz"))
        assert (await kept[0][0].readuntil(b"}")).startswith(b"HTTP/1.1 200")
    finally:
        for _, writer in kept:
            writer.close()


async def test_room_that_becomes_free_is_given_to_the_next(line: Line, room: int) -> None:
    async with asyncio.timeout(PATIENCE):
        for _ in range(5 * room):
            heard = await line.say(line.request("/healthz", "Connection: close"))
            while heard.statuses == [503]:
                await asyncio.sleep(0.01)
                heard = await line.say(line.request("/healthz", "Connection: close"))
            assert heard.statuses == [200]


async def test_connections_are_counted(line: Line, quiet: Holdfast, room: int) -> None:
    _, secret = await quiet.tokens.ensure_local()
    held = [await asyncio.open_connection("127.0.0.1", line.port) for _ in range(room - 1)]
    counting = await asyncio.open_connection("127.0.0.1", line.port)
    try:
        counting[1].write(line.request("/metrics", f"Authorization: Bearer {secret}"))
        await counting[0].readuntil(b"delivered_events_total")
        assert (await line.say(b"")).statuses == [503]
        counting[1].write(line.request("/metrics", f"Authorization: Bearer {secret}"))
        told = await counting[0].readuntil(b"holdfast_refused_connections_total 1\n")
    finally:
        for _, writer in [*held, counting]:
            writer.close()

    assert b"holdfast_open_connections 3\n" in told


async def _talked_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"and then")
        await writer.drain()
        await asyncio.sleep(0.01)


async def test_a_crowd_before_the_door_is_not_heard_out(
    line: Line, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "TURNED_AWAY_MOST", 0)
    monkeypatch.setattr(server, "REST_SECONDS", 600.0)
    kept = [await asyncio.open_connection("127.0.0.1", line.port) for _ in range(room)]
    try:
        for reader, writer in kept:
            writer.write(line.request("/healthz"))
            await reader.readuntil(b"}")
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).startswith(b"HTTP/1.1 503")
            with pytest.raises(ConnectionError):
                await _talked_on(writer)
    finally:
        for _, writer in kept:
            writer.close()


@pytest.mark.parametrize(("files", "most"), [(100, 64), (1024, 768), (65_536, 4096), (-1, 4096)])
def test_how_many_there_is_room_for_depends_on_how_many_files_there_may_be(
    files: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))

    assert connection_limit.__wrapped__() == most
