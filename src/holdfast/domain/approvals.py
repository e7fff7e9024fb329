"""Approvals: durable requests, answered once, bound by digest to exactly what was asked.

Also the rules of modes, tools and answers: whether a call runs, is asked about or is refused.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, StrEnum, auto
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


class Decision(Struct, frozen=True, kw_only=True):
    """The answer to a question."""

    state: ApprovalState
    by: str
    scope: ApprovalScope = ApprovalScope.ONCE
    note: str | None = None
    choice: str | None = None


NOTE_LONGEST: Final = 500


def digest_call(
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


def apply_answer(approval: Approval, answer: Decision, *, at: datetime) -> Approval:
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


def _require_offered(question: Question, answer: Decision) -> None:
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


class ApprovalContext(Struct, frozen=True, kw_only=True):
    """The state of a session that decides how a question is answered.

    `earlier` is the previous approval with the same digest, `is_remembered` that the user allowed
    such calls for the whole session, `is_attended` that a user is present to answer.
    """

    mode: ApprovalMode
    earlier: Approval | None = None
    is_remembered: bool = False
    is_attended: bool = True


class ModeRule(Enum):
    """What a mode prescribes for a class of calls."""

    YES = auto()
    ASK = auto()
    NO = auto()


class Ruling(Enum):
    """The decision about a call."""

    RUN = auto()
    ASK = auto()
    WAIT = auto()
    DENIED_BY_MODE = auto()
    DENIED_BY_USER = auto()
    EXPIRED = auto()
    UNATTENDED = auto()
    TOO_LARGE = auto()


QUESTION_LARGEST: Final = 1 << 20
_ASKED: Final = (
    ToolClass.WRITE,
    ToolClass.SENSITIVE_WRITE,
    ToolClass.PROCESS,
    ToolClass.EGRESS,
    ToolClass.COMMIT,
)
RULES: Final[Mapping[tuple[ApprovalMode, ToolClass], ModeRule]] = {
    **{(mode, ToolClass.READ): ModeRule.YES for mode in ApprovalMode},
    **{(mode, ToolClass.MONEY): ModeRule.ASK for mode in ApprovalMode},
    **{(mode, ToolClass.FUNCTION): ModeRule.YES for mode in ApprovalMode},
    (ApprovalMode.DENY, ToolClass.FUNCTION): ModeRule.NO,
    **{(ApprovalMode.DENY, touched): ModeRule.NO for touched in _ASKED},
    **{(ApprovalMode.ASK, touched): ModeRule.ASK for touched in _ASKED},
    **{(ApprovalMode.EDITS, touched): ModeRule.ASK for touched in _ASKED},
    **{(ApprovalMode.AUTO, touched): ModeRule.ASK for touched in _ASKED},
    (ApprovalMode.EDITS, ToolClass.WRITE): ModeRule.YES,
    (ApprovalMode.AUTO, ToolClass.WRITE): ModeRule.YES,
    (ApprovalMode.AUTO, ToolClass.PROCESS): ModeRule.YES,
    (ApprovalMode.AUTO, ToolClass.EGRESS): ModeRule.YES,
}
# Allowed in every mode, unless the agent's own rule is stricter.
ALWAYS_ALLOWED: Final = frozenset(
    touched
    for touched in ToolClass
    if all(RULES[mode, touched] is ModeRule.YES for mode in ApprovalMode)
)
# Never approved for a whole session: delayed execution, irreversible changes, and costs.
ONE_BY_ONE: Final = frozenset({ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY})
EARLIER: Final[Mapping[ApprovalState, Ruling]] = {
    ApprovalState.WAITING: Ruling.WAIT,
    ApprovalState.ALLOWED: Ruling.RUN,
    ApprovalState.DENIED: Ruling.DENIED_BY_USER,
    ApprovalState.EXPIRED: Ruling.EXPIRED,
}


def decide_approval(question: Question, standing: ApprovalContext, tightened: str | None) -> Ruling:
    """Decide about a call; `tightened` is a rule of its agent or its tool, or `None`.

    It is `ask`, `deny`, or `mode`: a function that runs unasked only in mode `auto`.
    """
    if tightened == "mode":
        tightened = None if standing.mode is ApprovalMode.AUTO else "ask"
    rule = RULES[standing.mode, question.tool_class]
    if rule is ModeRule.NO or tightened == "deny":
        return Ruling.DENIED_BY_MODE
    # An earlier answer applies to the identical call only; the context contains no other.
    earlier = EARLIER[standing.earlier.state] if standing.earlier is not None else None
    # A rejected call stays rejected even if the mode was loosened since.
    if rule is ModeRule.YES and tightened is None and earlier is not Ruling.DENIED_BY_USER:
        return Ruling.RUN
    # Asked in an attended session that is now unattended, so no answer would ever arrive.
    is_forsaken = earlier is Ruling.WAIT and not standing.is_attended
    if earlier is not None and not is_forsaken:
        return earlier
    if standing.is_remembered and question.tool_class not in ONE_BY_ONE:
        return Ruling.RUN
    if not standing.is_attended:
        return Ruling.UNATTENDED
    # Never truncated, because a user must see the whole call to approve it.
    is_showable = len(question.question.encode(errors="replace")) <= QUESTION_LARGEST
    return Ruling.ASK if is_showable else Ruling.TOO_LARGE
