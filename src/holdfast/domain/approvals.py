"""Approvals: durable questions, answered once, bound by digest to exactly what was asked."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import ApprovalId, CallId, SessionId


class ApprovalMode(StrEnum):
    """What a session does before a call that may change something."""

    DENY = "deny"
    ASK = "ask"
    EDITS = "edits"
    AUTO = "auto"


class ApprovalState(StrEnum):
    """Where a question stands; everything but waiting is final."""

    WAITING = "waiting"
    ALLOWED = "allowed"
    DENIED = "denied"
    EXPIRED = "expired"


class ApprovalScope(StrEnum):
    """What an answer covers."""

    ONCE = "once"
    SESSION = "session"


class Approval(Struct, frozen=True, kw_only=True):
    """A question; `call_id` is absent when it asks for money."""

    id: ApprovalId
    session_id: SessionId
    # None when the question is about money: that belongs to no call.
    call_id: CallId | None = None
    question: str
    digest: str
    state: ApprovalState = ApprovalState.WAITING
    answered_by: str | None = None
    scope: ApprovalScope = ApprovalScope.ONCE
    asked_at: datetime
    answered_at: datetime | None = None


def digest_of(
    tool: str, arguments: Mapping[str, Any], working_dir: str, targets: Sequence[str]
) -> str:
    """Return what an answer is bound to: change any of it, and the answer is for something else."""
    asked = msgspec.json.encode([tool, arguments, working_dir, targets], order="sorted")
    return hashlib.sha256(asked).hexdigest()


TIGHTNESS: Final[Mapping[ApprovalMode, int]] = {
    mode: looseness for looseness, mode in enumerate(ApprovalMode)
}


def tighter(one: ApprovalMode, other: ApprovalMode) -> ApprovalMode:
    """Return the stricter of two modes."""
    return min(one, other, key=TIGHTNESS.__getitem__)


def answered(approval: Approval, state: ApprovalState, *, by: str, at: datetime) -> Approval:
    """Return the approval with its answer; the first answer wins, the same one again is heard."""
    # Heard again, because a retry after a lost reply is not a second opinion.
    if approval.state is state:
        return approval
    if approval.state is not ApprovalState.WAITING:
        raise Conflict(
            Code.APPROVAL_CLOSED,
            f"Approval {approval.id} is {approval.state}; run the call again to be asked again.",
            {"state": approval.state},
        )
    return msgspec.structs.replace(approval, state=state, answered_by=by, answered_at=at)
