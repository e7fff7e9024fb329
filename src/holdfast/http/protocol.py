"""HTTP/1.1 on a socket: uvicorn's httptools protocol with limits on head size, pipelining and
waiting time.

Refuses ambiguous framing (request smuggling) and slow heads (slowloris).
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


# From here on, copying costs more than the second call.
JOINED_LARGEST: Final = 64 << 10
_WITHOUT_BODY: Final = frozenset({204, 304})
_END: Final = b"0\r\n\r\n"
# What would end a line, or is no text.
_UNWRITABLE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class ResponseCycle(RequestResponseCycle):
    """Writes the answers of our own application, which are started and ended in order."""

    def __init__(
        self, connection: "HttpToolsProtocol", *, keep_alive: bool, end: Callable[[], None]
    ) -> None:
        """`end` closes the connection behind the last answer."""
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
        """Return the body instead of `receive`, if all of it is here."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    def close_after(self) -> None:
        """Close the connection behind the last piece of this answer."""
        self.keep_alive = False

    async def send(self, message: Any) -> None:
        """Write a piece of the answer; its head waits for what follows."""
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
        # As uvicorn says itself where our application has failed without a word.
        if given.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        has_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        # A reader of version 1.0 does not know chunks: there the end of the connection ends it.
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
# How long a connection is kept for the next request.
IDLE_SECONDS: Final = 5.0
# How long a caller may go on with a body that nobody wants, before the connection is closed.
REST_SECONDS: Final = 2.0
# Chunks of a body: each costs more than the byte that may be in it.
PIECES_MOST: Final = 1 << 16
# Requests that were sent before the one ahead of them was answered.
WAITING_MOST: Final = 100
# Who found no room and is still being heard; more than that hear only that we hang up.
TURNED_AWAY_MOST: Final = 100
# The kernel would keep megabytes for one reader, and look for a vanished one for a quarter of an
# hour. With these it is gone 15 s after a heartbeat that it did not take, or was asked in vain.
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
    """What was sent is no request, or could be taken for another one."""


class HttpProtocol(HttpToolsProtocol):
    """Refuses what is too large, too slow or unclear, and lets a stream drop its connection."""

    _deadline: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _head_size = 0
    _pieces = 0
    # What the parser has taken without a word: it keeps a header until it is whole.
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
        """Give the caller a while for the first request, if there is room."""
        super().connection_made(transport)
        if self._metrics.open_connections >= connection_limit():
            self._reject_connection()
            return
        self._metrics.open_connections += 1
        self._is_counted = True
        self._within(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        if self._is_counted:
            self._metrics.open_connections -= 1
        super().connection_lost(exc)
        # The one above knows only the newest request, which may wait behind the one in hand.
        if self._in_hand is not None and not self._in_hand.response_complete:
            self._in_hand.disconnected = True
            self._in_hand.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that follow a refusal are thrown away."""
        if self._is_refused or self.transport.is_closing():
            return
        self._has_spoken = False
        try:
            self.parser.feed_data(data)
        # Whatever it is: the parser's own complaint, or one of our bounds that it passes on.
        except Exception:  # noqa: BLE001
            # It also raises at an upgrade, which is a request like any other, and the last one.
            if not self._is_last:
                self._refuse()
            return
        self._silent_size = 0 if self._has_spoken else self._silent_size + len(data)
        if self._silent_size > HEADERS_LARGEST:
            self._refuse()
        elif self._is_head_open and self._deadline is None:
            self._within(HEAD_SECONDS, self._refuse)

    def on_message_begin(self) -> None:
        """Begin a request; most heads are over before it would pay to wait for their end."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._has_spoken = self._is_head_open = True
        self._head_size = self._pieces = 0
        self._stop_waiting()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request's target."""
        self._count(len(url))
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one behind the body comes too late to say anything."""
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
        """Start to answer."""
        version, method = self.parser.get_http_version(), self.parser.get_method()
        # Only a path of ours: a whole address or an authority names another host than `Host`.
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
        # Whoever asks for it may go on in another protocol, which would be read as a request.
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
            # Behind one it is read on, because only who reads learns that the caller has left.
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
        """Take a piece of the body."""
        self._has_spoken = True
        self._pieces += 1
        if self._pieces > PIECES_MOST:
            raise AmbiguousRequestError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._has_spoken, self._is_body_open = True, False
        super().on_message_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            # It was answered before it was over, and the rest came in time.
            self._stop_waiting()
            self.on_response_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, if this one is over."""
        if self._is_refused:
            self._half_close()
        elif self._is_body_open and not self.pipeline:
            # Many callers look for an answer only when they have said everything.
            self.flow.resume_reading()
            self._within(REST_SECONDS, self._hang_up)
        else:
            self._next_request()

    def _next_request(self) -> None:
        """Answer the next request, or wait for it, but not for ever."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        # One that waits already looks again by itself: a clock for each answer would cost more.
        if self.timeout_keep_alive_task is None:
            self._check_after(IDLE_SECONDS)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was not used for a while."""
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
        """Bound what the kernel keeps for a reader, and have it notice one that is gone."""
        if self._is_lasting or self.transport.is_closing():
            # It was made ready before, or its reader did not even wait for the beginning and there
            # is no socket any more.
            return
        self._is_lasting = True
        handle = self.transport.get_extra_info("socket").fileno()
        # What a transport gives for a socket may make a new one for each option.
        with socket.socket(fileno=os.dup(handle)) as connection:
            for level, name, value in STREAM_SOCKET_OPTIONS:
                # Not every system has all of them.
                if (option := getattr(socket, name, None)) is not None:
                    connection.setsockopt(level, option, value)

    def _count(self, size: int) -> None:
        self._has_spoken = True
        self._head_size += size
        if self._head_size > HEADERS_LARGEST:
            raise AmbiguousRequestError

    def _refuse(self) -> None:
        """Answer that this is no request, and hear no more."""
        self._is_refused = True
        self._stop_waiting()
        is_behind_another = bool(self.pipeline)
        self.pipeline.clear()
        is_answered = not self._has_begun or self.cycle.response_complete
        if is_answered and self._is_body_open:
            # What broke off behind an answer gets no second one.
            self._half_close()
        elif is_answered:
            self._answer_and_close()
        elif self._is_body_open and not is_behind_another and not self.cycle.response_started:
            # Its own body is what cannot be read: whoever waits for it gets to know.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self._answer_and_close()
        # Otherwise the one before it gets its own answer, whole, and the connection ends there.

    def _reject_connection(self) -> None:
        """Answer that there is no room, whatever is asked."""
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
        """Close behind the last answer, which may have come before the end of its request."""
        if self._is_body_open and self.cycle.response_complete:
            self._hang_up()
        else:
            self.transport.close()

    def _hang_up(self) -> None:
        """Hear no more, though the caller has not finished."""
        self._is_refused = True
        self._half_close()

    def _half_close(self) -> None:
        """Say no more, and let the caller finish what it is saying."""
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # Closed at once, what is still being sent would take the answer away from its reader.
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
    """Tell whether every reader finds the same end of the body."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    # A reader of version 1.0 does not know chunks, and of other codings we know none.
    return version in _VERSIONS and (not codings or (codings == [b"chunked"] and version != "1.0"))
