"""One HTTP/1.1 request and its response over one connection.

No redirects, cookies, connection reuse or retries. Imported lazily, together with the HTTP parser.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.parsing.http1 import (
    End,
    Head,
    HeadTooLargeError,
    NeedMore,
    NotHttpError,
    Talk,
    UnsendableError,
)
from holdfast.tools.tool import ToolFailure, UnansweredRequest
from holdfast.tools.web.connection import WebConnection, WebSettings, connect, credential_for
from holdfast.tools.web.ssrf import Url

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
        exchange.close()
        raise


async def open_exchange(
    request: WebRequest, settings: WebSettings, *, local: bool = False
) -> "WebExchange":
    """Connect to a checked address; the request is sent by `WebExchange.answer`."""
    credential = await credential_for(request.url, settings)
    talk = Talk()
    content = _encode_request(talk, request, credential)
    wire = await connect(request.url, settings, local=local)
    return WebExchange(wire, talk, content, credential)


class WebExchange:
    """An encoded request and its open connection."""

    def __init__(
        self, wire: WebConnection, talk: Talk, content: bytes, credential: str | None
    ) -> None:
        self._wire = wire
        self._talk = talk
        self._content = content
        self._credential = credential

    async def answer(self) -> "WebResponse":
        """Send the request and read the response head; failures raise `UnansweredRequest`."""
        await self._wire.write(self._content)
        head = await _read_head(self._wire, self._talk)
        return WebResponse(self._wire, self._talk, head, self._credential)

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


class WebResponse:
    """The head of a response, and its body as a stream."""

    def __init__(self, wire: WebConnection, talk: Talk, head: Head, credential: str | None) -> None:
        self._wire = wire
        self._talk = talk
        self.status = head.status
        self.headers: Headers = tuple(
            (name, remove_credential(credential, value))
            for name, value in head.headers
            if name not in _WITHHELD
        )
        self.credential = credential

    def header(self, name: str) -> str:
        """Return all values of a header, joined by commas; empty if there is none."""
        return ", ".join(value for each, value in self.headers if each == name)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in chunks; raise if it is shorter than its declared length."""
        while True:
            piece = await _next(self._wire, self._talk)
            if not isinstance(piece, bytes):
                return
            yield piece

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def remove_credential(credential: str | None, text: str) -> str:
    """Redact the credential from a text, in case the server echoes it."""
    for secret in _credential_forms(credential):
        text = text.replace(secret, "[secret]")
    return text


def _credential_forms(credential: str | None) -> Sequence[str]:
    if not credential:
        return ()
    return credential, credential.partition(" ")[2] or credential


def _encode_request(talk: Talk, request: WebRequest, credential: str | None) -> bytes:
    headers = [
        ("host", request.url.authority),
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
    try:
        return talk.request(request.method, request.url.target, headers, request.body)
    except UnsendableError:
        # Without the cause, because it would contain the value, which may be the credential.
        raise ToolFailure(ResultCode.FAILED, "A header of the request cannot be sent.") from None


async def _read_head(wire: WebConnection, talk: Talk) -> Head:
    piece = await _next(wire, talk)
    if not isinstance(piece, Head):
        raise UnansweredRequest(ResultCode.FAILED, "The connection ended without an answer.")
    return piece


async def _next(wire: WebConnection, talk: Talk) -> Head | bytes | End:
    try:
        while isinstance(piece := talk.next(), NeedMore):
            talk.receive(await wire.read())
    except HeadTooLargeError as error:
        raise UnansweredRequest(
            ResultCode.TOO_LARGE, "The head of the answer is larger than allowed."
        ) from error
    except NotHttpError as error:
        raise UnansweredRequest(
            ResultCode.FAILED, "The answer is not whole, or not what HTTP allows."
        ) from error
    return piece
