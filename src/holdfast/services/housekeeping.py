"""Housekeeping: what is picked up after a crash, pruned with time, swept when idle."""

import asyncio
import logging
from datetime import timedelta
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import HoldfastError, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Head, Status
from holdfast.ports import Clock, Coordinator, Store
from holdfast.services.journal import Journal, Pen
from holdfast.services.leases import Leases
from holdfast.services.sessions import close
from holdfast.services.steady import SteadyTime

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 10.0
ROUNDS: Final = 6
KEEP_DELTAS: Final = timedelta(hours=1)
PRUNE_BATCH: Final = 5_000


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The sessions in which a turn was found open or waiting with nobody alive to play it."""

    sessions: tuple[SessionId, ...]


class Housekeeping:
    """Work that nobody asks for and everybody relies on; safe to run twice, and anywhere."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        leases: Leases,
        coordinator: Coordinator,
        clock: Clock,
    ) -> None:
        self._store = store
        self._journal = journal
        self._leases = leases
        self._coordinator = coordinator
        self._clock = clock
        self._steady = SteadyTime(clock)

    async def recover(self) -> RecoveryReport:
        """Wake every session whose turn was left open or waits; mending happens as it is taken."""
        left = await self._leases.reap(self._coordinator.active())
        for head in left:
            self._coordinator.wake(head.key)
        return RecoveryReport(sessions=tuple(head.session_id for head in left))

    async def keep(self, idle: timedelta, *, every: float = ROUND_SECONDS) -> None:
        """Prune, sweep and scrub, again and again, whatever goes wrong once; never returns."""
        rounds = 0
        while True:
            try:
                await self._round(idle, is_full=rounds % ROUNDS == 0)
            except HoldfastError as error:
                log.warning("housekeeping was put off: %s", error.message)
            except Exception:
                # Nobody asked for this work, so nobody should fall over it.
                log.exception("housekeeping met a fault of ours")
            rounds += 1
            await asyncio.sleep(every)

    async def _round(self, idle: timedelta, *, is_full: bool) -> None:
        # Often, because what somebody deleted should be gone within a minute.
        if not self._store.is_scrubbed:
            await self._store.scrub()
        if is_full:
            await self.prune()
            # No time at all means never.
            if idle:
                await self.sweep(idle)

    async def sweep(self, idle: timedelta) -> tuple[SessionId, ...]:
        """Close sessions bound to a repository in which nothing happened for so long."""
        before = self._steady.now(idle) - idle
        swept = []
        for head in await self._store.read(lambda tx: tx.sessions.idle(before)):
            if await self._closed(head):
                swept.append(head.session_id)
                self._coordinator.interrupt(head.key)
        return tuple(swept)

    async def _closed(self, seen: Head) -> bool:
        """Close a session, unless something has happened in it since it was seen."""

        async def end(pen: Pen) -> bool:
            # Compared under the lock: a message that arrived meanwhile wins.
            if pen.head.updated_at != seen.updated_at:
                return False
            await close(pen, Status.COMPLETED, "idle_timeout")
            return True

        try:
            return await self._journal.write_by_key(seen.key, end)
        except NotFound:
            return False

    async def prune(self, keep: timedelta = KEEP_DELTAS) -> int:
        """Remove deltas of turns that settled some time ago; return how many.

        In small transactions, so that nobody waits long for the writer.
        """
        # Some time after the turn, so that a reader who reconnects soon sees no gap.
        before = self._clock.now() - keep
        removed = 0
        # Nobody waits long: the writer serves everybody between two batches.
        while True:
            batch = await self._store.write(lambda tx: tx.events.prune(before, limit=PRUNE_BATCH))
            removed += batch
            if batch < PRUNE_BATCH:
                return removed
