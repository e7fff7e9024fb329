"""One Postgres connection with the `Database` protocol: named parameters in, tuples out."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import asyncpg

from holdfast.store.database import NOTHING, Parameters, Row, format_id, pack_id
from holdfast.store.postgres.columns import SESSIONS
from holdfast.store.postgres.dialect import Form, Statement, form_of, statement_of
from holdfast.store.postgres.errors import GONE, LostError, fenced
from holdfast.store.postgres.heads import HEADS, Heads, Wish, asked_for, pause
from holdfast.store.postgres.ledger import BYTES_MOST, Ledger
from holdfast.store.postgres.ledger_sql import NOTE, WRITE, filled
from holdfast.store.postgres.values import place_of, values_of

# Idle timeout in a transaction: a process that stopped in the middle of one must release its row
# locks before the leases of waiting processes expire.
_IDLE: Final = {True: "2s", False: "60s"}
# Lock timeout outside of a transaction; short, because the work is retried inside one.
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
_GONE_AFTER: Final = 15


class PostgresConnection:
    """A connection in a transaction; rows are locked on read if `may_write` is set."""

    # Postgres reports damaged pages itself.
    is_sealed = True

    def __init__(self, raw: asyncpg.Connection, *, may_write: bool = False) -> None:
        self.raw = raw
        self.has_written = False
        # Whether a write was rejected by fencing, even if the error was caught.
        self.has_failed = False
        # Table objects bound to this connection.
        self.tables: Any = None
        # Sessions with new events after the commit.
        self.touched: set[int] = set()
        # Sessions whose cached row may be outdated.
        self.moved: set[int] = set()
        self._may_write = may_write
        # Whether jobs are being started, whether rows are buffered, and the buffered statements.
        self.is_opening = False
        self.is_patient = False
        self._ledger = Ledger()
        self._waiting: dict[str, list[list[Any]]] = {}
        # Locked session rows, including changes that are still buffered.
        self.heads = Heads()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        form = form_of(sql)
        if not self._may_write:
            return await self._fetched(form.plain, parameters)
        if self.is_opening:
            await pause(Wish(place_of(form.plain, parameters) if form.is_keyed else None))
        if form.is_keyed:
            return await self._head(form, parameters)
        await self._make_way(form)
        if form.first is not None:
            await self._fetched(form.first, parameters)
        self.has_written = self.has_written or form.is_write
        rows = await self._fetched(form.locking, parameters, is_write=form.is_write)
        if form.moves:
            self.moved.update([row[0] for row in rows])
        return rows

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int
    ) -> tuple[list[Row], bool]:
        # Postgres sends all rows of a query, but knows their sizes without reading the content.
        found = await self.fetch(sizes, parameters)
        totals = accumulate(row[0] or 0 for row in found)
        limit = max(1, sum(1 for total in totals if total <= size))
        return await self.fetch(sql, {**parameters, "limit": limit}), limit < len(found)

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        form = form_of(sql)
        if self.is_opening:
            await pause(Wish(None))
        self.has_written = True
        values = values_of(form.plain, parameters, is_write=True)
        if form.rings is not None:
            self.touched.add(parameters[form.rings])
        if form.moves:
            self.moved.add(parameters["key"])
        if self.is_patient and form.waits is not None:
            await self._put_off(form.waits, parameters, values)
        elif self.is_patient and form.is_patient:
            self._waiting.setdefault(form.plain.sql, []).append(values)
        else:
            await self._make_way(form)
            done = await self._asked(self.raw.execute, form.plain.sql, values)
            if form.hits:
                self._require(not done.endswith(" 0"))

    async def _put_off(
        self, waits: tuple[str, Mapping[str, str]], parameters: Parameters, values: list[Any]
    ) -> None:
        """Buffer rows to send them with others; flushes above the size limit."""
        name, table = waits
        key = parameters[name]
        if table is SESSIONS:
            # Check against the buffered row, because a later save would hide a lost lease.
            self._require(not self.heads.is_ahead(key, parameters["epoch"]))
            self.heads.move(key, values)
        self._ledger.add(table, key, values)
        if self._ledger.size >= BYTES_MOST:
            await self.flush()

    async def read_ahead(self, places: Sequence[Row]) -> None:
        """Lock and read several session rows in one statement."""
        self.heads.keep(await self._fetched(statement_of(HEADS), asked_for(places)))

    async def flush(self) -> None:
        """Send all buffered rows in one statement, because round trips dominate the cost."""
        await self._catch_up()
        if self._ledger:
            await self._written(WRITE)

    async def note(self, *values: Any) -> str:
        """Send buffered rows with the commit number; return the transaction id."""
        self.require_sound()
        await self._catch_up()
        return str((await self._written(NOTE, *values))[0])

    async def _written(self, text: str, *note: Any) -> Any:
        sql, saved = filled(text, self._ledger.shape, len(note)), len(self._ledger.sessions)
        values = (*note, *self._ledger.values())
        self._ledger.clear()
        row = await self._asked(self.raw.fetchrow, sql, values)
        self._require(row[-1] == saved)
        return row

    def _require(self, is_saved: bool) -> None:
        self.has_failed = self.has_failed or not is_saved
        self.require_sound()

    def require_sound(self) -> None:
        """Raise after a fenced write, because a caller that caught it could commit partial work."""
        if self.has_failed:
            raise fenced()

    async def _head(self, form: Form, parameters: Parameters) -> list[Row]:
        known = self.heads.get(place_of(form.plain, parameters))
        if known is not None:
            return [known]
        found = await self._fetched(form.locking, parameters)
        if found and self._ledger.concerns(found[0][0]):
            await self.flush()
            found = await self._fetched(form.locking, parameters)
        if self.is_patient:
            self.heads.keep(found)
        return found

    async def _make_way(self, form: Form) -> None:
        """Flush buffered rows that a statement may depend on; drop cached rows that it changes."""
        if not form.is_apart:
            await self.flush()
        elif form.is_write:
            # Triggers read the buffered rows of the search index.
            await self._catch_up()
        if form.moves:
            self.heads.clear()

    async def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for sql, rows in waiting.items():
            await self._asked(self.raw.executemany, sql, [rows])

    async def _fetched(
        self, statement: Statement, parameters: Parameters, *, is_write: bool = False
    ) -> list[Row]:
        values = values_of(statement, parameters, is_write=is_write)
        return list(map(tuple, await self._asked(self.raw.fetch, statement.sql, values)))

    async def command(self, sql: str) -> None:
        """Run a command without parameters, such as BEGIN."""
        await self._asked(self.raw.execute, sql)

    async def value(self, sql: str, *values: Any) -> Any:
        """Return the last column of the only row of a query with numbered parameters."""
        return (await self._asked(self.raw.fetchrow, sql, values))[-1]

    async def _asked(
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

    def forget(self, *, is_patient: bool) -> None:
        """Reset for a new transaction; buffers rows if `is_patient` is set."""
        self.has_written = self.has_failed = False
        self.touched.clear()
        self.moved.clear()
        self.is_patient = is_patient
        self._ledger.clear()
        self._waiting.clear()
        self.heads.clear()

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
        "TCP_KEEPCNT": _GONE_AFTER // _SILENCE,
        "TCP_USER_TIMEOUT": _GONE_AFTER * 1_000,
    }.items():
        # Not every platform has all options.
        if option := getattr(socket, name, None):
            wire.setsockopt(socket.IPPROTO_TCP, option, value)
