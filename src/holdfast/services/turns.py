"""Turns: begin, run, end, and repair. Runtimes emit drafts, the journal writes them.

The coordinator decides when and where a turn runs; `leases.py` starts recovery when it takes a
session over, and `domain/turns.py` decides how a turn is repaired.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.costs import CostSum
from holdfast.domain.drafts import (
    CallsRequested,
    Draft,
    MessageDraft,
    Outcome,
    Summary,
    ToolsFound,
)
from holdfast.domain.errors import Code, Conflict, HoldfastError, StorageFull, Unavailable
from holdfast.domain.events import (
    Channel,
    Failure,
    FailureCode,
    SessionClosed,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    TurnEnded,
    TurnStarted,
    name_of,
)
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import (
    Session,
    SessionState,
    Status,
    StopReason,
    Verb,
    has_waiting_turn,
    transition,
)
from holdfast.domain.turns import OpenStep, Repair, closing_notice, cut_short
from holdfast.domain.waits import wait_for_tools
from holdfast.ports.runtime import (
    Runtime,
    TurnFailedError,
    TurnInput,
    TurnPausedError,
)
from holdfast.ports.store import Store, Tx
from holdfast.services.agent_processes import ProcessLimit
from holdfast.services.approvals import expire_questions
from holdfast.services.calls import has_answer, request_calls
from holdfast.services.journal import (
    Journal,
    RedactedDeltas,
    SessionWriter,
    find_session_state,
    pause_turn,
)
from holdfast.services.turn_inputs import TurnInputs
from holdfast.zones.binding import unbind_zone

log = logging.getLogger(__name__)
# Returns whether this process is to run the turn of this number.
IsWanted = Callable[[int], bool]


def allow_any_turn(_: int) -> bool:
    """Accept every turn, regardless of which process admitted it."""
    return True


class TurnWritten(Enum):
    """State of a session after a batch of drafts."""

    GOES_ON = auto()
    PAUSED = auto()
    NEXT_TURN_WAITS = auto()
    ALL_ENDED = auto()


class Turns:
    """Begins, runs and ends the turns of sessions, each when its coordinator calls for it."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        inputs: TurnInputs,
        runtimes: Mapping[type[AgentRuntime], Runtime],
        process_limit: ProcessLimit,
        *,
        missing: Callable[[Session], Sequence[str]] = lambda _: (),
    ) -> None:
        """`missing` returns the functions of a session that this process does not have."""
        self._store = store
        self._journal = journal
        self._inputs = inputs
        self._runtimes = runtimes
        self._process_limit = process_limit
        self._missing = missing

    def begin_next(self, lease: Lease, is_wanted: IsWanted) -> Awaitable[bool]:
        """Begin the next turn if it is wanted; otherwise give the lease back."""

        def go_on(writer: CommitBuilder) -> bool:
            if is_wanted(writer.state.settled + 1):
                begin(writer)
                return True
            # Left to the process that admitted it; started here it could be cut off half-way.
            writer.update(holder=None, until=0)
            return False

        return self._journal.commit(lease, go_on)

    def forget(self, key: SessionKey) -> None:
        """Drop a session that has ended from memory."""
        self._inputs.forget(key)
        self._journal.forget(key)

    def emitter(self, lease: Lease) -> "Emitter":
        """Return what writes the drafts of one turn."""
        return Emitter(self, self._journal, lease)

    async def run_turn(self, lease: Lease) -> TurnWritten:
        """Run the turn that has begun with the lease, write what its runtime emits, and end it.

        A turn that waits for something is paused instead.
        """
        try:
            turn = await self._inputs.read(self._store, lease.key, lease=lease)
            if isinstance(turn, Outcome):
                return await self.give_up(lease, turn)
            runtime = self._runtimes[type(turn.agent.runtime)]
            if turn.session is not None and (lacking := self._missing(turn.session)):
                raise TurnPausedError(wait_for_tools(lacking))
            if not runtime.writes_first:
                await self._journal.require_stored(lease)
            emitter = self.emitter(lease)
            ended = await runtime.run(turn, emitter.emit)
            return await emitter.emit(ended.drafts, ended.outcome)
        except TurnPausedError as paused:
            return await self._pause(lease, paused)
        except TurnFailedError as failed:
            return await self.give_up(lease, failed.outcome)
        # Any exception of a runtime ends its turn only, not the process or other sessions.
        except Exception as error:
            if isinstance(error, HoldfastError) and may_pass(error):
                raise
            failure = self._log_internal_failure("the turn raised")
            log.exception("turn failed: %s", failure.correlation_id)
        return await self.give_up(lease, Outcome(stop_reason=StopReason.ERROR, failure=failure))

    async def _pause(self, lease: Lease, paused: TurnPausedError) -> TurnWritten:
        """Give the lease back until what the turn waits for has come, or its time is over."""

        async def write(writer: SessionWriter) -> TurnWritten:
            wait = paused.wait
            await writer.load_turn()
            # Race: the answer may have been written since the turn stopped waiting for it.
            if wait.approval_id is not None and not any(writer.waiting()):
                return TurnWritten.GOES_ON
            if await writer.tx.children.have_ended(writer.state.owner, wait.children):
                return TurnWritten.GOES_ON
            if has_answer(writer, paused.timeouts):
                return TurnWritten.GOES_ON
            ends = await request_calls(writer, paused.timeouts)
            until = min(ends if wait.until is None else [*ends, wait.until], default=None)
            await pause_turn(writer, replace(wait, until=until))
            return TurnWritten.PAUSED

        written = await self._journal.write_by_key(lease.key, write, lease=lease)
        if written is TurnWritten.PAUSED:
            # A paused session takes no memory.
            self.forget(lease.key)
        return written

    async def give_up(self, lease: Lease, outcome: Outcome) -> TurnWritten:
        """End a turn that failed half-way, closing its open step and calls."""

        async def write(writer: SessionWriter) -> TurnWritten:
            await writer.load_turn()
            calls = tuple(writer.turn_calls())
            await repair_turn(
                writer,
                cut_short(await find_unfinished_step(writer.tx, writer.state), calls, outcome),
            )
            return TurnWritten.NEXT_TURN_WAITS if writer.state.holder else TurnWritten.ALL_ENDED

        return await self._journal.write_by_key(lease.key, write, lease=lease)

    async def record_beside(
        self,
        lease: Lease,
        write: Callable[[CommitBuilder], TurnWritten],
        drafts: Sequence[Draft],
        lost: Outcome | None,
    ) -> TurnWritten:
        """Write a batch in a transaction; fail the session if its agent was lost."""

        async def write_in(writer: SessionWriter) -> tuple[TurnWritten, SessionId]:
            await writer.load_turn()
            written = write(writer)
            for draft in drafts:
                if isinstance(draft, CallsRequested):
                    await request_calls(writer, draft.timeouts)
            if lost is not None:
                await fail_session(writer, lost)
            return written, writer.state.session_id

        written, name = await self._journal.write_by_key(lease.key, write_in, lease=lease)
        if lost is not None:
            self.forget(lease.key)
            await self._process_limit.tell(self._store, name, delta=-1, cause=Status.FAILED)
        return written

    def _log_internal_failure(self, what: str) -> Failure:
        correlation_id = self._journal.new_id()
        log.error("%s: %s", what, correlation_id)
        return Failure(
            code=FailureCode.INTERNAL,
            message="Internal error in Holdfast; see the log for details.",
            correlation_id=correlation_id,
        )


# Drafts that are more than the rows of a session.
_BESIDE: Final = frozenset({CallsRequested, ToolsFound})


async def _nothing() -> TurnWritten:
    """Write nothing."""
    return TurnWritten.GOES_ON


class Emitter:
    """Writes the drafts of one turn, without secrets in its deltas."""

    def __init__(self, turns: Turns, journal: Journal, lease: Lease) -> None:
        self._turns = turns
        self._journal = journal
        self._lease = lease
        # Made for the first delta.
        self._filter: RedactedDeltas | None = None

    def emit(
        self, batch: Sequence[Draft], outcome: Outcome | None = None
    ) -> Awaitable[TurnWritten]:
        """Commit the drafts, and the end of the turn; they are on disk when this was awaited."""
        drafts = batch
        if self._filter is not None or StepDelta in map(type, batch):
            drafts = self._redact(batch, is_last=outcome is not None)
            # Held back, because the text may be the beginning of a secret.
            if not drafts and outcome is None:
                return _nothing()

        def write(writer: CommitBuilder) -> TurnWritten:
            writer.add(drafts, writer.state.settled + 1)
            if outcome is None:
                return TurnWritten.GOES_ON
            end(writer, outcome)
            waits = writer.state.holder is not None
            return TurnWritten.NEXT_TURN_WAITS if waits else TurnWritten.ALL_ENDED

        is_lost = outcome is not None and outcome.is_lost
        # These change more than the session: its agent's zone, or what is stored beside its state.
        if is_lost or not _BESIDE.isdisjoint(map(type, drafts)):
            lost = outcome if is_lost else None
            return self._turns.record_beside(self._lease, write, drafts, lost)
        return self._journal.commit(self._lease, write)

    def _redact(self, batch: Sequence[Draft], *, is_last: bool) -> Sequence[Draft]:
        if self._filter is None:
            self._filter = self._journal.deltas()
        drafts = self._filter.passed(batch)
        return [*drafts, *self._filter.rest()] if is_last else drafts


def begin(writer: CommitBuilder, *, runner: str | UnsetType = UNSET) -> None:
    """Begin the waiting turn; a no-op for a turn that was interrupted by a crash."""
    state = writer.state
    # A repaired turn already has its `turn.started` event, and must have exactly one.
    if state.status is Status.RUNNING:
        return
    at = writer.add_event(TurnStarted(runner=runner), state.settled + 1)
    writer.update(
        status=transition(state.status, Verb.BEGIN),
        began=writer.state.events,
        started_at=state.started_at or at,
        finished_at=None,
    )


def end(writer: CommitBuilder, outcome: Outcome, *, more_turns: bool | None = None) -> None:
    """End the running turn: add its closing row, its events and its status.

    `more_turns` overrides whether another turn follows; by default it is derived from the queue.
    """
    number = writer.state.settled + 1
    # The turn that asked is over, so answers would have no receiver.
    expire_questions(writer, by=outcome.stop_reason)
    notice = closing_notice(outcome)
    if notice is not None:
        writer.add_message(notice, number)
    # From the ledger, because another process may have run the first part of this turn.
    spent = CostSum(key="")
    for entry in writer.costs():
        if entry.turn == number:
            spent += entry
    at = writer.add_event(
        TurnEnded(
            stop_reason=outcome.stop_reason,
            usage=spent.usage,
            microcents=spent.microcents,
            priced=not spent.unpriced_requests,
            estimated=spent.is_upper_bound,
            more_turns=writer.state.turn > number if more_turns is None else more_turns,
            failure=outcome.failure,
        ),
        number,
    )
    writer.update(
        status=transition(writer.state.status, Verb.END),
        settled=number,
        turn=max(writer.state.turn, number),
        last_stop=outcome.stop_reason,
        finished_at=at,
    )
    # Released in the same transaction, so that a message admitted next finds the session free.
    if not has_waiting_turn(writer.state):
        writer.update(holder=None, until=0)


async def fail_session(writer: SessionWriter, outcome: Outcome) -> None:
    """Fail a session whose agent cannot be restarted; writes the evidence into its record."""
    failure = outcome.failure
    summary = f"Agent failed: {failure.code}: {failure.message}" if failure else "Agent failed."
    text = f"{summary}\n{outcome.evidence}" if outcome.evidence else summary
    notice = Notice(code=NoticeCode.AGENT_FAILED, text=text)
    writer.add_message(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    reason = str(failure.code) if failure else None
    status = transition(writer.state.status, Verb.LOSE)
    await unbind_zone(writer)
    writer.add_event(SessionClosed(status=status, reason=reason))
    writer.update(status=status, reason=reason, holder=None, until=0)


async def repair_turn(
    writer: SessionWriter, decided: Repair, *, more_turns: bool | None = None
) -> None:
    """Append the rows missing after a crash or an interrupt; end the turn if so decided."""
    writer.add(decided.drafts, writer.state.settled + 1)
    if decided.outcome is not None:
        end(writer, decided.outcome, more_turns=more_turns)
        if decided.outcome.is_lost:
            await fail_session(writer, decided.outcome)


async def find_unfinished_step(tx: Tx, state: SessionState) -> OpenStep | None:
    """Return the step that began and did not end since the last turn began."""
    events = await tx.events.since(state, state.began, _STEP_NAMES)
    step: OpenStep | None = None
    for event in events:
        match event.payload:
            case StepStarted() as started:
                step = OpenStep(started=started)
            case StepDelta(channel=Channel.TEXT) as delta if step is not None:
                step = OpenStep(started=step.started, text=step.text + delta.text)
            case StepEnded() | StepFailed():
                step = None
            case _:
                pass
    return step


_STEP_NAMES = [name_of(kind) for kind in (StepStarted, StepDelta, StepEnded, StepFailed)]


def is_fenced(error: HoldfastError) -> bool:
    """Return whether an error means that the lease was lost or the session was deleted."""
    return error.code in {Code.LEASE_LOST, Code.SESSION_NOT_FOUND}


def may_pass(error: HoldfastError) -> bool:
    """Return whether the turn can continue later: it is fenced, or the store is not writable."""
    # Ending the turn now would need the same write that fails.
    return is_fenced(error) or isinstance(error, Unavailable | StorageFull)


class Compactions:
    """Compacts the history that a model receives; no row is removed or changed."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        inputs: TurnInputs,
        runtimes: Mapping[type[AgentRuntime], Runtime],
    ) -> None:
        self._store = store
        self._journal = journal
        self._inputs = inputs
        self._runtimes = runtimes
        self._busy: set[SessionKey] = set()

    async def compact(self, owner: Owner, session_id: SessionId) -> bool:
        """Summarize everything before the last answered turn; `False` if there is nothing to do."""

        async def read(tx: Tx) -> SessionState:
            state = await find_session_state(tx, owner, session_id)
            _require_idle(state)
            return state

        state = await self._store.read(read)
        turn = await self._inputs.read(self._store, state.key)
        # Past its cap the session sends no more model requests, so compaction has no use.
        if isinstance(turn, Outcome):
            return False
        # Two concurrent compactions would each count on the whole remaining budget.
        if state.key in self._busy:
            raise Conflict(
                Code.TURN_RUNNING, "The session is being compacted; wait until it is done."
            )
        self._busy.add(state.key)
        try:
            return await self._compact(state, turn)
        finally:
            self._busy.discard(state.key)

    async def _compact(self, state: SessionState, turn: TurnInput) -> bool:
        drafts = await self._runtimes[type(turn.agent.runtime)].compact(turn)

        async def write(writer: SessionWriter) -> None:
            # The summary covers the rows read before, so a turn admitted since must not run or
            # wait.
            await writer.load_turn()
            if writer.state.messages != state.messages:
                _require_idle(writer.state)
            writer.add(drafts, 0)

        if drafts:
            await self._journal.write_by_key(state.key, write)
        return any(isinstance(draft, Summary) for draft in drafts)


def _require_idle(state: SessionState) -> None:
    if has_waiting_turn(state):
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running or waiting; compact when it has ended."
        )
