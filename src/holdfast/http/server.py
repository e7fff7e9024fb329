"""The HTTP server: parses connections, listens on loopback by default, and stops gracefully."""

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from holdfast.domain.errors import Code, Conflict, Denied, Invalid
from holdfast.http.app import Application
from holdfast.http.bodies import keep_large_blocks_apart
from holdfast.http.limits import BAD_REQUEST, TOO_MANY_CONNECTIONS, connection_limit
from holdfast.http.metrics import Metrics
from holdfast.http.requests import EXTENSION

log = logging.getLogger("holdfast.access")
HEADERS_LARGEST: Final = 64 << 10
HEADERS_MOST: Final = 100
HEAD_SECONDS: Final = 10.0
# Keep-alive timeout: how long an idle connection waits for the next request.
IDLE_SECONDS: Final = 5.0
# How long a client may continue to send an unwanted body before the connection is closed.
REST_SECONDS: Final = 2.0
# Maximum number of chunks in a body: each costs more than the one byte it may contain.
PIECES_MOST: Final = 1 << 16
# Maximum number of pipelined requests that wait for their turn.
WAITING_MOST: Final = 100
# Rejected connections that still get a 503; beyond this number they are closed at once.
TURNED_AWAY_MOST: Final = 100
# Kernel defaults buffer megabytes per reader and detect a dead peer after 15 minutes. With these, a
# dead peer is detected 15 s after an unacknowledged heartbeat or keep-alive probe.
STREAM_SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, "SO_SNDBUF", 128 << 10),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 15_000),
)
GRACE_SECONDS: Final = 5
LAST_SECONDS: Final = 1
BACKLOG: Final = 2048
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class _CycleTransport:
    """The transport as a response sees it: `close` may leave the receiving side open."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class AmbiguousRequestError(Exception):
    """The bytes are not an HTTP request, or two parsers could read them as different requests."""


class HttpProtocol(HttpToolsProtocol):
    """Refuses requests that are too large, too slow or ambiguous.

    Lets a stream abort its connection.
    """

    _deadline: asyncio.TimerHandle | None = None
    _head_size = 0
    _pieces = 0
    # Bytes consumed without a parser callback: the parser buffers a header until it is complete.
    _silent_size = 0
    _has_spoken = False
    _has_begun = False
    _is_head_open = True
    _is_body_open = False
    _is_last = False
    _is_lasting = False
    _is_refused = False
    _is_counted = False
    _in_hand: RequestResponseCycle | None = None

    @property
    def _metrics(self) -> Metrics:
        return cast("Application", self.app).metrics

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request, or reject the connection above the limit."""
        super().connection_made(transport)
        self.timeout_keep_alive = IDLE_SECONDS  # type: ignore[assignment]
        if self._metrics.open_connections >= connection_limit():
            self._reject_connection()
            return
        self._metrics.open_connections += 1
        self._is_counted = True
        self._within(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the connection's state."""
        self._stop_waiting()
        if self._is_counted:
            self._metrics.open_connections -= 1
        super().connection_lost(exc)
        # The base class knows only the newest request, which may be pipelined behind the active
        # one.
        if self._in_hand is not None and not self._in_hand.response_complete:
            self._in_hand.disconnected = True
            self._in_hand.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse bytes; discard those that follow a refusal."""
        if self._is_refused or self.transport.is_closing():
            return
        self._has_spoken = False
        try:
            self.parser.feed_data(data)
        # Any exception: a parser error, or a limit that raised inside a parser callback.
        except Exception:  # noqa: BLE001
            # The parser also raises at an upgrade, which is handled as an ordinary, last request.
            if not self._is_last:
                self._refuse()
            return
        self._silent_size = 0 if self._has_spoken else self._silent_size + len(data)
        if self._silent_size > HEADERS_LARGEST:
            self._refuse()
        elif self._is_head_open and self._deadline is None:
            self._within(HEAD_SECONDS, self._refuse)

    def on_message_begin(self) -> None:
        """Begin a request; the timeout starts only if its head is not complete in this read."""
        super().on_message_begin()
        # Here and not with any data: blank lines between requests keep no connection open.
        self._unset_keepalive_if_required()
        self._has_spoken = self._is_head_open = True
        self._head_size = self._pieces = 0
        self._stop_waiting()

    def on_url(self, url: bytes) -> None:
        """Append a part of the request target."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header; ignore trailers, because the request is already being handled."""
        self._count(len(name) + len(value))
        if not self._is_head_open:
            return
        if len(self.headers) >= HEADERS_MOST:
            raise AmbiguousRequestError
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start to handle the request."""
        version, method = self.parser.get_http_version(), self.parser.get_method()
        # Only origin-form paths: an absolute URL or an authority could name another host than
        # `Host`.
        is_path = self.url.startswith(b"/") and b"#" not in self.url and self.url.isascii()
        if (
            not is_path
            or method == b"CONNECT"
            or not _has_unambiguous_framing(version, self.headers)
        ):
            raise AmbiguousRequestError
        if len(self.pipeline) >= WAITING_MOST:
            raise AmbiguousRequestError
        self._stop_waiting()
        self._is_head_open = False
        # After an upgrade request the client may switch protocols; its bytes must not be parsed as
        # HTTP.
        self._is_last |= self.parser.should_upgrade()
        self._has_begun = self._is_body_open = True
        super().on_headers_complete()
        cycle = self.cycle
        cycle.keep_alive = cycle.keep_alive and not self._is_last
        cycle.transport = cast("asyncio.Transport", _CycleTransport(self.transport, self._end))
        self.scope["extensions"] = {
            EXTENSION: {
                "abort": self.transport.abort,
                "close": lambda: setattr(cycle, "keep_alive", False),
                "last": self._tune_for_streaming,
            }
        }
        if not self.pipeline:
            self._in_hand = cycle
        elif len(self.pipeline) == 1:
            # With one waiting request reading continues, because only a read detects a disconnect.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Append a part of the body."""
        self._has_spoken = True
        self._pieces += 1
        if self._pieces > PIECES_MOST:
            raise AmbiguousRequestError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        self._has_spoken, self._is_body_open = True, False
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            # The response was complete before the request, and the rest of the body arrived in
            # time.
            self._stop_waiting()
            self.on_response_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request if this one has been read completely."""
        if self._is_refused:
            self._half_close()
        elif self._is_body_open and not self.pipeline:
            # Many clients read the response only after they have sent the whole request.
            self.flow.resume_reading()
            self._within(REST_SECONDS, self._hang_up)
        else:
            if self.pipeline:
                self._in_hand = self.pipeline[-1][0]
            super().on_response_complete()

    def _tune_for_streaming(self) -> None:
        """Limit the kernel's send buffer for a stream and enable detection of dead peers."""
        if self._is_lasting or self.transport.is_closing():
            # Already done, or the client disconnected before the stream began and the socket is
            # closed.
            return
        self._is_lasting = True
        handle = self.transport.get_extra_info("socket").fileno()
        # The transport's socket object may create a new wrapper for each option.
        with socket.socket(fileno=os.dup(handle)) as connection:
            for level, name, value in STREAM_SOCKET_OPTIONS:
                # Not every operating system has all options.
                if (option := getattr(socket, name, None)) is not None:
                    connection.setsockopt(level, option, value)

    def _count(self, size: int) -> None:
        self._has_spoken = True
        self._head_size += size
        if self._head_size > HEADERS_LARGEST:
            raise AmbiguousRequestError

    def _refuse(self) -> None:
        """Refuse the input: respond with 400 unless a response has begun, then read no more."""
        self._is_refused = True
        self._stop_waiting()
        is_behind_another = bool(self.pipeline)
        self.pipeline.clear()
        is_answered = not self._has_begun or self.cycle.response_complete
        if is_answered and self._is_body_open:
            # A failure after a complete response gets no second response.
            self._half_close()
        elif is_answered:
            self._answer_and_close()
        elif self._is_body_open and not is_behind_another and not self.cycle.response_started:
            # The active request's own body is malformed: wake the handler that waits for it.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._answer_and_close()
        # Otherwise the request before it gets its complete response, and then the connection ends.

    def _reject_connection(self) -> None:
        """Respond with 503 to any request, because the connection limit is reached."""
        self._is_refused = True
        self._metrics.refused_connections += 1
        log.info("refused", extra={"fields": {"status": 503, "route": None}})
        self.transport.write(TOO_MANY_CONNECTIONS)
        if len(self.connections) - self._metrics.open_connections > TURNED_AWAY_MOST:
            self.transport.close()
        else:
            self._half_close()

    def _answer_and_close(self) -> None:
        log.info("refused", extra={"fields": {"status": 400, "route": None}})
        self.transport.write(BAD_REQUEST)
        self._half_close()

    def _end(self) -> None:
        """Close after the last response; its request may still be incomplete."""
        if self._is_body_open and self.cycle.response_complete:
            self._hang_up()
        else:
            self.transport.close()

    def _hang_up(self) -> None:
        """Stop reading although the client has not finished its request."""
        self._is_refused = True
        self._half_close()

    def _half_close(self) -> None:
        """Close the sending side and let the client finish its request."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closing at once would send a RST, and the client could lose the response.
        self.transport.write_eof()
        self.flow.resume_reading()
        self._within(REST_SECONDS, self.transport.close)

    def _within(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _has_unambiguous_framing(version: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether every HTTP parser finds the same end of the body (request smuggling)."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    # HTTP/1.0 has no chunked encoding, and no other transfer coding is supported.
    return version in _VERSIONS and (not codings or (codings == [b"chunked"] and version != "1.0"))


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
