"""Turns: begin, play, end. A runtime yields drafts, the journal writes them, a crash is mended.

When a turn runs, and where, is the coordinator's business.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from enum import Enum, auto
from typing import Final

from msgspec.structs import replace

from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, MessageDraft, Outcome, Summary
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
from holdfast.domain.messages import Message, Notice, NoticeCode, Role
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
from holdfast.ports import Brief, Limits, ProcessSlot, Runtime, Store, TurnInput, Tx
from holdfast.services.agent_processes import ProcessLimit
from holdfast.services.approvals import Approvals, expire
from holdfast.services.costs import budget_of
from holdfast.services.history_cache import HistoryCache
from holdfast.services.journal import (
    Journal,
    SessionWriter,
    find_session_state,
    session_not_found,
)
from holdfast.services.models import Models
from holdfast.services.workspaces import Workspaces
from holdfast.zones.binding import unbind_zone

log = logging.getLogger(__name__)
# Tells of a turn, by its number, whether this process is to play it.
IsWanted = Callable[[int], bool]


def allow_any_turn(_: int) -> bool:
    """Want every turn, whoever asked for it."""
    return True


class TurnWritten(Enum):
    """How far a batch of drafts has brought a session."""

    GOES_ON = auto()
    NEXT_TURN_WAITS = auto()
    ALL_ENDED = auto()


class TurnInputs:
    """Gathers what turns are played with."""

    def __init__(
        self,
        models: Models,
        places: Workspaces,
        approvals: Approvals,
        limits: Limits,
        process_slot: Callable[[Session, SessionKey], ProcessSlot | None] = lambda *_: None,
    ) -> None:
        """`berth` tells where the program of a session has its place, if its agent is one."""
        self._berth = process_slot
        self._models = models
        self._places = places
        self._approvals = approvals
        self._limits = limits
        self._histories = HistoryCache()

    def forget(self, key: SessionKey) -> None:
        """Remember nothing of a session that has ended."""
        self._histories.forget(key)

    async def gathered(self, store: Store, key: SessionKey) -> TurnInput | Outcome:
        """Gather on a snapshot of its own, at once unless a long history has to be read."""

        async def gather(tx: Tx) -> TurnInput | Outcome:
            return await self.gather(tx, key)

        async def gather_if_short(tx: Tx) -> TurnInput | Outcome | None:
            head = None if self._histories.knows(key) else await tx.sessions.head_by_key(key)
            is_long = head is not None and head.messages > ROWS_BRIEF
            return None if is_long else await self.gather(tx, key)

        found = await store.read(Brief(gather_if_short))
        found = found if found is not None else await store.read(gather)
        if isinstance(found, TurnInput):
            await self._models.keep(found.models)
        return found

    async def gather(self, tx: Tx, key: SessionKey) -> TurnInput | Outcome:
        """Return what the next turn is played with, or how it ends if it may not be played."""
        found = await tx.sessions.get_by_key(key)
        if found is None:
            raise session_not_found()
        session, head = found
        if await self._is_past_the_cap(tx, session, head):
            return _past_the_cap(session)
        turn = head.settled + 1
        # One snapshot: rows and calls of two instants could contradict each other.
        history = await self._histories.read(tx, head)
        newest = await tx.costs.newest(head) if head.requests else None
        return TurnInput(
            agent=session.agent,
            models=await self._models.chain(tx, session),
            context=session.context,
            history=history,
            # Every call has a row: where there is none, the table need not be asked.
            calls=tuple(await tx.calls.of_turn(head, turn)) if _asks(history, turn) else (),
            turn=turn,
            step=await _steps(tx, head) + 1,
            ordinal=head.requests + 1,
            shelf=self._places.shelf(key),
            place=self._places.of(session, key),
            tools=session.tools,
            approver=self._approvals.of(key),
            process_slot=self._berth(session, key),
            limits=_limits(session.agent, self._limits),
            budget=await budget_of(tx, session, key, self._limits.budget),
            spent=head.microcents,
            last_usage=newest.usage if newest else None,
            last_model=newest.model_id if newest else None,
        )

    async def _is_past_the_cap(self, tx: Tx, session: Session, head: SessionState) -> bool:
        """Tell whether the session has had all its turns, this one not being among them."""
        turn = head.settled + 1
        # Counted only where it can matter: no more turns are engaged than have settled.
        if head.settled < session.turn_cap or await tx.costs.of_turn(head, turn):
            return False
        if await tx.costs.engaged(head) < session.turn_cap:
            return False
        # A call that is run again asks no model, and the cap has nothing to say to it.
        rows = await self._histories.read(tx, head)
        return any(row.turn == turn and row.role is Role.USER for row in rows)


class Turns:
    """Plays the waiting turns of a session, one after the other."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        inputs: TurnInputs,
        runtimes: Mapping[type[AgentRuntime], Runtime],
        slots: ProcessLimit,
    ) -> None:
        self._store = store
        self._journal = journal
        self._inputs = inputs
        self._runtimes = runtimes
        self._slots = slots

    async def drain(self, lease: Lease, is_wanted: IsWanted = allow_any_turn) -> None:
        """Play the turn that was begun with the lease, and those behind it that are wanted."""

        async def go_on(pen: SessionWriter) -> bool:
            if is_wanted(pen.head.settled + 1):
                await begin(pen)
                return True
            # Whoever asked for it plays it; begun here it might be left in its middle.
            pen.move(holder=None, until=0)
            return False

        while await self._play(lease) is TurnWritten.NEXT_TURN_WAITS:
            if not await self._journal.write_by_key(lease.key, go_on, lease=lease):
                return

    def forget(self, key: SessionKey) -> None:
        """Remember nothing of a session that has ended."""
        self._inputs.forget(key)

    async def _play(self, lease: Lease) -> TurnWritten:
        """Record what the runtime yields; whatever happens, the turn ends with an outcome."""
        try:
            turn = await self._inputs.gathered(self._store, lease.key)
            if isinstance(turn, Outcome):
                return await self._given_up(lease, turn)
            # Closed in any case: that is the abort signal which reaches the provider.
            async with aclosing(self._runtimes[type(turn.agent.runtime)].run(turn)) as batches:
                deltas = self._journal.deltas()
                async for batch in batches:
                    drafts = deltas.passed(batch)
                    # All of it may have to wait, for the end of what may be a secret.
                    if not drafts:
                        continue
                    written = await self._record(lease, drafts)
                    if written is not TurnWritten.GOES_ON:
                        return written
            failure = self._unclassified("the runtime stopped without an outcome")
        # Whatever a runtime raises ends its turn, never the process or the sessions beside it.
        except Exception as error:
            if isinstance(error, HoldfastError) and _may_pass(error):
                raise
            failure = self._unclassified("the turn raised")
            log.exception("turn failed: %s", failure.correlation_id)
        return await self._given_up(lease, Outcome(stop_reason=StopReason.ERROR, failure=failure))

    async def _given_up(self, lease: Lease, outcome: Outcome) -> TurnWritten:
        """End a turn that broke in its middle; its step and its calls do not stay open."""

        async def write(pen: SessionWriter) -> TurnWritten:
            calls = await pen.tx.calls.of_turn(pen.head, pen.head.settled + 1)
            await repair_turn(pen, cut_short(await open_step(pen), calls, outcome))
            return TurnWritten.NEXT_TURN_WAITS if pen.head.holder else TurnWritten.ALL_ENDED

        return await self._journal.write_by_key(lease.key, write, lease=lease)

    async def _record(self, lease: Lease, drafts: Sequence[Draft]) -> TurnWritten:
        """Write a batch; tell whether it ended the turn, and whether another one waits."""

        *rows, last = drafts

        async def write(pen: SessionWriter) -> tuple[TurnWritten, SessionId]:
            turn, name = pen.head.settled + 1, pen.head.session_id
            if not isinstance(last, Outcome):
                await pen.write(drafts, turn)
                return TurnWritten.GOES_ON, name
            await pen.write(rows, turn)
            await end(pen, last)
            return (TurnWritten.NEXT_TURN_WAITS if pen.head.holder else TurnWritten.ALL_ENDED), name

        written, name = await self._journal.write_by_key(lease.key, write, lease=lease)
        if isinstance(last, Outcome) and last.is_lost:
            self.forget(lease.key)
            await self._slots.tell(self._store, name, delta=-1, cause=Status.FAILED)
        return written

    def _unclassified(self, what: str) -> Failure:
        correlation_id = self._journal.new_id()
        log.error("%s: %s", what, correlation_id)
        return Failure(
            code=FailureCode.INTERNAL,
            message="Something went wrong inside Holdfast; the log has the details.",
            correlation_id=correlation_id,
        )


async def begin(pen: SessionWriter) -> None:
    """Begin the turn that waits; one that was cut off has begun already."""
    head = pen.head
    # Mended and not begun: it has its `turn.started` already, and exactly one.
    if head.status is Status.RUNNING:
        return
    event = await pen.tell(TurnStarted(), head.settled + 1)
    pen.move(
        status=transition(head.status, Verb.BEGIN),
        began=event.sequence,
        started_at=head.started_at or event.at,
        finished_at=None,
    )


async def end(pen: SessionWriter, outcome: Outcome, *, more_turns: bool | None = None) -> None:
    """End the running turn: its closing row, its news and its status, all in one.

    Whether another turn follows at once is told by what waits, unless the caller knows better.
    """
    number = pen.head.settled + 1
    # Nobody will hear the answers any more.
    await expire(pen, by=outcome.stop_reason)
    notice = closing_notice(outcome)
    if notice is not None:
        await pen.append(notice, number)
    # From the ledger, because another process may have played the beginning of this turn.
    spent = await pen.tx.costs.of_turn(pen.head, number)
    event = await pen.tell(
        TurnEnded(
            stop_reason=outcome.stop_reason,
            usage=sum((entry.usage for entry in spent), Usage()),
            microcents=sum(entry.microcents for entry in spent),
            priced=all(entry.priced for entry in spent),
            more_turns=pen.head.turn > number if more_turns is None else more_turns,
            failure=outcome.failure,
        ),
        number,
    )
    pen.move(
        status=transition(pen.head.status, Verb.END),
        settled=number,
        turn=max(pen.head.turn, number),
        last_stop=outcome.stop_reason,
        finished_at=event.at,
    )
    if outcome.is_lost:
        await lose_turn(pen, outcome)
    # Let go in the same transaction: a message admitted after it finds the session free.
    if not has_waiting_turn(pen.head):
        pen.move(holder=None, until=0)


async def lose_turn(pen: SessionWriter, outcome: Outcome) -> None:
    """End a session whose agent is gone for good; what it left to tell why is kept."""
    failure = outcome.failure
    told = f"Agent failed: {failure.code}: {failure.message}" if failure else "Agent failed."
    text = f"{told}\n{outcome.evidence}" if outcome.evidence else told
    notice = Notice(code=NoticeCode.AGENT_FAILED, text=text)
    await pen.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    reason = str(failure.code) if failure else None
    status = transition(pen.head.status, Verb.LOSE)
    await unbind_zone(pen)
    await pen.tell(SessionClosed(status=status, reason=reason))
    pen.move(status=status, reason=reason)


async def repair_turn(
    pen: SessionWriter, decided: Repair, *, more_turns: bool | None = None
) -> None:
    """Append what a crash or an interrupt leaves to be said; end the turn if that is decided."""
    await pen.write(decided.drafts, pen.head.settled + 1)
    if decided.outcome is not None:
        await end(pen, decided.outcome, more_turns=more_turns)


async def open_step(pen: SessionWriter) -> OpenStep | None:
    """Return the model step of the running turn that has begun and not ended."""
    return await unfinished_step(pen.tx, pen.head)


async def unfinished_step(tx: Tx, head: SessionState) -> OpenStep | None:
    """Return the step that has begun and not ended since the last turn began."""
    news = await tx.events.since(head, head.began, _STEP_NAMES)
    step: OpenStep | None = None
    for event in news:
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
    """Tell whether an error means that the turn belongs to somebody else, or to nobody, now."""
    return error.code in {Code.LEASE_LOST, Code.SESSION_NOT_FOUND}


def _may_pass(error: HoldfastError) -> bool:
    """Tell whether the turn can go on later: it is fenced, or the store cannot be written now."""
    # To end the turn now would need the very write that fails.
    return is_fenced(error) or isinstance(error, Unavailable | StorageFull)


# So many rows are read in well under a millisecond.
ROWS_BRIEF: Final = 50


async def _steps(tx: Tx, head: SessionState) -> int:
    """Return how many steps of the turn have begun; a turn that began just now has none."""
    if head.events == head.began:
        return 0
    return len(await tx.events.since(head, head.began, [name_of(StepStarted)]))


def _asks(history: Sequence[Message], turn: int) -> bool:
    """Tell whether a row of the turn asks for a call."""
    for row in reversed(history):
        # Not further back: rows of a turn are written after the one before it began.
        if 0 < row.turn < turn - 1:
            return False
        if row.turn == turn and row.role is Role.TOOL_CALL:
            return True
    return False


def _past_the_cap(session: Session) -> Outcome:
    failure = Failure(
        code=FailureCode.TURN_LIMIT,
        message=f"The session has had its {session.turn_cap} turns. Open a new one, or fork this.",
    )
    return Outcome(stop_reason=StopReason.TURN_LIMIT, failure=failure)


def _limits(agent: Agent, configured: Limits) -> Limits:
    """Return how far a turn may go, with the window that the agent itself asks for."""
    memory = agent.runtime.memory if isinstance(agent.runtime, LlmRuntime) else None
    if memory is None or memory.window_size is None:
        return configured
    return replace(configured, max_messages=memory.window_size)


class Compactions:
    """Shortens what a model sees of a session; no row is removed or changed."""

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
        """Fold everything before the last answered turn; `False` when there is nothing to fold."""

        async def read(tx: Tx) -> tuple[SessionState, TurnInput | Outcome]:
            head = await find_session_state(tx, owner, session_id)
            _require_rest(head)
            return head, await self._inputs.gather(tx, head.key)

        head, turn = await self._store.read(read)
        # Past its cap nothing is asked any more, so nothing has to be shorter.
        if isinstance(turn, Outcome):
            return False
        # Two at once would each be held against all the money that is left.
        if head.key in self._busy:
            raise Conflict(Code.TURN_RUNNING, "The session is being compacted; wait for its end.")
        self._busy.add(head.key)
        try:
            return await self._fold(head, turn)
        finally:
            self._busy.discard(head.key)

    async def _fold(self, head: SessionState, turn: TurnInput) -> bool:
        drafts = await self._runtimes[type(turn.agent.runtime)].compact(turn)

        async def write(pen: SessionWriter) -> None:
            # The summary was made of what was there; what came since must not be thought of as in.
            if pen.head.messages != head.messages:
                _require_rest(pen.head)
            await pen.write(drafts, 0)

        if drafts:
            await self._journal.write_by_key(head.key, write)
        return any(isinstance(draft, Summary) for draft in drafts)


def _require_rest(head: SessionState) -> None:
    if has_waiting_turn(head):
        raise Conflict(Code.TURN_RUNNING, "A turn runs or waits; compact when it has ended.")
