"""What an open turn waits for while no process runs it."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from holdfast.domain.ids import ApprovalId, CallId, SessionId


class WaitReason(StrEnum):
    """Why a turn waits: one closed list."""

    APPROVAL = "approval"
    BUDGET = "budget"
    CLIENT = "client"
    CHILD = "child"
    TOOL = "tool"
    RUNTIME = "runtime"
    HOLDER = "holder"
    RETRY = "retry"


class Wait(Struct, frozen=True, kw_only=True):
    """What a turn waits for; `text` says it in a sentence, `needs` names capabilities.

    At `until` the turn continues without an answer; without it, it waits for any length of time.
    """

    reason: WaitReason
    text: str
    since: datetime | None = None
    until: datetime | None = None
    needs: tuple[str, ...] = ()
    call_ids: tuple[CallId, ...] = ()
    approval_id: ApprovalId | None = None
    children: tuple[SessionId, ...] = ()


def wait_for_tools(names: Sequence[str]) -> Wait:
    """Return the wait for a process that has functions of a program."""
    return Wait(
        reason=WaitReason.TOOL,
        text=f"The turn waits for a process that has the tool {', '.join(names)}.",
        needs=tuple(f"tool:{name}" for name in names),
    )
