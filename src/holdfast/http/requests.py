"""A request as it arrived: read within its limits, and decoded by the types of its route."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, get_origin
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Struct
from msgspec.structs import FieldInfo
from starlette.types import Receive, Scope

from holdfast.domain.errors import Code, Invalid
from holdfast.parsing.strict_json import require_plain_json
from holdfast.wire.errors import RULE_LONGEST, describe_violation

# The extension by which our own protocol offers more than the interface has: to `abort` a
# connection, to make it ready for an answer that will `last`, and a `body` that is already here.
EXTENSION: Final = "holdfast"
BODY_LARGEST: Final = 8 << 20
BODY_SECONDS: Final = 60.0
# From here on reading takes long enough for others to notice.
BODY_INLINE: Final = 16 << 10
QUERY_LONGEST: Final = 16 << 10
# How much of a rule is told: it may quote a name of any length.


class ClientDisconnectedError(Exception):
    """Whoever asked has hung up; there is nobody to answer."""


class Request(Struct, frozen=True):
    """What the caller sent: the path as it was spelled, headers by their lower-case names.

    A header that comes several times has all its values, with commas between them.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    receive: Receive
    # What our own connection can do beyond the interface, by name.
    extensions: Mapping[str, Callable[[], Any]] = {}


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


async def read_body(request: Request) -> bytes:
    """Return the whole body, or refuse one that is too large or too slow."""
    declared_length = request.headers.get("content-length", "0")
    if not (declared_length.isascii() and declared_length.isdigit()):
        raise _invalid("", "its length is no number")
    # By its digits first: so many of them cannot be a number that is small enough.
    if len(declared_length) > 18 or int(declared_length) > BODY_LARGEST:
        raise _too_large()
    whole: bytes | None = request.extensions["body"]() if "body" in request.extensions else None
    return await _read_chunks(request) if whole is None else whole


async def _read_chunks(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnectedError
                body += message.get("body", b"")
                if len(body) > BODY_LARGEST:
                    raise _too_large()
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise _invalid("", f"the body took longer than {BODY_SECONDS:.0f} s") from None


def decode_body(request: Request, body: bytes, kind: Any) -> Any:
    """Return the body as the route's type."""
    _require_json(request)
    require_plain_json(body)
    try:
        return _decoder_of(kind).decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(*describe_violation(error, kind)) from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _invalid("", f"this is not JSON: {error}") from None


async def parse_body(request: Request, body: bytes, parser: Callable[[bytes], Any]) -> Any:
    """Return what a route makes of its body; one that takes long is no burden for others."""
    _require_json(request)
    if len(body) <= BODY_INLINE:
        return parser(body)
    return await asyncio.to_thread(parser, body)


def _require_json(request: Request) -> None:
    if "content-encoding" in request.headers:
        raise _invalid("", "a body must not be compressed")
    given = request.headers.get("content-type", "")
    if given.split(";")[0].strip().lower() != "application/json":
        raise _invalid("", "the content type must be application/json")


def decode_query(query: str, kind: type[Struct], *, tolerant: bool) -> Any:
    """Return the query as the route's type; what may come several times is a tuple there."""
    if len(query) > QUERY_LONGEST or not query.isascii():
        raise _invalid_query("", "the query is too long, or not written in ASCII")
    if not query:
        return _empty_query(kind)
    fields = _fields_of(kind)
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise _invalid_query("", "the query cannot be read as UTF-8 pairs") from None
    for name, value in pairs:
        field = fields.get(name)
        if field is not None and "\x00" in value:
            raise _invalid_query(name, "a text contains the character NUL")
        if field is None and not tolerant:
            known = ", ".join(fields) or "none"
            raise _invalid_query(
                name[:RULE_LONGEST], f"unknown parameter; this route knows {known}"
            )
        if field is not None and get_origin(field.type) is tuple:
            found.setdefault(name, []).append(value)
        elif field is not None and name in found:
            raise _invalid_query(name, "the parameter is given twice")
        elif field is not None:
            found[name] = value
    return _convert(found, kind)


def _convert(found: dict[str, Any], kind: type[Struct]) -> Any:
    fields = _fields_of(kind)
    try:
        query = msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        for name, value in found.items():
            _require_value(name, value, fields[name].type)
        raise _invalid_query(*describe_violation(error, kind)) from None
    for name, value in found.items():
        _require_unambiguous(name, value, getattr(query, fields[name].name))
    return query


@cache
def _empty_query(kind: type[Struct]) -> Any:
    """Return the query of those who send none; it is the same for all of them."""
    return _convert({}, kind)


def _require_value(name: str, value: Any, kind: Any) -> None:
    """Judge a parameter by itself, so that a refusal can name it."""
    try:
        taken = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_query(name, describe_violation(error, kind)[1]) from None
    _require_unambiguous(name, value, taken)


def _require_unambiguous(name: str, value: Any, taken: Any) -> None:
    """Refuse a parameter that can be taken for something else than was written."""
    # Nothing is said by leaving it out; the word for it would be taken as nothing, too.
    if taken is None:
        raise _invalid_query(name, "leave a parameter out instead of sending null")
    if isinstance(taken, datetime):
        try:
            # A bare number would be taken as a time of some clock.
            msgspec.convert(value, datetime)
        except msgspec.ValidationError as error:
            raise _invalid_query(name, describe_violation(error, datetime)[1]) from None


@cache
def _decoder_of(kind: Any) -> "msgspec.json.Decoder[Any]":
    """Return what reads a type; made once, because it takes longer than reading a body."""
    return msgspec.json.Decoder(kind)


@cache
def _fields_of(kind: type[Struct]) -> Mapping[str, FieldInfo]:
    """Return the fields of a query by their names; looked up once, because it is slow."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _too_large() -> Invalid:
    return _invalid("", f"a body may have {BODY_LARGEST >> 20} MiB at most")


def _invalid(path: str, rule: str) -> Invalid:
    where = f" at {path}" if path else ""
    return Invalid(
        Code.INVALID_BODY,
        f"The body is not what this route takes{where}: {rule}.",
        {"path": path, "rule": rule},
    )


def _invalid_query(name: str, rule: str) -> Invalid:
    where = f" {name}" if name else ""
    return Invalid(
        Code.INVALID_QUERY,
        f"The query{where} is not what this route takes: {rule}.",
        {"parameter": name, "rule": rule},
    )
