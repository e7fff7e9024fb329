"""One request and its answer over one connection, in HTTP/1.1.

Nothing is followed, kept or repeated. Imported where it is used, because the protocol's package is.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

import h11
from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.tools.fetching import WebSettings, Wire, connect, credential_for
from holdfast.tools.tool import ToolTrouble
from holdfast.tools.urls import Url

_HEAD_LARGEST: Final = 1 << 16
_HEADERS_AT_MOST: Final = 256
# What belongs to a browser's memory or to whoever logs in, and to no model.
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


class Request(Struct, frozen=True, kw_only=True):
    """What is sent; headers of the connection itself are ours to add."""

    url: Url
    method: str
    headers: Headers = ()
    body: bytes = b""


async def ask(request: Request, settings: WebSettings, *, local: bool = False) -> "Answer":
    """Send the request to a checked address; its `Answer` is open until it is closed."""
    credential = await credential_for(request.url, settings)
    wire = await connect(request.url, settings, local=local)
    try:
        talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LARGEST)
        await _send(wire, talk, request, credential)
        return Answer(wire, talk, await _head(wire, talk), credential)
    except BaseException:
        wire.close()
        raise


class Answer:
    """The head of an answer, and its body as it comes."""

    def __init__(
        self, wire: Wire, talk: h11.Connection, head: h11.Response, credential: str | None
    ) -> None:
        self._wire = wire
        self._talk = talk
        self.status = head.status_code
        self.headers: Headers = tuple(
            (name.decode("ascii").lower(), without(credential, value.decode("latin-1")))
            for name, value in head.headers
            if name.decode("ascii").lower() not in _WITHHELD
        )
        self.credential = credential

    def header(self, name: str) -> str:
        """Return all values of a header as one text; empty when there is none."""
        return ", ".join(value for each, value in self.headers if each == name)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body piece by piece; raise when it is not as long as it claims to be."""
        while True:
            event = await _next(self._wire, self._talk)
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    def close(self) -> None:
        """Let go of the connection."""
        self._wire.close()


def without(credential: str | None, text: str) -> str:
    """Return the text without the credential, should the other side have sent it back."""
    for secret in _forms(credential):
        text = text.replace(secret, "[secret]")
    return text


def _forms(credential: str | None) -> Sequence[str]:
    if not credential:
        return ()
    return credential, credential.partition(" ")[2] or credential


async def _send(wire: Wire, talk: h11.Connection, request: Request, credential: str | None) -> None:
    headers = [
        ("host", request.url.authority),
        *request.headers,
        ("accept-encoding", "identity"),
        ("connection", "close"),
    ]
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        headers.append(("content-length", str(len(request.body))))
    if credential is not None:
        headers.append(("authorization", credential))
    try:
        head = h11.Request(method=request.method, target=request.url.target, headers=headers)
    except h11.LocalProtocolError:
        # Without the cause: it would show the value, which may be the credential.
        raise ToolTrouble(ResultCode.FAILED, "A header of the request cannot be sent.") from None
    parts = [talk.send(head)]
    if request.body:
        parts.append(talk.send(h11.Data(data=request.body)))
    parts.append(talk.send(h11.EndOfMessage()))
    await wire.write(b"".join(part for part in parts if part))


async def _head(wire: Wire, talk: h11.Connection) -> h11.Response:
    for _ in range(_HEADERS_AT_MOST):
        event = await _next(wire, talk)
        if isinstance(event, h11.Response):
            size = sum(len(name) + len(value) for name, value in event.headers)
            if len(event.headers) > _HEADERS_AT_MOST or size > _HEAD_LARGEST:
                raise _too_many()
            return event
        if not isinstance(event, h11.InformationalResponse):
            break
    raise ToolTrouble(ResultCode.FAILED, "The connection ended without an answer.")


async def _next(wire: Wire, talk: h11.Connection) -> object:
    try:
        while (event := talk.next_event()) is h11.NEED_DATA:
            talk.receive_data(await wire.read())
    except h11.RemoteProtocolError as error:
        if error.error_status_hint == 431:
            raise _too_many() from error
        raise ToolTrouble(
            ResultCode.FAILED, "The answer is not whole, or not what HTTP allows."
        ) from error
    return event


def _too_many() -> ToolTrouble:
    return ToolTrouble(ResultCode.TOO_LARGE, "The head of the answer is larger than allowed.")
