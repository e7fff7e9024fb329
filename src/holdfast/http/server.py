"""Listening and serving: a socket of this machine only, and a stop that loses nothing."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

import uvicorn

from holdfast.domain.errors import Code, Conflict, Denied, Invalid

GRACE_SECONDS: Final = 5
BACKLOG: Final = 2048

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a loopback address; 0 takes any free port."""
    address = _loopback(host)
    if not 0 <= port <= 65_535:
        raise Invalid(Code.INVALID_INPUT, "A port is a number from 0 to 65535.", {"field": "port"})
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise a stopped server could not start again while its old connections linger.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        # From here on, who connects waits until the store is open and is not refused.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refusal(error, port) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address under which the socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def loop_factory() -> LoopFactory | None:
    """Return the fastest event loop that is installed."""
    return uvicorn.Config(app="", log_config=None).get_loop_factory()


async def serve(
    app: Any, listener: socket.socket, *, ready: Callable[[], None], stop: asyncio.Event
) -> None:
    """Serve until `stop` is set; requests that are being answered get a few seconds more."""
    config = uvicorn.Config(
        app,
        # Its own configuration would give it handlers that bypass ours.
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, ready)
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        stopping = tasks.create_task(_stop(server, stop))
        await serving
        stopping.cancel()


class _Server(uvicorn.Server):
    """Says when it is ready, and leaves signals to whoever started it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # Its own handlers would raise the signal again and kill turns that are being let go.
        yield


async def _stop(server: uvicorn.Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    # No name is looked up: what it resolves to is for others to change.
    name = "127.0.0.1" if host.lower() == "localhost" else host.strip("[]")
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        address = None
    if address is None or not address.is_loopback:
        raise Denied(
            Code.NOT_LOOPBACK,
            f"This version serves this machine only, so it does not listen on {host}; "
            "use --host 127.0.0.1.",
            {"host": host},
        )
    return address


def _refusal(error: OSError, port: int) -> Conflict | Denied:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            Code.PORT_IN_USE,
            f"Port {port} is in use; stop what listens there, or choose another with --port.",
            {"port": port},
        )
    return Denied(
        Code.PORT_IN_USE, f"Port {port} cannot be used: {error.strerror}; choose another."
    )
