"""What a route can answer: each status with its headers, its body, and where it leads."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.errors import Code
from holdfast.http.openapi.links import links_of
from holdfast.http.openapi.schemas import Document, ErrorForm, Schemas, alternatives
from holdfast.http.openapi.statuses import MEANINGS, status_of
from holdfast.http.table import Route

_TEXT: Final[Document] = {"type": "string"}

_FRAME: Final[Document] = {
    "type": "object",
    "description": "One frame of the stream; frames about the stream itself have no `id`.",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "retry": {"type": "integer", "minimum": 0},
    },
    "required": ["event", "data"],
}

# Every header that an answer may have: what it says, and its form.
HEADERS: Final[Mapping[str, Document]] = {
    "Allow": {"description": "The methods that the path takes.", "schema": _TEXT},
    "Cache-Control": {
        "description": "Nothing here is kept by anything in between.",
        "schema": {"type": "string", "pattern": "^no-"},
    },
    "Content-Range": {
        "description": "Which bytes these are, and of how many.",
        "schema": {"type": "string", "pattern": "^bytes [0-9]+-[0-9]+/[0-9]+$"},
    },
    "Content-Disposition": {"description": "How the file is called.", "schema": _TEXT},
    "ETag": {
        "description": "Changes whenever a byte of the resource would.",
        "schema": {"type": "string", "pattern": '^"[0-9a-f]{32}(?:-gzip)?"$'},
    },
    "Idempotency-Replayed": {
        "description": "The request was a repeat, and nothing was made anew.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {"description": "Where it is.", "schema": {"type": "string", "pattern": "^/"}},
    "Retry-After": {
        "description": "How many seconds to wait, where that is known.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Set-Cookie": {"description": "The page's cookie.", "schema": _TEXT},
    "WWW-Authenticate": {
        "description": "How to say who you are.",
        "schema": {"type": "string", "enum": ["Bearer"]},
    },
    "X-Next-After": {
        "description": "More rows wait: the number to go on after.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "X-Request-Id": {
        "description": "The name of the request in the log.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,80}$"},
    },
}
# Those that some answers of a status have and others have not.
_SOMETIMES: Final = frozenset({"Retry-After", "X-Next-After"})
_ALWAYS: Final = ("cache-control", "x-request-id")
_OF_REFUSALS: Final[Mapping[int, tuple[str, ...]]] = {
    401: ("www-authenticate",),
    405: ("allow",),
    429: ("retry-after",),
    503: ("retry-after",),
}


def header_components() -> Document:
    """Return the components that answers refer to."""
    return {name: {**told, "required": name not in _SOMETIMES} for name, told in HEADERS.items()}


def responses_of(route: Route, routes: Sequence[Route], schemas: Schemas) -> Document:
    """Return every answer that a route can give."""
    answers: dict[int, Document] = {}
    for status, kind in route.gives.items():
        answers[status] = _given(route, status, kind, schemas)
        if links := links_of(route, status, routes):
            answers[status]["links"] = links
    for status, codes in refusals_of(route).items():
        refused = _refused(status, codes, schemas)
        kinds = alternatives(route.gives.get(status))
        if ErrorForm in kinds:
            # It refuses in its own words, too.
            refused["content"]["application/json"]["schema"] = schemas.of(kinds)
            answers[status] = refused
        # Health has a body of its own for being unwell.
        answers.setdefault(status, refused)
    return {str(status): answers[status] for status in sorted(answers)}


def _given(route: Route, status: int, kind: Any, schemas: Schemas) -> Document:
    answer: Document = {
        "description": MEANINGS[status],
        "headers": _references(route.tells.get(status, ())),
    }
    if kind is None:
        return answer
    content: Document = {}
    for media_type in (route.media_type, *route.kinds):
        is_text = media_type != "application/json"
        content[media_type] = {"schema": _text_of(kind) if is_text else schemas.of(kind)}
    if route.is_stream:
        content["text/event-stream"] = {"schema": _FRAME}
    return {**answer, "content": content}


def _text_of(kind: Any) -> Document:
    # Bytes have no JSON, and so in this version no type either.
    return {} if kind is bytes else _TEXT


def _refused(status: int, codes: Sequence[Code], schemas: Schemas) -> Document:
    told = ", ".join(f"`{code}`" for code in codes)
    examples = {str(code): {"$ref": f"#/components/examples/{code}"} for code in codes}
    return {
        "description": f"{MEANINGS[status]} Codes: {told}.",
        "headers": _references(_OF_REFUSALS.get(status, ())),
        "content": {"application/json": {"schema": schemas.of(ErrorForm), "examples": examples}},
    }


def refusal_examples(routes: Sequence[Route]) -> Document:
    """Return one example of every error that a table can answer with."""
    codes = {
        code: status
        for route in routes
        for status, told in refusals_of(route).items()
        for code in told
    }
    return {
        str(code): {"value": {"error": str(code), "message": MEANINGS[codes[code]], "details": {}}}
        for code in sorted(codes)
    }


def _references(names: Sequence[str]) -> Document:
    wanted = {*_ALWAYS, *names}
    return {
        name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS if name.lower() in wanted
    }


def refusals_of(route: Route) -> dict[int, list[Code]]:
    """Return every status of failure that the route can answer with, and its codes."""
    codes = {Code.INVALID_HOST, Code.INVALID_QUERY, Code.INTERNAL, Code.METHOD_NOT_ALLOWED}
    codes |= {Code.STORE_BUSY, Code.STORAGE_FULL, *route.refuses}
    if route.needs is not None:
        codes |= {Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.FOREIGN_ORIGIN}
    if route.needs is not None and not route.changes and not route.is_stream:
        codes |= {Code.ANSWER_LIMIT}
    if route.body is not None:
        codes |= {Code.INVALID_BODY, Code.INVALID_TEXT}
    found: dict[int, list[Code]] = {}
    for code in sorted(codes):
        found.setdefault(status_of(route, code), []).append(code)
    return found
