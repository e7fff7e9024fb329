"""One HTTP/1.1 request and its response over one connection to a checked address.

No redirects, proxies, cookies, decompression, connection reuse or retries: httpcore2, which is
below httpx2, does only what is called here. Imported lazily, because of that package.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any, Final

import httpcore2
from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolFailure, UnansweredRequest
from holdfast.tools.web.connection import (
    HEADER_NAME,
    HEADER_VALUE,
    WebSettings,
    checked_addresses,
    credential_for,
)
from holdfast.tools.web.ssrf import Url

HEAD_LARGEST: Final = 1 << 16
HEADERS_MOST: Final = 256
# Cookies and authentication headers, which the model must not see.
_WITHHELD: Final = frozenset(
    {
        "authentication-info",
        "authorization",
        "proxy-authenticate",
        "proxy-authentication-info",
        "set-cookie",
        "set-cookie2",
        "www-authenticate",
    }
)

_INTERIM: Final = re.compile(rb"HTTP/1\.[01] 1")

Headers = tuple[tuple[str, str], ...]


class WebRequest(Struct, frozen=True, kw_only=True):
    """An outgoing request; the connection headers are added here."""

    url: Url
    method: str
    headers: Headers = ()
    body: bytes = b""


async def send_request(
    request: WebRequest, settings: WebSettings, *, local: bool = False
) -> "WebResponse":
    """Send the request to a checked address; the caller must close the `WebResponse`."""
    exchange = await open_exchange(request, settings, local=local)
    try:
        return await exchange.answer()
    except BaseException:
        await exchange.aclose()
        raise


async def open_exchange(
    request: WebRequest, settings: WebSettings, *, local: bool = False
) -> "WebExchange":
    """Connect to a checked address; the request is sent by `WebExchange.answer`."""
    credential = await credential_for(request.url, settings)
    encoded = _encode_request(request, credential)
    stream = await _connect(request.url, settings, local=local)
    return WebExchange(encoded, LimitedHead(stream), credential)


class WebExchange:
    """An encoded request and its open connection; the caller must close it."""

    def __init__(
        self, request: httpcore2.Request, stream: "LimitedHead", credential: str | None
    ) -> None:
        self._request = request
        self._stream = stream
        self._credential = credential
        self._connection = httpcore2.AsyncHTTP11Connection(request.url.origin, stream)

    async def answer(self) -> "WebResponse":
        """Send the request and read the response head; failures raise `UnansweredRequest`."""
        with _no_answer_error():
            response = await self._connection.handle_async_request(self._request)
        size = sum(len(name) + len(value) for name, value in response.headers)
        if len(response.headers) > HEADERS_MOST or size > HEAD_LARGEST:
            raise _head_too_large()
        self._stream.is_head = False
        return WebResponse(self, response, self._credential)

    async def aclose(self) -> None:
        """Close the connection, without waiting for the peer."""
        await self._stream.aclose()


class WebResponse:
    """The head of a response, and its body as a stream; the caller must close it."""

    def __init__(
        self, exchange: WebExchange, response: httpcore2.Response, credential: str | None
    ) -> None:
        self._exchange = exchange
        self._response = response
        named = [(n.decode("ascii").lower(), v.decode("latin-1")) for n, v in response.headers]
        self.status = response.status
        self.headers: Headers = tuple(
            (name, remove_credential(credential, value))
            for name, value in named
            if name not in _WITHHELD
        )
        self.credential = credential

    def header(self, name: str) -> str:
        """Return all values of a header, joined by commas; empty if there is none."""
        return ", ".join(value for each, value in self.headers if each == name)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks as sent; raise if it is shorter than its declared length."""
        with _no_answer_error():
            async for chunk in self._response.aiter_stream():
                yield chunk

    async def aclose(self) -> None:
        """Close the connection."""
        await self._exchange.aclose()


class LimitedHead(httpcore2.AsyncNetworkStream):
    """Limits what is read before the body: a large head, or 1xx responses without end."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._begin = b""
        self._taken = 0
        self.is_head = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self.is_head and self._taken >= HEAD_LARGEST:
            raise _invalid_response() if _INTERIM.match(self._begin) else _head_too_large()
        content = await self._stream.read(max_bytes, timeout)
        self._begin = self._begin or content[:16]
        self._taken += len(content)
        return content

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def remove_credential(credential: str | None, text: str) -> str:
    """Redact the credential from a text, in case the server echoes it."""
    for secret in _credential_forms(credential):
        text = text.replace(secret, "[secret]")
    return text


def _credential_forms(credential: str | None) -> Sequence[str]:
    if not credential:
        return ()
    return credential, credential.partition(" ")[2] or credential


def _encode_request(request: WebRequest, credential: str | None) -> httpcore2.Request:
    url = request.url
    headers = [
        ("host", url.authority),
        *request.headers,
        ("accept-encoding", "identity"),
        ("connection", "close"),
    ]
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        headers.append(("content-length", str(len(request.body))))
    # A header configured for this server takes precedence over the credential of the host.
    is_named = any(name == "authorization" for name, _ in request.headers)
    if credential is not None and not is_named:
        headers.append(("authorization", credential))
    for name, value in headers:
        if not (HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value)):
            # The message does not repeat the value, because it may be the credential.
            raise ToolFailure(ResultCode.FAILED, "A header of the request is not valid.")
    return httpcore2.Request(
        request.method,
        httpcore2.URL(scheme=url.scheme, host=url.host, port=url.port, target=url.target),
        headers=headers,
        content=request.body,
    )


async def _connect(url: Url, settings: WebSettings, *, local: bool) -> httpcore2.AsyncNetworkStream:
    """Return a connection to a checked address, with the certificate verified."""
    addresses = await checked_addresses(url, settings, local=local)
    # In a thread, because loading certificates reads files.
    tls = await asyncio.to_thread(settings.tls) if url.scheme == "https" else None
    for address in addresses:
        try:
            async with asyncio.timeout(settings.time_limit / len(addresses)):
                return await _open(url, address, tls)
        except httpcore2.ConnectError as error:
            if error.args and isinstance(error.args[0], ssl.SSLError):
                raise ToolFailure(
                    ResultCode.FAILED, f"{url.host} has no trusted certificate."
                ) from error
        except TimeoutError:
            continue
    raise ToolFailure(ResultCode.FAILED, f"{url.host} cannot be reached.")


async def _open(url: Url, address: str, tls: ssl.SSLContext | None) -> httpcore2.AsyncNetworkStream:
    # A numeric address only, so that no second DNS lookup happens (DNS rebinding).
    pinned = str(ip_address(address))
    stream = await httpcore2.AnyIOBackend().connect_tcp(pinned, url.port)
    if tls is None:
        return stream
    try:
        return await stream.start_tls(tls, server_hostname=url.host)
    except BaseException:
        await stream.aclose()
        raise


@contextmanager
def _no_answer_error() -> Iterator[None]:
    try:
        yield
    except httpcore2.ProtocolError as error:
        # The status that a server would respond with: 431 for a line without end.
        is_too_large = getattr(error.args[0], "error_status_hint", None) == 431
        raise (_head_too_large() if is_too_large else _invalid_response()) from error
    except (OSError, httpcore2.NetworkError) as error:
        raise UnansweredRequest(ResultCode.FAILED, "The connection was closed early.") from error


def _head_too_large() -> UnansweredRequest:
    return UnansweredRequest(ResultCode.TOO_LARGE, "The head of the response is too large.")


def _invalid_response() -> UnansweredRequest:
    return UnansweredRequest(ResultCode.FAILED, "The response is incomplete or not valid HTTP.")
