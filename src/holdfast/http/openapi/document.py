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
    "approval_id": ("The approval's id.", _UUID),
    "call_id": (
        "The call's id, as given by the model or by the recorded message.",
        {"type": "string", "minLength": 1, "maxLength": 255},
    ),
    "checkpoint": (
        "The checkpoint's name.",
        {"type": "string", "minLength": 1, "maxLength": 512},
    ),
    "definition_id": (
        "The definition id of the active zone: an agent's id or slug, or another id of these "
        "characters.",
        {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
    ),
    "hash": (
        "The SHA-256 of the content, with or without the prefix `sha256-`.",
        {"type": "string", "pattern": "^(?:sha256-)?[0-9a-f]{64}$"},
    ),
    "id": ("The id.", _UUID),
    "message_id": ("The message's id.", _UUID),
    "model_id": (
        "The model's id, or its `provider:name`.",
        {"type": "string", "minLength": 1, "maxLength": 511},
    ),
    "ms": (
        "The archive time, in Unix milliseconds.",
        {"type": "string", "pattern": "^(?:0|[1-9][0-9]{0,18})$"},
    ),
    "name": (
        "The file's name.",
        {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
    ),
    "place": (
        "The id in the path of a UI page; the web UI resolves it.",
        {"type": "string", "minLength": 1},
    ),
    "session_id": ("The session's id.", _UUID),
    "worker_id": ("The worker's id.", _UUID),
    "session_key": (
        "The session's id as it was submitted, or the id of a session that Holdfast hosts.",
        {"type": "string", "minLength": 5, "maxLength": 512},
    ),
}
HEADERS: Final[Mapping[str, Document]] = {
    "Idempotency-Key": {
        "description": (
            "Makes the request idempotent: the key is the `id` of the new resource. A repeat "
            "with the same body returns the existing resource; a repeat with another body is "
            "409."
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
        "description": "Return 304 without a body if the resource still has this `ETag`.",
        "schema": {"type": "string"},
        "example": "*",
    },
    "Last-Event-ID": {
        "description": (
            "Start after this event: its sequence number, its id, or `now`. Takes precedence "
            "over `since`, because a browser reconnects with the original URL."
        ),
        "schema": {
            "type": "string",
            "pattern": "^(?:[0-9]{1,18}|now|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})?$",
        },
    },
    "Range": {
        "description": "Return 206 with one byte range; a header with several ranges is ignored.",
        "schema": {"type": "string"},
    },
    "X-Request-Id": {
        "description": (
            "A request id, repeated in the response and in the log; replaced unless it "
            "consists of 1 to 64 letters, digits, `.`, `_` and `-`."
        ),
        "schema": {"type": "string"},
    },
}
# Idempotency keys of observations are chosen by the client and need not be ids.
_KEY: Final[Document] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same as `idempotency_key`; if both are sent, they must be equal.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}


def parameters_of(route: Route) -> list[Document]:
    """Return all parameters of a route."""
    return [*_path_parameters(route), *_query_parameters(route), *_header_parameters(route)]


def header_parameters() -> Document:
    """Return the parameter components that operations refer to."""
    return {
        name: {"name": name, "in": "header", "required": False, **header}
        for name, header in HEADERS.items()
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
    about = {"description": schema.pop("description")} if "description" in schema else {}
    return {"name": name, "in": "query", "required": is_required, "schema": schema, **about}


def _header_parameters(route: Route) -> list[Document]:
    names = ["X-Request-Id"]
    if 304 in route.responses:
        names.append("If-None-Match")
    if 206 in route.responses:
        names.append("Range")
    if Code.STALE_ETAG in route.errors:
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
    kinds = getattr(route.body, "__args__", (route.body,))
    return not route.tolerant and all("id" in _names(kind) for kind in kinds)


def _names(kind: Any) -> tuple[str, ...]:
    return getattr(kind, "__struct_fields__", ())


_ABOUT: Final = (
    "The durable session layer for AI agents. Every route except `GET /healthz` requires "
    "`Authorization: Bearer …`. Every error is `{error, message, details}`. An unsupported "
    "method is 405 with `Allow`; HEAD is GET without a body. JSON is parsed strictly: no "
    "duplicate keys, no NUL in strings, no number beyond 64 bits, integers without a decimal "
    "point, at most 8 MiB and 100 levels deep."
)
_TAGS: Final = {
    "agents": "Agents: a system prompt, models, tools and access rights.",
    "api": "Sessions that are bound to a repository, in camelCase.",
    "approvals": "Tool calls that wait for an approval.",
    "calls": "Tool calls, and settling those with an unknown outcome.",
    "costs": "Token usage and costs.",
    "events": "Events of a session, as a stream or page by page.",
    "history": (
        "Observed history: what agents report about their sessions, wherever they ran, and the "
        "merged result."
    ),
    "media": "Content that messages refer to.",
    "messages": "The messages of a session; they are never changed.",
    "models": "Language models and their prices.",
    "search": "Full-text search over messages, tool calls, titles and observations.",
    "server": "The server itself.",
    "sessions": "Conversations: opened, stopped, closed, resumed, forked, deleted.",
    "zones": "Active zones of agents, with state and output for a quick start, and their archives.",
}
_SECURITY: Final[Document] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A bearer token; the local one is in the file `token` of Holdfast's folder.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": "holdfast",
        "description": (
            "The session cookie of the web UI; changes and streams must come from the web UI "
            "itself."
        ),
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
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
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


# Types of uploaded content.
_UPLOADS: Final = ("image/*", "audio/*", "video/*", "application/pdf", "text/plain")


def _body(route: Route, schemas: Schemas) -> Document:
    if route.body is bytes:
        whole = {"schema": {"type": "string", "format": "binary"}}
        return {"required": True, "content": dict.fromkeys(_UPLOADS, whole)}
    content: Document = {"schema": schemas.of(route.body)}
    if route.example is not None or route.body_may_be_missing:
        content["examples"] = {"body": {"value": route.example or {}}}
    return {
        "required": not route.body_may_be_missing,
        "content": {"application/json": content},
    }


def _tag(route: Route) -> str:
    # A session's routes exist under two paths, and share one tag.
    noun = route.name.removeprefix("agents.") if route.path.count("/") > 4 else route.name
    first = noun.split(".")[0]
    return first if first in _TAGS else "server"
