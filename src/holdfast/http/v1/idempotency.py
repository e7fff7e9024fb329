"""Idempotent requests: the id a client chose, and the response to a repeat."""

from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.ids import is_uuid
from holdfast.http.responses import Response
from holdfast.http.routing import RouteRequest
from holdfast.wire.errors import invalid_body

IDEMPOTENCY_KEY: Final = "idempotency-key"


def creates(kind: Any) -> dict[str, Any]:
    """Return the fields of a route that creates something, or returns what a repeat created."""
    headers = {200: ("etag", "idempotency-replayed", "location"), 201: ("etag", "location")}
    return {"responses": {201: kind, 200: kind}, "response_headers": headers}


def chosen_id(request: RouteRequest[Any, Any]) -> str | None:
    """Return the id that the client chose, in the body or as `Idempotency-Key`."""
    in_body: str | None = request.body.id
    header = request.headers.get(IDEMPOTENCY_KEY)
    if header is None:
        return in_body
    if not is_uuid(header.lower()):
        raise invalid_body("id", "Idempotency-Key must be a UUID")
    if in_body is not None and in_body.lower() != header.lower():
        raise invalid_body("id", "it must be equal to Idempotency-Key")
    return header


def created_response(form: Any, *, is_new: bool, location: str) -> Response:
    """Return the response to a request that creates something: 201, or 200 for a repeat."""
    replayed: Mapping[str, str] = {} if is_new else {"idempotency-replayed": "true"}
    return Response(
        status=201 if is_new else 200,
        content=form,
        headers={"location": location, **replayed},
        has_etag=True,
    )
