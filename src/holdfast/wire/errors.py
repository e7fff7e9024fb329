"""Errors on the wire: their JSON, the status of each class, and texts of validation errors.

Headers and error pages are `http/errors.py` and `http/web_ui.py`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, inspect

from holdfast.domain.errors import (
    Code,
    Conflict,
    Denied,
    HoldfastError,
    Internal,
    Invalid,
    LimitReached,
    NotFound,
    StorageFull,
    Unavailable,
)

_QUERY_CODES: Final = frozenset({Code.INVALID_CURSOR, Code.INVALID_FILTER, Code.INVALID_LIMIT})


class ErrorForm(Struct, frozen=True):
    """An error: a code for programs, a message for people, and details."""

    error: Annotated[Code, Meta(description="The error code, from a closed list.")]
    message: Annotated[str, Meta(description="What happened, and what to do about it.")]
    details: Annotated[
        dict[str, Any],
        Meta(description="For an invalid value: field, value, expected, message and issues."),
    ]


def error_form(error: HoldfastError) -> ErrorForm:
    """Return the form of an error; never raises, whatever the error contains."""
    return ErrorForm(**_plain(error.body()) | {"error": error.code})


def _plain(value: Any) -> Any:
    """Return a detail as a JSON value."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_plain_text(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return _plain_text(value)


def _plain_text(value: object) -> str:
    # Lone surrogates cannot be encoded as UTF-8, so they are replaced.
    return str(value).encode("utf-8", "replace").decode()


def invalid_body(path: str, rule: str) -> Invalid:
    """Return the error for an invalid body."""
    details = {"path": path, "rule": rule}
    return Invalid(Code.INVALID_BODY, f"The request body is invalid at {path}: {rule}.", details)


def invalid_query(parameter: str, rule: str) -> Invalid:
    """Return the error for an invalid query parameter."""
    details = {"parameter": parameter, "rule": rule}
    return Invalid(
        Code.INVALID_QUERY,
        f"The query parameter {parameter} is invalid: {rule}.",
        details,
    )


@contextmanager
def as_query_errors() -> Iterator[None]:
    """Raise a service's errors about a listing as errors of the query."""
    try:
        yield
    except Invalid as error:
        if error.code not in _QUERY_CODES:
            raise
        named = {"parameter": "cursor"} if error.code is Code.INVALID_CURSOR else {}
        raise Invalid(Code.INVALID_QUERY, error.message, named | error.details) from None


STATUSES: Final[Mapping[type[HoldfastError], int]] = {
    Invalid: 400,
    Denied: 403,
    NotFound: 404,
    Conflict: 409,
    LimitReached: 429,
    Unavailable: 503,
    StorageFull: 507,
    Internal: 500,
}
# Codes with an HTTP status of their own.
STATUSES_OF_CODES: Final[Mapping[Code, int]] = {
    Code.METHOD_NOT_ALLOWED: 405,
    Code.RANGE_NOT_SATISFIABLE: 416,
    Code.UNAUTHENTICATED: 401,
}
_PATTERN: Final = re.compile(r"Expected `str` matching regex '(?P<pattern>.*)'", re.DOTALL)
_STEP: Final = re.compile(r"\[(?P<item>[^\]]*)\]|(?P<name>[^.\[\]]+)")
# A comma-separated list of several values.
_LIST: Final = re.compile(r"\^\((?:\?:)?(?P<words>[a-z_|]+)\)\(,")
_PATTERN_DESCRIPTIONS: Final = {
    r"^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$": "Expected a UUID",
    r"^[A-Za-z0-9_-]{1,255}$": "Expected 1 to 255 characters out of A-Z, a-z, 0-9, _ and -",
    "^[0-9a-fA-F-]{8,36}$": "Expected at least 8 characters of an id",
    "^media://sha256-[0-9a-f]{64}$": "Expected media://sha256- followed by 64 hexadecimal digits",
}


def describe_violation(error: msgspec.ValidationError, kind: Any) -> tuple[str, str]:
    """Return the path of an invalid value, and the rule with its allowed values."""
    path, rule = split_violation(error)
    if rule.startswith(("Invalid enum value", "Invalid value")):
        words = dict.fromkeys(_choices(_info(kind), path))
        rule = f"{rule}; allowed values: {', '.join(words)}" if words else rule
    elif found := _PATTERN.fullmatch(rule):
        # The message quotes the pattern with doubled backslashes.
        pattern = found["pattern"].replace("\\\\", "\\")
        several = _LIST.match(pattern)
        if several is not None:
            rule = f"Expected a comma-separated list of {several['words'].replace('|', ', ')}"
        rule = _PATTERN_DESCRIPTIONS.get(pattern, rule)
    return path, rule[:RULE_LONGEST]


@cache
def _info(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _choices(info: inspect.Type, path: str) -> Iterator[str]:
    """Yield the allowed values at a path of a type."""
    found = _STEP.match(path.lstrip("."))
    rest = path.lstrip(".")[found.end() :] if found else ""
    name = found["name"] if found else None
    match info:
        case inspect.Metadata(type=inner):
            yield from _choices(inner, path)
        case inspect.UnionType(types=types):
            for each in types:
                yield from _choices(each, path)
        case inspect.StructType(tag_field=key, tag=tag) if name == key and not rest:
            yield str(tag)
        case inspect.StructType(fields=fields) if name is not None:
            for field in fields:
                if field.encode_name == name:
                    yield from _choices(field.type, rest)
        case inspect.CollectionType(item_type=inner) | inspect.VarTupleType(item_type=inner) if (
            found and name is None
        ):
            yield from _choices(inner, rest)
        case inspect.EnumType(cls=words) if not found:
            yield from (str(each.value) for each in words)
        case inspect.LiteralType(values=values) if not found:
            yield from map(str, values)
        case _:
            pass


def split_violation(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of an invalid value, and the rule that it violates."""
    text = str(error)
    at = _AT.search(text)
    return (at[1], text[: at.start()][:RULE_LONGEST]) if at else ("", text[:RULE_LONGEST])


RULE_LONGEST: Final = 500
_AT: Final = re.compile(r" - at `\$\.?([^`]*)`$")
