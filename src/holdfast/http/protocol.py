"""HTTP/1.1 on a socket: uvicorn's httptools protocol with limits on size, pipelining and time.

Refuses ambiguous framing (request smuggling) and slow request heads (slowloris).
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from holdfast.http.app import Application
from holdfast.http.limits import BAD_REQUEST, TOO_MANY_CONNECTIONS, connection_limit
from holdfast.http.metrics import Metrics
from holdfast.http.requests import EXTENSION

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, HTTPScope
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


# Above this size, copying head and body together costs more than a second write call.
JOINED_LARGEST: Final = 64 << 10
_WITHOUT_BODY: Final = frozenset({204, 304})
_END: Final = b"0\r\n\r\n"
# Control characters: they could end a header line (response splitting).
_UNWRITABLE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ResponseCycle(RequestResponseCycle):
    """Writes the responses of our application, which always starts and ends them in order."""

    def __init__(
        self, connection: "HttpToolsProtocol", *, keep_alive: bool, end: Callable[[], None]
    ) -> None:
        """`end` closes the connection after the last response."""
        super().__init__(
            scope=connection.scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=connection.expect_100_continue,
            keep_alive=keep_alive,
            on_response=connection.on_response_complete,
        )
        self._end = end
        self._head = b""

    def whole_body(self) -> bytes | None:
        """Return the complete body if it has already arrived, so that `receive` is not needed."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    def close_after(self) -> None:
        """Close the connection after the last chunk of this response."""
        self.keep_alive = False

    async def send(self, message: Any) -> None:
        """Write a part of the response; the head is buffered and sent with the first body chunk."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message["headers"])
            return
        is_last = not message.get("more_body", False)
        self._write(message["body"], is_last=is_last)
        if is_last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self._end()
            self.on_response()

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        if _UNWRITABLE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("A header of an answer has a character that ends it.")
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers)]
        given = dict(headers)
        # The same header that uvicorn sends when the application fails before responding.
        if given.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        # HTTP/1.0 has no chunked encoding: there, closing the connection ends the body.
        is_chunked = b"content-length" not in given and self.scope["http_version"] != "1.0"
        self.chunked_encoding = has_body and is_chunked
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._head = b"%b%b\r\n" % (STATUS_LINE[status], b"".join(lines))

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + _END if is_last else chunk
        head, self._head = self._head, b""
        if len(body) <= JOINED_LARGEST:
            body = head + body
        elif head:
            self.transport.write(head)
        if body:
            self.transport.write(body)


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
_VERSIONS: Final = frozenset({"1.0", "1.1"})


class AmbiguousRequestError(Exception):
    """The bytes are not an HTTP request, or two parsers could read them as different requests."""


class HttpProtocol(HttpToolsProtocol):
    """Refuses requests that are too large, too slow or ambiguous.

    Lets a stream abort its connection.
    """

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0
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
        return cast(Application, self.app).metrics

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request, or reject the connection above the limit."""
        super().connection_made(transport)
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
        # Any exception: a parser error, or one of our limits raised inside a parser callback.
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
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._has_spoken = self._is_head_open = True
        self._head_size = self._pieces = 0
        self._stop_waiting()

    def on_url(self, url: bytes) -> None:
        """Append a part of the request target."""
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header; ignore trailers, because the request is already being handled."""
        self._count(len(name) + len(value))
        if not self._is_head_open:
            return
        if len(self.headers) >= HEADERS_MOST:
            raise AmbiguousRequestError
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

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
        is_first = not self._has_begun or self.cycle.response_complete
        self._has_begun = self._is_body_open = True
        self.scope = self._scope_of(method.decode(), version)
        stays = version != "1.0" and self.parser.should_keep_alive() and not self._is_last
        self.cycle = ResponseCycle(self, keep_alive=stays, end=self._end)
        self.scope["extensions"] = {
            EXTENSION: {
                "abort": self.transport.abort,
                "body": self.cycle.whole_body,
                "close": self.cycle.close_after,
                "last": self._tune_for_streaming,
            }
        }
        if is_first:
            self._start_asgi_task(self.cycle, self.app)
        else:
            # With one active request reading continues, because only a read detects a disconnect.
            if self.pipeline:
                self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: "ASGI3Application") -> None:
        self._in_hand = cycle
        super()._start_asgi_task(cycle, app)

    def _scope_of(self, method: str, version: str) -> "HTTPScope":
        path, _, query = self.url.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "root_path": "",
            "method": method,
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": self.headers,
        }

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
            self._next_request()

    def _next_request(self) -> None:
        """Handle the next pipelined request, or wait for one until the keep-alive timeout."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        # A running timer re-arms itself, because a new timer for each response would cost more.
        if self.timeout_keep_alive_task is None:
            self._check_after(IDLE_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for the keep-alive timeout."""
        self.timeout_keep_alive_task = None
        if self._is_head_open or not self.cycle.response_complete:
            return
        left = self._idle_since + IDLE_SECONDS - self.loop.time()
        if left > 0:
            self._check_after(left)
        elif not self.transport.is_closing():
            self.transport.close()

    def _check_after(self, seconds: float) -> None:
        look = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, look)

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
