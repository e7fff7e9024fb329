"""Housekeeping: what is picked up after a crash, pruned with time, swept when idle."""

from datetime import timedelta
from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionId
from holdfast.ports import Clock, Coordinator, Store
from holdfast.services.leases import Leases

KEEP_DELTAS: Final = timedelta(hours=1)
PRUNE_BATCH: Final = 5_000


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The sessions in which a turn was found open or waiting with nobody alive to play it."""

    sessions: tuple[SessionId, ...]


class Housekeeping:
    """Work that nobody asks for and everybody relies on; safe to run twice, and anywhere."""

    def __init__(
        self, store: Store, leases: Leases, coordinator: Coordinator, clock: Clock
    ) -> None:
        self._store = store
        self._leases = leases
        self._coordinator = coordinator
        self._clock = clock

    async def recover(self) -> RecoveryReport:
        """Wake every session whose turn was left open or waits; mending happens as it is taken."""
        left = await self._leases.reap(self._coordinator.active())
        for session_id in left:
            self._coordinator.wake(session_id)
        return RecoveryReport(sessions=tuple(left))

    async def prune(self, keep: timedelta = KEEP_DELTAS) -> int:
        """Remove deltas of turns that settled some time ago; return how many.

        In small transactions, so that nobody waits long for the writer.
        """
        before = self._clock.now() - keep
        removed = 0
        while True:
            batch = await self._store.write(lambda tx: tx.events.prune(before, limit=PRUNE_BATCH))
            removed += batch
            if batch < PRUNE_BATCH:
                return removed
