"""One connection to Postgres in the form that tables use: names in, plain rows out."""

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

# Until Postgres ends a transaction in which nothing happens: whoever was stopped in the middle of
# one lets go of its rows before anybody else's lease runs out, who waits for one of them.
_IDLE: Final = {True: "2s", False: "60s"}
# Outside of a transaction nobody waits long for a row, because it is tried again inside of one.
_WAIT: Final = "100ms"
_SETTINGS: Final = {
    "application_name": "holdfast",
    # Compiling takes longer than any of our statements.
    "jit": "off",
}
_CONNECT_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 5.0
# Seconds of silence until a machine is asked whether it is there, and until it is taken for gone.
_SILENCE: Final = 5
_GONE_AFTER: Final = 15


class PostgresConnection:
    """A connection inside of a transaction; `may_write` decides whether rows are locked."""

    # Every page proves itself, or Postgres tells so.
    is_sealed = True

    def __init__(self, raw: asyncpg.Connection, *, may_write: bool = False) -> None:
        self.raw = raw
        self.has_written = False
        # Whether somebody was refused who is behind, caught or not.
        self.has_failed = False
        # The tables that are seen through it.
        self.tables: Any = None
        # Sessions that have news once the transaction is committed.
        self.touched: set[int] = set()
        # Those that may stand elsewhere than is remembered.
        self.moved: set[int] = set()
        self._may_write = may_write
        # Whether work is only begun; whether rows wait for others, and those that do.
        self.is_opening = False
        self.is_patient = False
        self._ledger = Ledger()
        self._waiting: dict[str, list[list[Any]]] = {}
        # What was locked and read, and became of it by what waits.
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
        # Postgres sends every row of a query, but knows their sizes without reading them.
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
        """Have rows wait for others, unless too many bytes do."""
        name, table = waits
        key = parameters[name]
        if table is SESSIONS:
            # Judged by what the row has become here: a later save would hide this one.
            self._require(not self.heads.is_ahead(key, parameters["epoch"]))
            self.heads.move(key, values)
        self._ledger.add(table, key, values)
        if self._ledger.size >= BYTES_MOST:
            await self.flush()

    async def read_ahead(self, places: Sequence[Row]) -> None:
        """Lock and read all these heads at once."""
        self.heads.keep(await self._fetched(statement_of(HEADS), asked_for(places)))

    async def flush(self) -> None:
        """Send what waits, all of it at once: to ask and to be answered takes the longest."""
        await self._catch_up()
        if self._ledger:
            await self._written(WRITE)

    async def note(self, *values: Any) -> str:
        """Send what waits together with a note of the commit; return the transaction's name."""
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
        """Refuse to go on after somebody was refused: who caught it would commit the other half."""
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
        """Have nothing wait that a statement may be about, nor remembered that it changes."""
        if not form.is_apart:
            await self.flush()
        elif form.is_write:
            # Triggers look at what of the index waits.
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
        """Run a command that is no table's, such as the beginning of a transaction."""
        await self._asked(self.raw.execute, sql)

    async def value(self, sql: str, *values: Any) -> Any:
        """Return the last column of the one row of a query with numbered parameters."""
        return (await self._asked(self.raw.fetchrow, sql, values))[-1]

    async def _asked(
        self, ask: Callable[..., Awaitable[Any]], sql: str, values: Sequence[Any] = ()
    ) -> Any:
        try:
            return await ask(sql, *values)
        except GONE as error:
            # The driver says the same of a connection that is closed and of a fault of ours.
            if isinstance(error, asyncpg.InterfaceError) and not self.raw.is_closed():
                raise
            self.raw.terminate()
            raise LostError from error

    def forget(self, *, is_patient: bool) -> None:
        """Begin anew, in another transaction; who is patient sends what may wait together."""
        self.has_written = self.has_failed = False
        self.touched.clear()
        self.moved.clear()
        self.is_patient = is_patient
        self._ledger.clear()
        self._waiting.clear()
        self.heads.clear()

    async def close(self) -> None:
        """Let go of the connection, without waiting long for a server that is gone."""
        try:
            await self.raw.close(timeout=_CLOSE_SECONDS)
        except (*GONE, asyncpg.PostgresError):
            self.raw.terminate()


async def connect(url: str, *, may_write: bool = False) -> asyncpg.Connection:
    """Connect with our settings, whoever is at the other end."""
    raw = await asyncpg.connect(
        url,
        timeout=_CONNECT_SECONDS,
        statement_cache_size=512,
        # A statement that is used rarely is as good as new after an hour.
        max_cached_statement_lifetime=3_600,
        server_settings=_SETTINGS
        | {"idle_in_transaction_session_timeout": _IDLE[may_write]}
        | ({"lock_timeout": _WAIT} if may_write else {}),
    )
    try:
        # By its own name, because the driver has no setting for it.
        keep_alive(raw._transport.get_extra_info("socket"))
        # A VARCHAR is an id: a UUID is bytes to tables, and its letters to Postgres.
        await raw.set_type_codec(
            "varchar", schema="pg_catalog", encoder=format_id, decoder=pack_id, format="text"
        )
    except BaseException:
        raw.terminate()
        raise
    return raw


def keep_alive(wire: socket.socket) -> None:
    """Have the system end a connection whose other end is gone without a word, as after a crash."""
    if wire.family == socket.AF_UNIX:
        return
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {
        "TCP_KEEPIDLE": _SILENCE,
        "TCP_KEEPINTVL": _SILENCE,
        "TCP_KEEPCNT": _GONE_AFTER // _SILENCE,
        "TCP_USER_TIMEOUT": _GONE_AFTER * 1_000,
    }.items():
        # Not every system has all of them.
        if option := getattr(socket, name, None):
            wire.setsockopt(socket.IPPROTO_TCP, option, value)
