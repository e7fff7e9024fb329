"""Sessions: one notebook each, its lifecycle as a table, and where its next row goes.

Running a turn, and writing anything down, is not decided here.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.contexts import SessionContext
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Conflict, HoldfastError
from holdfast.domain.ids import AgentId, ModelId, Owner, RepoId, SessionId, SessionKey
from holdfast.domain.programs import Mooring
from holdfast.domain.tools import Grant, ToolSpec

TURN_CAP: Final = 50
TITLE_LONGEST: Final = 60


class Status(StrEnum):
    """The house's words for where a session stands."""

    PENDING = "pending"
    RUNNING = "running"
    IDLE = "idle"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Verb(StrEnum):
    """Everything that can be done to a session's status."""

    ADMIT = "admit"
    BEGIN = "begin"
    END = "end"
    COMPLETE = "complete"
    CANCEL = "cancel"
    RESUME = "resume"
    LOSE = "lose"


class StopReason(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    LENGTH = "length"
    REFUSAL = "refusal"
    ABORTED = "aborted"
    INTERRUPTED = "interrupted"
    TURN_LIMIT = "turn_limit"
    BUDGET = "budget"
    ERROR = "error"


class OnBusy(StrEnum):
    """What a message that arrives while a turn runs does: the sender's choice."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


class OnExceed(StrEnum):
    """What happens when a budget would be exceeded."""

    FAIL = "fail"
    PAUSE = "pause"
    WARN = "warn"


class Budget(Struct, frozen=True, kw_only=True):
    """How much a session may cost."""

    microcents: int
    on_exceed: OnExceed = OnExceed.PAUSE


def tightened(stored: Budget | None, configured: Budget | None, granted: int) -> Budget | None:
    """Return the stricter of two budgets; what people have granted since is on top of either."""
    if stored is None or configured is None:
        return stored or configured
    only_warns = stored.on_exceed is OnExceed.WARN and configured.on_exceed is not OnExceed.WARN
    # Nought is no budget, and one that only warns stops nothing: neither lifts the configured one.
    if not stored.microcents or only_warns:
        return configured
    least = min(stored.microcents - granted, configured.microcents)
    is_final = OnExceed.FAIL in {stored.on_exceed, configured.on_exceed}
    on_exceed = OnExceed.FAIL if is_final else stored.on_exceed
    return Budget(microcents=least + granted, on_exceed=on_exceed)


class ForkPoint(Struct, frozen=True, kw_only=True):
    """Where a fork leaves its parent: a pointer, never a copy."""

    session_id: SessionId
    sequence: int


OPEN: Final = (Status.PENDING, Status.RUNNING, Status.IDLE)
_CLOSED: Final = (Status.COMPLETED, Status.CANCELLED)

TRANSITIONS: Final[Mapping[tuple[Status, Verb], Status]] = {
    **{(status, Verb.ADMIT): status for status in OPEN},
    **dict.fromkeys([(status, Verb.BEGIN) for status in OPEN], Status.RUNNING),
    (Status.RUNNING, Verb.END): Status.IDLE,
    **dict.fromkeys([(status, Verb.COMPLETE) for status in OPEN], Status.COMPLETED),
    **dict.fromkeys([(status, Verb.CANCEL) for status in OPEN], Status.CANCELLED),
    **{(status, Verb.RESUME): status for status in OPEN},
    **dict.fromkeys([(status, Verb.RESUME) for status in _CLOSED], Status.IDLE),
    **dict.fromkeys([(status, Verb.LOSE) for status in OPEN], Status.FAILED),
    # Ending what has ended is heard and changes nothing, so a retried close gets the first answer.
    **{(s, v): s for s in (*_CLOSED, Status.FAILED) for v in (Verb.COMPLETE, Verb.CANCEL)},
}


class Head(Struct, frozen=True, kw_only=True):
    """Where a notebook stands: all that changes when something is written into it.

    `key` is the store's short number for the session, `began` the event that started its last
    turn, `inherited` how many of its messages belong to the session it was forked from.
    """

    key: SessionKey = SessionKey(0)
    session_id: SessionId
    owner: Owner
    agent_id: AgentId
    status: Status = Status.PENDING
    last_stop: StopReason | None = None
    reason: str | None = None
    title: str | None = None
    turn: int = 0
    settled: int = 0
    messages: int = 0
    inherited: int = 0
    events: int = 0
    began: int = 0
    chain: bytes
    holder: str | None = None
    until: int = 0
    epoch: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    microcents: int = 0
    requests: int = 0
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class Session(Struct, frozen=True, kw_only=True):
    """One notebook as its owner sees it; the agent is the snapshot frozen when it was opened."""

    id: SessionId
    owner: Owner
    agent_id: AgentId
    agent: Agent
    repo_id: RepoId | None = None
    title: str | None = None
    tags: tuple[str, ...] = ()
    model_id: ModelId | None = None
    context: SessionContext
    grant: Grant = Grant()
    tools: tuple[ToolSpec, ...] = ()
    approval: ApprovalMode = ApprovalMode.ASK
    status: Status = Status.PENDING
    last_stop: StopReason | None = None
    reason: str | None = None
    turn: int = 0
    settled: int = 0
    turn_cap: int = TURN_CAP
    budget: Budget | None = None
    forked_from: ForkPoint | None = None
    usage: Usage = Usage()
    microcents: int = 0
    message_count: int = 0
    last_event: int = 0
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    metadata: dict[str, Any] = {}
    # How its agent's own program stands; nothing where it has none, or none was started yet.
    program: Mooring | None = None


def moved(status: Status, verb: Verb) -> Status:
    """Return the status after the verb, or refuse the verb with its remedy."""
    try:
        return TRANSITIONS[status, verb]
    except KeyError:
        raise _refusal(status, verb) from None


def admitting(head: Head) -> Head:
    """Return the head with its turn raised to the one a new message belongs to.

    While a turn runs, what arrives waits for the next one; all that waits is one turn.
    """
    status = moved(head.status, Verb.ADMIT)
    # The row is read under the lock, so two messages cannot disagree about what runs.
    ahead = 2 if status is Status.RUNNING else 1
    return msgspec.structs.replace(head, turn=head.settled + ahead)


def has_waiting_turn(head: Head) -> bool:
    """Tell whether a turn is open or waits to be played."""
    return head.turn > head.settled and head.status in OPEN


def title_of(text: str) -> str | None:
    """Return the title that a first message gives its session."""
    # On one line, because that is where titles are shown.
    collapsed = " ".join(text.split())
    if len(collapsed) > TITLE_LONGEST:
        return collapsed[: TITLE_LONGEST - 1] + "…"
    return collapsed or None


def cap_of(wanted: int | None) -> int:
    """Return the turn cap; nothing, zero and less mean the default."""
    return wanted if wanted is not None and wanted > 0 else TURN_CAP


def _refusal(status: Status, verb: Verb) -> HoldfastError:
    if status is Status.FAILED:
        return Conflict(
            Code.SESSION_FAILED,
            "The session lost its agent and cannot go on; fork it to continue from here.",
            {"status": status, "remedy": "fork"},
        )
    if status in _CLOSED:
        return Conflict(
            Code.SESSION_CLOSED,
            f"The session is {status}; resume it first.",
            {"status": status, "remedy": "resume"},
        )
    return Conflict(
        Code.TURN_NOT_RUNNING, f"No turn is running: {verb} needs one.", {"status": status}
    )
