"""Requests: read within limits, and decoded to the types of the route."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, get_origin
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo
from starlette.types import Receive, Scope

from holdfast.domain.errors import Code, Invalid
from holdfast.parsing.strict_json import require_plain_json
from holdfast.wire.errors import RULE_LONGEST, describe_violation

T = TypeVar("T")

# ASGI extension of Holdfast's protocol: `abort` a connection, `close` it after the response, and
# prepare it for a stream (`last`).
EXTENSION: Final = "holdfast"
BODY_LARGEST: Final = 8 << 20
BODY_SECONDS: Final = 60.0
# Larger bodies are decoded in a thread, because decoding would block the event loop.
BODY_INLINE: Final = 16 << 10
QUERY_LONGEST: Final = 16 << 10
# Maximum length of a reported violation: it may quote a name of any length.


class ClientDisconnectedError(Exception):
    """The client has disconnected; no response can be sent."""


async def run_until(
    disconnected: Callable[[], Coroutine[Any, Any, None]], work: Coroutine[Any, Any, T]
) -> T:
    """Run a read or a stream; cancel it when the client disconnects."""
    here = asyncio.current_task()
    assert here is not None  # noqa: S101 — for the type checker: this is a coroutine
    leaving = asyncio.create_task(disconnected())

    def leave(_: object) -> None:
        here.cancel()

    # At once, not at the next event: a disconnected client must not hold resources.
    leaving.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not leaving.done():
            raise
        here.uncancel()
        raise ClientDisconnectedError from None
    finally:
        leaving.remove_done_callback(leave)
        leaving.cancel()


class Request(Struct, frozen=True):
    """A request: the path exactly as sent, headers by their lower-case names.

    A repeated header has all its values, joined with commas.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    receive: Receive
    # Extensions of Holdfast's protocol beyond ASGI, by name.
    extensions: Mapping[str, Callable[[], None]] = {}


def request_of(scope: Scope, receive: Receive) -> Request:
    """Return the request of an ASGI scope."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
    path, query = raw_path.decode("latin-1"), scope["query_string"].decode("latin-1")
    extensions = scope.get("extensions", {}).get(EXTENSION, {})
    return Request(scope["method"], path, query, headers, receive, extensions)


async def read_body(request: Request, largest: int = BODY_LARGEST) -> bytes:
    """Return the whole body; refuse one that is too large or too slow."""
    declared_length = request.headers.get("content-length", "0")
    if not (declared_length.isascii() and declared_length.isdigit()):
        raise _invalid("", "its Content-Length is not a number")
    # The number of digits is checked first, because parsing a very long number is slow.
    if len(declared_length) > 18 or int(declared_length) > largest:
        raise _too_large(largest)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnectedError
                body += message.get("body", b"")
                if len(body) > largest:
                    raise _too_large(largest)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise _invalid("", f"the body took longer than {BODY_SECONDS:.0f} s") from None


def decode_body(request: Request, body: bytes, kind: Any) -> Any:
    """Return the body decoded as the route's type."""
    _require_json(request)
    require_plain_json(body)
    try:
        return _decoder_of(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(*describe_violation(error, kind)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _invalid("", f"it is not valid JSON: {error}") from None


async def parse_body(request: Request, body: bytes, parser: Callable[[bytes], Any]) -> Any:
    """Return the body parsed by a route's own parser; a large body is parsed in a thread."""
    _require_json(request)
    if len(body) <= BODY_INLINE:
        return parser(body)
    return await asyncio.to_thread(parser, body)


def _require_json(request: Request) -> None:
    if "content-encoding" in request.headers:
        raise _invalid("", "it must not be compressed")
    given = request.headers.get("content-type", "")
    if given.split(";")[0].strip().lower() != "application/json":
        raise _invalid("", "the content type must be application/json")


def decode_query(query: str, kind: type[Struct], *, tolerant: bool) -> Any:
    """Return the query decoded as the route's type; repeatable parameters are tuples."""
    if len(query) > QUERY_LONGEST or not query.isascii():
        raise _invalid_query("", "it is too long or not ASCII")
    if not query:
        return _empty_query(kind)
    fields = _fields_of(kind)
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise _invalid_query("", "it is not valid UTF-8, or has more than 100 parameters") from None
    for name, value in pairs:
        field = fields.get(name)
        if field is not None and "\x00" in value:
            raise _invalid_query(name, "the text contains a NUL character")
        if field is None and not tolerant:
            known = ", ".join(fields) or "none"
            raise _invalid_query(
                name[:RULE_LONGEST], f"unknown parameter; this route supports {known}"
            )
        if field is not None and get_origin(field.type) is tuple:
            found.setdefault(name, []).append(value)
        elif field is not None and name in found:
            raise _invalid_query(name, "the parameter is repeated")
        elif field is not None:
            found[name] = value
    return _convert(found, kind)


def _convert(values: dict[str, Any], kind: type[Struct]) -> Any:
    fields = _fields_of(kind)
    try:
        query = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        for name, value in values.items():
            _require_value(name, value, fields[name].type)
        raise _invalid_query(*describe_violation(error, kind)) from None
    for name, value in values.items():
        _require_unambiguous(name, value, getattr(query, fields[name].name))
    return query


@cache
def _empty_query(kind: type[Struct]) -> Any:
    """Return the query without parameters; cached, because it is the same for all requests."""
    return _convert({}, kind)


def _require_value(name: str, value: Any, kind: Any) -> None:
    """Validate one parameter by itself, so that the error can name it."""
    try:
        taken = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_query(name, describe_violation(error, kind)[1]) from None
    _require_unambiguous(name, value, taken)


def _require_unambiguous(name: str, value: Any, taken: Any) -> None:
    """Refuse a parameter whose text could mean something else than its decoded value."""
    # `null` would be decoded as None; a missing parameter is the only way to send no value.
    if taken is None:
        raise _invalid_query(name, "omit the parameter instead of sending null")
    if isinstance(taken, datetime):
        try:
            # msgspec would accept a bare number as a Unix timestamp.
            msgspec.convert(value, datetime)
        except msgspec.ValidationError as error:
            raise _invalid_query(name, describe_violation(error, datetime)[1]) from None


@cache
def _decoder_of(kind: Any) -> "msgspec.json.Decoder[Any]":
    """Return the decoder of a type; cached, because building one is slower than decoding a body."""
    return msgspec.json.Decoder(kind)


@cache
def _fields_of(kind: type[Struct]) -> Mapping[str, FieldInfo]:
    """Return the fields of a query type by name; cached, because inspection is slow."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _too_large(largest: int) -> Invalid:
    return _invalid("", f"it is larger than {largest >> 20} MiB")


def _invalid(path: str, rule: str) -> Invalid:
    where = f" at {path}" if path else ""
    return Invalid(
        Code.INVALID_BODY,
        f"The request body is invalid{where}: {rule}.",
        {"path": path, "rule": rule},
    )


def _invalid_query(name: str, rule: str) -> Invalid:
    where = f" {name}" if name else ""
    return Invalid(
        Code.INVALID_QUERY,
        f"The query{where} is invalid: {rule}.",
        {"parameter": name, "rule": rule},
    )
