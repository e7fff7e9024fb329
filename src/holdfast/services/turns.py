"""Turns: begin, play, end. A runtime yields drafts, the journal writes them, a crash is mended.

When a turn runs, and where, is the coordinator's business.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from enum import Enum, auto

from holdfast.domain.agents import Runtime as AgentRuntime
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, MessageDraft, Outcome
from holdfast.domain.errors import Code, HoldfastError, StorageFull, Unavailable
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
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import Head, Status, StopReason, Verb, has_waiting_turn, moved
from holdfast.domain.turns import Mend, OpenStep, closing_notice, cut_short
from holdfast.ports import Runtime, Store, Tx
from holdfast.services.approvals import expire
from holdfast.services.desks import leave_desk
from holdfast.services.inputs import Inputs
from holdfast.services.journal import Journal, Pen
from holdfast.services.slots import Slots

log = logging.getLogger(__name__)


# Tells of a turn, by its number, whether this process is to play it.
IsWanted = Callable[[int], bool]


def any_turn(_: int) -> bool:
    """Want every turn, whoever asked for it."""
    return True


class Written(Enum):
    """How far a batch of drafts has brought a session."""

    GOES_ON = auto()
    NEXT_TURN_WAITS = auto()
    ALL_ENDED = auto()


class Turns:
    """Plays the waiting turns of a session, one after the other."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        inputs: Inputs,
        runtimes: Mapping[type[AgentRuntime], Runtime],
        slots: Slots,
    ) -> None:
        self._store = store
        self._journal = journal
        self._inputs = inputs
        self._runtimes = runtimes
        self._slots = slots

    async def drain(self, lease: Lease, is_wanted: IsWanted = any_turn) -> None:
        """Play the turn that was begun with the lease, and those behind it that are wanted."""

        async def go_on(pen: Pen) -> bool:
            if is_wanted(pen.head.settled + 1):
                await begin(pen)
                return True
            # Whoever asked for it plays it; begun here it might be left in its middle.
            pen.move(holder=None, until=0)
            return False

        while await self._play(lease) is Written.NEXT_TURN_WAITS:
            if not await self._journal.write_by_key(lease.key, go_on, lease=lease):
                return

    def forget(self, key: SessionKey) -> None:
        """Remember nothing of a session that has ended."""
        self._inputs.forget(key)

    async def _play(self, lease: Lease) -> Written:
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
                    if written is not Written.GOES_ON:
                        return written
            failure = self._unclassified("the runtime stopped without an outcome")
        # Whatever a runtime raises ends its turn, never the process or the sessions beside it.
        except Exception as error:
            if isinstance(error, HoldfastError) and _may_pass(error):
                raise
            failure = self._unclassified("the turn raised")
            log.exception("turn failed: %s", failure.correlation_id)
        return await self._given_up(lease, Outcome(stop_reason=StopReason.ERROR, failure=failure))

    async def _given_up(self, lease: Lease, outcome: Outcome) -> Written:
        """End a turn that broke in its middle; its step and its calls do not stay open."""

        async def write(pen: Pen) -> Written:
            calls = await pen.tx.calls.of_turn(pen.head, pen.head.settled + 1)
            await mend(pen, cut_short(await open_step(pen), calls, outcome))
            return Written.NEXT_TURN_WAITS if pen.head.holder else Written.ALL_ENDED

        return await self._journal.write_by_key(lease.key, write, lease=lease)

    async def _record(self, lease: Lease, drafts: Sequence[Draft]) -> Written:
        """Write a batch; tell whether it ended the turn, and whether another one waits."""

        *rows, last = drafts

        async def write(pen: Pen) -> tuple[Written, SessionId]:
            turn, name = pen.head.settled + 1, pen.head.session_id
            if not isinstance(last, Outcome):
                await pen.write(drafts, turn)
                return Written.GOES_ON, name
            await pen.write(rows, turn)
            await end(pen, last)
            return (Written.NEXT_TURN_WAITS if pen.head.holder else Written.ALL_ENDED), name

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


async def begin(pen: Pen) -> None:
    """Begin the turn that waits; one that was cut off has begun already."""
    head = pen.head
    # Mended and not begun: it has its `turn.started` already, and exactly one.
    if head.status is Status.RUNNING:
        return
    event = await pen.tell(TurnStarted(), head.settled + 1)
    pen.move(
        status=moved(head.status, Verb.BEGIN),
        began=event.sequence,
        started_at=head.started_at or event.at,
        finished_at=None,
    )


async def end(pen: Pen, outcome: Outcome, *, more_turns: bool | None = None) -> None:
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
        status=moved(pen.head.status, Verb.END),
        settled=number,
        turn=max(pen.head.turn, number),
        last_stop=outcome.stop_reason,
        finished_at=event.at,
    )
    if outcome.is_lost:
        await lose(pen, outcome)
    # Let go in the same transaction: a message admitted after it finds the session free.
    if not has_waiting_turn(pen.head):
        pen.move(holder=None, until=0)


async def lose(pen: Pen, outcome: Outcome) -> None:
    """End a session whose agent is gone for good; what it left to tell why is kept."""
    failure = outcome.failure
    told = f"Agent failed: {failure.code}: {failure.message}" if failure else "Agent failed."
    text = f"{told}\n{outcome.evidence}" if outcome.evidence else told
    notice = Notice(code=NoticeCode.AGENT_FAILED, text=text)
    await pen.append(MessageDraft(role=Role.SYSTEM, parts=(notice,)), 0)
    reason = str(failure.code) if failure else None
    status = moved(pen.head.status, Verb.LOSE)
    await leave_desk(pen)
    await pen.tell(SessionClosed(status=status, reason=reason))
    pen.move(status=status, reason=reason)


async def mend(pen: Pen, decided: Mend, *, more_turns: bool | None = None) -> None:
    """Append what a crash or an interrupt leaves to be said; end the turn if that is decided."""
    await pen.write(decided.drafts, pen.head.settled + 1)
    if decided.outcome is not None:
        await end(pen, decided.outcome, more_turns=more_turns)


async def open_step(pen: Pen) -> OpenStep | None:
    """Return the model step of the running turn that has begun and not ended."""
    return await unfinished_step(pen.tx, pen.head)


async def unfinished_step(tx: Tx, head: Head) -> OpenStep | None:
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
