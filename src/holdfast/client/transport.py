"""Requests and answers over a few connections that are kept; one try each, nothing is repeated."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.domain.errors import Code, Invalid, Unavailable
from holdfast.parsing.http1 import End, Head, NeedMore, NotHttpError, Talk, UnsendableError

IDLE_CONNECTIONS_MOST: Final = 8
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
BODY_LARGEST: Final = 256 << 20
_CHUNK: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpRequest:
    """A request: its method, its target, and what goes with it.

    One that is not `repeatable` goes over a connection of its own, because a kept one may turn
    out to be dead when nobody can tell any more what became of the request.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = ANSWER_SECONDS
    repeatable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """One open connection, and the answer that comes over it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._talk = Talk()
        self._is_free = True

    @property
    def is_reusable(self) -> bool:
        """Tell whether it can carry another request, as far as can be seen from here."""
        return self._is_free and not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, sent: HttpRequest) -> Head:
        """Send a request and return the head of its answer."""
        self._is_free = False
        headers = tuple(sent.headers.items())
        self._writer.write(self._talk.request(sent.method, sent.target, headers, sent.body))
        await self._writer.drain()
        piece = await self._next()
        if not isinstance(piece, Head):
            raise NotHttpError("The answer has no head.")
        return piece

    async def chunk(self) -> bytes | None:
        """Return the next piece of the body; nothing when it has ended."""
        piece = await self._next()
        if isinstance(piece, End):
            self._is_free = piece.is_reusable
            return None
        if isinstance(piece, Head):
            raise NotHttpError("The answer has two heads.")
        return piece

    def close(self) -> None:
        """Let go of the connection."""
        # Not closed in order: whatever still waits to be sent or read, nobody wants it.
        self._writer.transport.abort()

    async def _next(self) -> Head | bytes | End:
        while isinstance(piece := self._talk.next(), NeedMore):
            self._talk.receive(await self._reader.read(_CHUNK))
        return piece


class Transport:
    """Connections to one server."""

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
    ) -> None:
        parts = _parse_server_url(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._headers = {"host": parts.netloc, **headers}
        self._idle: list[HttpConnection] = []
        self.origin: Final = f"{parts.scheme}://{parts.netloc}"

    def close(self) -> None:
        """Let go of every connection that is kept."""
        while self._idle:
            self._idle.pop().close()

    async def ask(self, sent: HttpRequest) -> HttpResponse:
        """Send a request and return its whole answer."""
        kept = self._take_idle() if sent.repeatable else None
        with self.as_unavailable():
            if kept is not None:
                try:
                    return await self._exchange(kept, sent)
                except TimeoutError:
                    raise
                except (OSError, NotHttpError):
                    # Closed by the other side while it was idle; so, likely, are the others.
                    self.close()
            return await self._exchange(await self._connect(), sent)

    @asynccontextmanager
    async def stream(self, sent: HttpRequest) -> AsyncIterator[tuple[Head, HttpConnection]]:
        """Send a request and hand out its answer piece by piece, over a connection of its own."""
        with self.as_unavailable():
            line = await self._connect()
            try:
                async with asyncio.timeout(sent.seconds):
                    head = await line.ask(self._whole(sent))
            except BaseException:
                line.close()
                raise
        try:
            yield head, line
        finally:
            line.close()

    @contextmanager
    def as_unavailable(self) -> Iterator[None]:
        """Tell whatever goes wrong with a connection as an error of ours, with its remedy."""
        try:
            yield
        except UnsendableError:
            raise Invalid(
                Code.INVALID_INPUT, "The token or the address has characters that HTTP cannot send."
            ) from None
        except ssl.SSLCertVerificationError as error:
            # Invalid, because trying again does not make it trusted.
            raise Invalid(
                Code.SERVER_UNREACHABLE,
                f"The certificate of {self.origin} is not trusted: {error.verify_message}.",
            ) from None
        except (OSError, NotHttpError) as error:
            raise Unavailable(
                Code.SERVER_UNREACHABLE,
                f"No Holdfast server answers at {self.origin} ({_cause(error)}); start one with "
                "`holdfast serve`, or correct the address.",
                {"server": self.origin},
            ) from None

    def _take_idle(self) -> HttpConnection | None:
        while self._idle:
            line = self._idle.pop()
            if line.is_reusable:
                return line
            line.close()
        return None

    async def _exchange(self, line: HttpConnection, sent: HttpRequest) -> HttpResponse:
        try:
            async with asyncio.timeout(sent.seconds):
                head = await line.ask(self._whole(sent))
                body = await read_body(line)
        except BaseException:
            line.close()
            raise
        if line.is_reusable and len(self._idle) < IDLE_CONNECTIONS_MOST:
            self._idle.append(line)
        else:
            line.close()
        return HttpResponse(status=head.status, headers=dict(head.headers), body=body)

    async def _connect(self) -> HttpConnection:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return HttpConnection(reader, writer)

    def _whole(self, sent: HttpRequest) -> HttpRequest:
        length = {"content-length": str(len(sent.body))} if sent.method != "GET" else {}
        headers = {**self._headers, **length, **sent.headers}
        return replace(sent, target=self._base + sent.target, headers=headers)


async def read_body(line: HttpConnection, most: int = BODY_LARGEST) -> bytes:
    """Return the rest of an answer; one without an end is given up."""
    chunks: list[bytes] = []
    size = 0
    while (chunk := await line.chunk()) is not None:
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            raise NotHttpError("The answer is larger than anything we asked for.")
    return b"".join(chunks)


def _parse_server_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.scheme in _PORTS and parts.hostname and parts.port != 0)
    except ValueError:
        is_whole = False
        parts = urlsplit("")
    # Not repeated in the message: somebody may have written a password into it.
    if not is_whole or parts.query or parts.fragment or "@" in parts.netloc:
        raise Invalid(
            Code.INVALID_INPUT,
            "The address of a server is written http://HOST:PORT, or https://HOST.",
            {"field": "server"},
        )
    return parts


def _cause(error: OSError | NotHttpError) -> str:
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, NotHttpError):
        return str(error).rstrip(".").lower()
    # The number's own words: the loop tells what it called, which says nothing to a person.
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return reason.lower()
