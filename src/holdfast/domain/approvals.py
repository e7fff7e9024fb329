"""Approvals: durable requests, answered once, bound by digest to exactly what was asked."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.tools import ToolClass


class ApprovalMode(StrEnum):
    """What a session does before a call that may change something."""

    DENY = "deny"
    ASK = "ask"
    EDITS = "edits"
    AUTO = "auto"


class ApprovalState(StrEnum):
    """The state of an approval request; every state except waiting is final."""

    WAITING = "waiting"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"


class ApprovalScope(StrEnum):
    """What an answer covers."""

    ONCE = "once"
    SESSION = "session"


class ApprovalChoice(Struct, frozen=True, kw_only=True):
    """One of the answers that an external agent offers; the kind defines its meaning."""

    id: str
    name: str
    kind: str


ALLOW_ONCE: Final = "allow_once"
ALLOW_ALWAYS: Final = "allow_always"


class Question(Struct, frozen=True, kw_only=True):
    """A complete approval request; an answer is valid only for this digest.

    `memory` names what an answer for the whole session covers, `amount` the micro-cents that an
    approval adds to the session's budget. `choices` are the answers that an external agent accepts;
    empty for Holdfast's own questions.
    """

    id: ApprovalId
    # None if the question is about the budget, which belongs to no call.
    call_id: CallId | None = None
    tool: str
    tool_class: ToolClass
    arguments: dict[str, Any] = {}
    question: str
    digest: str
    preview: dict[str, str] = {}
    memory: str | None = None
    amount: int | None = None
    choices: tuple[ApprovalChoice, ...] = ()


class Approval(Struct, frozen=True, kw_only=True):
    """A stored question, and its answer if there is one."""

    session_id: SessionId
    question: Question
    state: ApprovalState = ApprovalState.WAITING
    scope: ApprovalScope = ApprovalScope.ONCE
    answered_by: str | None = None
    note: str | None = None
    # The choice that was selected, if the answer named one.
    choice: str | None = None
    asked_at: datetime
    # Computed when read, because the timeout is a current setting and is not stored.
    expires_at: datetime | None = None
    answered_at: datetime | None = None

    @property
    def id(self) -> ApprovalId:
        """Return the id of the question."""
        return self.question.id


class ApprovalAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a question."""

    state: ApprovalState
    by: str
    scope: ApprovalScope = ApprovalScope.ONCE
    note: str | None = None
    choice: str | None = None


NOTE_LONGEST: Final = 500


def digest_of(
    tool: str, arguments: Mapping[str, Any], working_dir: str, targets: Sequence[str]
) -> str:
    """Return the digest an answer is bound to; any change requires a new answer (TOCTOU)."""
    asked = msgspec.json.encode([tool, arguments, working_dir, targets], order="sorted")
    return hashlib.sha256(asked).hexdigest()


def flag_of(question: Question) -> str:
    """Return the name by which a flag answers a question.

    For an external agent this is the kind of the call, because its name is chosen by the agent.
    """
    return question.preview.get("kind", question.tool)


TIGHTNESS: Final[Mapping[ApprovalMode, int]] = {
    mode: looseness for looseness, mode in enumerate(ApprovalMode)
}


def stricter_mode(one: ApprovalMode, other: ApprovalMode) -> ApprovalMode:
    """Return the stricter of two modes."""
    return min(one, other, key=TIGHTNESS.__getitem__)


def apply_answer(approval: Approval, answer: ApprovalAnswer, *, at: datetime) -> Approval:
    """Return the answered approval; the first answer wins, repeating it is idempotent."""
    # Not a conflict, because a client retries after a lost response.
    if approval.state is answer.state:
        return approval
    if approval.state is not ApprovalState.WAITING:
        raise Conflict(
            Code.APPROVAL_CLOSED,
            f"Approval {approval.id} is already {approval.state}; run the call again to "
            "get a new request.",
            {"state": approval.state},
        )
    if answer.scope is ApprovalScope.SESSION and approval.question.memory is None:
        raise Conflict(
            Code.OPTION_NOT_OFFERED,
            "This call can be allowed only once, not for the whole session.",
        )
    _require_offered(approval.question, answer)
    return msgspec.structs.replace(
        approval,
        choice=answer.choice,
        state=answer.state,
        scope=answer.scope,
        answered_by=answer.by,
        note=answer.note,
        answered_at=at,
    )


def _require_offered(question: Question, answer: ApprovalAnswer) -> None:
    """Refuse an answer that the agent does not offer; an approval for once is never widened."""
    if answer.choice is not None and answer.choice not in {each.id for each in question.choices}:
        raise Conflict(Code.OPTION_NOT_OFFERED, "The approval request has no such option.")
    if answer.state is not ApprovalState.ALLOWED or not question.choices or answer.choice:
        return
    kinds = {each.kind for each in question.choices}
    fitting = {ALLOW_ONCE} if answer.scope is ApprovalScope.ONCE else {ALLOW_ONCE, ALLOW_ALWAYS}
    if not kinds & fitting:
        raise Conflict(
            Code.OPTION_NOT_OFFERED,
            "The agent does not offer this answer; it offers "
            f"{', '.join(sorted(kinds)) or 'none'}.",
            {"options": [each.id for each in question.choices]},
        )
