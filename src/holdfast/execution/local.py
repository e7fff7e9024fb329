"""The coordinator of one machine: a task for each session that runs, a lease for each task.

It decides when a turn runs, never what a turn is. Other processes are known through the store only.
"""

import asyncio
import logging
from collections.abc import Awaitable
from enum import StrEnum
from typing import Any, Final, Self

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.domain.leases import RENEWAL_MS, Lease
from holdfast.services.background import Background
from holdfast.services.leases import Leases
from holdfast.services.turns import Turns, is_fenced

log = logging.getLogger(__name__)

# A turn mostly waits for its provider; this bounds memory and open connections.
TURNS_AT_A_TIME: Final = 64


class Scope(StrEnum):
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
        scope: Scope = Scope.ALL,
        at_a_time: int = TURNS_AT_A_TIME,
    ) -> None:
        super().__init__()
        self._leases = leases
        self._turns = turns
        self._scope = scope
        self._places = asyncio.Semaphore(at_a_time)
        self._running: dict[SessionId, asyncio.Task[None]] = {}
        self._held: dict[SessionId, Lease] = {}
        self._watched: set[SessionId] = set()
        self._woken: set[SessionId] = set()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._scope is not Scope.NONE:
            self.start(self._tick_for_ever())
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._scope = Scope.NONE
        await super().__aexit__(*error)
        for lease in self._held.values():
            await _quietly(self._leases.release(lease))

    def wake(self, session_id: SessionId) -> None:
        """Play the session's waiting turn here, unless somebody alive holds the session."""
        if self._scope is Scope.NONE:
            return
        self._watched.add(session_id)
        # Noted also while it runs: what arrives during its last write must not be overlooked.
        self._woken.add(session_id)
        if session_id not in self._running:
            self._running[session_id] = self.start(self._run(session_id))

    def interrupt(self, session_id: SessionId) -> None:
        """Stop what is done for the session here; its turn was ended in the store before."""
        # Forgotten first: there is no lease to let go of, it was taken away in the store.
        self._held.pop(session_id, None)
        task = self._running.pop(session_id, None)
        if task is not None:
            task.cancel()

    def active(self) -> frozenset[SessionId]:
        """Return the sessions whose turns run here."""
        return frozenset(self._held)

    async def _run(self, session_id: SessionId) -> None:
        """Play what waits in a session until nothing does, or somebody else has it."""
        me = asyncio.current_task()
        try:
            while session_id in self._woken:
                self._woken.discard(session_id)
                # The place before the lease: while it waits here, another process may run it.
                async with self._places:
                    await self._drain(session_id)
        except HoldfastError as error:
            # The turn stays open in the store; the next tick, or another process, takes it up.
            self._held.pop(session_id, None)
            log.warning("session %s was left: %s", session_id, error.message)
        except Exception:
            self._held.pop(session_id, None)
            log.exception("session %s was left by a fault of ours", session_id)
        finally:
            if self._running.get(session_id) is me:
                del self._running[session_id]

    async def _drain(self, session_id: SessionId) -> None:
        try:
            lease = await self._leases.acquire(session_id)
            if lease is None:
                return
            self._held[session_id] = lease
            await self._turns.drain(lease)
            self._watched.discard(session_id)
        except HoldfastError as error:
            if not is_fenced(error):
                raise
            self._watched.discard(session_id)
        # Not in a `finally`: a cancelled task keeps its lease until the coordinator lets go of it.
        self._held.pop(session_id, None)

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_MS / 1000)
            await _quietly(self._tick())

    async def _tick(self) -> None:
        """Keep our leases alive, stop what we lost, take up what was left."""
        if self._held:
            kept = await self._leases.extend()
            for session_id in set(self._held) - kept:
                self.interrupt(session_id)
        if self._scope is Scope.ALL or self._watched:
            for session_id in await self._leases.reap(self._held):
                if self._scope is Scope.ALL or session_id in self._watched:
                    self.wake(session_id)


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except HoldfastError as error:
        if not is_fenced(error):
            log.warning("the coordinator could not reach the store: %s", error.message)
    except Exception:
        # The next tick may go well; to stop here would stop every turn of the house.
        log.exception("the coordinator met a fault of ours")
