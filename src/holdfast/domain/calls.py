"""Calls: the lifecycle of one tool call, derived from the journal's events.

intended ──▶ started ──▶ finished
    │  │         └─────▶ unknown ◀─▶ settled (retried · skipped · marked done)
    │  └─▶ requested (a client runs it) ◀─▶ started, when a client claims or answers it
    │          └─▶ finished (not answered in time, or its turn ended)
    └─▶ finished (refused or skipped before it ran)

A call settled by a retry becomes unknown again if the retry did not run.
"""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import CallId, Owner, SessionId
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect


class CallState(StrEnum):
    """The state of a call."""

    INTENDED = "intended"
    REQUESTED = "requested"
    STARTED = "started"
    FINISHED = "finished"
    UNKNOWN = "unknown"
    SETTLED = "settled"


class Settlement(StrEnum):
    """How a call with an unknown outcome was settled."""

    RETRIED = "retried"
    SKIPPED = "skipped"
    MARKED_DONE = "marked_done"


class ClaimHolder(Struct, frozen=True, kw_only=True):
    """The client that runs a call, and until when it is its own unless it extends the claim."""

    worker: str
    until: datetime


class Call(Struct, frozen=True, kw_only=True):
    """One tool call of a session."""

    id: CallId
    session_id: SessionId
    turn: int
    name: str
    arguments: dict[str, Any]
    state: CallState = CallState.INTENDED
    effect: Effect = Effect.UNSAFE
    idempotency_key: str
    settlement: Settlement | None = None
    # Sequence of its message row, and of the row of its result.
    sequence: int = 0
    result_sequence: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    # Until when the client may answer; only while the call is requested or claimed.
    deadline_at: datetime | None = None
    # How often clients were asked to run it, and the client that does now.
    attempt: int = 1
    claim: ClaimHolder | None = None


class ClientRequest(Struct, frozen=True, kw_only=True):
    """The request to a client to run a call, and the digest of the first answer to it.

    `is_late` means that the call had ended before, so the answer is not its result. `claim` is the
    id of the claim under which the call runs, `claims` are all that it ever had. Without a claim
    the `holder` is the worker for which the call is reserved.
    """

    deadline_at: datetime
    answer: str | None = None
    is_late: bool = False
    attempt: int = 1
    claim: str | None = None
    claims: tuple[str, ...] = ()
    holder: ClaimHolder | None = None
    # How many seconds a claim lasts unless it is extended.
    lease_s: float = 15.0
    # When its progress was last written.
    progressed_at: datetime | None = None

    def with_claim(self, claim: str, holder: ClaimHolder) -> "ClientRequest":
        """Return the request with a claim of a client, or with a longer one."""
        claims = self.claims if claim in self.claims else (*self.claims, claim)
        return msgspec.structs.replace(self, claim=claim, claims=claims, holder=holder)

    def without_claim(self) -> "ClientRequest":
        """Return the request without a claim; the ids of earlier claims stay known."""
        return msgspec.structs.replace(self, claim=None, holder=None)


NEXT: Final[Mapping[CallState, frozenset[CallState]]] = {
    CallState.INTENDED: frozenset({CallState.REQUESTED, CallState.STARTED, CallState.FINISHED}),
    CallState.REQUESTED: frozenset({CallState.STARTED, CallState.FINISHED}),
    # Includes itself, because a pure or idempotent call starts again after a crash; a client may
    # give a call back, or die with one that may run twice.
    CallState.STARTED: frozenset(
        {CallState.STARTED, CallState.REQUESTED, CallState.FINISHED, CallState.UNKNOWN}
    ),
    CallState.FINISHED: frozenset(),
    CallState.UNKNOWN: frozenset({CallState.SETTLED}),
    CallState.SETTLED: frozenset(),
}
_RETRY: Final = "retry_"


def call_key(owner: Owner, session_id: SessionId, call_id: CallId) -> str:
    """Return the external idempotency key of a call; includes the owner, as ids may repeat."""
    return hashlib.sha256(f"{owner}|{session_id}|{call_id}".encode()).hexdigest()


def request_call(call: Call, *, deadline_at: datetime) -> Call:
    """Return the call as requested from a client, which has not run it as far as is known."""
    moved = _transition(call, CallState.REQUESTED)
    return msgspec.structs.replace(moved, deadline_at=deadline_at, started_at=None)


def start_call(call: Call, *, at: datetime) -> Call:
    """Return the call as started; a recovered pure or idempotent call may start again."""
    if call.state is CallState.STARTED and call.effect is Effect.UNSAFE:
        raise _refusal(call, CallState.STARTED)
    moved = _transition(call, CallState.STARTED)
    return msgspec.structs.replace(moved, started_at=at, deadline_at=None)


def finish_call(call: Call, status: ResultStatus, *, at: datetime, sequence: int) -> Call:
    """Return the call with its outcome and the sequence of its result."""
    unknown = status is ResultStatus.UNKNOWN
    moved = _transition(call, CallState.UNKNOWN if unknown else CallState.FINISHED)
    return msgspec.structs.replace(moved, ended_at=at, result_sequence=sequence, deadline_at=None)


def add_details(arguments: dict[str, Any]) -> Callable[[Call], Call]:
    """Return a function that sets arguments that became known after the call was announced."""
    return lambda call: msgspec.structs.replace(call, arguments=arguments)


def settle_call(call: Call, how: Settlement) -> Call:
    """Return the call with its unknown outcome settled."""
    return msgspec.structs.replace(_transition(call, CallState.SETTLED), settlement=how)


def reopen_call(call: Call) -> Call:
    """Return a call as unknown again, because its retry did not run."""
    # Not in the transition table, because a late result must not take this transition.
    if call.settlement is not Settlement.RETRIED:
        raise _refusal(call, CallState.UNKNOWN)
    return msgspec.structs.replace(call, state=CallState.UNKNOWN, settlement=None)


def retry_id(new: str) -> CallId:
    """Return the id of a call that retries another one."""
    return CallId(f"{_RETRY}{new}")


def is_retry(call: Call) -> bool:
    """Return whether a call retries another one."""
    return call.id.startswith(_RETRY)


def is_unrun_retry(call: Call, status: ResultStatus) -> bool:
    """Return whether a call was a retry of another one and had no effect."""
    if not is_retry(call) or call.state is not CallState.FINISHED:
        return False
    # A started call may still be denied, because its target changed after approval (TOCTOU).
    return call.started_at is None or status in {ResultStatus.DENIED, ResultStatus.SKIPPED}


def is_open(call: Call) -> bool:
    """Return whether the call still has no result."""
    return call.state in {CallState.INTENDED, CallState.REQUESTED, CallState.STARTED}


def with_request(call: Call, request: ClientRequest) -> Call:
    """Return an open call with its deadline, its attempt and the client that runs it."""
    if not is_open(call):
        return call
    return msgspec.structs.replace(
        call,
        deadline_at=request.deadline_at,
        attempt=request.attempt,
        claim=request.holder if request.claim is not None else None,
    )


def _transition(call: Call, state: CallState) -> Call:
    # A table instead of conditions, so that a test can check it for completeness.
    if state not in NEXT[call.state]:
        raise _refusal(call, state)
    return msgspec.structs.replace(call, state=state)


def _refusal(call: Call, state: CallState) -> Conflict:
    return Conflict(
        Code.CALL_NOT_OPEN,
        f"Call {call.id} is {call.state}; it cannot become {state}.",
        {"state": call.state},
    )
