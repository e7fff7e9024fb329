"""HTTP requests to one server over pooled connections; sends each request once, without retries."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from holdfast.domain.errors import Code, HoldfastError, Invalid, Unavailable

if TYPE_CHECKING:
    from httpx2 import AsyncHTTPTransport, Response

IDLE_CONNECTIONS_MOST: Final = 8
# Shorter than the server's keep-alive timeout, so that the client closes idle connections first.
IDLE_SECONDS: Final = 4.0
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
BODY_LARGEST: Final = 256 << 20
HEADERS_MOST: Final = 256
_SCHEMES: Final = frozenset({"http", "https"})


class InvalidHttpError(Exception):
    """The response exceeds a limit, or the connection broke before the response was complete."""


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


class HttpStream:
    """A response whose body is being read; header names are in lower case."""

    def __init__(self, response: "Response") -> None:
        self.status: Final = response.status_code
        self.headers: Final = dict(response.headers)
        self._chunks = response.aiter_raw()

    async def chunk(self) -> bytes | None:
        """Return the next chunk of the body; None at its end."""
        return await anext(self._chunks, None)

    async def read(self, most: int = BODY_LARGEST) -> bytes:
        """Read the rest of the body; raises if it exceeds the size limit."""
        chunks: list[bytes] = []
        size = 0
        while (chunk := await self.chunk()) is not None:
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                raise InvalidHttpError("the response is larger than allowed")
        return b"".join(chunks)


class Transport:
    """Connection pool for one server; imports httpx2 at the first request."""

    def __init__(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None = None
    ) -> None:
        parts = _parse_server_url(url)
        self._base = parts.path.rstrip("/")
        self._headers = {"host": parts.netloc, **headers}
        self._tls = tls
        # By the number of idle connections that they keep.
        self._pools: dict[int, AsyncHTTPTransport] = {}
        self.origin: Final = f"{parts.scheme}://{parts.netloc}"

    async def aclose(self) -> None:
        """Close all connections."""
        while self._pools:
            await self._pools.popitem()[1].aclose()

    async def ask(self, sent: HttpRequest) -> HttpResponse:
        """Send a request and return the complete response."""
        pool = self._pool(IDLE_CONNECTIONS_MOST if sent.repeatable else 0)
        with self.as_unavailable():
            async with asyncio.timeout(sent.seconds), self._open(pool, sent) as stream:
                body = await stream.read()
        return HttpResponse(status=stream.status, headers=stream.headers, body=body)

    @asynccontextmanager
    async def stream(self, sent: HttpRequest) -> AsyncIterator[HttpStream]:
        """Send a request over its own connection and stream the response."""
        async with AsyncExitStack() as stack:
            with self.as_unavailable():
                async with asyncio.timeout(sent.seconds):
                    stream = await stack.enter_async_context(self._open(self._pool(0), sent))
            yield stream

    @contextmanager
    def as_unavailable(self) -> Iterator[None]:
        """Translate connection errors into `HoldfastError`s that name the remedy."""
        import httpx2

        try:
            yield
        except (UnicodeEncodeError, httpx2.InvalidURL, httpx2.LocalProtocolError):
            raise Invalid(
                Code.INVALID_INPUT,
                "The token or the address contains characters that HTTP does not allow.",
            ) from None
        except (OSError, httpx2.TransportError, InvalidHttpError) as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> HoldfastError:
        cause = _root_cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            # `Invalid` and not `Unavailable`, because a retry does not make it trusted.
            return Invalid(
                Code.SERVER_UNREACHABLE,
                f"The certificate of {self.origin} is not trusted: {cause.verify_message}.",
            )
        return Unavailable(
            Code.SERVER_UNREACHABLE,
            f"No Holdfast server responds at {self.origin} ({_reason(cause)}); start one with "
            "`holdfast serve`, or correct the address.",
            {"server": self.origin},
        )

    def _pool(self, idle_most: int) -> "AsyncHTTPTransport":
        if idle_most not in self._pools:
            import httpx2

            if self._tls is None:
                # Loading the system's certificates takes time, and plain HTTP needs none.
                is_secure = self.origin.startswith("https:")
                self._tls = (
                    ssl.create_default_context()
                    if is_secure
                    else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                )
            limits = httpx2.Limits(
                max_keepalive_connections=idle_most, keepalive_expiry=IDLE_SECONDS
            )
            # The transport and not `AsyncClient`: no proxies, redirects, cookies or compression.
            self._pools[idle_most] = httpx2.AsyncHTTPTransport(
                verify=self._tls, trust_env=False, limits=limits
            )
        return self._pools[idle_most]

    @asynccontextmanager
    async def _open(
        self, pool: "AsyncHTTPTransport", sent: HttpRequest
    ) -> AsyncIterator[HttpStream]:
        import httpx2

        request = httpx2.Request(
            sent.method,
            self.origin,
            headers={**self._headers, **sent.headers},
            content=sent.body,
            # The target as it is, because httpx2 would normalise `..` and percent-encoding.
            extensions={
                "target": (self._base + sent.target).encode("ascii"),
                "timeout": {"connect": CONNECT_SECONDS},
            },
        )
        response = await pool.handle_async_request(request)
        try:
            if len(response.headers.raw) > HEADERS_MOST:
                raise InvalidHttpError("the response has too many headers")
            yield HttpStream(response)
        finally:
            await response.aclose()


def _parse_server_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.scheme in _SCHEMES and parts.hostname and parts.port != 0)
    except ValueError:
        is_whole = False
        parts = urlsplit("")
    # The message does not repeat the URL, because it may contain a password.
    if not is_whole or parts.query or parts.fragment or "@" in parts.netloc:
        raise Invalid(
            Code.INVALID_INPUT,
            "The address of a server must be http://HOST:PORT or https://HOST.",
            {"field": "server"},
        )
    return parts


def token_of_environment(url: str) -> str | None:
    """Return the token of the environment; `None` for a server that it was not made for."""
    server = os.environ.get("HOLDFAST_SERVER")
    is_other = server and not _is_same_server(server, url)
    return None if is_other else os.environ.get("HOLDFAST_TOKEN") or None


def _is_same_server(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""

    def origin(text: str) -> tuple[str, str | None, int]:
        parts = urlsplit(text)
        return parts.scheme, parts.hostname, parts.port or {"http": 80}.get(parts.scheme, 443)

    try:
        return origin(url) == origin(other)
    except ValueError:
        return False


def _root_cause(error: Exception) -> Exception:
    """Return the error of the operating system or of TLS behind those of the libraries."""
    if isinstance(error, ExceptionGroup):
        # One error for each address of the host; any of them explains the failure.
        return _root_cause(error.exceptions[0])
    # httpcore2 drops the cause of its errors, and keeps it as their first argument. The cause of a
    # `TimeoutError` is the cancellation, which is not an `Exception`.
    for cause in (error.__cause__, *error.args[:1]):
        if isinstance(cause, Exception):
            return _root_cause(cause)
    return error


def _reason(cause: Exception) -> str:
    if isinstance(cause, TimeoutError):
        return "timeout"
    if isinstance(cause, InvalidHttpError):
        return str(cause)
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, OSError) and cause.errno:
        # The errno text, because asyncio's own message only names the failed call.
        return os.strerror(cause.errno).lower()
    if isinstance(cause, OSError):
        return type(cause).__name__.lower()
    return "the response is incomplete or not valid HTTP"
