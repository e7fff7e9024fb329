"""How an error looks over HTTP: a status from one table over the classes, and one JSON body."""

import json
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

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


def error_response(
    error: HoldfastError, *, status: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the response for an error."""
    return Response(
        # Details may hold what JSON has no form for, and telling an error must not raise one.
        json.dumps(error.body(), default=str),
        status or STATUSES[type(error)],
        headers,
        "application/json",
    )


async def not_found(_: Request, __: Exception) -> Response:
    """Answer for a path that nothing is at."""
    return error_response(
        NotFound(Code.PATH_NOT_FOUND, "There is nothing at this path; try GET /healthz.")
    )


async def wrong_method(_: Request, error: Exception) -> Response:
    """Answer for a path that takes other methods."""
    # HTTP demands `Allow` here, and the router has put it into the error.
    headers = getattr(error, "headers", None)
    told = Invalid(Code.METHOD_NOT_ALLOWED, "This path takes other methods; see Allow.")
    return error_response(told, status=405, headers=headers)


async def failed(_: Request, __: Exception) -> Response:
    """Answer for a fault of ours; what happened stands in the log only."""
    return error_response(Internal(Code.INTERNAL, "Something went wrong inside Holdfast."))
