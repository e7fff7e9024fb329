"""Maintenance: recovery after a crash, retention, and sweeps of idle sessions."""

import logging
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Store
from holdfast.ports.system import Clock
from holdfast.services.background_tasks import sleep_despite_memory_error
from holdfast.services.event_stream import Events
from holdfast.services.leases import Leases
from holdfast.services.sessions import Sessions

JUMP: Final = timedelta(minutes=1)


class MonotonicClock:
    """Follows the wall clock, but accepts a clock jump only after a delay in real time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._booted = self._boot_time()
        self._jumped_at: int | None = None

    def now(self, patience: timedelta) -> datetime:
        """Return the earlier of both clocks; a jump is accepted after `patience`."""
        shown = self._boot_time()
        if abs(shown - self._booted) <= JUMP:
            self._booted = min(shown, self._booted)
            self._jumped_at = None
        elif self._jumped_at is None:
            self._jumped_at = self._clock.lease_clock_ms()
        elif self._clock.lease_clock_ms() - self._jumped_at >= patience / timedelta(milliseconds=1):
            self._booted = shown
            self._jumped_at = None
        return min(self._clock.now(), self._booted + self._since_boot())

    def _boot_time(self) -> datetime:
        """Return the boot time according to the wall clock now."""
        return self._clock.now() - self._since_boot()

    def _since_boot(self) -> timedelta:
        return timedelta(milliseconds=self._clock.lease_clock_ms())


log = logging.getLogger(__name__)
ROUND_SECONDS: Final = 10.0
# Lower limit, because shorter rounds would keep the CPU busy with polling.
ROUND_LEAST: Final = 0.05
ROUNDS: Final = 6
# Reads every session, so it does not run in every round.
FORGETTING_ROUNDS: Final = 60 * ROUNDS
PRUNE_BATCH: Final = 5_000
LOOK_BATCH: Final = 1_000


class Retention(Struct, frozen=True, kw_only=True):
    """Retention times: of deltas after their turn has settled, and of all events."""

    deltas: timedelta = timedelta(hours=24)
    # Zero means unlimited.
    events: timedelta = timedelta()


USUAL: Final = Retention()


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """Sessions with an open or waiting turn that no live process holds."""

    sessions: tuple[SessionId, ...]


class Maintenance:
    """Periodic background work; idempotent, and safe to run in several processes."""

    def __init__(
        self,
        store: Store,
        sessions: Sessions,
        leases: Leases,
        coordinator: Coordinator,
        clock: Clock,
        *,
        events: Events,
    ) -> None:
        self._events = events
        self._store = store
        self._sessions = sessions
        self._leases = leases
        self._coordinator = coordinator
        self._clock = clock
        self._monotonic = MonotonicClock(clock)

    async def recover(self) -> RecoveryReport:
        """Wake every session with an abandoned or waiting turn; acquiring the lease repairs it."""
        left = await self._leases.list_abandoned(self._coordinator.active(), paused=True)
        for state in left:
            self._coordinator.wake(state.key)
        return RecoveryReport(sessions=tuple(state.session_id for state in left))

    async def keep(self, idle: timedelta, retention: Retention = USUAL) -> None:
        """Prune, sweep and scrub periodically, despite errors; never returns."""
        rounds = 0
        every = round_seconds(idle)
        while True:
            with suppress(MemoryError):
                await self._put_off(self._round(idle, retention, rounds))
            rounds += 1
            await sleep_despite_memory_error(every)

    async def _put_off(self, work: Awaitable[None]) -> None:
        """Await work that can be postponed; logs errors."""
        try:
            await work
        except HoldfastError as error:
            log.warning("maintenance was postponed: %s", error.message)
        except Exception:
            # Background work must not bring the process down.
            log.exception("maintenance failed with an internal error")

    async def _round(self, idle: timedelta, retention: Retention, number: int) -> None:
        # In every round, so that deleted data is gone within a minute.
        if not self._store.is_scrubbed:
            await self._store.scrub()
        if number % ROUNDS == 0:
            await self.prune(retention.deltas)
            # Zero means never.
            if idle:
                await self.sweep(idle)
        if retention.events and number % FORGETTING_ROUNDS == 0:
            await self.forget(retention.events)

    async def sweep(self, idle: timedelta) -> tuple[SessionId, ...]:
        """Close sessions bound to a repository that were idle for this time."""
        before = self._monotonic.now(idle) - idle
        heads = await self._store.read(lambda tx: tx.sessions.idle(before))
        return tuple(
            [state.session_id for state in heads if await self._sessions.close_idle(state)]
        )

    async def prune(self, keep: timedelta = USUAL.deltas) -> int:
        """Remove the deltas of turns that settled some time ago; return how many.

        Uses small transactions, so that other writers do not wait long.
        """
        # Delayed after the turn, so that a reader that reconnects soon sees no gap.
        before = self._clock.now() - keep
        removed = 0
        # The writer serves other transactions between two batches.
        while True:
            batch = await self._store.write(lambda tx: tx.events.prune(before, limit=PRUNE_BATCH))
            removed += batch
            if batch < PRUNE_BATCH:
                break
        self._events.forget()
        return removed

    async def forget(self, keep: timedelta) -> int:
        """Remove all events of turns older than the retention time; return how many.

        Messages stay, and with them their events.
        """
        before = self._clock.now() - keep
        removed = 0
        key = SessionKey(0)
        while found := await self._outdated(before, key):
            for key, through in found:
                removed += await self._forget(key, through) if through is not None else 0
        self._events.forget()
        return removed

    async def _outdated(
        self, before: datetime, after: SessionKey
    ) -> Sequence[tuple[SessionKey, int | None]]:
        return await self._store.read(
            lambda tx: tx.events.outdated(before, after=after, limit=LOOK_BATCH)
        )

    async def _forget(self, key: SessionKey, through: int) -> int:
        removed = 0
        while True:
            batch = await self._store.write(
                lambda tx: tx.events.forget(key, through, limit=PRUNE_BATCH)
            )
            removed += batch
            if batch < PRUNE_BATCH:
                return removed


def round_seconds(idle: timedelta) -> float:
    """Return the length of a round: six make a minute, or a tenth of a short idle time."""
    if not idle:
        return ROUND_SECONDS
    return min(ROUND_SECONDS, max(idle.total_seconds() / 10 / ROUNDS, ROUND_LEAST))
