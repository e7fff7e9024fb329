"""Listening on this machine only, and stopping without losing anything."""

import asyncio
import errno
import json
import socket

import pytest

from holdfast.domain.errors import Code, Conflict, Denied, Invalid
from holdfast.http.app import application
from holdfast.http.server import listen, loop_factory, serve, url_of
from tests.http.test_app import well
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


async def test_it_serves_from_the_moment_it_says_so_until_it_is_stopped() -> None:
    ready, stop = asyncio.Event(), asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(application(well), listener, ready=ready.set, stop=stop))
            await ready.wait()
            status, body = await get(port, "/healthz")
            stop.set()

    assert (status, json.loads(body)) == (b"HTTP/1.1 200 OK", {"status": "ok"})


async def test_a_fault_of_ours_is_a_500_without_its_text() -> None:
    async def broken() -> None:
        raise RuntimeError("a secret")

    ready, stop = asyncio.Event(), asyncio.Event()
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(application(broken), listener, ready=ready.set, stop=stop))
            await ready.wait()
            status, body = await get(port, "/healthz")
            stop.set()

    assert status == b"HTTP/1.1 500 Internal Server Error"
    assert json.loads(body)["error"] == "internal"
    assert b"secret" not in body


def test_a_port_in_use_is_a_conflict() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(Conflict) as refused:
            listen("127.0.0.1", port)

    assert (refused.value.code, refused.value.details) == (Code.PORT_IN_USE, {"port": port})


def test_a_port_that_may_not_be_used_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "bind", refused)
        with pytest.raises(Denied, match="Permission denied"):
            listen("127.0.0.1", 80)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_out_of_range_is_invalid(port: int) -> None:
    with pytest.raises(Invalid):
        listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "", "127.1"])
def test_an_address_others_can_reach_is_denied(host: str) -> None:
    with pytest.raises(Denied) as refused:
        listen(host, 0)

    assert refused.value.code is Code.NOT_LOOPBACK


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_addresses_of_this_machine_are_fine(host: str) -> None:
    with listen(host, 0) as listener:
        number = "127.0.0.1" if host == "localhost" else host
        assert url_of(listener) == f"http://{number}:{listener.getsockname()[1]}"


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    with listen("[::1]", 0) as listener:
        assert url_of(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_there_is_a_loop_to_run_on() -> None:
    factory = loop_factory()
    assert factory is not None

    loop = factory()
    loop.close()


async def get(port: int, path: str) -> tuple[bytes, bytes]:
    """Ask over the network; return the status line and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body
