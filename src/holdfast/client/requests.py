"""Typed requests: encoding, retries with timeouts, errors, pagination and tolerant decoding.

Connections are in `transport.py`.
"""

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct, inspect

from holdfast.client.transport import ANSWER_SECONDS, HttpRequest, HttpResponse, Transport
from holdfast.domain.errors import (
    Code,
    Denied,
    HoldfastError,
    Invalid,
    NotFound,
    Unavailable,
)
from holdfast.domain.ids import uuid7
from holdfast.wire.errors import STATUSES


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Timeouts and retry intervals, in seconds.

    A failed request is retried for `request`. A stream is considered dead after `silence`
    without data. The interval between retries starts at `pause` and doubles up to `longest`.
    """

    request: float = 15.0
    silence: float = 45.0
    pause: float = 0.2
    longest: float = 10.0

    def before(self, attempt: int, least: float | None = None) -> float:
        """Return the delay before a retry; the first retry is attempt 1.

        `least` is the server's own retry delay, and replaces `pause`.
        """
        # Jitter, so that clients that were disconnected together do not reconnect together.
        spread = random.uniform(0.5, 1.0)  # noqa: S311 — not security-relevant
        doublings = 2 ** min(attempt - 1, 20)
        if least is None:
            return float(min(self.pause * doublings, self.longest) * spread)
        # Never earlier than the server requested.
        return float(max(least, min(least * doublings, self.longest)) * (0.5 + spread))


def new_id() -> str:
    """Return a new unique id (UUIDv7)."""
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


T = TypeVar("T")


def decode_tolerantly(body: bytes, kind: type[T]) -> T:
    """Decode JSON and ignore keys that the type does not define."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        # Only on failure, because it is slower; other errors are raised again here.
        known = _drop_unknown(msgspec.json.decode(body), inspect.type_info(kind))
        return msgspec.convert(known, kind)


def _drop_unknown(value: Any, kind: inspect.Type) -> Any:
    match value, kind:
        case dict(), inspect.StructType():
            fields = {field.encode_name: field.type for field in kind.fields}
            tag = {name: value[name] for name in value if name == kind.tag_field}
            return tag | {
                name: _drop_unknown(value[name], fields[name]) for name in value if name in fields
            }
        case dict(), inspect.DictType():
            return {name: _drop_unknown(each, kind.value_type) for name, each in value.items()}
        case list(), inspect.VarTupleType() | inspect.ListType():
            return [_drop_unknown(each, kind.item_type) for each in value]
        case _, inspect.UnionType():
            return _drop_unknown_in_union(value, kind)
        case _:
            return value


def _drop_unknown_in_union(value: Any, kind: inspect.UnionType) -> Any:
    for each in kind.types:
        match value, each:
            case dict(), inspect.StructType(tag_field=None):
                return _drop_unknown(value, each)
            case dict(), inspect.StructType(tag_field=str(field), tag=tag) if (
                value.get(field) == tag
            ):
                return _drop_unknown(value, each)
            case list(), inspect.VarTupleType() | inspect.ListType():
                return _drop_unknown(value, each)
            case _:
                pass
    return value


_CLASSES: Final[Mapping[int, type[HoldfastError]]] = {
    **{status: kind for kind, status in STATUSES.items()},
    401: Denied,
}
_WAIT_LONGEST: Final = 86_400


class ErrorBody(Struct, frozen=True):
    """An error response as it is read: a newer server may send codes that are unknown here."""

    error: str
    message: str
    details: dict[str, Any] = {}


def error_from_response(status: int, headers: Mapping[str, str], body: bytes) -> HoldfastError:
    """Return the exception for an error response, with the server's code, message and details.

    A Retry-After header is added to the details as `retry_after`.
    """
    try:
        form = msgspec.json.decode(body, type=ErrorBody)
    except (msgspec.DecodeError, RecursionError):
        # From a proxy, or from a server that is not Holdfast.
        text = (
            f"The server responded with {status} and no error message; check that it is a "
            "Holdfast server."
        )
        form = ErrorBody(Code.UNKNOWN_ANSWER, text)
    details = {**form.details, **_retry_after(headers)}
    try:
        code = Code(form.error)
    except ValueError:
        # A code from a newer server; the class still says what the caller can do.
        code = Code.UNKNOWN_ANSWER
        details["error"] = form.error
    return _class_of(status)(code, form.message, details)


def invalid_response(origin: str, what: str) -> Unavailable:
    """Return the error for a response that violates the protocol."""
    return Unavailable(
        Code.UNKNOWN_ANSWER,
        f"The response of {origin} is not valid for a Holdfast server: {what}; check the "
        "address and the server's version.",
        {"server": origin},
    )


def _class_of(status: int) -> type[HoldfastError]:
    return _CLASSES.get(status) or (Unavailable if status >= 500 else Invalid)


def _retry_after(headers: Mapping[str, str]) -> dict[str, int]:
    text = headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit()):
        return {}
    return {"retry_after": min(int(text[:6]), _WAIT_LONGEST)}


_JSON: Final = {"content-type": "application/json"}
_encoder = msgspec.json.Encoder()


class Requests:
    """Sends requests to one server; retries each unless a method says otherwise."""

    def __init__(self, transport: Transport, timeouts: Timeouts) -> None:
        self.transport: Final = transport
        self.timeouts: Final = timeouts

    async def get(self, path: str, kind: type[T], query: Struct | None = None) -> T:
        """Get a decoded response."""
        return self._decode(await self._send(_build_request("GET", path, query)), kind)

    async def content(self, path: str, query: Struct | None = None) -> bytes:
        """Get the raw response body."""
        return (await self._send(_build_request("GET", path, query))).body

    async def pieces(self, path: str, query: Struct | None = None) -> AsyncGenerator[bytes, None]:
        """Stream the raw response body; not retried."""
        async with self.transport.stream(_build_request("GET", path, query)) as stream:
            if stream.status >= 300:
                with self.transport.as_unavailable():
                    body = await stream.read()
                raise error_from_response(stream.status, stream.headers, body)
            while True:
                with self.transport.as_unavailable():
                    async with asyncio.timeout(ANSWER_SECONDS):
                        chunk = await stream.chunk()
                if chunk is None:
                    return
                yield chunk

    async def post(self, path: str, body: Any, kind: type[T], *, seconds: float | None = None) -> T:
        """Post a body; with `seconds` the timeout is longer and the request is not retried."""
        sent = HttpRequest(
            method="POST",
            target=path,
            headers=_JSON,
            body=_encoder.encode(body),
            seconds=seconds or ANSWER_SECONDS,
            repeatable=seconds is None,
        )
        return self._decode(await self._send(sent), kind)

    async def send(self, path: str, body: Struct) -> None:
        """Post a body that has no decoded response."""
        sent = HttpRequest(method="POST", target=path, headers=_JSON, body=_encoder.encode(body))
        await self._send(sent)

    async def upload(self, path: str, content: bytes, content_type: str, kind: type[T]) -> T:
        """Post raw content; repeating it has no other effect."""
        headers = {"content-type": content_type}
        sent = HttpRequest(method="POST", target=path, headers=headers, body=content)
        return self._decode(await self._send(sent), kind)

    async def put(self, path: str, body: Struct, kind: type[T]) -> T:
        """Put a body; not retried."""
        sent = HttpRequest(
            method="PUT",
            target=path,
            headers=_JSON,
            body=_encoder.encode(body),
            repeatable=False,
        )
        return self._decode(await self._send(sent), kind)

    async def patch(self, path: str, body: Struct, kind: type[T]) -> T:
        """Patch with a body."""
        sent = HttpRequest(method="PATCH", target=path, headers=_JSON, body=_encoder.encode(body))
        return self._decode(await self._send(sent), kind)

    async def delete(self, path: str, query: Struct | None = None) -> None:
        """Delete a resource."""
        await self._send(_build_request("DELETE", path, query))

    async def remove(self, path: str, kind: type[T]) -> T:
        """Delete a resource and return the decoded response; not retried."""
        sent = HttpRequest(method="DELETE", target=path, repeatable=False)
        return self._decode(await self._send(sent), kind)

    async def _send(self, sent: HttpRequest) -> HttpResponse:
        received, attempts = await self._send_with_retries(sent)
        if received.status < 300:
            return received
        error = error_from_response(received.status, received.headers, received.body)
        # An earlier attempt already deleted it, and its response was lost.
        if sent.method == "DELETE" and attempts > 1 and isinstance(error, NotFound):
            return received
        raise error

    async def _send_with_retries(self, sent: HttpRequest) -> tuple[HttpResponse, int]:
        """Return the response and the number of attempts."""
        ends_at = time.monotonic() + self.timeouts.request
        for attempt in itertools.count(1):
            try:
                return await self.transport.ask(sent), attempt
            except Unavailable:
                wait = self.timeouts.before(attempt)
                if not sent.repeatable or time.monotonic() + wait > ends_at:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("the retry loop always returns or raises")

    def _decode(self, received: HttpResponse, kind: type[T]) -> T:
        try:
            return decode_tolerantly(received.body, kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid_response(self.transport.origin, str(error)) from None


class RemotePart:
    """A part of the API that sends its requests to a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests


def build_path(*segments: str) -> str:
    """Return the path of these segments, percent-encoded."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def build_query(query: Struct | None) -> str:
    """Return the query string; fields with their default value are omitted."""
    if query is None:
        return ""
    pairs: list[tuple[str, str]] = []
    for field in msgspec.structs.fields(query):
        value = getattr(query, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.encode_name, _text(each)) for each in values]
    return f"?{urlencode(pairs)}" if pairs else ""


def _build_request(method: str, path: str, query: Struct | None) -> HttpRequest:
    headers: Mapping[str, str] = {"accept": "application/json"} if method == "GET" else {}
    return HttpRequest(method=method, target=path + build_query(query), headers=headers)


def _text(value: Any) -> str:
    text = msgspec.to_builtins(value)
    return str(text).lower() if isinstance(text, bool) else str(text)
