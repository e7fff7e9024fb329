"""Which status tells which code, and what each status means to whoever reads it."""

from collections.abc import Mapping
from typing import Final

from holdfast.domain.errors import Code
from holdfast.http.table import Route

MEANINGS: Final[Mapping[int, str]] = {
    200: "It is so.",
    201: "It was made.",
    202: "It was heard, and is being done.",
    204: "It is done; there is nothing more to say.",
    206: "A part of it.",
    303: "Go there.",
    304: "It is still as you have it.",
    400: "Change the request.",
    401: "Say who you are.",
    403: "You may not.",
    404: "There is no such thing.",
    405: "The path takes other methods.",
    409: "Not in this state.",
    416: "There is no such part of it.",
    429: "Wait, or free something.",
    500: "Our fault.",
    503: "Something outside failed; try again later.",
    507: "The disk refuses.",
}

# What a body names and nobody has is a fault of the body; in a path it is simply not there.
NAMED_IN_BODIES: Final = frozenset({Code.MEDIA_NOT_FOUND, Code.MODEL_NOT_FOUND})

# Which status tells which code; `tests/http` holds it against what is raised.
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
    Code.TOO_LARGE: 400,
    Code.TURN_RUNNING: 409,
    Code.UNAUTHENTICATED: 401,
    Code.UNKNOWN_MODEL: 400,
    Code.UNKNOWN_TOOL: 400,
    Code.WORKFLOW_TOO_LARGE: 400,
    Code.WORKSPACE_MISSING: 409,
    Code.WORKSPACE_ROOT_UNSET: 403,
    Code.ZONE_CHANGED: 409,
}


def status_of(route: Route, code: Code) -> int:
    """Return the status by which a route tells a code."""
    is_named = code in NAMED_IN_BODIES and route.body is not None
    return 400 if is_named else STATUS_OF[code]
