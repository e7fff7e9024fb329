"""One Postgres connection with the `Database` protocol: named parameters in, tuples out."""

import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import asyncpg

from holdfast.domain.commits import SessionCommit, VersionConflictError
from holdfast.domain.ids import SessionKey
from holdfast.store.database import NOTHING, Parameters, Row, TakeRows, format_id, pack_id
from holdfast.store.postgres.commit import build_commit_rows, group_statement
from holdfast.store.postgres.dialect import statement_of
from holdfast.store.postgres.errors import GONE, LostError

T = TypeVar("T")
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('holdfast ' || $1))"
# Idle timeout in a transaction: a process that stopped in the middle of one must release its row
# locks before the leases of waiting processes expire.
_IDLE: Final = {True: "2s", False: "60s"}
# Lock timeout outside of a transaction; short, because a whole group of commits waits.
_WAIT: Final = "100ms"
_SETTINGS: Final = {
    "application_name": "holdfast",
    # JIT compilation takes longer than any of these statements.
    "jit": "off",
}
_CONNECT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 5.0
# Seconds of silence before a TCP keepalive probe, and before the peer counts as dead.
_SILENCE: Final = 5
_DEAD_PEER_SECONDS: Final = 15


class PostgresConnection:
    """A connection in a transaction; `for_update` is set on one that may write."""

    # Postgres reports damaged pages itself.
    is_sealed = True
    checks_rows = True

    def __init__(self, raw: asyncpg.Connection, *, may_write: bool = False) -> None:
        self.raw = raw
        self.for_update = "FOR NO KEY UPDATE" if may_write else ""
        # Table objects bound to this connection.
        self.tables: Any = None
        self.reset()

    def reset(self) -> None:
        """Prepare for a new transaction."""
        self.has_written = False
        # Sessions that other processes are notified of if the transaction commits.
        self.touched: set[int] = set()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        statement = statement_of(sql)
        self.has_written = self.has_written or statement.is_write
        rows = await self._translate_loss(
            self.raw.fetch, statement.sql, statement.values(parameters)
        )
        return list(map(tuple, rows))

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int, take: TakeRows[T]
    ) -> T:
        # Postgres sends all rows of a query, but knows their sizes without reading the content.
        found = await self.fetch(sizes, parameters)
        totals = accumulate(row[0] or 0 for row in found)
        # One more than fits, so that the reader sees that it does not.
        limit = min(len(found), 1 + sum(1 for total in totals if total <= size))
        return take(await self.fetch(sql, {**parameters, "limit": limit}))

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        self.has_written = True
        statement = statement_of(sql)
        await self._translate_loss(self.raw.execute, statement.sql, statement.values(parameters))

    async def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        self.has_written = True
        statement = statement_of(sql)
        values = [statement.values(parameters) for parameters in rows]
        await self._translate_loss(self.raw.executemany, statement.sql, [values])

    async def append(self, commit: SessionCommit) -> None:
        self.has_written = True
        sql, values = group_statement([build_commit_rows(commit)])
        try:
            saved = await self.value(sql, *values)
        except asyncpg.UniqueViolationError as error:
            raise VersionConflictError from error
        if not saved:
            raise VersionConflictError
        self.touch(commit.before.key)

    def touch(self, key: SessionKey) -> None:
        self.touched.add(key)

    async def lock(self, name: str) -> None:
        if self.for_update:
            await self._translate_loss(self.raw.execute, LOCK, [name])

    async def command(self, sql: str) -> None:
        """Run a command without parameters, such as BEGIN."""
        await self._translate_loss(self.raw.execute, sql)

    async def row(self, sql: str, *values: Any) -> Any:
        """Return the only row of a query with numbered parameters."""
        return await self._translate_loss(self.raw.fetchrow, sql, values)

    async def value(self, sql: str, *values: Any) -> Any:
        """Return the last column of the only row of a query with numbered parameters."""
        return (await self.row(sql, *values))[-1]

    async def _translate_loss(
        self, ask: Callable[..., Awaitable[Any]], sql: str, values: Sequence[Any] = ()
    ) -> Any:
        try:
            return await ask(sql, *values)
        except GONE as error:
            # asyncpg raises the same error for a closed connection and for a programming error.
            if isinstance(error, asyncpg.InterfaceError) and not self.raw.is_closed():
                raise
            self.raw.terminate()
            raise LostError from error

    async def close(self) -> None:
        """Close the connection, with a timeout for an unreachable server."""
        try:
            await self.raw.close(timeout=_CLOSE_SECONDS)
        except (*GONE, asyncpg.PostgresError):
            self.raw.terminate()


async def connect(url: str, *, may_write: bool = False) -> asyncpg.Connection:
    """Connect with Holdfast's settings; the server is not checked."""
    raw = await asyncpg.connect(
        url,
        timeout=_CONNECT_SECONDS,
        statement_cache_size=512,
        # Prepared statements that are used rarely may expire.
        max_cached_statement_lifetime=3_600,
        server_settings=_SETTINGS
        | {"idle_in_transaction_session_timeout": _IDLE[may_write]}
        | ({"lock_timeout": _WAIT} if may_write else {}),
    )
    try:
        # A private attribute, because asyncpg has no keepalive setting.
        keep_alive(raw._transport.get_extra_info("socket"))
        # Columns of type VARCHAR hold ids: UUIDs are bytes in Python and text in Postgres.
        await raw.set_type_codec(
            "varchar", schema="pg_catalog", encoder=format_id, decoder=pack_id, format="text"
        )
    except BaseException:
        raw.terminate()
        raise
    return raw


def keep_alive(wire: socket.socket) -> None:
    """Enable TCP keepalive, so that a connection to a crashed machine ends."""
    if wire.family == socket.AF_UNIX:
        return
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPINTVL": _SILENCE,
        "TCP_KEEPCNT": _DEAD_PEER_SECONDS // _SILENCE,
        "TCP_USER_TIMEOUT": _DEAD_PEER_SECONDS * 1_000,
    }.items():
        # Not every platform has all options.
        if option := getattr(socket, name, None):
            wire.setsockopt(socket.IPPROTO_TCP, option, value)
