"""Drafts: what a runtime yields. The journal pulls them, stamps them and writes them down.

A batch of drafts is one transaction; nothing in a batch counts before all of it is on disk.
"""

from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.approvals import ApprovalAnswer, Question
from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import Failure, Payload
from holdfast.domain.ids import CallId, MessageId, ModelId, SessionId
from holdfast.domain.messages import (
    TEXT_LARGEST,
    Media,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    require_parts,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.text import is_encodable, require_text
from holdfast.domain.tools import Effect


class MessageDraft(Struct, frozen=True, kw_only=True):
    """A row to be written; a tool call also says what running it twice would do."""

    role: Role
    parts: tuple[Part, ...]
    id: MessageId | None = None
    model_id: ModelId | None = None
    effect: Effect | None = None
    # A call that is tried again keeps the key of the first attempt.
    idempotency_key: str | None = None


class CostDraft(Struct, frozen=True, kw_only=True):
    """What a provider request cost; without usage the provider did not say.

    An aside belongs to no turn: it was spent on the conversation itself, to shorten it.
    """

    request_id: str
    model_id: ModelId
    usage: Usage | None = None
    microcents: int = 0
    priced: bool = False
    is_aside: bool = False

    def entry(self, session_id: SessionId, turn: int, at: datetime) -> CostEntry:
        """Return the request as the ledger of a session has it."""
        return CostEntry(
            request_id=self.request_id,
            session_id=session_id,
            turn=0 if self.is_aside else turn,
            model_id=self.model_id,
            usage=self.usage or Usage(),
            microcents=self.microcents,
            priced=self.priced,
            at=at,
        )


class Summary(Struct, frozen=True, kw_only=True):
    """A summary that stands for every row up to a number; it belongs to no turn."""

    text: str
    dropped_through: int
    kept: int
    reason: str
    usage: Usage | None = None


class ToolsFound(Struct, frozen=True, kw_only=True):
    """Tools that the session's servers have: with these it goes on, whatever they have later."""

    names: tuple[str, ...]


class CallDetails(Struct, frozen=True, kw_only=True):
    """What somebody else's agent has said of a call since its row was written, which stays."""

    call_id: CallId
    arguments: dict[str, Any]


class ApprovalDecided(Struct, frozen=True, kw_only=True):
    """A question that nobody had to be asked, with the answer that a rule has given."""

    question: Question
    answer: ApprovalAnswer


class TitleChange(Struct, frozen=True, kw_only=True):
    """How an agent calls the session, instead of one of these titles; a person's own stays."""

    title: str
    instead: tuple[str | None, ...] = (None,)

    def over(self, current: str | None) -> str | None:
        """Return the title that a session has from now on."""
        return self.title if current in self.instead else current


class Outcome(Struct, frozen=True, kw_only=True):
    """The last draft of a turn: how it ended, and why in the words of who ended it.

    `is_lost` says that the agent is gone for good and the session with it; `evidence` is what the
    agent left to tell why.
    """

    stop_reason: StopReason
    failure: Failure | None = None
    reason: str | None = None
    is_lost: bool = False
    evidence: str = ""


Draft = (
    MessageDraft
    | CostDraft
    | Question
    | ApprovalDecided
    | TitleChange
    | Summary
    | ToolsFound
    | CallDetails
    | Outcome
    | Payload
)
NAME_LONGEST: Final = 255
# What people may say in a row; notices and summaries are the house's own words.
_WORDS: Final = (Text, Reasoning, Media)


def require_recordable(draft: MessageDraft) -> MessageDraft:
    """Return a draft that may be recorded, or refuse what is empty, too large or not its role's."""
    if draft.role is Role.USER:
        raise Invalid(
            Code.ROLE_NOT_ALLOWED,
            "A user's message is sent, because it wants an answer; it cannot only be recorded.",
            {"role": draft.role},
        )
    require_parts(draft.role, draft.parts)
    match draft.parts:
        case (ToolCall() as call,):
            _require_name(call.id, "id")
            _require_name(call.name, "name")
        case (ToolResult() as result,):
            _require_name(result.call_id, "tool_call_id")
        case _:
            _require_words(draft)
    _require_size(draft)
    return draft


def _require_words(draft: MessageDraft) -> None:
    if not all(isinstance(part, _WORDS) for part in draft.parts):
        raise Invalid(
            Code.MESSAGE_INVALID,
            f"A {draft.role} message that is recorded holds words only.",
            {"role": draft.role},
        )
    said = "".join(part.text for part in draft.parts if isinstance(part, Text | Reasoning))
    if not said.strip() and not any(isinstance(part, Media) for part in draft.parts):
        raise Invalid(Code.MESSAGE_EMPTY, "The message is empty; say something.")
    if "\x00" in said or not is_encodable(said):
        raise Invalid(
            Code.INVALID_TEXT,
            "The message contains a NUL character or a lone surrogate; remove it.",
            {"field": "text"},
        )


def _require_name(text: str, field: str) -> None:
    require_text(text, field=field, shortest=1, longest=NAME_LONGEST)


def _require_size(draft: MessageDraft) -> None:
    try:
        size = len(msgspec.json.encode(draft.parts))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(
            Code.MESSAGE_INVALID, "The content must be plain JSON.", {"role": draft.role}
        ) from None
    if size > TEXT_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "A message may have 1 MiB at most.")
