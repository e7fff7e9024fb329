"""HTTP/1.1 client protocol without I/O: bytes in, bytes out, no socket."""

from collections.abc import Sequence
from typing import Final

import h11
from msgspec import Struct

HEAD_LARGEST: Final = 1 << 16
HEADERS_MOST: Final = 256
# Limit on 1xx responses, because a server could otherwise send them forever.
GREETINGS_MOST: Final = 64

Headers = Sequence[tuple[str, str]]


class NotHttpError(Exception):
    """The peer does not speak valid HTTP, or closed the connection in the middle of a message."""


class HeadTooLargeError(NotHttpError):
    """The response head exceeds the size limit."""


class UnsendableError(Exception):
    """The request has a header that cannot be sent in HTTP."""


class Head(Struct, frozen=True):
    """A response head; header names are in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]


class NeedMore(Struct, frozen=True):
    """More bytes are needed."""


class End(Struct, frozen=True):
    """The response is complete; `is_reusable` allows keep-alive."""

    is_reusable: bool


Piece = Head | bytes | NeedMore | End


class Talk:
    """The client side of one connection."""

    def __init__(self) -> None:
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LARGEST)
        self._greetings = 0

    def request(self, method: str, target: str, headers: Headers, body: bytes = b"") -> bytes:
        """Return the bytes of a request."""
        try:
            head = h11.Request(method=method, target=target, headers=list(headers))
            parts = [self._connection.send(head)]
            if body:
                parts.append(self._connection.send(h11.Data(data=body)))
            parts.append(self._connection.send(h11.EndOfMessage()))
        except h11.LocalProtocolError:
            # Raised without its cause, which would show the value and may reveal a credential.
            raise UnsendableError("A header of the request cannot be sent.") from None
        return b"".join(part for part in parts if part)

    def receive(self, content: bytes) -> None:
        """Take received bytes; empty bytes mean that the peer closed the connection."""
        try:
            self._connection.receive_data(content)
        except h11.RemoteProtocolError as error:
            raise _not_http(error) from None

    def next(self) -> Piece:
        """Return the next piece of the response."""
        try:
            event = self._connection.next_event()
            while isinstance(event, h11.InformationalResponse):
                self._greetings += 1
                if self._greetings > GREETINGS_MOST:
                    raise NotHttpError("The answer only ever says that it will come.")
                event = self._connection.next_event()
        except h11.RemoteProtocolError as error:
            raise _not_http(error) from None
        match event:
            case h11.Response():
                self._greetings = 0
                return _head(event)
            case h11.Data():
                return bytes(event.data)
            case h11.EndOfMessage():
                return self._end()
            case h11.ConnectionClosed():
                raise NotHttpError("The connection ended without an answer.")
            case _:
                return NeedMore()

    def _end(self) -> End:
        is_reusable = self._connection.their_state is h11.DONE
        if is_reusable:
            self._connection.start_next_cycle()
        return End(is_reusable)


def _head(response: h11.Response) -> Head:
    size = sum(len(name) + len(value) for name, value in response.headers)
    if len(response.headers) > HEADERS_MOST or size > HEAD_LARGEST:
        raise HeadTooLargeError("The head of the answer is larger than allowed.")
    return Head(
        response.status_code,
        tuple((n.decode("ascii").lower(), v.decode("latin-1")) for n, v in response.headers),
    )


def _not_http(error: h11.RemoteProtocolError) -> NotHttpError:
    if error.error_status_hint == 431:
        return HeadTooLargeError("The head of the answer is larger than allowed.")
    return NotHttpError("The answer is not whole, or not what HTTP allows.")
