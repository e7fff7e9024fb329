"""The database's time, which all processes on all machines share, read off the machine's clock."""

from datetime import datetime
from typing import Final

from holdfast.ports import Clock
from holdfast.store.postgres.connection import PostgresConnection

NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


class DatabaseClock:
    """Implements the `Clock` port: leases are counted in milliseconds of the database's time.

    It goes as the machine's boot clock goes, and how far that one is from the database's is learned
    again every minute, because two clocks drift apart.
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._ahead = 0

    def now(self) -> datetime:
        """Return the wall-clock time in UTC; order never rests on it."""
        return self._inner.now()

    def boot_ms(self) -> int:
        """Return milliseconds of the database's time."""
        return self._inner.boot_ms() + self._ahead

    async def learn(self, connection: PostgresConnection) -> None:
        """Ask the database for its time."""
        before = self._inner.boot_ms()
        told = await connection.value(NOW)
        self._ahead = told - (before + self._inner.boot_ms()) // 2
