"""Decides whether a call needs approval: a table of modes and tool classes, then earlier answers.

It sends no questions itself, and it never widens a grant.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from holdfast.domain.approvals import ApprovalMode, ApprovalState, Question
from holdfast.domain.tools import ToolClass
from holdfast.ports import ApprovalContext


class ApprovalRule(Enum):
    """What a mode prescribes for a class of calls."""

    YES = auto()
    ASK = auto()
    NO = auto()


class Ruling(Enum):
    """The decision about a call."""

    RUN = auto()
    ASK = auto()
    WAIT = auto()
    REFUSE = auto()
    REJECTED = auto()
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

RULES: Final[Mapping[tuple[ApprovalMode, ToolClass], ApprovalRule]] = {
    **{(mode, ToolClass.READ): ApprovalRule.YES for mode in ApprovalMode},
    **{(mode, ToolClass.MONEY): ApprovalRule.ASK for mode in ApprovalMode},
    **{(ApprovalMode.DENY, touched): ApprovalRule.NO for touched in _ASKED},
    **{(ApprovalMode.ASK, touched): ApprovalRule.ASK for touched in _ASKED},
    **{(ApprovalMode.EDITS, touched): ApprovalRule.ASK for touched in _ASKED},
    **{(ApprovalMode.AUTO, touched): ApprovalRule.ASK for touched in _ASKED},
    (ApprovalMode.EDITS, ToolClass.WRITE): ApprovalRule.YES,
    (ApprovalMode.AUTO, ToolClass.WRITE): ApprovalRule.YES,
    (ApprovalMode.AUTO, ToolClass.PROCESS): ApprovalRule.YES,
    (ApprovalMode.AUTO, ToolClass.EGRESS): ApprovalRule.YES,
}

# Never approved for a whole session: delayed execution, irreversible changes, and costs.
ONE_BY_ONE: Final = frozenset({ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY})

EARLIER: Final[Mapping[ApprovalState, Ruling]] = {
    ApprovalState.WAITING: Ruling.WAIT,
    ApprovalState.ALLOWED: Ruling.RUN,
    ApprovalState.DENIED: Ruling.REJECTED,
    ApprovalState.EXPIRED: Ruling.EXPIRED,
}


def ruling(question: Question, standing: ApprovalContext, tightened: str | None) -> Ruling:
    """Decide about a call; `tightened` is the agent's own rule: `ask`, `deny` or `None`."""
    rule = RULES[standing.mode, question.tool_class]
    if rule is ApprovalRule.NO or tightened == "deny":
        return Ruling.REFUSE
    # An earlier answer applies to the identical call only; the context contains no other.
    earlier = EARLIER[standing.earlier.state] if standing.earlier is not None else None
    # A rejected call stays rejected even if the mode was loosened since.
    if rule is ApprovalRule.YES and tightened is None and earlier is not Ruling.REJECTED:
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
