"""Clocks that a test can set: the wall clock goes wrong, the boot clock never does."""

import time
from datetime import UTC, datetime, timedelta

START = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)


class SettableClock:
    """Implements the `Clock` port: a wall clock that runs, stands or jumps as it is told."""

    def __init__(self, shift: timedelta = timedelta(0), pace: float = 1.0) -> None:
        self._shift = shift
        self._pace = pace
        self._since = time.monotonic()

    def now(self) -> datetime:
        """Return the wall-clock time as it was set."""
        passed = (time.monotonic() - self._since) * self._pace
        return START + self._shift + timedelta(seconds=passed)

    def lease_clock_ms(self) -> int:
        """Return the true time since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def step(self, by: timedelta, *, pace: float | None = None) -> None:
        """Set the clock forward or back, and perhaps change how fast it runs."""
        passed = (time.monotonic() - self._since) * self._pace
        self._shift += timedelta(seconds=passed) + by
        self._since = time.monotonic()
        self._pace = self._pace if pace is None else pace


class PatientClock(SettableClock):
    """A clock by which leases last ten times as long: nobody loses one because the disk is slow."""

    def lease_clock_ms(self) -> int:
        """Return a tenth of the true time since boot."""
        return super().lease_clock_ms() // 10
