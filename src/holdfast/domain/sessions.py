"""Sessions: their state, the lifecycle as a transition table, and their configuration.

Running turns and writing rows are not decided here.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agent_processes import ProcessRecord
from holdfast.domain.agents import Agent, AgentOverrides, require_retry
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.ids import (
    AgentId,
    CallId,
    ModelId,
    Owner,
    RepoId,
    SessionId,
    SessionKey,
)
from holdfast.domain.text import is_encodable, one_line, require_tags, require_text, wrong_type
from holdfast.domain.time import instant
from holdfast.domain.tools import FsTier, Grant, ToolSpec
from holdfast.domain.waits import Wait

TURN_CAP: Final = 50
# Where a person sends the messages, the cap protects only against programs out of control.
ATTENDED_TURN_CAP: Final = 1_000
TURN_CAP_LARGEST: Final = 1_000_000
TITLE_LONGEST: Final = 60
_PATH_LONGEST: Final = 4_096


class Status(StrEnum):
    """The status of a session."""

    PENDING = "pending"
    RUNNING = "running"
    IDLE = "idle"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Verb(StrEnum):
    """The transitions of a session's status."""

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


# A turn stopped by a limit has no answer, so that it counts as failed like one with an error.
FAILED_STOPS: Final = frozenset({StopReason.ERROR, StopReason.TURN_LIMIT, StopReason.BUDGET})


class OnBusy(StrEnum):
    """How a message that arrives while a turn runs is handled; the sender chooses."""

    QUEUE = "queue"
    REJECT = "reject"
    INTERRUPT = "interrupt"


def require_on_busy(value: Any) -> OnBusy:
    """Return the `OnBusy` value of an enum member or its string; anything else is refused."""
    if isinstance(value, OnBusy):
        return value
    try:
        return OnBusy(value)
    except ValueError:
        choices = ", ".join(OnBusy)
        raise Invalid(
            Code.INVALID_INPUT, f"on_busy must be one of {choices}.", {"field": "on_busy"}
        ) from None


class OnExceed(StrEnum):
    """What happens when a budget would be exceeded."""

    FAIL = "fail"
    PAUSE = "pause"
    WARN = "warn"


class Budget(Struct, frozen=True, kw_only=True):
    """How much a session may cost."""

    microcents: int
    on_exceed: OnExceed = OnExceed.PAUSE


def stricter_budget(
    stored: Budget | None, configured: Budget | None, granted: int
) -> Budget | None:
    """Return the stricter of two budgets; amounts granted by users are added to either."""
    if stored is None or configured is None:
        return stored or configured
    only_warns = stored.on_exceed is OnExceed.WARN and configured.on_exceed is not OnExceed.WARN
    # Zero means no budget, and a warning stops nothing, so neither may lift the configured budget.
    if not stored.microcents or only_warns:
        return configured
    least = min(stored.microcents - granted, configured.microcents)
    is_final = OnExceed.FAIL in {stored.on_exceed, configured.on_exceed}
    on_exceed = OnExceed.FAIL if is_final else stored.on_exceed
    return Budget(microcents=least + granted, on_exceed=on_exceed)


class ForkPoint(Struct, frozen=True, kw_only=True):
    """Where a fork leaves its parent: a reference, not a copy."""

    session_id: SessionId
    sequence: int


class ParentLink(Struct, frozen=True, kw_only=True):
    """The session that opened a session, and by which call; a program opens one without a call."""

    session_id: SessionId
    call_id: CallId | None = None


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
    # Closing a closed session is idempotent, so that a retried close gets the first answer.
    **{(s, v): s for s in (*_CLOSED, Status.FAILED) for v in (Verb.COMPLETE, Verb.CANCEL)},
}


class SessionState(Struct, frozen=True, kw_only=True):
    """The mutable state of a session: everything that changes with a write.

    `key` is the store's integer key of the session. `turn` is the newest turn with a message,
    `settled` the last one that has ended; the turn in between runs or waits. `messages` and
    `events` are counts, `inherited` the messages that belong to the session it was forked from,
    `began` the event that started the last turn, `chain` the hash of the last message. `holder`,
    `until` and `epoch` are the lease: who runs turns, until when, and how often it changed hands.
    `until` is in milliseconds of the boot clock. It is negative while the turn is paused: no
    process runs it, and it continues at `-until`, in microseconds since 1970, even without what it
    waits for. The other times are in microseconds since 1970.
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
    updated_at: int
    started_at: int | None = None
    finished_at: int | None = None


class Selection(Struct, frozen=True, kw_only=True):
    """Lines of a file that the user has selected."""

    file: str
    start_line: int
    end_line: int


class SessionContext(Struct, frozen=True, kw_only=True):
    """Where work happens; `variables` are plain text and must not contain a secret."""

    working_dir: str
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    fs_scope_tier: FsTier = FsTier.SANDBOXED
    variables: dict[str, str] = {}

    def __post_init__(self) -> None:
        wrong = list(dict.fromkeys(_faults(self)))
        if wrong:
            raise Invalid(
                Code.INVALID_CONTEXT,
                f"The session's context is not valid; check: {', '.join(wrong)}.",
                {"fields": wrong},
            )


def describe_editor(context: SessionContext) -> str | None:
    """Return what the user has open in an editor, as a remark for the model."""
    marked = context.selection
    remarks = (
        [f"the active file is {_file_name(context.active_file)}"] if context.active_file else []
    )
    if marked is not None:
        lines = f"lines {marked.start_line} to {marked.end_line} of {_file_name(marked.file)}"
        remarks.append(f"selected are {lines}")
    return f"(In the user's editor {' and '.join(remarks)}.)" if remarks else None


def _file_name(path: str) -> str:
    return one_line(path, longest=_PATH_LONGEST)


class Session(Struct, frozen=True, kw_only=True):
    """A session as its owner sees it; the agent is the snapshot frozen when it was opened."""

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
    # State of the agent's process; None if the agent has no process or it was not started yet.
    program: ProcessRecord | None = None
    # What the open turn waits for while no process runs it.
    waiting: Wait | None = None
    # The session that opened it, and how many it has opened itself.
    parent: ParentLink | None = None
    children: int = 0

    def at(self, state: "SessionState") -> "Session":
        """Return the session with everything that a commit changes as in a state."""
        return replace(
            self,
            title=state.title,
            status=state.status,
            last_stop=state.last_stop,
            reason=state.reason,
            turn=state.turn,
            settled=state.settled,
            usage=Usage(input=state.tokens_in, output=state.tokens_out),
            microcents=state.microcents,
            message_count=state.messages,
            last_event=state.events,
            updated_at=instant(state.updated_at),
            started_at=instant(state.started_at) if state.started_at is not None else None,
            finished_at=instant(state.finished_at) if state.finished_at is not None else None,
        )


def transition(status: Status, verb: Verb) -> Status:
    """Return the status after the verb, or refuse the verb and name the remedy."""
    try:
        return TRANSITIONS[status, verb]
    except KeyError:
        raise _refusal(status, verb) from None


def admit_turn(state: SessionState) -> SessionState:
    """Return the state with its turn raised to the one that a new message belongs to.

    Messages that arrive while a turn runs wait together for the next turn.
    """
    status = transition(state.status, Verb.ADMIT)
    # No race: the row is read under the write lock, so two messages see the same status.
    ahead = 2 if status is Status.RUNNING else 1
    return msgspec.structs.replace(state, turn=state.settled + ahead)


def has_waiting_turn(state: SessionState) -> bool:
    """Return whether a turn is open or waits to run."""
    return state.turn > state.settled and state.status in OPEN


def is_paused(state: SessionState) -> bool:
    """Return whether the turn waits for something and no process runs it."""
    return state.until < 0


def title_of(text: str) -> str | None:
    """Return the session title derived from its first message."""
    # On one line, because titles are shown in lists.
    collapsed = " ".join(text.split())
    if len(collapsed) > TITLE_LONGEST:
        return collapsed[: TITLE_LONGEST - 1] + "…"
    return collapsed or None


def cap_of(wanted: int | None) -> int:
    """Return the turn cap; `None`, zero and negative values select the default."""
    return wanted if wanted is not None and wanted > 0 else TURN_CAP


# A person is warned when this many turns are left.
FEW_TURNS: Final = 10


def may_have_few_turns(session: Session) -> bool:
    """Return whether the turn cap may be near; a fork counts inherited turns, its cap does not."""
    budget = session.budget
    is_spent = budget is not None and 0 < budget.microcents <= session.microcents
    is_near = session.settled + FEW_TURNS >= session.turn_cap
    # A spent budget leaves no turns either, and has a question of its own.
    return session.status in OPEN and is_near and not is_spent


def _refusal(status: Status, verb: Verb) -> HoldfastError:
    if status is Status.FAILED:
        return Conflict(
            Code.SESSION_FAILED,
            "The session has lost its agent and cannot continue; fork it to continue from here.",
            {"status": status, "remedy": "fork"},
        )
    if status in _CLOSED:
        return Conflict(
            Code.SESSION_CLOSED,
            f"The session is {status}; resume it first.",
            {"status": status, "remedy": "resume"},
        )
    return Conflict(
        Code.TURN_NOT_RUNNING, f"No turn is running; {verb} requires one.", {"status": status}
    )


VARIABLES_MOST: Final = 64
VARIABLE_LARGEST: Final = 8 << 10
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _faults(context: SessionContext) -> list[str]:
    """Return the paths of the fields that break a rule, never their values."""
    marked = context.selection
    rules = {
        "working_dir": PurePath(context.working_dir).is_absolute()
        and _is_clean(context.working_dir),
        "active_file": context.active_file is None or _is_filled(context.active_file),
        "selection.file": marked is None or _is_filled(marked.file),
        "selection.start_line": marked is None or marked.start_line >= 0,
        "selection.end_line": marked is None or marked.end_line >= marked.start_line,
        "git_ref": context.git_ref is None or _is_filled(context.git_ref),
        "variables": len(context.variables) <= VARIABLES_MOST,
    }
    # Paths only, because a value may be a secret.
    wrong = [field for field, holds in rules.items() if not holds]
    return wrong + [
        f"variables.{key}" if _VARIABLE.fullmatch(key) else "variables"
        for key, value in context.variables.items()
        if not (_VARIABLE.fullmatch(key) and _is_short_enough(value))
    ]


def _is_short_enough(value: str) -> bool:
    return _is_clean(value) and len(value.encode()) <= VARIABLE_LARGEST


def _is_filled(text: str) -> bool:
    return bool(text.strip()) and _is_clean(text)


def _is_clean(text: str) -> bool:
    return "\x00" not in text and is_encodable(text)


METADATA_LARGEST: Final = 16 << 10


class SessionRequest(Struct, frozen=True, kw_only=True):
    """The parameters of a new session; `None` selects the agent's or configured default."""

    title: str | None = None
    tags: tuple[str, ...] = ()
    model: str | None = None
    repo_id: str | None = None
    context: SessionContext | None = None
    grant: Grant | None = None
    tools: tuple[str, ...] | None = None
    # The default is to ask, so that no call runs without the user's consent.
    approval: ApprovalMode | None = None
    turn_cap: int | None = None
    budget: Budget | None = None
    overrides: AgentOverrides | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if self.title is not None:
            require_text(self.title, field="title", shortest=1, longest=255)
        if require_tags(self.tags) != self.tags:
            raise Invalid(
                Code.INVALID_INPUT,
                "Tags must be unique; remove the repeated one.",
                {"field": "tags"},
            )
        if self.budget is not None and self.budget.microcents < 0:
            raise Invalid(
                Code.INVALID_INPUT, "A budget must be 0 or more micro-cents.", {"field": "budget"}
            )
        if self.overrides is not None:
            require_retry(self.overrides.retry)
        _require_storable(self.metadata)

    def identity(self) -> dict[str, Any]:
        """Return what makes a repeated request the same, also after an upgrade.

        A field that was added later counts only if it is set, because requests stored before it had
        none.
        """
        fields = msgspec.structs.asdict(self)
        if self.overrides is None:
            del fields["overrides"]
        elif self.overrides.output_schema is None:
            changed = msgspec.structs.asdict(self.overrides)
            del changed["output_schema"]
            fields["overrides"] = changed
        return fields


class ForkRequest(Struct, frozen=True, kw_only=True):
    """The parameters of a fork; omitted ones are taken from the parent.

    `at` is the last row to share. It defaults to the last row, or with `is_settled` to the last row
    of the settled turns. With another agent, the fork is set up as a new session of that agent.
    """

    at: int | None = None
    is_settled: bool = False
    title: str | None = None
    tags: tuple[str, ...] | None = None
    model: str | None = None
    agent: str | None = None

    def __post_init__(self) -> None:
        if self.title is not None:
            require_text(self.title, field="title", shortest=1, longest=255)
        if self.tags is not None and require_tags(self.tags) != self.tags:
            raise Invalid(
                Code.INVALID_INPUT,
                "Tags must be unique; remove the repeated one.",
                {"field": "tags"},
            )


# msgspec compiles a type on first use, and two threads doing so at once would race.
msgspec.json.Decoder(SessionRequest)


def digest_request(owner: Owner, *asked: object) -> bytes:
    """Return the digest that makes a creation request idempotent."""
    try:
        encoded = msgspec.json.encode([owner, *asked], order="sorted")
    except UnicodeEncodeError:
        raise Invalid(
            Code.INVALID_TEXT, "The request contains a lone surrogate; remove it."
        ) from None
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(Code.INVALID_INPUT, "The request must be plain JSON.") from None
    return hashlib.sha256(encoded).digest()


def _require_storable(metadata: dict[str, Any]) -> None:
    try:
        size = len(msgspec.json.encode(metadata))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(
            Code.INVALID_INPUT, "metadata must be plain JSON.", {"field": "metadata"}
        ) from None
    if size > METADATA_LARGEST:
        raise Invalid(
            Code.INVALID_INPUT, "metadata may have at most 16 KiB.", {"field": "metadata"}
        )


T = TypeVar("T")


class Created(Struct, Generic[T], frozen=True, kw_only=True):
    """A created object, and whether this request or an earlier equal one created it."""

    value: T
    is_new: bool


def require_session_request(value: Any) -> None:
    """Refuse a request that is not a `SessionRequest`."""
    if value is not None and not isinstance(value, SessionRequest):
        raise wrong_type(value, field="request", rule="request must be a SessionRequest")
