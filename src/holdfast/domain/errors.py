"""Error classes and codes. The class defines what the caller can do, the code what happened.

    HoldfastError
    ├── Invalid        change the request
    ├── Denied         the caller is not allowed to
    ├── NotFound       the object does not exist
    ├── Conflict       not in the current state
    ├── LimitReached   wait, or free something
    ├── Unavailable    an external dependency failed
    ├── StorageFull    the disk is full
    └── Internal       a bug in Holdfast

One table per surface maps errors to an HTTP status or exit code, not this module.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Error codes: one closed list for every surface."""

    AGENT_ARCHIVED = "agent_archived"
    AGENT_INVALID = "agent_invalid"
    AGENT_IN_USE = "agent_in_use"
    AGENT_NOT_FOUND = "agent_not_found"
    AGENT_SYNTAX = "agent_syntax"
    AGENT_UNAVAILABLE = "agent_unavailable"
    ANSWER_LIMIT = "answer_limit"
    APPROVAL_CLOSED = "approval_closed"
    APPROVAL_NOT_FOUND = "approval_not_found"
    APPROVAL_WAITING = "approval_waiting"
    ARCHIVE_NOT_FOUND = "archive_not_found"
    BACKUP_INVALID = "backup_invalid"
    BACKUP_PLAIN = "backup_plain"
    BUDGET_EXCEEDED = "budget_exceeded"
    CALL_CLAIMED = "call_claimed"
    CALL_MISMATCH = "call_mismatch"
    CALL_NOT_FOUND = "call_not_found"
    CALL_NOT_OPEN = "call_not_open"
    CALL_UNKNOWN = "call_unknown"
    CHECKPOINT_NOT_FOUND = "checkpoint_not_found"
    CHILD_LIMIT = "child_limit"
    CHECKPOINT_NOT_SAVED = "checkpoint_not_saved"
    CONFIG_INVALID = "config_invalid"
    CONSENT_REQUIRED = "consent_required"
    CORRUPT_ROW = "corrupt_row"
    CORRUPT_STORE = "corrupt_store"
    CURSOR_AHEAD = "cursor_ahead"
    DURABILITY_EXIT = "durability_exit"
    ENTITY_NOT_FOUND = "entity_not_found"
    EVENT_NOT_FOUND = "event_not_found"
    EXTERNAL_RUNTIME = "external_runtime"
    FILE_EXISTS = "file_exists"
    FORBIDDEN = "forbidden"
    FOREIGN_ORIGIN = "foreign_origin"
    FRAMEWORK_VERSION = "framework_version"
    GRANT_EXCEEDED = "grant_exceeded"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    ID_REUSED = "id_reused"
    INTERNAL = "internal"
    INVALID_BODY = "invalid_body"
    INVALID_CONTEXT = "invalid_context"
    INVALID_CURSOR = "invalid_cursor"
    INVALID_DEFINITION_ID = "invalid_definition_id"
    INVALID_FILTER = "invalid_filter"
    INVALID_HOST = "invalid_host"
    INVALID_ID = "invalid_id"
    INVALID_INPUT = "invalid_input"
    INVALID_LIMIT = "invalid_limit"
    INVALID_QUERY = "invalid_query"
    INVALID_REQUEST = "invalid_request"
    INVALID_TEXT = "invalid_text"
    KEYCHAIN_UNAVAILABLE = "keychain_unavailable"
    KEY_NOT_FOUND = "key_not_found"
    LEASE_LOST = "lease_lost"
    MEDIA_NOT_FOUND = "media_not_found"
    MESSAGE_EMPTY = "message_empty"
    MESSAGE_ID_REUSED = "message_id_reused"
    MESSAGE_INVALID = "message_invalid"
    MESSAGE_NOT_FOUND = "message_not_found"
    MESSAGE_TOO_LARGE = "message_too_large"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    NOTHING_TO_COMPACT = "nothing_to_compact"
    NOTHING_WAITS = "nothing_waits"
    NOT_A_FILE = "not_a_file"
    NOT_A_FOLDER = "not_a_folder"
    NO_SESSION = "no_session"
    NOT_JSON = "not_json"
    NOT_LOOPBACK = "not_loopback"
    OUT_OF_MEMORY = "out_of_memory"
    OPTION_NOT_OFFERED = "option_not_offered"
    PATH_NOT_FOUND = "path_not_found"
    PORT_IN_USE = "port_in_use"
    RANGE_NOT_SATISFIABLE = "range_not_satisfiable"
    RATE_LIMITED = "rate_limited"
    REPLAY_MISMATCH = "replay_mismatch"
    REPO_INVALID = "repo_invalid"
    REPO_IN_USE = "repo_in_use"
    REPO_NOT_FOUND = "repo_not_found"
    REPO_OUTSIDE_ROOT = "repo_outside_root"
    REPEATED_ID = "repeated_id"
    REPO_REQUIRED = "repo_required"
    ROLE_NOT_ALLOWED = "role_not_allowed"
    SCHEMA_NEWER = "schema_newer"
    SCHEMA_OLDER = "schema_older"
    SCHEMA_VALIDATION_FAILED = "schema_validation_failed"
    SCRIPT_INVALID = "script_invalid"
    SECRET_INTERPOLATION = "secret_interpolation"
    SECRET_IN_FILE = "secret_in_file"
    SECRET_IN_VARIABLES = "secret_in_variables"
    SERVER_NOT_RUNNING = "server_not_running"
    SERVER_UNREACHABLE = "server_unreachable"
    SESSION_BUSY = "session_busy"
    SESSION_CLOSED = "session_closed"
    SESSION_FAILED = "session_failed"
    SESSION_HAS_CHILDREN = "session_has_children"
    SESSION_HAS_FORKS = "session_has_forks"
    SESSION_LIMIT = "session_limit"
    SESSION_NOT_ACTIVE = "session_not_active"
    SESSION_NOT_FOUND = "session_not_found"
    SESSION_RUNNING = "session_running"
    SIGN_IN_LIMIT = "sign_in_limit"
    SLOW_READER = "slow_reader"
    SLUG_TAKEN = "slug_taken"
    STALE_ETAG = "stale_etag"
    STORAGE_FULL = "storage_full"
    STORE_BUSY = "store_busy"
    STORE_CLOSED = "store_closed"
    STORE_FOREIGN = "store_foreign"
    STORE_IN_USE = "store_in_use"
    STORE_KEY_INVALID = "store_key_invalid"
    STORE_KEY_MISSING = "store_key_missing"
    STORE_KEY_WRONG = "store_key_wrong"
    STORE_NOT_EMPTY = "store_not_empty"
    STORE_POISONED = "store_poisoned"
    STORE_UNREACHABLE = "store_unreachable"
    STORE_UNSAFE = "store_unsafe"
    STORE_UNWRITABLE = "store_unwritable"
    SYSTEM_LIMIT = "system_limit"
    TOKEN_FILE_UNSAFE = "token_file_unsafe"
    TOKEN_NOT_FOUND = "token_not_found"
    TOOL_CHANGED = "tool_changed"
    TOOL_INVALID = "tool_invalid"
    TOOL_NAME_TAKEN = "tool_name_taken"
    TOO_LARGE = "too_large"
    TURN_ENDED = "turn_ended"
    TURN_ENTRY_LIMIT = "turn_entry_limit"
    TURN_NESTED = "turn_nested"
    TURN_NOT_RUNNING = "turn_not_running"
    TURN_RUNNING = "turn_running"
    TURN_WRONG_TASK = "turn_wrong_task"
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_ANSWER = "unknown_answer"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_TOOL = "unknown_tool"
    UNSUITABLE_FILE_SYSTEM = "unsuitable_file_system"
    WORKER_NOT_FOUND = "worker_not_found"
    WORKFLOW_INVALID = "workflow_invalid"
    WORKFLOW_NOT_RUNNABLE = "workflow_not_runnable"
    WORKFLOW_TOO_LARGE = "workflow_too_large"
    WORKSPACE_MISSING = "workspace_missing"
    WRONG_THREAD = "wrong_thread"
    WORKSPACE_ROOT_UNSET = "workspace_root_unset"
    YAML_INVALID = "yaml_invalid"
    ZONE_CHANGED = "zone_changed"
    ZONE_EXISTS = "zone_exists"
    ZONE_MOVE_INCOMPLETE = "zone_move_incomplete"


class HoldfastError(Exception):
    """The base class: an error with a code for programs and a message for people."""

    def __init__(self, code: Code, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = dict(details or {})

    def body(self) -> dict[str, Any]:
        """Return the error body that every surface sends."""
        return {"error": str(self.code), "message": self.message, "details": self.details}


class Invalid(HoldfastError):
    """The request is wrong in any state; change it."""


class Denied(HoldfastError):
    """The caller may not do this."""


class NotFound(HoldfastError):
    """The object does not exist, or it belongs to another owner."""


class Conflict(HoldfastError):
    """The request is valid, but not in the current state."""


class LimitReached(HoldfastError):
    """A limit is reached; wait, or free something."""


class Unavailable(HoldfastError):
    """An external dependency failed; the same request may work later."""


class StorageFull(HoldfastError):
    """The disk is full; nothing was changed."""


class Internal(HoldfastError):
    """A bug in Holdfast."""


def out_of_memory() -> Unavailable:
    """Return the error for a request that ran out of memory."""
    # The work may or may not be done, so a retry must reuse the id (idempotency).
    return Unavailable(
        Code.OUT_OF_MEMORY,
        "Out of memory. Repeat the request with the same id, or request less.",
    )
