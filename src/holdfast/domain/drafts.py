"""Drafts: the output of a runtime. The journal stamps and stores them.

A batch of drafts is one transaction: it takes effect only when all of it is on disk.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.approvals import Approval, Decision, Question
from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import ApprovalAnswered, ApprovalRequested, Failure, Payload
from holdfast.domain.ids import CallId, MessageId, ModelId, SessionId
from holdfast.domain.messages import (
    TEXT_LARGEST,
    Media,
    Notice,
    NoticeCode,
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
    """A message row to be written; a tool call also declares the effect of running it twice."""

    role: Role
    parts: tuple[Part, ...]
    id: MessageId | None = None
    model_id: ModelId | None = None
    effect: Effect | None = None
    # A retried call reuses the idempotency key of the first attempt.
    idempotency_key: str | None = None


def notice_draft(code: NoticeCode, text: str) -> MessageDraft:
    """Return the row of a notice."""
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))


class CostDraft(Struct, frozen=True, kw_only=True):
    """The cost of a provider request; without usage, the provider did not report it.

    An aside belongs to no turn: it was spent on compacting the conversation.
    """

    request_id: str
    model_id: ModelId
    usage: Usage | None = None
    microcents: int = 0
    priced: bool = False
    is_aside: bool = False

    def entry(self, session_id: SessionId, turn: int, at: datetime) -> CostEntry:
        """Return the ledger entry of the request."""
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
    """A summary of every row up to a sequence; it belongs to no turn."""

    text: str
    dropped_through: int
    kept: int
    reason: str
    usage: Usage | None = None


class ToolsFound(Struct, frozen=True, kw_only=True):
    """The tools discovered on the session's servers; fixed for the rest of the session."""

    names: tuple[str, ...]


class CallsRequested(Struct, frozen=True, kw_only=True):
    """Calls that clients are asked to run, within so many seconds, while others of the turn run."""

    timeouts: Mapping[CallId, float]


class CallDetails(Struct, frozen=True, kw_only=True):
    """Call details that an external agent sent after the call's row, which is not changed."""

    call_id: CallId
    arguments: dict[str, Any]


class ApprovalDecided(Struct, frozen=True, kw_only=True):
    """A question that was answered by a rule without asking the user."""

    question: Question
    answer: Decision


class TitleChange(Struct, frozen=True, kw_only=True):
    """A title set by an agent; it replaces only the titles in `instead`, never the user's own."""

    title: str
    instead: tuple[str | None, ...] = (None,)

    def over(self, current: str | None) -> str | None:
        """Return the session's new title."""
        return self.title if current in self.instead else current


class Outcome(Struct, frozen=True, kw_only=True):
    """How a turn ended, and the reason given.

    `is_lost` means that the agent cannot be recovered and the session fails. `evidence` is the
    output it left that explains why.
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
    | CallsRequested
    | CallDetails
    | Payload
)
NAME_LONGEST: Final = 255
# The parts that a client may record; notices and summaries are written only by Holdfast.
_WORDS: Final = (Text, Reasoning, Media)


def require_recordable(draft: MessageDraft) -> MessageDraft:
    """Return a draft that may be recorded, or refuse an empty, oversized or mismatched one."""
    if draft.role is Role.USER:
        raise Invalid(
            Code.ROLE_NOT_ALLOWED,
            "A user message must be sent, because it needs an answer; it cannot be recorded.",
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
            f"A recorded {draft.role} message can contain only text.",
            {"role": draft.role},
        )
    said = "".join(part.text for part in draft.parts if isinstance(part, Text | Reasoning))
    if not said.strip() and not any(isinstance(part, Media) for part in draft.parts):
        raise Invalid(Code.MESSAGE_EMPTY, "The message is empty; add some text.")
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
        raise Invalid(Code.MESSAGE_TOO_LARGE, "A message may have at most 1 MiB.")


def question_event(question: Question) -> ApprovalRequested:
    """Return the event that reports a new approval request."""
    return ApprovalRequested(
        approval_id=question.id,
        call_id=question.call_id,
        tool=question.tool,
        tool_class=question.tool_class,
        question=question.question,
        preview=question.preview,
        is_for_session=question.memory is not None,
    )


def answer_event(approval: Approval) -> ApprovalAnswered:
    """Return the event that reports the answer to an approval request."""
    return ApprovalAnswered(
        approval_id=approval.id,
        call_id=approval.question.call_id,
        decision=approval.state,
        scope=approval.scope,
        by=approval.answered_by or "",
    )
