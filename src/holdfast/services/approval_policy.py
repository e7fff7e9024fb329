"""Who has to be asked before a call runs: one table over modes and classes, then what was said.

It asks nobody itself, and it never widens a grant.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from holdfast.domain.approvals import ApprovalMode, ApprovalState, Question
from holdfast.domain.tools import ToolClass
from holdfast.ports import ApprovalContext


class ApprovalRule(Enum):
    """What a mode says to a class of calls."""

    YES = auto()
    ASK = auto()
    NO = auto()


class Ruling(Enum):
    """What becomes of a call now."""

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

# Never for a whole session: what runs unseen later, what cannot be taken back, what costs.
ONE_BY_ONE: Final = frozenset({ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY})

EARLIER: Final[Mapping[ApprovalState, Ruling]] = {
    ApprovalState.WAITING: Ruling.WAIT,
    ApprovalState.ALLOWED: Ruling.RUN,
    ApprovalState.DENIED: Ruling.REJECTED,
    ApprovalState.EXPIRED: Ruling.EXPIRED,
}


def ruling(question: Question, standing: ApprovalContext, tightened: str | None) -> Ruling:
    """Decide about a call; `tightened` is what its agent adds: `ask`, `deny` or nothing."""
    rule = RULES[standing.mode, question.tool_class]
    if rule is ApprovalRule.NO or tightened == "deny":
        return Ruling.REFUSE
    # An answer is for the very same thing; the standing holds no other.
    earlier = EARLIER[standing.earlier.state] if standing.earlier is not None else None
    # What somebody has refused is not done because the mode was loosened since.
    if rule is ApprovalRule.YES and tightened is None and earlier is not Ruling.REJECTED:
        return Ruling.RUN
    # Asked while somebody was there who is there no more: nobody would ever answer.
    is_forsaken = earlier is Ruling.WAIT and not standing.is_attended
    if earlier is not None and not is_forsaken:
        return earlier
    if standing.is_remembered and question.tool_class not in ONE_BY_ONE:
        return Ruling.RUN
    if not standing.is_attended:
        return Ruling.UNATTENDED
    # Whole or not at all: nobody agrees to what they cannot have seen.
    is_showable = len(question.question.encode(errors="replace")) <= QUESTION_LARGEST
    return Ruling.ASK if is_showable else Ruling.TOO_LARGE
