"""Errors over HTTP: the status from one table over the error classes, and one JSON body."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from holdfast.domain.errors import (
    Code,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
)
from holdfast.http.responses import Response
from holdfast.wire.errors import STATUSES, STATUSES_OF_CODES, ErrorForm, error_form

# Codes that the HTTP API does not distinguish.
CODE_ALIASES: Final[Mapping[Code, Code]] = {Code.UNKNOWN_MODEL: Code.MODEL_NOT_FOUND}


def status_of(error: HoldfastError) -> int:
    """Return the HTTP status of an error."""
    return STATUSES_OF_CODES.get(error.code) or STATUSES[type(error)]


def error_response(
    error: HoldfastError, headers: Mapping[str, str] | None = None, *, path: str = ""
) -> Response:
    """Return the response for an error; its details use the naming style of the path's API."""
    response_headers = dict(headers or {})
    if error.code is Code.UNAUTHENTICATED:
        response_headers["www-authenticate"] = "Bearer"
    wait = error.details.get("retry_after")
    if isinstance(wait, int | float):
        # Whole seconds, rounded up, so that the client does not retry too early.
        response_headers["retry-after"] = str(max(1, -int(-wait // 1)))
    return Response(status=status_of(error), content=_body(error, path), headers=response_headers)


def _body(error: HoldfastError, path: str) -> ErrorForm:
    form = error_form(error)
    form = replace(form, error=CODE_ALIASES.get(error.code, error.code))
    if path.startswith("/api/"):
        form = replace(form, details={_camel(name): each for name, each in form.details.items()})
    return form


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def path_not_found() -> NotFound:
    """Return the error for a path without a route."""
    return NotFound(
        Code.PATH_NOT_FOUND, "There is no route at this path; GET /openapi.json lists all routes."
    )


def method_not_allowed(allowed: str) -> Response:
    """Return the 405 response for a path that has other methods."""
    error = Invalid(Code.METHOD_NOT_ALLOWED, f"This path supports {allowed}.", {"allowed": allowed})
    return error_response(error, {"allow": allowed})


def server_stopping() -> Unavailable:
    """Return the error for a request that is cancelled because the server stops."""
    return Unavailable(
        Code.STORE_CLOSED,
        "The server is stopping and did not complete this request; send it again, with the "
        "same id.",
        {"retry_after": 1},
    )


def internal_error() -> Internal:
    """Return the error for an unexpected exception; its text is only in the log."""
    return Internal(Code.INTERNAL, "Internal error; see Holdfast's log.")
