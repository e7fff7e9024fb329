"""Coordinator of one machine: a task for each running session, a lease for each task.

Decides when a turn runs, not what it does. Sees other processes only through the store.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

from holdfast.domain.agent_processes import ProcessEnding
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import RENEWAL_MS, Lease
from holdfast.ports.agent_processes import ProcessPool
from holdfast.services.background_tasks import Background, sleep_despite_memory_error
from holdfast.services.leases import Leases
from holdfast.services.turns import Turns, TurnWritten, is_fenced

log = logging.getLogger(__name__)

# A turn mostly waits for its provider; this bounds memory and open connections.
TURNS_AT_A_TIME: Final = 64
# Poll interval in seconds while a commit in progress may still begin a turn.
_POLL_SECONDS: Final = 0.001


class RunScope(StrEnum):
    """Which queued turns a process runs."""

    ALL = "all"
    OWN = "own"
    NONE = "none"


class LocalCoordinator(Background):
    """Implements the `Coordinator` port. Use as a context manager: exiting stops all turns.

    A turn stopped this way stays open in the store and can be taken over immediately.
    """

    def __init__(
        self,
        leases: Leases,
        turns: Turns,
        *,
        scope: RunScope = RunScope.ALL,
        at_a_time: int = TURNS_AT_A_TIME,
        process_pool: ProcessPool | None = None,
    ) -> None:
        """`process_pool` holds the agent processes started by this process."""
        super().__init__()
        self._leases = leases
        self._turns = turns
        self._scope = scope
        self._process_pool = process_pool
        self._at_a_time = at_a_time
        self._free_slots = asyncio.Semaphore(at_a_time)
        self._slots: dict[SessionKey, _TaskSlot] = {}
        # Sessions with a task whose turn waits, and for how many answers.
        self._waiting: Counter[SessionKey] = Counter()
        self._running: dict[SessionKey, asyncio.Task[None]] = {}
        self._held_leases: dict[SessionKey, Lease] = {}
        # Sessions whose turn is being started by the message's transaction, and turns started that
        # way that are not running yet.
        self._starting: set[SessionKey] = set()
        self._begun_leases: dict[SessionKey, Lease] = {}
        self._requested: set[SessionKey] = set()
        # The last turn of each session requested from this process; `None` means all of them.
        self._last_requested: dict[SessionKey, int | None] = {}
        self._pending: set[SessionKey] = set()
        self._is_ticking = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._scope is not RunScope.NONE:
            self._is_ticking = True
            self.start(self._tick_for_ever())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._scope = RunScope.NONE
        await super().__aexit__(*error)
        # Release turns that are started during shutdown too, because they will not run here.
        while self._held_leases or self._starting:
            if self._held_leases:
                await _quietly(self._leases.release(self._held_leases.popitem()[1]))
            else:
                await asyncio.sleep(_POLL_SECONDS)
        # Whatever is not done here, because a pause may have been cancelled after its commit.
        if self._requested:
            await _quietly(self._leases.leave(self._requested))

    def reserve_slot(self) -> "_RunSlot":
        """Reserve a run slot for a turn that is about to be written, if one is free."""
        return _RunSlot(self._try_reserve, self._run_reserved)

    def _run_reserved(self, key: SessionKey, turn: int) -> None:
        """Run the turn that a slot was reserved for."""
        self._starting.discard(key)
        # The turn may be started but not running: the sender stopped waiting for the commit.
        if key not in self._begun_leases:
            self.wake(key, turn=turn)
        self._start_pending(key)

    def _try_reserve(self, key: SessionKey) -> bool:
        is_busy = key in self._running or key in self._starting
        if self._scope is RunScope.NONE or is_busy or not self.has_free_slot:
            return False
        self._starting.add(key)
        return True

    def run_lease(self, lease: Lease, *, turn: int) -> None:
        """Run the turn that was started with the lease and requested here."""
        self._begun_leases[lease.key] = self._held_leases[lease.key] = lease
        self.wake(lease.key, turn=turn)

    def hold(self, lease: Lease, task: "asyncio.Task[Any]") -> None:
        """Keep the lease of a turn that a task of the program runs; an interrupt cancels the task.

        Renewed even by a process that runs no queued turns.
        """
        if self._scope is RunScope.NONE and not self._is_ticking:
            self._is_ticking = True
            self.start(self._tick_for_ever())
        self._held_leases[lease.key] = lease
        self._running[lease.key] = task

    def announce_hold(self, key: SessionKey) -> None:
        """Note that a turn of the program is about to be held, so that it is not taken over."""
        self._starting.add(key)

    def clear_announcement(self, key: SessionKey) -> None:
        """Note that the turn is held, or will not be."""
        self._starting.discard(key)

    @property
    def runs_turns(self) -> bool:
        """Return whether this process runs queued turns."""
        return self._scope is not RunScope.NONE

    @property
    def has_free_slot(self) -> bool:
        """Return whether another turn could run now."""
        busy = len(self._running) - len(self._waiting) + len(self._starting)
        return busy < self._at_a_time

    def holds(self, lease: Lease) -> bool:
        """Return whether this process still has a lease."""
        return self._held_leases.get(lease.key) is lease

    def drop_lease(self, lease: Lease) -> None:
        """Forget a lease whose turn has ended, and run what waits behind it."""
        if self.holds(lease):
            self._forget(lease.key)
        self._running.pop(lease.key, None)
        self._start_pending(lease.key)

    def wake(self, key: SessionKey, *, turn: int | None = None) -> None:
        """Run the session's queued turn here, unless another live process holds the lease."""
        if self._scope is RunScope.NONE:
            return
        if self._scope is RunScope.OWN:
            before = self._last_requested.get(key, 0)
            self._last_requested[key] = (
                None if turn is None or before is None else max(before, turn)
            )
        self._requested.add(key)
        # Recorded while it runs, too: a message that arrives during the last write must not be
        # missed.
        self._pending.add(key)
        self._start_pending(key)

    def _start_pending(self, key: SessionKey) -> None:
        """Start the session's task, unless it is running or its turn is being written."""
        is_wanted = key in self._pending and self._scope is not RunScope.NONE
        if is_wanted and key not in self._running and key not in self._starting:
            self._running[key] = self.start(self._run(key))

    def interrupt(self, key: SessionKey, *, epoch: int | None = None) -> None:
        """Cancel the session's task here; its turn was ended in the store before."""
        held = self._held_leases.get(key)
        # Race: the next turn may have started since; it must not be interrupted.
        if epoch is not None and held is not None and held.epoch > epoch:
            return
        # Removed first: the lease was revoked in the store, so it must not be released.
        self._forget(key)
        task = self._running.pop(key, None)
        if task is not None:
            task.cancel()

    async def dismiss(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """Stop the task and the agent process of a session that has ended."""
        self.interrupt(key)
        self._last_requested.pop(key, None)
        self._turns.forget(key)
        if self._process_pool is not None:
            await self._process_pool.end(key, why)

    @asynccontextmanager
    async def release_slot_while_waiting(self, key: SessionKey) -> AsyncIterator[None]:
        """Let another turn run in the session's slot while this one waits for an answer."""
        slot = self._slots.get(key)
        if slot is None:
            yield
            return
        slot.release()
        self._waiting[key] += 1
        try:
            yield
        finally:
            self._waiting[key] -= 1
            is_last = not self._waiting[key]
            if is_last:
                del self._waiting[key]
        # With its slot, a turn whose calls wait for several children could keep them from running.
        if is_last:
            await slot.acquire()

    def resume(self, key: SessionKey) -> None:
        """Continue a paused turn that was answered, if it was paused or may run here."""
        if self._scope is RunScope.ALL or key in self._requested:
            # Turn 0: this requests no turn that was not requested here before.
            self.wake(key, turn=0)

    def active(self) -> frozenset[SessionKey]:
        """Return the sessions whose turns run here."""
        return frozenset(self._held_leases)

    async def _run(self, key: SessionKey) -> None:
        """Run queued turns until none is left or another process holds the lease."""
        me = asyncio.current_task()
        slot = self._slots[key] = _TaskSlot(self._free_slots)
        is_wanted = partial(self._is_wanted, key)
        try:
            while key in self._pending:
                self._pending.discard(key)
                # Slot before lease: while this waits for a slot, another process may run the turn.
                await slot.acquire()
                lease = self._begun_leases.pop(key, None)
                try:
                    lease = lease or await self._leases.acquire(key, is_wanted)
                    if lease is not None:
                        self._held_leases[key] = lease
                        written = await self._turns.run_turn(lease)
                        while written is TurnWritten.GOES_ON or (
                            written is TurnWritten.NEXT_TURN_WAITS
                            and await self._turns.begin_next(lease, is_wanted)
                        ):
                            written = await self._turns.run_turn(lease)
                        if written is not TurnWritten.PAUSED:
                            self._requested.discard(key)
                except HoldfastError as error:
                    if not is_fenced(error):
                        raise
                    self._requested.discard(key)
                finally:
                    slot.release()
                # Not in the `finally`: a cancelled task retains its lease until the coordinator
                # releases it. Only this lease: a turn started in the meantime has its own and runs
                # next.
                if lease is not None and self._held_leases.get(key) is lease:
                    del self._held_leases[key]
        except Exception as error:  # noqa: BLE001
            # The turn stays open in the store; the next tick or another process takes it over.
            self._forget(key)
            _log_skipped(key, error)
        finally:
            slot.close()
            if self._running.get(key) is me:
                del self._running[key]
            if self._slots.get(key) is slot:
                del self._slots[key]

    def _forget(self, key: SessionKey) -> None:
        self._held_leases.pop(key, None)
        self._begun_leases.pop(key, None)

    def _is_wanted(self, key: SessionKey, turn: int) -> bool:
        """Return whether this process should run a turn requested here."""
        last = self._last_requested.get(key)
        return self._scope is RunScope.ALL or last is None or turn <= last

    async def _tick_for_ever(self) -> None:
        while True:
            await sleep_despite_memory_error(RENEWAL_MS / 1000)
            with suppress(MemoryError):
                await _quietly(self._tick())

    async def _tick(self) -> None:
        """Renew leases, stop tasks whose lease was lost, take over abandoned turns."""
        # Race: the result misses a lease acquired while the statement runs. Only a lease that was
        # held before and is unchanged counts as lost.
        if before := dict(self._held_leases):
            kept = await self._leases.extend()
            for key, lease in before.items():
                if key not in kept and self._held_leases.get(key) is lease:
                    self.interrupt(key)
        if self._scope is RunScope.ALL or self._requested:
            for state in await self._leases.list_abandoned({*self._held_leases, *self._starting}):
                is_requested = self._scope is RunScope.ALL or state.key in self._requested
                if is_requested and self._is_wanted(state.key, state.settled + 1):
                    self.wake(state.key, turn=state.settled + 1)


def _log_skipped(key: SessionKey, error: Exception) -> None:
    if isinstance(error, HoldfastError):
        log.warning("the session with key %s was skipped: %s", key, error.message)
    else:
        log.error(
            "the session with key %s was skipped after an internal error", key, exc_info=error
        )


class _TaskSlot:
    """The slot of a session's task; it may be released and acquired any number of times."""

    def __init__(self, free_slots: asyncio.Semaphore) -> None:
        self._free_slots = free_slots
        self._is_taken = False
        self._is_closed = False

    async def acquire(self) -> None:
        """Wait for a free slot, unless it has one or the task has ended."""
        if self._is_taken or self._is_closed:
            return
        await self._free_slots.acquire()
        # An agent may ask several questions at a time, whose answers arrive together or too late.
        if self._is_due():
            self._is_taken = True
        else:
            self._free_slots.release()

    def _is_due(self) -> bool:
        return not self._is_taken and not self._is_closed

    def close(self) -> None:
        """Release the slot for good, because the task has ended."""
        self._is_closed = True
        if self._is_taken:
            self.release()

    def release(self) -> None:
        """Release the slot, if the task has one."""
        if self._is_taken:
            self._is_taken = False
            self._free_slots.release()


class _RunSlot:
    """Implements the `RunSlot` port; leaving the block gives the slot back."""

    def __init__(
        self, keep: Callable[[SessionKey], bool], give_back: Callable[[SessionKey, int], None]
    ) -> None:
        self._keep = keep
        self._give_back = give_back
        # The writer thread may still run work whose caller was cancelled.
        self._lock = threading.Lock()
        self._is_over = False
        self._kept: tuple[SessionKey, int] | None = None

    def try_reserve(self, key: SessionKey, turn: int) -> bool:
        """Reserve the slot for a turn; idempotent."""
        with self._lock:
            # A transaction may be retried, so this may run more than once.
            if self._kept is None and not self._is_over:
                # Noted first, because without memory a set raises after it was changed.
                self._kept = key, turn
                if not self._keep(key):
                    self._kept = None
            return self._kept == (key, turn) and not self._is_over

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        if self._kept is not None:
            self._give_back(*self._kept)


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except HoldfastError as error:
        if not is_fenced(error):
            log.warning("the coordinator could not reach the store: %s", error.message)
    except Exception:
        # The next tick may succeed; an exception here would stop every turn of this process.
        log.exception("the coordinator failed with an internal error")
