"""Listening and serving: loopback only by default, with a graceful stop."""

import asyncio
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn

from holdfast.domain.errors import Code, Conflict, Denied, Invalid
from holdfast.http.app import Application
from holdfast.http.bodies import keep_large_blocks_apart
from holdfast.http.protocol import HttpProtocol

GRACE_SECONDS: Final = 5
LAST_SECONDS: Final = 1
BACKLOG: Final = 2048


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """TLS setup for listening beyond loopback: own certificate, or a proxy that terminates TLS."""

    certificate: Path | None = None
    private_key: Path | None = None
    is_behind_proxy: bool = False

    @property
    def is_secure(self) -> bool:
        """Return whether this server terminates TLS itself."""
        return self.certificate is not None

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS settings; raises Invalid for files that are not a certificate and key."""
        if self.certificate is None and self.private_key is not None:
            raise Invalid(Code.CONFIG_INVALID, "--tls-key requires a certificate; add --tls-cert.")
        if self.certificate is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self.certificate, self.private_key, password=_no_password)
        except OSError as error:
            raise Invalid(
                Code.CONFIG_INVALID,
                f"The certificate {self.certificate} and its key cannot be loaded: "
                f"{error.strerror or error}.",
            ) from None
        return context


def _no_password() -> str:
    # Without this, the ssl module would prompt for a password at the terminal and block.
    raise Invalid(Code.CONFIG_INVALID, "The private key is encrypted; use an unencrypted key.")


LOCAL: Final = Exposure()


def listen(host: str, port: int, exposure: Exposure = LOCAL) -> socket.socket:
    """Return a socket that listens on an address; port 0 takes any free port."""
    address = _address(host, exposure)
    if not 0 <= port <= 65_535:
        raise Invalid(
            Code.INVALID_INPUT, "The port must be a number from 0 to 65535.", {"field": "port"}
        )
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    # The protocol is explicit: asyncio sets TCP_NODELAY only on sockets marked as TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # Otherwise a restart would fail while old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(address), port))
        # From here on, clients wait in the backlog until the store is open instead of being
        # refused.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _listen_error(error, port) from error
    return listener


def url_of(listener: socket.socket, exposure: Exposure = LOCAL) -> str:
    """Return the URL under which the socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    # The unspecified address cannot be connected to.
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    scheme = "https" if exposure.is_secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def address_of(listener: socket.socket) -> tuple[str, ...]:
    """Return the listening address as it appears in `Host`; empty for the unspecified address."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        return ()
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}",)


async def serve(
    app: Application,
    listener: socket.socket,
    *,
    ready: Callable[[], None],
    stop: asyncio.Event,
    exposure: Exposure = LOCAL,
) -> None:
    """Serve until `stop` is set; active requests get a grace period of a few seconds."""
    keep_large_blocks_apart()
    context = exposure.context()
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        # uvicorn's own logging configuration would bypass Holdfast's handlers.
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        ssl_context_factory=(lambda *_: context) if context else None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, ready)
    async with app.streams, asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        stopping = tasks.create_task(_stop(server, app, stop))
        await serving
        stopping.cancel()


class _Server(uvicorn.Server):
    """Reports when it is ready, and leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # Wait for the cancelled tasks, because the services they use are closed after that.
        if left := set(self.server_state.tasks):
            await asyncio.wait(left, timeout=LAST_SECONDS)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn's own handlers would raise the signal again and kill turns that are being stopped.
        yield


async def _stop(server: uvicorn.Server, app: Application, stop: asyncio.Event) -> None:
    await stop.wait()
    # Streams end before the listener closes, so that readers get a reason and a reconnect delay.
    app.streams.close()
    server.should_exit = True


def _address(host: str, exposure: Exposure) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    # No DNS lookup: others control what a name resolves to.
    name = "127.0.0.1" if host.lower() == "localhost" else host
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        raise Invalid(
            Code.INVALID_INPUT,
            f"{host!r} is not an IP address; use --host 127.0.0.1.",
            {"host": host},
        ) from None
    if not (address.is_loopback or exposure.is_secure or exposure.is_behind_proxy):
        raise Denied(
            Code.NOT_LOOPBACK,
            f"{host} is reachable from other machines. Add --tls-cert and --tls-key, or "
            "--behind-proxy if a proxy terminates TLS; or use --host 127.0.0.1.",
            {"host": host},
        )
    return address


def _listen_error(error: OSError, port: int) -> Conflict | Denied:
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            Code.PORT_IN_USE,
            f"Port {port} is in use; stop the other program, or choose another port with "
            "--port (PORT=… for `make up`).",
            {"port": port},
        )
    return Denied(
        Code.PORT_IN_USE,
        f"Port {port} cannot be used: {error.strerror}; choose another port with --port.",
    )
