"""How an error looks over HTTP: a status from one table over the classes, and one JSON body."""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.errors import (
    Code,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
)
from holdfast.http.responses import Response
from holdfast.wire.errors import STATUSES, STATUSES_OF_CODES

# Where a surface has one word for what the house tells apart.
CODE_ALIASES: Final[Mapping[Code, Code]] = {Code.UNKNOWN_MODEL: Code.MODEL_NOT_FOUND}


def status_of(error: HoldfastError) -> int:
    """Return the status for an error."""
    return STATUSES_OF_CODES.get(error.code) or STATUSES[type(error)]


def error_response(
    error: HoldfastError, headers: Mapping[str, str] | None = None, *, path: str = ""
) -> Response:
    """Return the answer for an error; what it tells has the spelling of the path's surface."""
    response_headers = dict(headers or {})
    if error.code is Code.UNAUTHENTICATED:
        response_headers["www-authenticate"] = "Bearer"
    wait = error.details.get("retry_after")
    if isinstance(wait, int | float):
        # Whole seconds, and never too early.
        response_headers["retry-after"] = str(max(1, -int(-wait // 1)))
    return Response(status=status_of(error), content=_body(error, path), headers=response_headers)


def _body(error: HoldfastError, path: str) -> dict[str, Any]:
    details = _plain(error.details)
    if path.startswith("/api/"):
        details = {_camel(name): value for name, value in details.items()}
    return {
        "error": str(CODE_ALIASES.get(error.code, error.code)),
        "message": error.message,
        "details": details,
    }


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _plain(value: Any) -> Any:
    """Return a detail in a form JSON has; telling an error must not raise one."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    # What cannot be encoded is shown as far as it can.
    return str(value).encode("utf-8", "replace").decode()


def path_not_found() -> NotFound:
    """Return the error for a path that nothing is at."""
    return NotFound(
        Code.PATH_NOT_FOUND, "There is nothing at this path; GET /openapi.json lists all there is."
    )


def method_not_allowed(allowed: str) -> Response:
    """Return the answer for a path that takes other methods."""
    error = Invalid(Code.METHOD_NOT_ALLOWED, f"This path takes {allowed}.", {"allowed": allowed})
    return error_response(error, {"allow": allowed})


def server_stopping() -> Unavailable:
    """Return the error for a request that the end of the server cuts off."""
    return Unavailable(
        Code.STORE_CLOSED,
        "The server stops before this was answered; send it again, with the same id.",
        {"retry_after": 1},
    )


def internal_error() -> Internal:
    """Return the error for a fault of ours; what happened stands in the log only."""
    return Internal(Code.INTERNAL, "Something went wrong inside Holdfast; its log says what.")
