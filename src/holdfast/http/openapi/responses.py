"""OpenAPI responses of a route: each status with its headers, body, links and error examples."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.errors import Code
from holdfast.http.openapi.schemas import Document, Schemas, alternatives
from holdfast.http.routing import Route
from holdfast.wire.agents import AgentForm, AgentList
from holdfast.wire.errors import ErrorForm
from holdfast.wire.messages import MessageForm
from holdfast.wire.models import ModelForm
from holdfast.wire.repo_sessions import AgentSession, RepoForm
from holdfast.wire.sessions import SessionForm, SessionList

STATUS_DESCRIPTIONS: Final[Mapping[int, str]] = {
    200: "Success.",
    201: "Created.",
    202: "Accepted; processing continues after the response.",
    204: "Success, without a body.",
    206: "The requested byte range.",
    303: "Redirect to `Location`.",
    304: "Not modified: the client has the current version.",
    400: "The request is invalid.",
    401: "Authentication is missing or invalid.",
    403: "The caller is not permitted to do this.",
    404: "The resource does not exist.",
    405: "The path does not support this method.",
    409: "Conflict with the current state of the resource.",
    416: "The byte range lies outside the file.",
    429: "A limit is reached; retry later, or free resources.",
    500: "Internal server error.",
    503: "A required service is unavailable; retry later.",
    507: "The storage is full or not writable.",
}
# An unknown name in a body makes the body invalid (400); in a path it is not found (404).
NAMED_IN_BODIES: Final = frozenset({Code.MEDIA_NOT_FOUND, Code.MODEL_NOT_FOUND})
# The status of each code; `tests/http` compares it with what is raised.
STATUS_OF: Final[Mapping[Code, int]] = {
    Code.AGENT_ARCHIVED: 409,
    Code.AGENT_INVALID: 400,
    Code.AGENT_IN_USE: 409,
    Code.AGENT_NOT_FOUND: 404,
    Code.AGENT_UNAVAILABLE: 503,
    Code.ANSWER_LIMIT: 429,
    Code.APPROVAL_CLOSED: 409,
    Code.APPROVAL_NOT_FOUND: 404,
    Code.ARCHIVE_NOT_FOUND: 404,
    Code.CALL_CLAIMED: 409,
    Code.CALL_NOT_FOUND: 404,
    Code.CALL_NOT_OPEN: 409,
    Code.CHECKPOINT_NOT_FOUND: 404,
    Code.CURSOR_AHEAD: 409,
    Code.ENTITY_NOT_FOUND: 404,
    Code.EVENT_NOT_FOUND: 404,
    Code.FORBIDDEN: 403,
    Code.FOREIGN_ORIGIN: 403,
    Code.GRANT_EXCEEDED: 403,
    Code.IDEMPOTENCY_MISMATCH: 409,
    Code.ID_REUSED: 409,
    Code.CHILD_LIMIT: 429,
    Code.INTERNAL: 500,
    Code.INVALID_BODY: 400,
    Code.INVALID_CONTEXT: 400,
    Code.INVALID_CURSOR: 400,
    Code.INVALID_DEFINITION_ID: 400,
    Code.INVALID_HOST: 400,
    Code.INVALID_ID: 400,
    Code.INVALID_INPUT: 400,
    Code.INVALID_LIMIT: 400,
    Code.INVALID_QUERY: 400,
    Code.INVALID_TEXT: 400,
    Code.LEASE_LOST: 409,
    Code.MEDIA_NOT_FOUND: 404,
    Code.MESSAGE_EMPTY: 400,
    Code.MESSAGE_ID_REUSED: 409,
    Code.MESSAGE_INVALID: 400,
    Code.MESSAGE_NOT_FOUND: 404,
    Code.MESSAGE_TOO_LARGE: 400,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.MODEL_NOT_FOUND: 404,
    Code.OPTION_NOT_OFFERED: 409,
    Code.PATH_NOT_FOUND: 404,
    Code.RANGE_NOT_SATISFIABLE: 416,
    Code.RATE_LIMITED: 429,
    Code.REPO_INVALID: 400,
    Code.REPO_IN_USE: 409,
    Code.REPO_NOT_FOUND: 404,
    Code.REPO_OUTSIDE_ROOT: 403,
    Code.REPO_REQUIRED: 400,
    Code.ROLE_NOT_ALLOWED: 400,
    Code.SCHEMA_VALIDATION_FAILED: 400,
    Code.SECRET_IN_VARIABLES: 400,
    Code.SESSION_CLOSED: 409,
    Code.SESSION_FAILED: 409,
    Code.SESSION_HAS_CHILDREN: 409,
    Code.SESSION_HAS_FORKS: 409,
    Code.SESSION_LIMIT: 429,
    Code.SESSION_NOT_ACTIVE: 409,
    Code.SESSION_NOT_FOUND: 404,
    Code.SESSION_RUNNING: 409,
    Code.SIGN_IN_LIMIT: 429,
    Code.SLUG_TAKEN: 409,
    Code.STALE_ETAG: 409,
    Code.STORAGE_FULL: 507,
    Code.STORE_BUSY: 503,
    Code.TOKEN_NOT_FOUND: 404,
    Code.TOOL_CHANGED: 409,
    Code.TOOL_INVALID: 400,
    Code.TOOL_NAME_TAKEN: 400,
    Code.TOO_LARGE: 400,
    Code.TURN_RUNNING: 409,
    Code.UNAUTHENTICATED: 401,
    Code.UNKNOWN_MODEL: 400,
    Code.UNKNOWN_TOOL: 400,
    Code.WORKER_NOT_FOUND: 404,
    Code.WORKFLOW_TOO_LARGE: 400,
    Code.WORKSPACE_MISSING: 409,
    Code.WORKSPACE_ROOT_UNSET: 403,
    Code.ZONE_CHANGED: 409,
}


def status_of_code(route: Route, code: Code) -> int:
    """Return the status with which a route reports a code."""
    is_named = code in NAMED_IN_BODIES and route.body is not None
    return 400 if is_named else STATUS_OF[code]


API_REPOS: Final = "/api/repos"
API_SESSIONS: Final = "/api/sessions"
# By type: the placeholders it provides, and the JSON pointers to their values.
LINK_SOURCES: Final[Mapping[Any, Mapping[str, str]]] = {
    AgentForm: {"agent_id": "/id"},
    AgentList: {"agent_id": "/data/0/id"},
    AgentSession: {"id": "/id"},
    MessageForm: {"message_id": "/id", "session_id": "/session_id"},
    ModelForm: {"model_id": "/id"},
    RepoForm: {"id": "/id"},
    SessionForm: {"agent_id": "/agent_id", "session_id": "/id"},
    SessionList: {"agent_id": "/data/0/agent_id", "session_id": "/data/0/id"},
}
_LISTS: Final = frozenset({AgentList, SessionList})
# Where one placeholder name is used for two types, the path decides which one is meant.
_PARENT_PATHS: Final[Mapping[Any, str]] = {AgentSession: API_SESSIONS, RepoForm: API_REPOS}


def links_of(route: Route, status: int, routes: Sequence[Route]) -> Document:
    """Return the OpenAPI links: requests that are possible with values of a response."""
    kind = route.responses[status]
    places = LINK_SOURCES.get(kind) if isinstance(kind, type) else None
    # Only for responses that create or list: a client that reads one resource has its id already.
    if places is None or not (status == 201 or kind in _LISTS):
        return {}
    found = {
        other.name: {
            "operationId": other.name,
            "parameters": {name: f"$response.body#{places[name]}" for name in placeholders(other)},
        }
        for other in routes
        if other.name != route.name and _is_reached(other, kind, places)
    }
    if kind is RepoForm:
        found["api.sessions.open"] = {
            "operationId": "api.sessions.open",
            "requestBody": {"repoId": "$response.body#/id"},
        }
    return found


def placeholders(route: Route) -> list[str]:
    """Return the names of a route's placeholders."""
    return [part[1:-1] for part in route.path.split("/") if part.startswith("{")]


def _is_reached(other: Route, kind: Any, places: Mapping[str, str]) -> bool:
    names = placeholders(other)
    return (
        bool(names)
        and set(names) <= set(places)
        and other.path.startswith(_PARENT_PATHS.get(kind, "/v1/"))
    )


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
# Every header that a response may have: its description and schema.
HEADERS: Final[Mapping[str, Document]] = {
    "Allow": {"description": "The methods that the path supports.", "schema": _TEXT},
    "Cache-Control": {
        "description": "Responses must not be cached.",
        "schema": {"type": "string", "pattern": "^no-"},
    },
    "Content-Range": {
        "description": "The byte range of the body, and the total size.",
        "schema": {"type": "string", "pattern": "^bytes [0-9]+-[0-9]+/[0-9]+$"},
    },
    "Content-Disposition": {"description": "The file name.", "schema": _TEXT},
    "ETag": {
        "description": "Changes with every change of the resource.",
        "schema": {"type": "string", "pattern": '^"[0-9a-f]{32}(?:-gzip)?"$'},
    },
    "Idempotency-Replayed": {
        "description": "The request was a repeat; nothing was created.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "Location": {
        "description": "The URL of the resource.",
        "schema": {"type": "string", "pattern": "^/"},
    },
    "Retry-After": {
        "description": "Seconds to wait before a retry, if known.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Set-Cookie": {"description": "The session cookie of the web UI.", "schema": _TEXT},
    "WWW-Authenticate": {
        "description": "The required authentication scheme.",
        "schema": {"type": "string", "enum": ["Bearer"]},
    },
    "X-Next-After": {
        "description": "There are more rows; the sequence number to continue after.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "X-Request-Id": {
        "description": "The id of the request in the log.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,80}$"},
    },
}
# Headers that only some responses of a status have.
_SOMETIMES: Final = frozenset({"Retry-After", "X-Next-After"})
_ALWAYS: Final = ("cache-control", "x-request-id")
_ERROR_HEADERS: Final[Mapping[int, tuple[str, ...]]] = {
    401: ("www-authenticate",),
    405: ("allow",),
    429: ("retry-after",),
    503: ("retry-after",),
}


def header_components() -> Document:
    """Return the header components that responses refer to."""
    return {name: {**each, "required": name not in _SOMETIMES} for name, each in HEADERS.items()}


def responses_of(route: Route, routes: Sequence[Route], schemas: Schemas) -> Document:
    """Return every response that a route can give."""
    answers: dict[int, Document] = {}
    for status, kind in route.responses.items():
        answers[status] = _success_response(route, status, kind, schemas)
        if links := links_of(route, status, routes):
            answers[status]["links"] = links
    for status, codes in errors_of(route).items():
        refused = _error_response(status, codes, schemas)
        kinds = alternatives(route.responses.get(status))
        if ErrorForm in kinds:
            # The route has its own error format, too.
            refused["content"]["application/json"]["schema"] = schemas.of(kinds)
            answers[status] = refused
        # The health route has its own body for status 503.
        answers.setdefault(status, refused)
    return {str(status): answers[status] for status in sorted(answers)}


def _success_response(route: Route, status: int, kind: Any, schemas: Schemas) -> Document:
    answer: Document = {
        "description": STATUS_DESCRIPTIONS[status],
        "headers": _references(route.response_headers.get(status, ())),
    }
    if kind is None:
        return answer
    content: Document = {}
    for media_type in (route.media_type, *route.other_media_types):
        is_text = media_type != "application/json"
        content[media_type] = {"schema": _text_of(kind) if is_text else schemas.of(kind)}
    if route.is_stream:
        content["text/event-stream"] = {"schema": _FRAME}
    return {**answer, "content": content}


def _text_of(kind: Any) -> Document:
    # Bytes are not JSON, so OpenAPI 3.1 has no schema for them.
    return {} if kind is bytes else _TEXT


def _error_response(status: int, codes: Sequence[Code], schemas: Schemas) -> Document:
    code_list = ", ".join(f"`{code}`" for code in codes)
    examples = {str(code): {"$ref": f"#/components/examples/{code}"} for code in codes}
    return {
        "description": f"{STATUS_DESCRIPTIONS[status]} Codes: {code_list}.",
        "headers": _references(_ERROR_HEADERS.get(status, ())),
        "content": {"application/json": {"schema": schemas.of(ErrorForm), "examples": examples}},
    }


def error_examples(routes: Sequence[Route]) -> Document:
    """Return one example of every error that the routes can return."""
    codes = {
        code: status
        for route in routes
        for status, code_list in errors_of(route).items()
        for code in code_list
    }
    return {
        str(code): {
            "value": {
                "error": str(code),
                "message": STATUS_DESCRIPTIONS[codes[code]],
                "details": {},
            }
        }
        for code in sorted(codes)
    }


def _references(names: Sequence[str]) -> Document:
    wanted = {*_ALWAYS, *names}
    return {
        name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS if name.lower() in wanted
    }


# What is reported if the value of a placeholder names nothing.
_PLACEHOLDER_CODES: Final[Mapping[str, Code]] = {
    "agent_id": Code.AGENT_NOT_FOUND,
    "approval_id": Code.APPROVAL_NOT_FOUND,
    "call_id": Code.CALL_NOT_FOUND,
    "definition_id": Code.INVALID_DEFINITION_ID,
    "hash": Code.MEDIA_NOT_FOUND,
    "message_id": Code.MESSAGE_NOT_FOUND,
    "model_id": Code.MODEL_NOT_FOUND,
    "ms": Code.ARCHIVE_NOT_FOUND,
    "session_id": Code.SESSION_NOT_FOUND,
    "session_key": Code.ENTITY_NOT_FOUND,
}


def errors_of(route: Route) -> dict[int, list[Code]]:
    """Return every error status that the route can return, with its codes."""
    codes = {Code.INVALID_HOST, Code.INVALID_QUERY, Code.INTERNAL, Code.METHOD_NOT_ALLOWED}
    codes |= {Code.STORE_BUSY, Code.STORAGE_FULL, *route.errors}
    if route.needs is not None:
        codes |= {Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.FOREIGN_ORIGIN}
    if route.needs is not None and not route.changes and not route.is_stream:
        codes |= {Code.ANSWER_LIMIT}
    if route.body is not None:
        codes |= {Code.INVALID_BODY, Code.INVALID_TEXT}
    codes |= {code for name, code in _PLACEHOLDER_CODES.items() if name in placeholders(route)}
    found: dict[int, list[Code]] = {}
    for code in sorted(codes):
        found.setdefault(status_of_code(route, code), []).append(code)
    return found
