"""An answer on the wire: what goes out together, and how its reader finds its end."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from holdfast.http.protocol import JOINED_LARGEST, ResponseCycle

pytestmark = pytest.mark.anyio

LENGTH = (b"content-length", b"4")


class _Sent(asyncio.Transport):
    """Notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Any] = []

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))


def _cycle(method: str = "POST", *, keep_alive: bool = True) -> tuple[ResponseCycle, list[Any]]:
    sent = _Sent()
    connection: Any = SimpleNamespace(
        scope={"method": method, "http_version": "1.1"},
        transport=sent,
        flow=FlowControl(sent),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        expect_100_continue=False,
        server_state=ServerState(),
        on_response_complete=lambda: sent.done.append("complete"),
    )
    end = lambda: sent.done.append("ended")  # noqa: E731 — two callbacks of one kind
    return ResponseCycle(connection, keep_alive=keep_alive, end=end), sent.done


async def _say(cycle: ResponseCycle, status: int, *headers: tuple[bytes, bytes]) -> None:
    await cycle.send({"type": "http.response.start", "status": status, "headers": [*headers]})


async def _go_on(cycle: ResponseCycle, body: bytes, *, more: bool = False) -> None:
    await cycle.send({"type": "http.response.body", "body": body, "more_body": more})


async def test_a_head_goes_out_with_what_follows_it() -> None:
    cycle, done = _cycle()

    await _say(cycle, 200, LENGTH)
    assert done == []
    await _go_on(cycle, b"body")

    assert done == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody", "complete"]


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    cycle, done = _cycle()
    body = b"x" * (JOINED_LARGEST + 1)

    await _say(cycle, 200, (b"content-length", b"131074"))
    await _go_on(cycle, body, more=True)
    await _go_on(cycle, body)

    assert done == [b"HTTP/1.1 200 OK\r\ncontent-length: 131074\r\n\r\n", body, body, "complete"]


async def test_a_body_without_a_length_comes_in_chunks_and_the_last_one_says_so() -> None:
    cycle, done = _cycle()

    await _say(cycle, 200)
    await _go_on(cycle, b"one", more=True)
    await _go_on(cycle, b"", more=True)
    await _go_on(cycle, b"two")

    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert done == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n", "complete"]


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_where_no_body_follows_none_is_promised(method: str, status: int) -> None:
    cycle, done = _cycle(method)

    await _say(cycle, status)
    await _go_on(cycle, b"")

    (head, _) = done
    assert head.endswith(b"\r\n\r\n")
    assert b"chunked" not in head


async def test_the_last_answer_of_a_connection_says_so_and_ends_it() -> None:
    cycle, done = _cycle(keep_alive=False)

    await _say(cycle, 200, LENGTH)
    await _go_on(cycle, b"body")

    head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
    assert done == [head + b"body", "ended", "complete"]


async def test_an_answer_may_say_itself_that_it_is_the_last() -> None:
    cycle, done = _cycle()

    await _say(cycle, 500, LENGTH, (b"connection", b"close"))
    await _go_on(cycle, b"body")

    head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\nconnection: close\r\n\r\n"
    assert done == [head + b"body", "ended", "complete"]


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\x00", b"a\x7f"])
async def test_a_header_cannot_bring_another_one_along(value: bytes) -> None:
    cycle, done = _cycle()

    with pytest.raises(RuntimeError):
        await _say(cycle, 200, LENGTH, (b"location", value))

    assert done == []


async def test_a_body_is_taken_at_once_when_all_of_it_is_here() -> None:
    cycle, _ = _cycle()

    cycle.body += b"body"
    assert cycle.whole_body() is None
    cycle.more_body = False

    assert (cycle.whole_body(), cycle.body) == (b"body", b"")
