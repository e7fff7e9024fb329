"""One connection to Postgres in the form that tables use: names in, plain rows out."""

import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import asyncpg

from holdfast.domain.errors import Code, Invalid
from holdfast.storage.database import NOTHING, Parameters, Row
from holdfast.storage.dialect import Statement, form_of
from holdfast.storage.ids import packed, spelled
from holdfast.storage.postgres_errors import GONE, LostError, fenced

# Until Postgres ends a transaction in which nothing happens: whoever was stopped in the middle of
# one lets go of its rows before anybody else's lease runs out, who waits for one of them.
_IDLE: Final = {True: "2s", False: "60s"}
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
_NUL: Final = "\x00"


class PostgresConnection:
    """A connection inside of a transaction; `may_write` decides whether rows are locked."""

    # Every page proves itself, or Postgres tells so.
    is_sealed = True

    def __init__(self, raw: asyncpg.Connection, *, may_write: bool = False) -> None:
        self.raw = raw
        self.has_written = False
        # Sessions that have news once the transaction is committed.
        self.touched: set[int] = set()
        self._may_write = may_write
        # Whether statements are kept that may wait, those that do, and the sessions they are about.
        self.is_patient = False
        self._waiting: dict[str, list[list[Any]]] = {}
        self._awaited: set[int] = set()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        form = form_of(sql)
        if not self._may_write:
            return await self._fetched(form.plain, parameters)
        if not form.is_keyed:
            await self.flush()
        if form.first is not None:
            await self._fetched(form.first, parameters)
        self.has_written = self.has_written or form.is_write
        found = await self._fetched(form.locking, parameters, is_write=form.is_write)
        if form.is_keyed and found and found[0][0] in self._awaited:
            await self.flush()
            found = await self._fetched(form.locking, parameters)
        return found

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        form = form_of(sql)
        self.has_written = True
        values = _values(form.plain, parameters, is_write=True)
        if form.rings is not None:
            self.touched.add(parameters[form.rings])
        if self.is_patient and form.waits is not None:
            self._waiting.setdefault(form.plain.sql, []).append(values)
            self._awaited.add(parameters[form.waits])
            return
        await self.flush()
        done = await self._asked(self.raw.execute, form.plain.sql, values)
        if form.hits and done.endswith(" 0"):
            raise fenced()

    async def flush(self) -> None:
        """Send what waits, all of a kind at once: to ask and to be answered takes the longest."""
        waiting, self._waiting = self._waiting, {}
        self._awaited.clear()
        for sql, rows in waiting.items():
            await self._asked(self.raw.executemany, sql, [rows])

    async def _fetched(
        self, statement: Statement, parameters: Parameters, *, is_write: bool = False
    ) -> list[Row]:
        values = _values(statement, parameters, is_write=is_write)
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
        self.has_written = False
        self.touched.clear()
        self.is_patient = is_patient
        self._waiting.clear()
        self._awaited.clear()

    async def close(self) -> None:
        """Let go of the connection, without waiting long for a server that is gone."""
        try:
            await self.raw.close(timeout=_CLOSE_SECONDS)
        except (*GONE, asyncpg.PostgresError):
            self.raw.terminate()


def _values(statement: Statement, parameters: Parameters, *, is_write: bool) -> list[Any]:
    values = [parameters[name] for name in statement.names]
    if any(isinstance(value, str) and _NUL in value for value in values):
        if is_write:
            raise Invalid(Code.INVALID_TEXT, "Postgres keeps no text with a NUL in it.")
        # No text there is has one, and none has this either, which is no character.
        return [
            value.replace(_NUL, "\uffff") if isinstance(value, str) else value for value in values
        ]
    return values


async def connect(url: str, *, may_write: bool = False) -> asyncpg.Connection:
    """Connect with our settings, whoever is at the other end."""
    raw = await asyncpg.connect(
        url,
        timeout=_CONNECT_SECONDS,
        statement_cache_size=512,
        # A statement that is used rarely is as good as new after an hour.
        max_cached_statement_lifetime=3_600,
        server_settings=_SETTINGS | {"idle_in_transaction_session_timeout": _IDLE[may_write]},
    )
    # By its own name, because the driver has no setting for it.
    keep_alive(raw._transport.get_extra_info("socket"))
    # A VARCHAR is an id: a UUID is bytes to tables, and its letters to Postgres.
    await raw.set_type_codec(
        "varchar", schema="pg_catalog", encoder=spelled, decoder=packed, format="text"
    )
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
