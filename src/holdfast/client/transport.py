"""HTTP/1.1 connections to one server, with keep-alive; sends each request once, without retries."""

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
    """An HTTP request.

    One that is not `repeatable` uses a new connection, because a dead keep-alive connection would
    leave it unknown whether the server processed the request.
    """

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = ANSWER_SECONDS
    repeatable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpResponse:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """One open connection and the response being read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._talk = Talk()
        self._is_free = True

    @property
    def is_reusable(self) -> bool:
        """Return whether the connection can carry another request, as far as the client can see."""
        return self._is_free and not self._reader.at_eof() and not self._writer.is_closing()

    async def ask(self, sent: HttpRequest) -> Head:
        """Send a request and return the response head."""
        self._is_free = False
        headers = tuple(sent.headers.items())
        self._writer.write(self._talk.request(sent.method, sent.target, headers, sent.body))
        await self._writer.drain()
        piece = await self._next()
        if not isinstance(piece, Head):
            raise NotHttpError("The answer has no head.")
        return piece

    async def chunk(self) -> bytes | None:
        """Return the next chunk of the body; None at its end."""
        piece = await self._next()
        if isinstance(piece, End):
            self._is_free = piece.is_reusable
            return None
        if isinstance(piece, Head):
            raise NotHttpError("The answer has two heads.")
        return piece

    def close(self) -> None:
        """Close the connection."""
        # Abort instead of a graceful close, because pending data is not needed any more.
        self._writer.transport.abort()

    async def _next(self) -> Head | bytes | End:
        while isinstance(piece := self._talk.next(), NeedMore):
            self._talk.receive(await self._reader.read(_CHUNK))
        return piece


class Transport:
    """Connection pool for one server."""

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
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def ask(self, sent: HttpRequest) -> HttpResponse:
        """Send a request and return the complete response."""
        kept = self._take_idle() if sent.repeatable else None
        with self.as_unavailable():
            if kept is not None:
                try:
                    return await self._exchange(kept, sent)
                except TimeoutError:
                    raise
                except (OSError, NotHttpError):
                    # Closed by the server while idle; so are, probably, the other idle ones.
                    self.close()
            return await self._exchange(await self._connect(), sent)

    @asynccontextmanager
    async def stream(self, sent: HttpRequest) -> AsyncIterator[tuple[Head, HttpConnection]]:
        """Send a request over its own connection and stream the response."""
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
        """Translate connection errors into `HoldfastError`s that name the remedy."""
        try:
            yield
        except UnsendableError:
            raise Invalid(
                Code.INVALID_INPUT, "The token or the address has characters that HTTP cannot send."
            ) from None
        except ssl.SSLCertVerificationError as error:
            # `Invalid` and not `Unavailable`, because a retry does not make it trusted.
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
    """Read the rest of a response; raises if it exceeds the size limit."""
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
    # The message does not repeat the URL, because it may contain a password.
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
    # The errno text, because asyncio's own message only names the failed call.
    reason = os.strerror(error.errno) if error.errno else type(error).__name__
    return reason.lower()
