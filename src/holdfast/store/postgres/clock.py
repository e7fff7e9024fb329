"""Database time, shared by all processes, computed from the local clock and an offset."""

from datetime import datetime
from typing import Final

from holdfast.ports.system import Clock
from holdfast.store.postgres.connection import PostgresConnection

NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


class DatabaseClock:
    """Implements the `Clock` port: leases are measured in milliseconds of database time.

    It follows the boot clock of the machine; the offset to the database is measured again every
    minute, because clocks drift.
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._ahead = 0

    def now(self) -> datetime:
        """Return the wall-clock time in UTC; never used for ordering."""
        return self._inner.now()

    def lease_clock_ms(self) -> int:
        """Return the database time in milliseconds."""
        return self._inner.lease_clock_ms() + self._ahead

    async def learn(self, connection: PostgresConnection) -> None:
        """Measure the offset to the database time."""
        before = self._inner.lease_clock_ms()
        now = await connection.value(NOW)
        self._ahead = now - (before + self._inner.lease_clock_ms()) // 2
