"""Messages: the rows of a session, each linked to the previous one by a hash chain.

This is the durable form. The messages sent to a model are another type (`ports`), built by the
engine.
"""

import hashlib
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId, MessageId, ModelId, SessionId
from holdfast.domain.text import is_encodable, require_text, wrong_type
from holdfast.domain.time import instant


class Role(StrEnum):
    """The author and form of a row."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SYSTEM = "system"


class ResultStatus(StrEnum):
    """The outcome of a tool call."""

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
    DENIED = "denied"


class NoticeCode(StrEnum):
    """What a notice reports; those in `CLOSING_NOTICES` end a turn and are always shown."""

    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    TURN_LIMIT = "turn_limit"
    BUDGET = "budget"
    ERROR = "error"
    SESSION_CLOSED = "session_closed"
    CALL_SETTLED = "call_settled"
    UNKNOWN_VARIABLE = "unknown_variable"
    TOOL_UNAVAILABLE = "tool_unavailable"
    TOOLS_CHANGED = "tools_changed"
    MCP_UNAVAILABLE = "mcp_unavailable"
    MEDIA_REFUSED = "media_refused"
    OUTPUT_INVALID = "output_invalid"
    BUDGET_WARNING = "budget_warning"
    UNPRICED_MODEL = "unpriced_model"
    WORKSPACE_MOVED = "workspace_moved"
    WORKTREE_CHANGED = "worktree_changed"
    AGENT_FAILED = "agent_failed"
    AGENT_SILENT = "agent_silent"
    AGENT_RESTARTED = "agent_restarted"
    AGENT_OPTION_REFUSED = "agent_option_refused"
    AGENT_COMPACTED = "agent_compacted"
    REPLAY_LEFTOVER = "replay_leftover"
    LATE_RESULT = "late_result"
    INSTRUCTIONS = "instructions"
    HARNESS = "harness"
    RESTORED = "restored"
    INFORMATION = "information"


CLOSING_NOTICES: Final = frozenset(
    {
        NoticeCode.ABORTED,
        NoticeCode.INTERRUPTED,
        NoticeCode.TURN_LIMIT,
        NoticeCode.BUDGET,
        NoticeCode.ERROR,
    }
)


# gc=False, because these JSON values hold no cycles and there are thousands of them.
class Text(Struct, frozen=True, kw_only=True, gc=False, tag="text"):
    """Text."""

    text: str


class Reasoning(Struct, frozen=True, kw_only=True, gc=False, tag="reasoning"):
    """A model's reasoning; there is no field for a provider's signature, so none can be stored."""

    text: str


class Media(Struct, frozen=True, kw_only=True, gc=False, tag="media"):
    """A handle to bytes in the content-addressed table, never the bytes."""

    mime_type: str
    ref: str
    name: str | None = None
    byte_length: int | None = None


class Location(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A file that a call affects, as the agent names it, and optionally a line number from 1."""

    path: str
    line: int | None = None


# Defaults are omitted, so that rows of the built-in loop stay short.
class ToolCall(Struct, frozen=True, kw_only=True, gc=False, tag="tool_call", omit_defaults=True):
    """A requested tool call; external agents add a title, a kind and locations."""

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
    """The result of a call; every call has exactly one."""

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
    """The agent's plan."""

    steps: tuple[PlanStep, ...]


class Notice(Struct, frozen=True, kw_only=True, gc=False, tag="notice"):
    """A notice that Holdfast writes itself."""

    code: NoticeCode
    text: str


class Compaction(Struct, frozen=True, kw_only=True, gc=False, tag="compaction"):
    """A summary of every row up to a sequence; the rows are not deleted."""

    summary: str
    dropped_through: int


class Withdrawn(Struct, frozen=True, kw_only=True, gc=False, tag="withdrawn"):
    """Messages that a framework removed from its history, and why; they stay in the record."""

    message_ids: tuple[MessageId, ...]
    reason: str


class Output(Struct, frozen=True, kw_only=True, gc=False, tag="output"):
    """The value of an answer that matches its agent's output schema; the text is beside it."""

    value: Any


class Step(Struct, frozen=True, kw_only=True, gc=False, tag="step", omit_defaults=True):
    """A step of a turn that a Python function ran, recorded after it ended; no model sees it.

    `position` is its place in the turn, `digest` covers its arguments.
    """

    position: str
    name: str
    digest: str = ""
    status: ResultStatus = ResultStatus.OK
    result: Any = None
    error: ToolError | None = None
    milliseconds: int = 0


Part = (
    Text
    | Reasoning
    | Media
    | Output
    | ToolCall
    | ToolResult
    | Plan
    | Notice
    | Compaction
    | Step
    | Withdrawn
)
_PARTS: Final = get_args(Part)


def describe_withdrawal(part: Withdrawn) -> str:
    """Return a sentence that says what was withdrawn."""
    count = len(part.message_ids)
    what = "1 message was" if count == 1 else f"{count:,} messages were"
    return f"{what} withdrawn from the history ({part.reason})."


def require_content(value: Any) -> str | tuple[Part, ...]:
    """Return the content if it is a string or a tuple of parts; anything else is refused."""
    if isinstance(value, str):
        # Converted to a plain str, because a subclass such as a StrEnum cannot be stored.
        return str.__str__(value)
    if isinstance(value, tuple) and all(isinstance(each, _PARTS) for each in value):
        return value
    rule = "content must be a str, or a tuple of parts"
    raise wrong_type(value, field="content", rule=rule)


PARTS_OF: Final[Mapping[Role, tuple[type[Part], ...]]] = {
    Role.USER: (Text, Media),
    Role.ASSISTANT: (Text, Reasoning, Media, Output),
    Role.TOOL_CALL: (ToolCall,),
    Role.TOOL_RESULT: (ToolResult,),
    Role.SYSTEM: (Text, Plan, Notice, Compaction, Step, Withdrawn),
}
_ALONE: Final = frozenset({Role.TOOL_CALL, Role.TOOL_RESULT})

TEXT_LARGEST: Final = 1 << 20
MEDIA_MOST: Final = 16
MEDIA_LARGEST: Final = 20 << 20
CONTENT_LARGEST: Final = 32 << 20
_NAME_LONGEST: Final = 255
_MIME_LONGEST: Final = 255
_MIME_TYPE: Final = re.compile(
    r"(?:image|audio|video)/[a-z0-9][a-z0-9.+-]*|application/pdf|text/plain"
)
# The hash that the first row links to; it is not the hash of any row.
CHAIN_START: Final = bytes(32)


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """One row of a session: append-only, numbered from 1, never edited."""

    id: MessageId
    session_id: SessionId
    sequence: int
    turn: int
    role: Role
    parts: tuple[Part, ...]
    model_id: ModelId | None = None
    # Microseconds and bytes as stored: few readers of many rows need a datetime or a text.
    at: int
    chain: bytes = b""

    def __post_init__(self) -> None:
        parts = self.parts
        # Checked here for most rows, because reading a session makes thousands of them.
        if len(parts) != 1 or not isinstance(parts[0], PARTS_OF[self.role]):
            require_parts(self.role, parts)

    @property
    def created_at(self) -> datetime:
        """Return when the row was written."""
        return instant(self.at)

    @property
    def hash(self) -> str:
        """Return the hash that links the row to the previous one; empty if it is not stored."""
        return self.chain.hex()

    @property
    def text(self) -> str:
        """Return the text of the row, without reasoning, calls and notices."""
        text = ""
        for part in self.parts:
            if isinstance(part, Text):
                text += part.text
        return text


# Measured memory overhead of a row, beside its content.
_OF_A_ROW: Final = 1 << 10


def memory_of(row: Message) -> int:
    """Return about how many bytes a row takes in memory, for caches with a bound."""
    size = _OF_A_ROW
    for part in row.parts:
        match part:
            case Text(text=text) | Reasoning(text=text) | ToolResult(result=str(text)):
                size += sys.getsizeof(text)
            case ToolCall(arguments=value) | ToolResult(result=value) if value:
                size += len(msgspec.json.encode(value))
            case _:
                pass
    return size


class MessageRecord(Struct, frozen=True, kw_only=True):
    """A message as it is written to files outside the store."""

    id: MessageId
    session_id: SessionId
    sequence: int
    turn: int
    role: Role
    parts: tuple[Part, ...]
    model_id: ModelId | None
    created_at: datetime
    hash: str


def to_exported_message(row: Message) -> MessageRecord:
    """Return a message as exported, with its time as a `datetime` and its hash as a text."""
    return MessageRecord(
        id=row.id,
        session_id=row.session_id,
        sequence=row.sequence,
        turn=row.turn,
        role=row.role,
        parts=row.parts,
        model_id=row.model_id,
        created_at=row.created_at,
        hash=row.hash,
    )


def require_parts(role: Role, parts: tuple[Part, ...]) -> None:
    """Refuse parts that a row of this role cannot contain."""
    allowed = PARTS_OF[role]
    for part in parts:
        if not isinstance(part, allowed):
            raise Invalid(
                Code.MESSAGE_INVALID,
                f"A {role} message cannot contain a {part.__struct_config__.tag} part.",
                {"role": role},
            )
    # One call or result per row, so that each can be found, counted and settled alone.
    if role in _ALONE and len(parts) != 1:
        raise Invalid(
            Code.MESSAGE_INVALID, f"A {role} message contains exactly one part.", {"role": role}
        )


def require_sendable(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts of a user's message, or refuse empty, oversized or unencodable ones."""
    words, pictures = "", 0
    for part in parts:
        if isinstance(part, Text):
            words += part.text
        elif isinstance(part, Media):
            pictures += 1
        else:
            require_parts(Role.USER, parts)
    if not pictures and not words.strip():
        raise Invalid(Code.MESSAGE_EMPTY, "The message is empty; add some text.")
    if "\x00" in words or not is_encodable(words):
        raise Invalid(
            Code.INVALID_TEXT,
            "The message contains a NUL character or a lone surrogate; remove it.",
            {"field": "text"},
        )
    # Check the character count first, because encoding an oversized text is wasted work.
    if len(words) > TEXT_LARGEST or len(words.encode()) > TEXT_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "A message may have at most 1 MiB of text.")
    if pictures > MEDIA_MOST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, f"A message may have at most {MEDIA_MOST} media.")
    if pictures:
        for part in parts:
            if isinstance(part, Media):
                _require_media_part(part)
    return parts


def _require_media_part(media: Media) -> None:
    if media.name is not None:
        require_text(media.name, field="name", shortest=1, longest=_NAME_LONGEST)
    _require_media_type(media.mime_type, Code.MESSAGE_INVALID)


def _require_media_type(mime_type: str, code: Code) -> None:
    if not is_media_type(mime_type):
        raise Invalid(
            code,
            "Media must be image/*, audio/*, video/*, application/pdf or text/plain.",
            {"field": "mime_type"},
        )


def require_media_content(content: bytes, mime_type: str) -> None:
    """Refuse content that cannot be stored for a message."""
    _require_media_type(mime_type, Code.INVALID_INPUT)
    if not content or len(content) > CONTENT_LARGEST:
        raise Invalid(Code.INVALID_INPUT, "Media must have 1 byte to 32 MiB.")


def is_media_type(mime_type: str) -> bool:
    """Return whether media of this type are accepted: a bare type in lower case."""
    return len(mime_type) <= _MIME_LONGEST and _MIME_TYPE.fullmatch(mime_type) is not None


def media_handle(content: bytes) -> str:
    """Return the handle of a content, derived from its SHA-256."""
    return _HANDLE_START + hashlib.sha256(content).hexdigest()


def media_hash(handle: str) -> bytes | None:
    """Return the hash in a handle; `None` if the text is not a handle."""
    found = _HANDLE.fullmatch(handle)
    return bytes.fromhex(found[1]) if found else None


_HANDLE_START: Final = "media://sha256-"
_HANDLE: Final = re.compile(rf"{_HANDLE_START}([0-9a-f]{{64}})")

# Returns the stored bytes of a row's content.
encode_parts: Final[Callable[[tuple[Part, ...]], bytes]] = msgspec.json.Encoder().encode
# Returns the parts decoded from stored bytes; raises `msgspec.ValidationError`.
decode_parts: Final = msgspec.json.Decoder(tuple[Part, ...]).decode


# The hashed columns besides the content: id, sequence, turn, role, model, microseconds.
Columns = tuple[str, int, int, str, str | None, int]


def hash_row(previous: bytes, columns: Columns, content: bytes) -> bytes:
    """Return the hash that links a row to the previous one.

    It covers every stored column except the hash itself and the session. A fork's first own row
    links to the last inherited row, so one chain runs through both sessions.
    """
    id_, sequence, turn, role, model_id, at = columns
    text = f"{id_}|{sequence}|{turn}|{role}|{model_id or ''}|{at}|"
    return hashlib.sha256(previous + text.encode() + content).digest()
