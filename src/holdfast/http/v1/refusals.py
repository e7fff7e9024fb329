"""Refusals of what its type alone cannot judge, in the same form as those of the types."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.http.answers import etag_of, is_matched

_OF_QUERIES: Final = frozenset({Code.INVALID_CURSOR, Code.INVALID_FILTER, Code.INVALID_LIMIT})


def invalid_body(path: str, rule: str) -> Invalid:
    """Return the refusal of a body."""
    details = {"path": path, "rule": rule}
    return Invalid(
        Code.INVALID_BODY, f"The body is not what this route takes at {path}: {rule}.", details
    )


def invalid_query(parameter: str, rule: str) -> Invalid:
    """Return the refusal of a query."""
    details = {"parameter": parameter, "rule": rule}
    return Invalid(
        Code.INVALID_QUERY,
        f"The query {parameter} is not what this route takes: {rule}.",
        details,
    )


@contextmanager
def query_judged() -> Iterator[None]:
    """Tell what a service refuses of a listing as a fault of the query."""
    try:
        yield
    except Invalid as error:
        if error.code not in _OF_QUERIES:
            raise
        named = {"parameter": "cursor"} if error.code is Code.INVALID_CURSOR else {}
        raise Invalid(Code.INVALID_QUERY, error.message, named | error.details) from None


def require_match(headers: Mapping[str, str], form: Any) -> None:
    """Refuse a change that was meant for another state than the present one."""
    wanted = headers.get("if-match")
    if wanted is not None and not is_matched(wanted, etag_of(form)):
        raise Conflict(
            Code.STALE_ETAG, "It has changed since you read it; read it again, then change it."
        )
