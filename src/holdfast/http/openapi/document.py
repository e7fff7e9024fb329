"""The whole document: every operation, and the components they share."""

from collections.abc import Sequence
from typing import Final

from holdfast.http.answers import encoded
from holdfast.http.openapi.parameters import header_parameters, parameters_of
from holdfast.http.openapi.responses import header_components, refusal_examples, responses_of
from holdfast.http.openapi.schemas import Document, Schemas
from holdfast.http.table import Route

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
    "approvals": "Questions that wait for somebody.",
    "calls": "Calls of tools, and putting right what nobody knows the outcome of.",
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


def described(routes: Sequence[Route], version: str) -> bytes:
    """Return the document of a version."""
    return encoded(document_of(routes, version))


def document_of(routes: Sequence[Route], version: str) -> Document:
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
        "tags": [{"name": name, "description": told} for name, told in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "examples": refusal_examples(routes),
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
    # A session's routes stand under both of its paths, and belong together.
    noun = route.name.removeprefix("agents.") if route.path.count("/") > 4 else route.name
    first = noun.split(".")[0]
    return first if first in _TAGS else "server"
