"""The coordinator of one machine: a task for each session that runs, a lease for each task.

It decides when a turn runs, never what a turn is. Other processes are known through the store
only.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from typing import Any, Final, Self

from holdfast.domain.agent_processes import ProcessEnding
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import RENEWAL_MS, Lease
from holdfast.ports import ProcessPool
from holdfast.services.background_tasks import Background, rest
from holdfast.services.leases import Leases
from holdfast.services.turns import Turns, is_fenced

log = logging.getLogger(__name__)

# A turn mostly waits for its provider; this bounds memory and open connections.
TURNS_AT_A_TIME: Final = 64
# Seconds, until a commit that was on its way when we left may have come.
_BREATH: Final = 0.001


class RunScope(StrEnum):
    """Whose waiting turns a process plays."""

    ALL = "all"
    OWN = "own"
    NONE = "none"


class LocalCoordinator(Background):
    """Implements the `Coordinator` port. Use as a context manager: leaving it stops all turns.

    A turn that is stopped so is left open in the store and can be taken over at once.
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
        """`harbour` is where the programs of agents are that run in this process."""
        super().__init__()
        self._leases = leases
        self._turns = turns
        self._scope = scope
        self._harbour = process_pool
        self._at_a_time = at_a_time
        self._places = asyncio.Semaphore(at_a_time)
        self._running: dict[SessionKey, asyncio.Task[None]] = {}
        self._held: dict[SessionKey, Lease] = {}
        # Sessions whose turn is just being begun by who writes to them, and turns that were so
        # begun and not taken up yet.
        self._coming: set[SessionKey] = set()
        self._begun: dict[SessionKey, Lease] = {}
        self._watched: set[SessionKey] = set()
        # The last turn of each session that this process was asked for; nothing is all of them.
        self._asked: dict[SessionKey, int | None] = {}
        self._woken: set[SessionKey] = set()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._scope is not RunScope.NONE:
            self.start(self._tick_for_ever())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._scope = RunScope.NONE
        await super().__aexit__(*error)
        # What is begun while we leave is let go of as well: nobody plays it here any more.
        while self._held or self._coming:
            if self._held:
                await _quietly(self._leases.release(self._held.popitem()[1]))
            else:
                await asyncio.sleep(_BREATH)

    @contextmanager
    def place(self) -> Iterator["_RunSlot"]:
        """Keep a place for a turn that is about to be written down, if one is free here."""
        place = _RunSlot(self._is_kept)
        try:
            yield place
        finally:
            kept = place.given_back()
            if kept is not None:
                key, turn = kept
                self._coming.discard(key)
                # Perhaps begun and not taken up: whoever sent it waits for its commit no longer.
                if key not in self._begun:
                    self.wake(key, turn=turn)
                self._go_on(key)

    def _is_kept(self, key: SessionKey) -> bool:
        is_full = len(self._running) + len(self._coming) >= self._at_a_time
        is_busy = key in self._running or key in self._coming
        if self._scope is RunScope.NONE or is_full or is_busy:
            return False
        self._coming.add(key)
        return True

    def take_up(self, lease: Lease, *, turn: int) -> None:
        """Play the turn that was begun with the lease, and was asked for here."""
        self._begun[lease.key] = self._held[lease.key] = lease
        self.wake(lease.key, turn=turn)

    def wake(self, key: SessionKey, *, turn: int | None = None) -> None:
        """Play the session's waiting turn here, unless somebody alive holds the session."""
        if self._scope is RunScope.NONE:
            return
        if self._scope is RunScope.OWN:
            before = self._asked.get(key, 0)
            self._asked[key] = None if turn is None or before is None else max(before, turn)
        self._watched.add(key)
        # Noted also while it runs: what arrives during its last write must not be overlooked.
        self._woken.add(key)
        self._go_on(key)

    def _go_on(self, key: SessionKey) -> None:
        """Start what is done for a session, unless it is done, or its turn is being written."""
        is_wanted = key in self._woken and self._scope is not RunScope.NONE
        if is_wanted and key not in self._running and key not in self._coming:
            self._running[key] = self.start(self._run(key))

    def interrupt(self, key: SessionKey, *, epoch: int | None = None) -> None:
        """Stop what is done for the session here; its turn was ended in the store before."""
        held = self._held.get(key)
        # The next turn may have begun since; it was not meant.
        if epoch is not None and held is not None and held.epoch > epoch:
            return
        # Forgotten first: there is no lease to let go of, it was taken away in the store.
        self._forget(key)
        task = self._running.pop(key, None)
        if task is not None:
            task.cancel()

    async def dismiss(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """Stop what is done for a session that has ended; its program is gone after this."""
        self.interrupt(key)
        self._asked.pop(key, None)
        self._turns.forget(key)
        if self._harbour is not None:
            await self._harbour.end(key, why)

    def active(self) -> frozenset[SessionKey]:
        """Return the sessions whose turns run here."""
        return frozenset(self._held)

    async def _run(self, key: SessionKey) -> None:
        """Play what waits in a session until nothing does, or somebody else has it."""
        me = asyncio.current_task()
        try:
            while key in self._woken:
                self._woken.discard(key)
                # The place before the lease: while it waits here, another process may run it.
                async with self._places:
                    await self._drain(key)
        except HoldfastError as error:
            # The turn stays open in the store; the next tick, or another process, takes it up.
            self._forget(key)
            log.warning("the session of key %s was left: %s", key, error.message)
        except Exception:
            self._forget(key)
            log.exception("the session of key %s was left by a fault of ours", key)
        finally:
            if self._running.get(key) is me:
                del self._running[key]

    def _forget(self, key: SessionKey) -> None:
        self._held.pop(key, None)
        self._begun.pop(key, None)

    async def _drain(self, key: SessionKey) -> None:
        lease = self._begun.pop(key, None)
        try:
            is_wanted = partial(self._is_wanted, key)
            lease = lease or await self._leases.acquire(key, is_wanted)
            if lease is None:
                return
            self._held[key] = lease
            await self._turns.drain(lease, is_wanted)
            self._watched.discard(key)
        except HoldfastError as error:
            if not is_fenced(error):
                raise
            self._watched.discard(key)
        # Not in a `finally`: a cancelled task keeps its lease until the coordinator lets go of it.
        # Not the one of the turn that was begun meanwhile, which is played next.
        if self._held.get(key) is lease:
            self._held.pop(key, None)

    def _is_wanted(self, key: SessionKey, turn: int) -> bool:
        """Tell whether this process is to play a turn: those of others are left to them."""
        last = self._asked.get(key)
        return self._scope is RunScope.ALL or last is None or turn <= last

    async def _tick_for_ever(self) -> None:
        while True:
            await rest(RENEWAL_MS / 1000)
            with suppress(MemoryError):
                await _quietly(self._tick())

    async def _tick(self) -> None:
        """Keep our leases alive, stop what we lost, take up what was left."""
        # The answer knows nothing of a lease that is acquired while the statement is on its way,
        # so only a lease that was held before, and is still the same, can be lost.
        if before := dict(self._held):
            kept = await self._leases.extend()
            for key, lease in before.items():
                if key not in kept and self._held.get(key) is lease:
                    self.interrupt(key)
        if self._scope is RunScope.ALL or self._watched:
            for head in await self._leases.reap(self._held):
                is_watched = self._scope is RunScope.ALL or head.key in self._watched
                if is_watched and self._is_wanted(head.key, head.settled + 1):
                    self.wake(head.key, turn=head.settled + 1)


class _RunSlot:
    """Implements the `Place` port."""

    def __init__(self, keep: Callable[[SessionKey], bool]) -> None:
        self._keep = keep
        # The writer may still play the work of somebody who has stopped waiting, in its thread.
        self._lock = threading.Lock()
        self._is_over = False
        self._kept: tuple[SessionKey, int] | None = None

    def is_kept(self, key: SessionKey, turn: int) -> bool:
        """Keep it for a turn, however often it is asked for."""
        with self._lock:
            # Work inside a transaction may be played again.
            if self._kept is None and not self._is_over and self._keep(key):
                self._kept = key, turn
            return self._kept == (key, turn) and not self._is_over

    def given_back(self) -> tuple[SessionKey, int] | None:
        """Keep nothing any more; return what was kept."""
        with self._lock:
            self._is_over = True
            return self._kept


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except HoldfastError as error:
        if not is_fenced(error):
            log.warning("the coordinator could not reach the store: %s", error.message)
    except Exception:
        # The next tick may go well; to stop here would stop every turn of the house.
        log.exception("the coordinator met a fault of ours")
