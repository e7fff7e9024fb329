"""Housekeeping: what is picked up after a crash, pruned with time, swept when idle."""

import logging
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.ports import Clock, Coordinator, Store
from holdfast.services.background import rest
from holdfast.services.leases import Leases
from holdfast.services.sessions import Sessions
from holdfast.services.steady import SteadyTime

log = logging.getLogger(__name__)

ROUND_SECONDS: Final = 10.0
# Less would keep the machine busy with looking.
ROUND_LEAST: Final = 0.05
ROUNDS: Final = 6
KEEP_DELTAS: Final = timedelta(hours=24)
PRUNE_BATCH: Final = 5_000


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The sessions in which a turn was found open or waiting with nobody alive to play it."""

    sessions: tuple[SessionId, ...]


class Housekeeping:
    """Work that nobody asks for and everybody relies on; safe to run twice, and anywhere."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        leases: Leases,
        coordinator: Coordinator,
        clock: Clock,
    ) -> None:
        self._store = store
        self._sessions = sessions
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

    async def keep(self, idle: timedelta) -> None:
        """Prune, sweep and scrub, again and again, whatever goes wrong once; never returns."""
        rounds = 0
        every = round_seconds(idle)
        while True:
            with suppress(MemoryError):
                await self._put_off(self._round(idle, is_full=rounds % ROUNDS == 0))
            rounds += 1
            await rest(every)

    async def _put_off(self, work: Awaitable[None]) -> None:
        """Await work that may as well be done later."""
        try:
            await work
        except HoldfastError as error:
            log.warning("housekeeping was put off: %s", error.message)
        except Exception:
            # Nobody asked for this work, so nobody should fall over it.
            log.exception("housekeeping met a fault of ours")

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
        heads = await self._store.read(lambda tx: tx.sessions.idle(before))
        return tuple([head.session_id for head in heads if await self._sessions.close_idle(head)])

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


def round_seconds(idle: timedelta) -> float:
    """Return how long a round is: six of them are a minute, or a tenth of a short idle time."""
    if not idle:
        return ROUND_SECONDS
    return min(ROUND_SECONDS, max(idle.total_seconds() / 10 / ROUNDS, ROUND_LEAST))
