"""The wire under a connection: what goes out together, and that nothing waits for ever."""

import asyncio
from typing import Any

import pytest

from holdfast.http.wires import PatientTransport

pytestmark = pytest.mark.anyio

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class _Sent(asyncio.Transport):
    """Notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Any] = []

    def write(self, data: Any) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def write_eof(self) -> None:
        self.done.append("ended")


def _wire() -> tuple[PatientTransport, _Sent]:
    sent = _Sent()
    return PatientTransport(sent, asyncio.get_running_loop().call_soon), sent


async def test_a_head_goes_out_with_what_follows_it() -> None:
    wire, sent = _wire()

    wire.write(HEAD)
    wire.write(b"body")
    wire.write(b"more")

    assert sent.done == [HEAD + b"body", b"more"]


async def test_a_head_without_a_body_goes_out_when_the_loop_comes_round() -> None:
    wire, sent = _wire()

    wire.write(HEAD)
    assert sent.done == []
    await asyncio.sleep(0)
    wire.write(b"body")

    assert sent.done == [HEAD, b"body"]


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    wire, sent = _wire()
    body = b"x" * (64 * 1024 + 1)

    wire.write(HEAD)
    wire.write(body)

    assert sent.done == [HEAD, body]


async def test_one_head_does_not_take_the_place_of_another() -> None:
    wire, sent = _wire()

    wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    wire.write(HEAD)
    wire.write(b"body")

    assert sent.done == [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD, b"body"]


@pytest.mark.parametrize(("end", "seen"), [("close", "closed"), ("write_eof", "ended")])
async def test_a_head_that_waits_goes_out_before_the_end(end: str, seen: str) -> None:
    wire, sent = _wire()

    wire.write(HEAD)
    getattr(wire, end)()
    await asyncio.sleep(0)

    assert sent.done == [HEAD, seen]


async def test_nothing_that_waits_goes_out_after_an_abort() -> None:
    wire, sent = _wire()

    wire.write(HEAD)
    wire.abort()
    await asyncio.sleep(0)

    assert sent.done == ["aborted"]
