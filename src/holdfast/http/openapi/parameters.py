"""What a request says beside its body: in its path, its query and its headers."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code
from holdfast.http.openapi.schemas import Document, inlined, without_null
from holdfast.http.table import Route

_PLACEHOLDER: Final = re.compile(r"{(\w+)}")
_UUID: Final[Document] = {
    "type": "string",
    "format": "uuid",
    "pattern": "^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$",
}

# What can stand in a path; everything else is 404, because nothing is called so.
PLACES: Final[Mapping[str, tuple[str, Document]]] = {
    "agent_id": (
        "The agent's id, or its slug.",
        {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,255}$"},
    ),
    "approval_id": ("The question's id.", _UUID),
    "call_id": (
        "The call's id, as the model or the recorded message gave it.",
        {"type": "string", "minLength": 1, "maxLength": 255},
    ),
    "checkpoint": (
        "The checkpoint's name.",
        {"type": "string", "minLength": 1, "maxLength": 512},
    ),
    "definition_id": (
        "The id whose desk it is: an agent's id or slug, or any other of these characters.",
        {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
    ),
    "hash": (
        "The SHA-256 of the content, with or without `sha256-` before it.",
        {"type": "string", "pattern": "^(?:sha256-)?[0-9a-f]{64}$"},
    ),
    "id": ("The id.", _UUID),
    "message_id": ("The message's id.", _UUID),
    "model_id": (
        "The model's id, or its `provider:name`.",
        {"type": "string", "minLength": 1, "maxLength": 511},
    ),
    "ms": (
        "When it was archived, in Unix milliseconds.",
        {"type": "string", "pattern": "^(?:0|[1-9][0-9]{0,18})$"},
    ),
    "name": (
        "The file's name.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    ),
    "place": (
        "What the page is to show; it says itself what it does not find.",
        {"type": "string", "minLength": 1},
    ),
    "session_id": ("The session's id.", _UUID),
    "session_key": (
        "The session's id as it was submitted, or that of a session hosted here.",
        {"type": "string", "minLength": 5, "maxLength": 512},
    ),
}

HEADERS: Final[Mapping[str, Document]] = {
    "Idempotency-Key": {
        "description": (
            "Makes the request repeatable: taken as the `id` of what is made. A repeat with an "
            "equal body is answered with what is there, one with another body is 409."
        ),
        "schema": {
            "type": "string",
            "format": "uuid",
            "pattern": "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$",
        },
    },
    "If-Match": {
        "description": "Change it only if it still has this `ETag`; otherwise 409 `stale_etag`.",
        "schema": {"type": "string"},
    },
    "If-None-Match": {
        "description": "Answer 304 without a body if it still has this `ETag`.",
        "schema": {"type": "string"},
        "example": "*",
    },
    "Last-Event-ID": {
        "description": (
            "Begin after this event: its number, its id, or `now`; wins over `since`, because a "
            "browser repeats the address when it comes back."
        ),
        "schema": {
            "type": "string",
            "pattern": "^(?:[0-9]{1,18}|now|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})?$",
        },
    },
    "Range": {
        "description": "Answer 206 with one range of the bytes; more than one is passed over.",
        "schema": {"type": "string"},
    },
    "X-Request-Id": {
        "description": (
            "A name for the request, found again in the answer and in the log; one that is not "
            "1 to 64 letters, digits, `.`, `_` and `-` is replaced."
        ),
        "schema": {"type": "string"},
    },
}
# Observations are known by keys of their senders' making, which need not be ids.
_KEY: Final[Document] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same as `idempotency_key`; where both are sent they must be equal.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}


def parameters_of(route: Route) -> list[Document]:
    """Return all parameters of a route."""
    return [*_in_path(route), *_in_query(route), *_in_headers(route)]


def header_parameters() -> Document:
    """Return the components that operations refer to."""
    return {
        name: {"name": name, "in": "header", "required": False, **told}
        for name, told in HEADERS.items()
    }


def names_in(path: str) -> list[str]:
    """Return the names of a path's placeholders."""
    return _PLACEHOLDER.findall(path)


def _in_path(route: Route) -> list[Document]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PLACES[name][0],
            "schema": PLACES[name][1],
        }
        for name in names_in(route.path)
    ]


def _in_query(route: Route) -> list[Document]:
    schema = msgspec.json.schema(route.query)
    own = schema["$defs"].pop(route.query.__name__)
    required = own.get("required", ())
    return [
        _query_parameter(name, inlined(each, schema["$defs"]), is_required=name in required)
        for name, each in own["properties"].items()
    ]


def _query_parameter(name: str, whole: Document, *, is_required: bool) -> Document:
    schema = without_null(whole)
    told: Any = schema.pop("description", None)
    parameter = {"name": name, "in": "query", "required": is_required, "schema": schema}
    return parameter if told is None else {**parameter, "description": told}


def _in_headers(route: Route) -> list[Document]:
    names = ["X-Request-Id"]
    if 304 in route.gives:
        names.append("If-None-Match")
    if 206 in route.gives:
        names.append("Range")
    if Code.STALE_ETAG in route.refuses:
        names.append("If-Match")
    # What takes an id of its sender's choice takes it in the header, too.
    if _takes_an_id(route):
        names.append("Idempotency-Key")
    if route.is_stream:
        names.append("Last-Event-ID")
    shared = [{"$ref": f"#/components/parameters/{name}"} for name in sorted(names)]
    return [*shared, _KEY] if _takes_a_key(route) else shared


def _takes_a_key(route: Route) -> bool:
    fields = (*_names(route.body), *_names(route.query))
    return "idempotency_key" in fields


def _takes_an_id(route: Route) -> bool:
    kinds = getattr(route.body, "__args__", (route.body,))
    return not route.tolerant and all("id" in _names(kind) for kind in kinds)


def _names(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", ())
