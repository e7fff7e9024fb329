"""The OpenAPI document: every operation with its parameters, and the shared components."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code
from holdfast.http.openapi.responses import error_examples, header_components, responses_of
from holdfast.http.openapi.schemas import Document, Schemas, inline_references, strip_null
from holdfast.http.responses import encode_json
from holdfast.http.routing import Route

_PLACEHOLDER: Final = re.compile(r"{(\w+)}")
_UUID: Final[Document] = {
    "type": "string",
    "format": "uuid",
    "pattern": "^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$",
}
# Values that match no pattern are 404, because no resource has such an id.
PATH_PARAMETERS: Final[Mapping[str, tuple[str, Document]]] = {
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
# Idempotency keys of observations are chosen by the client and need not be ids.
_KEY: Final[Document] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same as `idempotency_key`; where both are sent they must be equal.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}


def parameters_of(route: Route) -> list[Document]:
    """Return all parameters of a route."""
    return [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)]


def header_parameters() -> Document:
    """Return the parameter components that operations refer to."""
    return {
        name: {"name": name, "in": "header", "required": False, **schema_description}
        for name, schema_description in HEADERS.items()
    }


def names_in(path: str) -> list[str]:
    """Return the names of a path's placeholders."""
    return _PLACEHOLDER.findall(path)


def _path_parameters(route: Route) -> list[Document]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAMETERS[name][0],
            "schema": PATH_PARAMETERS[name][1],
        }
        for name in names_in(route.path)
    ]


def _query_parameters(route: Route) -> list[Document]:
    schema = msgspec.json.schema(route.query)
    own = schema["$defs"].pop(route.query.__name__)
    required = own.get("required", ())
    return [
        _query_parameter(
            name, inline_references(each, schema["$defs"]), is_required=name in required
        )
        for name, each in own["properties"].items()
    ]


def _query_parameter(name: str, whole: Document, *, is_required: bool) -> Document:
    schema = strip_null(whole)
    schema_description: Any = schema.pop("description", None)
    parameter = {"name": name, "in": "query", "required": is_required, "schema": schema}
    return (
        parameter
        if schema_description is None
        else {**parameter, "description": schema_description}
    )


def _header_parameters(route: Route) -> list[Document]:
    names = ["X-Request-Id"]
    if 304 in route.responses:
        names.append("If-None-Match")
    if 206 in route.responses:
        names.append("Range")
    if Code.STALE_ETAG in route.error_codes:
        names.append("If-Match")
    # A route that takes a client-chosen id also takes it in the header.
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
    other_media_types = getattr(route.body, "__args__", (route.body,))
    return not route.tolerant and all("id" in _names(kind) for kind in other_media_types)


def _names(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", ())


_ABOUT: Final = (
    "The durable session layer for AI agents. Everything but `GET /healthz` needs "
    "`Authorization: Bearer …`. Every error is `{error, message, details}`; a method that a path "
    "does not take is 405 with `Allow`, and HEAD is GET without a body. JSON is read strictly: "
    "no key twice, no NUL in a text, no number beyond 64 bits, whole numbers without a point, at "
    "most 8 MiB and 100 levels deep."
)
_TAGS: Final = {
    "agents": "Who talks: a system prompt, models, tools, and what they may reach.",
    "api": "Sessions that are bound to a repository, in camelCase.",
    "approvals": "Tool calls that wait for an approval.",
    "calls": "Tool calls, and settling those with an unknown outcome.",
    "costs": "What was spent.",
    "events": "What happens, as a stream or page by page.",
    "history": "What agents say they did, wherever they ran, and what all of it comes to.",
    "media": "Contents beside the messages.",
    "messages": "What was said and done; never changed.",
    "models": "Language models and their prices.",
    "search": "Words in everything that was said, done and claimed.",
    "server": "The server itself.",
    "sessions": "Conversations: opened, stopped, closed, resumed, forked, deleted.",
    "zones": "An agent's desk: what a page or a process left for a quick start, and its archives.",
}
_SECURITY: Final[Document] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token; the local one stands in the file `token` of Holdfast's folder.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "holdfast",
        "description": "The page's; changes and streams must come from the page itself.",
    },
}


def encode_document(routes: Sequence[Route], version: str) -> bytes:
    """Return the document of a version as JSON."""
    return encode_json(build_document(routes, version))


def build_document(routes: Sequence[Route], version: str) -> Document:
    """Return the document as plain values."""
    schemas = Schemas(routes)
    paths: dict[str, Document] = {}
    for route in routes:
        operation = _operation(route, routes, schemas)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": name, "description": schema_description}
            for name, schema_description in _TAGS.items()
        ],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "examples": error_examples(routes),
            "parameters": header_parameters(),
            "headers": header_components(),
            "securitySchemes": _SECURITY,
        },
    }


def _operation(route: Route, routes: Sequence[Route], schemas: Schemas) -> Document:
    operation: Document = {
        "operationId": route.name,
        "summary": route.summary,
        "tags": [_tag(route)],
        "parameters": parameters_of(route),
        "responses": responses_of(route, routes, schemas),
        "security": [] if route.needs is None else [{"bearer": []}, {"cookie": []}],
    }
    if route.description:
        operation["description"] = route.description
    if route.needs is not None:
        operation["x-scope"] = route.needs
    if route.body is not None:
        operation["requestBody"] = _body(route, schemas)
    return operation


def _body(route: Route, schemas: Schemas) -> Document:
    given = route.examples or ({"body": {}} if route.body_may_be_missing else {})
    examples = {name: {"value": value} for name, value in given.items()}
    content = {"schema": schemas.of(route.body), **({"examples": examples} if examples else {})}
    return {
        "required": not route.body_may_be_missing,
        "content": {"application/json": content},
    }


def _tag(route: Route) -> str:
    # A session's routes exist under two paths, and share one tag.
    noun = route.name.removeprefix("agents.") if route.path.count("/") > 4 else route.name
    first = noun.split(".")[0]
    return first if first in _TAGS else "server"
