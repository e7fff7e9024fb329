"""Messages: the record of a session, row by row, each chained to the one before by its hash.

This is the durable form. What a model is sent is another type (`ports`), made by the engine.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId, MessageId, ModelId, SessionId
from holdfast.domain.text import is_encodable, require_text


class Role(StrEnum):
    """Who speaks in a row, and in which form."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SYSTEM = "system"


class ResultStatus(StrEnum):
    """How a tool call came out."""

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    DENIED = "denied"


class NoticeCode(StrEnum):
    """What a notice tells; those in `CLOSING` end a turn and are never passed over."""

    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    TURN_LIMIT = "turn_limit"
    BUDGET = "budget"
    ERROR = "error"
    SESSION_CLOSED = "session_closed"
    CALL_SETTLED = "call_settled"
    UNKNOWN_VARIABLE = "unknown_variable"
    TOOL_UNAVAILABLE = "tool_unavailable"
    MCP_UNAVAILABLE = "mcp_unavailable"
    MEDIA_REFUSED = "media_refused"
    BUDGET_WARNING = "budget_warning"
    UNPRICED_MODEL = "unpriced_model"
    WORKSPACE_MOVED = "workspace_moved"
    WORKTREE_CHANGED = "worktree_changed"
    AGENT_FAILED = "agent_failed"
    AGENT_SILENT = "agent_silent"
    AGENT_RESTARTED = "agent_restarted"
    AGENT_OPTION_REFUSED = "agent_option_refused"
    AGENT_COMPACTED = "agent_compacted"
    INFORMATION = "information"


CLOSING: Final = frozenset(
    {
        NoticeCode.ABORTED,
        NoticeCode.INTERRUPTED,
        NoticeCode.TURN_LIMIT,
        NoticeCode.BUDGET,
        NoticeCode.ERROR,
    }
)


# Values made of JSON hold no cycles, so the collector need not watch the thousands of them.
class Text(Struct, frozen=True, kw_only=True, gc=False, tag="text"):
    """Words."""

    text: str


class Reasoning(Struct, frozen=True, kw_only=True, gc=False, tag="reasoning"):
    """What a model thought; it has no field for a provider's signature, so none can be stored."""

    text: str


class Media(Struct, frozen=True, kw_only=True, gc=False, tag="media"):
    """A handle to bytes in the content-addressed table, never the bytes."""

    mime_type: str
    ref: str
    name: str | None = None
    byte_length: int | None = None


class Location(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A file that a call is about, as the agent names it, and perhaps a line of it, from 1."""

    path: str
    line: int | None = None


# Left out where there is nothing to say: rows of our own loop stay as short as they were.
class ToolCall(Struct, frozen=True, kw_only=True, gc=False, tag="tool_call", omit_defaults=True):
    """What the agent asks to be done; somebody else's agent says more about it than its name."""

    id: CallId
    name: str
    arguments: dict[str, Any]
    title: str | None = None
    kind: str | None = None
    locations: tuple[Location, ...] = ()


class ToolError(Struct, frozen=True, kw_only=True, gc=False):
    """Why a call has no result."""

    code: str
    message: str


class ToolResult(Struct, frozen=True, kw_only=True, gc=False, tag="tool_result"):
    """What came of a call; every call has exactly one."""

    call_id: CallId
    name: str
    status: ResultStatus
    result: Any = None
    error: ToolError | None = None


class PlanStep(Struct, frozen=True, kw_only=True, gc=False):
    """One step of a plan."""

    text: str
    priority: str = "medium"
    status: str = "pending"


class Plan(Struct, frozen=True, kw_only=True, gc=False, tag="plan"):
    """What the agent means to do."""

    steps: tuple[PlanStep, ...]


class Notice(Struct, frozen=True, kw_only=True, gc=False, tag="notice"):
    """What Holdfast itself has to say in the record."""

    code: NoticeCode
    text: str


class Compaction(Struct, frozen=True, kw_only=True, gc=False, tag="compaction"):
    """A summary that stands for every row up to a sequence; the rows stay."""

    summary: str
    dropped_through: int


Part = Text | Reasoning | Media | ToolCall | ToolResult | Plan | Notice | Compaction

PARTS_OF: Final[Mapping[Role, tuple[type[Part], ...]]] = {
    Role.USER: (Text, Media),
    Role.ASSISTANT: (Text, Reasoning, Media),
    Role.TOOL_CALL: (ToolCall,),
    Role.TOOL_RESULT: (ToolResult,),
    Role.SYSTEM: (Text, Plan, Notice, Compaction),
}
_ALONE: Final = frozenset({Role.TOOL_CALL, Role.TOOL_RESULT})

TEXT_LARGEST: Final = 1 << 20
MEDIA_MOST: Final = 16
MEDIA_LARGEST: Final = 20 << 20
_NAME_LONGEST: Final = 255
_MIME_LONGEST: Final = 255
_MIME_TYPE: Final = re.compile(
    r"(?:image|audio|video)/[a-z0-9][a-z0-9.+-]*|application/pdf|text/plain"
)
# What the first row chains to: a chain has to begin somewhere, and this is nobody's hash.
CHAIN_START: Final = bytes(32)


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """One row of the record: append-only, numbered from 1, never edited."""

    id: MessageId
    session_id: SessionId
    sequence: int
    turn: int
    role: Role
    parts: tuple[Part, ...]
    model_id: ModelId | None = None
    created_at: datetime
    hash: str

    def __post_init__(self) -> None:
        require_parts(self.role, self.parts)

    @property
    def text(self) -> str:
        """Return the words of the row, without reasoning, calls and notices."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


def require_parts(role: Role, parts: tuple[Part, ...]) -> None:
    """Refuse parts that a row of this role cannot hold."""
    allowed = PARTS_OF[role]
    if len(parts) == 1 and isinstance(parts[0], allowed):
        return
    for part in parts:
        if not isinstance(part, allowed):
            raise Invalid(
                Code.MESSAGE_INVALID,
                f"A {role} message cannot hold a {part.__struct_config__.tag} part.",
                {"role": role},
            )
    # One call or one result to a row, so that each can be found, counted and settled by itself.
    if role in _ALONE and len(parts) != 1:
        raise Invalid(
            Code.MESSAGE_INVALID, f"A {role} message holds exactly one part.", {"role": role}
        )


def require_sendable(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts of a user's message, or refuse what is empty, too large or unclean."""
    require_parts(Role.USER, parts)
    texts = [part.text for part in parts if isinstance(part, Text)]
    pictures = len(parts) - len(texts)
    words = "".join(texts)
    if not pictures and not words.strip():
        raise Invalid(Code.MESSAGE_EMPTY, "The message is empty; say something.")
    if "\x00" in words or not is_encodable(words):
        raise Invalid(
            Code.INVALID_TEXT,
            "The message contains a NUL character or a lone surrogate; remove it.",
            {"field": "text"},
        )
    # Characters first: there is no need to encode what is too long already.
    if len(words) > TEXT_LARGEST or len(words.encode()) > TEXT_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "The text of a message may have 1 MiB at most.")
    if pictures > MEDIA_MOST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, f"A message may have {MEDIA_MOST} media at most.")
    for part in parts:
        if isinstance(part, Media):
            _require_media(part)
    return parts


def _require_media(media: Media) -> None:
    if media.name is not None:
        require_text(media.name, field="name", shortest=1, longest=_NAME_LONGEST)
    if not is_media_type(media.mime_type):
        raise Invalid(
            Code.MESSAGE_INVALID,
            "Media are image/*, audio/*, video/*, application/pdf or text/plain.",
            {"field": "mime_type"},
        )


def is_media_type(mime_type: str) -> bool:
    """Tell whether contents of this type can be kept and sent: a bare type, in small letters."""
    return len(mime_type) <= _MIME_LONGEST and _MIME_TYPE.fullmatch(mime_type) is not None


def media_handle(content: bytes) -> str:
    """Return the handle under which a content is kept."""
    return _HANDLE_START + hashlib.sha256(content).hexdigest()


def media_hash(handle: str) -> bytes | None:
    """Return the hash that a handle names; nothing when it is no handle."""
    found = _HANDLE.fullmatch(handle)
    return bytes.fromhex(found[1]) if found else None


_HANDLE_START: Final = "media://sha256-"
_HANDLE: Final = re.compile(rf"{_HANDLE_START}([0-9a-f]{{64}})")
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[Part, ...])


def encode_parts(parts: tuple[Part, ...]) -> bytes:
    """Return the stored bytes of a row's content."""
    return _encoder.encode(parts)


def decode_parts(stored: bytes) -> tuple[Part, ...]:
    """Return the parts that the stored bytes hold; raises `msgspec.ValidationError`."""
    return _decoder.decode(stored)


# What a hash is made of beside the content: id, sequence, turn, role, model, microseconds.
Columns = tuple[str, int, int, str, str | None, int]


def link(previous: bytes, columns: Columns, content: bytes) -> bytes:
    """Return the hash that chains a row to the one before it.

    Every stored column takes part, the hash itself and the session apart: a fork's first own
    row chains to the row it inherits, so one chain runs through both sessions.
    """
    id_, sequence, turn, role, model_id, at = columns
    text = f"{id_}|{sequence}|{turn}|{role}|{model_id or ''}|{at}|"
    return hashlib.sha256(previous + text.encode() + content).digest()
