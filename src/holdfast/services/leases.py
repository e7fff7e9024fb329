"""Leases: acquire, extend, release and reap the right to run a session's turns.

Crash recovery happens here too, because a process that takes a session over repairs its turn in the
same transaction.
"""

from collections.abc import Collection

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.commits import CommitBuilder
from holdfast.domain.events import TurnContinued
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import DURATION_MS, EVER, Lease, holder_of
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import SessionState, Status, has_waiting_turn, is_paused
from holdfast.domain.time import microseconds
from holdfast.domain.turns import after_crash, after_restart
from holdfast.ports.store import Store
from holdfast.ports.system import Clock, Machine
from holdfast.services.approvals import expire
from holdfast.services.journal import (
    Journal,
    JournalTransaction,
    SessionWriter,
    session_not_found,
)
from holdfast.services.turns import IsWanted, allow_any_turn, begin, open_step, repair_turn


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
            head = writer.state
            if not has_waiting_turn(head) or (self.is_live(head) and head.holder != self._me):
                return None
            return await self._take_over(writer) if is_wanted(head.settled + 1) else None

        return await self._journal.write_by_key(key, acquire)

    def begin(self, writer: CommitBuilder) -> Lease | None:
        """Acquire an idle session in the commit that adds a turn to it."""
        state = writer.state
        is_idle = state.holder is None and state.status is not Status.RUNNING
        if not is_idle or not has_waiting_turn(state):
            return None
        self._take(writer)
        return self._begin_turn(writer)

    async def _take_over(self, writer: SessionWriter) -> Lease | None:
        was_running = writer.state.status is Status.RUNNING
        if is_paused(writer.state):
            wait = await writer.tx.waits.of(writer.state.key)
            if wait is not None:
                writer.add_event(TurnContinued(reason=wait.reason), writer.state.settled + 1)
        self._take(writer)
        if was_running:
            await self._mend(writer)
        return None if writer.state.holder is None else self._begin_turn(writer)

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
                head = await entry.tx.sessions.head_by_key(key)
                if head is not None and is_paused(head) and head.holder == self._me:
                    (await entry.open_by_key(key)).update(holder=None)

        await self._journal.enter(leave)

    async def reap(
        self, held: Collection[SessionKey], *, paused: bool = False
    ) -> list[SessionState]:
        """Return the states of sessions with a waiting turn that no live process holds.

        A lease of this process counts as dead unless its session is in `held`. A paused turn is
        left out until its question expires, unless `paused` is set.
        """
        due = EVER if paused else microseconds(self._clock.now())
        heads = await self._store.read(lambda tx: tx.sessions.unsettled(due))
        return [
            head
            for head in heads
            if not self.is_live(head) or (head.holder == self._me and head.key not in held)
        ]

    def is_live(self, head: SessionState) -> bool:
        """Return whether a live process holds the session, or has paused its turn."""
        if head.holder is None:
            return False
        if is_paused(head):
            is_over = microseconds(self._clock.now()) >= -head.until
        else:
            is_over = self._clock.lease_clock_ms() >= head.until
        return not is_over and not self._is_gone(head.holder)

    def _is_gone(self, name: str) -> bool:
        # This process is alive, so the system call is skipped.
        if name == self._me:
            return False
        return self._machine.is_gone(holder_of(name))

    async def _mend(self, writer: SessionWriter) -> None:
        found = await writer.tx.sessions.get_by_key(writer.state.key)
        if found is None:
            raise session_not_found()
        await writer.load_turn()
        calls = tuple(writer.turn_calls())
        session, _ = found
        step = await open_step(writer)
        if isinstance(session.agent.runtime, AcpRuntime):
            # Before the turn ends, because the question died with the program that asked it.
            expire(writer, by=NoticeCode.AGENT_RESTARTED)
            await repair_turn(writer, after_restart(step, calls))
        else:
            await repair_turn(writer, after_crash(step, calls, session.agent.recovery))
