"""One request and its answer on a connection: uvicorn's cycle, with an answer that goes out whole.

Sent apart, the head and what follows it would cost two calls of the system and wake the reader
twice.
"""

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# From here on, copying costs more than the second call.
JOINED_LARGEST: Final = 64 << 10
_WITHOUT_BODY: Final = frozenset({204, 304})
_END: Final = b"0\r\n\r\n"
# What would end a line, or is no text.
_UNWRITABLE: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class Cycle(RequestResponseCycle):
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
