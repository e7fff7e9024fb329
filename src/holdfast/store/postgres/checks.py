"""Checks of `holdfast doctor` on Postgres: the same row checks as on SQLite.

Pages and foreign keys are checked by the Postgres server itself.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar, cast

from holdfast.store.database import NOTHING, Parameters, Row, TakeRows
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.sqlite.checks import ROWS, Check, check_rows, missing_events
from holdfast.store.sqlite.connection import Connection

T = TypeVar("T")


class _Waiting:
    """Synchronous adapter of a connection for checks, which run in a thread and block there."""

    checks_rows = True
    for_update = ""

    def __init__(self, connection: PostgresConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop

    def query(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        asked = self._connection.fetch(sql, parameters)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        return self.query(sql, parameters)

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int, take: TakeRows[T]
    ) -> T:
        asked = self._connection.fetch_within(sql, sizes, parameters, size, take)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()


async def faults(connection: PostgresConnection) -> list[str]:
    """Return all faults of the rows, one sentence each."""
    return await _run_checks(connection, ROWS)


async def find_missing_events(connection: PostgresConnection) -> list[str]:
    """Return unexplained gaps in the event logs, one sentence each."""
    return await _run_checks(connection, (missing_events,))


async def _run_checks(connection: PostgresConnection, checks: Sequence[Check]) -> list[str]:
    waiting = cast("Connection", _Waiting(connection, asyncio.get_running_loop()))
    return await asyncio.to_thread(check_rows, waiting, checks)
