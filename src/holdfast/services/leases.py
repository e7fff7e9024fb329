"""Leases: acquire, extend and release the right to run a session's turns.

Crash recovery happens here too, because a process that takes a session over repairs its turn in the
same transaction.
"""

from collections.abc import Collection
from datetime import timedelta

from holdfast.domain.agents import AcpRuntime, Agent, ExternalRuntime, Recovery
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import TurnContinued
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import DURATION_MS, EVER, Lease, parse_holder
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import SessionState, Status, has_waiting_turn, is_paused
from holdfast.domain.time import microseconds
from holdfast.domain.turns import (
    INTERRUPTED,
    HeldTurn,
    Repair,
    ResumePolicy,
    cut_short,
    repair_after_crash,
    repair_after_restart,
    results_after_deadline,
)
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.store import Store
from holdfast.ports.system import Clock, Machine
from holdfast.services.approvals import expire_questions
from holdfast.services.calls import overdue_calls
from holdfast.services.journal import (
    ELSEWHERE,
    Journal,
    JournalTransaction,
    SessionWriter,
    pause_turn,
    session_not_found,
)
from holdfast.services.turns import (
    IsWanted,
    allow_any_turn,
    begin,
    find_unfinished_step,
    repair_turn,
)


class Leases:
    """The leases of this process, and liveness checks of other processes' leases."""

    def __init__(self, store: Store, journal: Journal, clock: Clock, machine: Machine) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock
        self._machine = machine
        self._me = str(machine.holder())

    async def acquire(self, key: SessionKey, is_wanted: IsWanted = allow_any_turn) -> Lease | None:
        """Acquire the session if a wanted turn waits in it and no live process holds it.

        In the same transaction an interrupted turn is repaired, or else the waiting turn begins: a
        session is never held without a running turn.
        """

        async def acquire(writer: SessionWriter) -> Lease | None:
            state = writer.state
            if not has_waiting_turn(state) or (self.is_live(state) and state.holder != self._me):
                return None
            if await self._waits_elsewhere(writer):
                return None
            return await self._take_over(writer) if is_wanted(state.settled + 1) else None

        return await self._journal.write_by_key(key, acquire)

    def begin(self, writer: CommitBuilder) -> Lease | None:
        """Acquire an idle session in the commit that adds a turn to it."""
        state = writer.state
        is_idle = state.holder is None and state.status is not Status.RUNNING
        if not is_idle or not has_waiting_turn(state):
            return None
        self._take(writer)
        return self._begin_turn(writer)

    async def hold(self, writer: SessionWriter, held: HeldTurn, *, is_back: bool) -> Lease | None:
        """Take the session for the loop of a program, in the transaction that adds its message.

        A turn that the same loop left open (`is_back`) is repaired first; `None` if that ended it.
        """
        self._require_free(writer.state, is_back=is_back)
        was_running = writer.state.status is Status.RUNNING
        await self._end_pause(writer)
        self._take(writer)
        if was_running:
            await repair_turn(writer, await self._decide(writer))
            if writer.state.settled >= held.turn:
                writer.update(holder=None, until=0)
                return None
        await writer.tx.held_turns.save(writer.state.key, held)
        begin(writer, runner="turn")
        return Lease(key=writer.state.key, holder=self._me, epoch=writer.state.epoch)

    def _require_free(self, state: SessionState, *, is_back: bool) -> None:
        is_live = self.is_live(state) and not is_paused(state)
        if is_live or (state.status is Status.RUNNING and not is_back):
            raise Conflict(
                Code.TURN_RUNNING,
                "A turn is running in the session; wait until it has ended, or pass wait=True.",
            )

    async def _take_over(self, writer: SessionWriter) -> Lease | None:
        was_running = writer.state.status is Status.RUNNING
        # A turn that waits for a client is taken over only when the client's time is over.
        is_over = is_paused(writer.state)
        # A turn of a framework runs from its first message on.
        if was_running and isinstance((await _agent_of(writer)).runtime, ExternalRuntime):
            await self._leave_to_framework(writer)
            return None
        await self._end_pause(writer)
        self._take(writer)
        if was_running:
            held = await writer.tx.held_turns.of(writer.state.key, writer.state.settled + 1)
            if held is None:
                await repair_turn(writer, await self._decide(writer))
                if is_over:
                    overdue = await overdue_calls(writer)
                    number = writer.state.settled + 1
                    writer.add(results_after_deadline(overdue), number)
            else:
                await self._leave_to_program(writer, held, is_over=is_over)
        return None if writer.state.holder is None else self._begin_turn(writer)

    async def _end_pause(self, writer: SessionWriter) -> None:
        if is_paused(writer.state):
            wait = await writer.tx.waits.of(writer.state.key)
            if wait is not None:
                writer.add_event(TurnContinued(reason=wait.reason), writer.state.settled + 1)

    async def _waits_elsewhere(self, writer: SessionWriter) -> bool:
        """Return whether the turn waits for something that taking it over does not bring."""
        state = writer.state
        if not is_paused(state) or microseconds(self._clock.now()) >= -state.until:
            return False
        wait = await writer.tx.waits.of(state.key)
        if wait is not None and wait.reason is WaitReason.CHILD:
            return not await writer.tx.children.have_ended(state.owner, wait.children)
        return wait is None or wait.reason in ELSEWHERE

    async def claim_external(self, writer: SessionWriter) -> Lease:
        """Take a session whose turns a framework runs, before its first durable call.

        Calls that a dead process had started are decided first; the turn stays open.
        """
        state = writer.state
        if self.is_live(state) and not is_paused(state):
            raise Conflict(
                Code.SESSION_BUSY,
                "Another run makes durable calls in this session; wait until it has ended.",
            )
        if state.status is Status.RUNNING:
            await repair_turn(writer, await self._decide(writer))
        self._take(writer)
        return Lease(key=state.key, holder=self._me, epoch=writer.state.epoch)

    async def _leave_to_program(
        self, writer: SessionWriter, held: HeldTurn, *, is_over: bool
    ) -> None:
        """Let a held turn wait for its program, which is gone; or end it if its time is over."""
        must_end = held.resume is ResumePolicy.STOP or is_over
        decided = await self._decide(writer, must_end=must_end)
        await repair_turn(writer, decided)
        if decided.outcome is not None:
            return
        within = None if held.within is None else timedelta(seconds=held.within)
        wait = Wait(
            reason=WaitReason.HOLDER,
            text="The turn waits for the program that holds it.",
            until=None if within is None else self._clock.now() + within,
        )
        await pause_turn(writer, wait)

    async def _leave_to_framework(self, writer: SessionWriter) -> None:
        """Decide the calls of a run that has died; its turn waits for the framework."""
        await repair_turn(writer, await self._decide(writer))
        await_framework(writer)

    def _take(self, writer: CommitBuilder) -> None:
        until = self._clock.lease_clock_ms() + DURATION_MS
        # Fencing: the new epoch makes every later write of the previous holder fail.
        writer.update(holder=self._me, until=until, epoch=writer.state.epoch + 1)

    def _begin_turn(self, writer: CommitBuilder) -> Lease:
        begin(writer)
        return Lease(key=writer.state.key, holder=self._me, epoch=writer.state.epoch)

    async def extend(self) -> set[SessionKey]:
        """Extend every lease of this process; return the sessions it still holds."""
        until = self._clock.lease_clock_ms() + DURATION_MS
        return await self._store.write(lambda tx: tx.sessions.extend(self._me, until))

    async def release(self, lease: Lease) -> None:
        """Release a session; its turn stays open and can be taken over at once."""

        async def let_go(writer: SessionWriter) -> None:
            writer.update(holder=None, until=0)

        await self._journal.write_by_key(lease.key, let_go, lease=lease)

    async def leave(self, keys: Collection[SessionKey]) -> None:
        """Let any process continue the turns that were paused here."""

        async def leave(entry: JournalTransaction) -> None:
            for key in keys:
                state = await entry.tx.sessions.state_by_key(key)
                if state is not None and is_paused(state) and state.holder == self._me:
                    (await entry.open_by_key(key)).update(holder=None)

        await self._journal.enter(leave)

    async def list_abandoned(
        self, held: Collection[SessionKey], *, paused: bool = False
    ) -> list[SessionState]:
        """Return the states of sessions with a waiting turn that no live process holds.

        A lease of this process counts as dead unless its session is in `held`. A paused turn is
        left out until its question expires, unless `paused` is set.
        """
        due = EVER if paused else microseconds(self._clock.now())
        heads = await self._store.read(lambda tx: tx.sessions.unsettled(due))
        return [
            state
            for state in heads
            if not self.is_live(state) or (state.holder == self._me and state.key not in held)
        ]

    def is_live(self, state: SessionState) -> bool:
        """Return whether a live process holds the session, or has paused its turn."""
        if state.holder is None:
            return False
        if is_paused(state):
            is_over = microseconds(self._clock.now()) >= -state.until
        else:
            is_over = self._clock.lease_clock_ms() >= state.until
        return not is_over and not self._is_gone(state.holder)

    def _is_gone(self, name: str) -> bool:
        # This process is alive, so the system call is skipped.
        if name == self._me:
            return False
        return self._machine.is_gone(parse_holder(name))

    async def _decide(self, writer: SessionWriter, *, must_end: bool = False) -> Repair:
        """Decide how the turn that a crash has cut off goes on, or ends."""
        agent = await _agent_of(writer)
        await writer.load_turn()
        calls = tuple(writer.turn_calls())
        step = await find_unfinished_step(writer.tx, writer.state)
        if isinstance(agent.runtime, ExternalRuntime):
            return repair_after_crash(step, calls, Recovery.CONTINUE)
        if isinstance(agent.runtime, AcpRuntime):
            # Before the turn ends, because the question died with the program that asked it.
            expire_questions(writer, by=NoticeCode.AGENT_RESTARTED)
            return repair_after_restart(step, calls)
        if must_end:
            return cut_short(step, calls, INTERRUPTED)
        return repair_after_crash(step, calls, agent.recovery)


def await_framework(writer: CommitBuilder) -> None:
    """Leave the open turn to the program with the framework; no process takes it over."""
    if has_waiting_turn(writer.state):
        # The epoch fences what the process that gives the lease back may still write.
        writer.update(holder=None, until=-EVER, epoch=writer.state.epoch + 1)
    else:
        writer.update(holder=None, until=0)


async def _agent_of(writer: SessionWriter) -> Agent:
    found = await writer.tx.sessions.get_by_key(writer.state.key)
    if found is None:
        raise session_not_found()
    return found[0].agent
