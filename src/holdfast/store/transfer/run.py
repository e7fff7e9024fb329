"""Transfer of a whole store into another database; row counts and hashes are compared.

The search index is rebuilt; every other row is copied unchanged (decision 0022).
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Internal
from holdfast.store.database import Row

# Sort key of each table; tables come after the tables they reference.
TABLES: Final = {
    "agents": "owner, id",
    "models": "id",
    "repos": "id",
    "sessions": "key",
    "openings": "session_key",
    "tombstones": "key",
    "messages": "key",
    "events": "key",
    "deltas": "key",
    "calls": "session_key, id",
    "costs": "session_key, turn, request_id",
    "approvals": "id",
    "media": "hash",
    "media_uses": "session_key, hash",
    "tokens": "id",
    "sign_in_codes": "digest",
    "programs": "session_key",
    "forgotten": "session_key",
    "waits": "session_key",
    "held_turns": "session_key",
    "client_requests": "session_key, call_id",
    "workers": "owner, id",
    "children": "session_key",
    "foreign_sessions": "session_key",
    "foreign_records": "session_key, stream, ordinal",
    "graph_checkpoints": "session_key, namespace, id",
    "graph_values": "session_key, namespace, channel, version",
    "graph_items": "session_key, list, position",
    "graph_writes": "session_key, namespace, checkpoint_id, task_id, number",
    "zone_files": "key",
    "zone_parts": "key",
    "desks": "owner, zone",
    "marks": "name",
    "entities": "key",
    "observations": "entity_key, ordinal",
    "snapshots": "entity_key",
    "timeline": "entity_key, ms, rank, id",
    "mentioned_ids": "owner, name, entity_key",
}

RUNNING_TURNS = """
-- Sessions with a running turn, or one that was killed.
SELECT count(*)
  FROM sessions
 WHERE holder IS NOT NULL
"""

EVERY: Final = ", ".join(TABLES)


def select_statement(table: str, columns: Sequence[str]) -> str:
    """Return the query for all rows of a table, in key order."""
    names, order = _quote(columns), TABLES[table]
    return f"SELECT {names} FROM {table} ORDER BY {order}"  # noqa: S608 — constant names


def insert_statement(table: str, columns: Sequence[str], placeholders: str) -> str:
    """Return the INSERT for one row with the given placeholders."""
    names = _quote(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({placeholders})"  # noqa: S608 — constant names


def has_rows_statement(table: str) -> str:
    """Return the query that checks whether a table has a row."""
    return f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1) found"  # noqa: S608 — constant name


def sequence_statement(table: str) -> str:
    """Return the statement that moves the key sequence of a table past its largest key."""
    return f"""
SELECT setval(pg_get_serial_sequence('{table}', 'key'), coalesce(max(key), 1), max(key) IS NOT NULL)
  FROM {table}
"""  # noqa: S608 — constant name


def lock_statement(mode: str) -> str:
    """Return the statement that locks all tables against writers."""
    return f"LOCK TABLE {EVERY} IN {mode} MODE"


def _quote(columns: Sequence[str]) -> str:
    return ", ".join(f'"{each}"' for each in columns)


_MODULUS: Final = 1 << 256
_encode: Final = msgspec.msgpack.Encoder().encode


class CopiedTable(Struct, frozen=True):
    """Row count of a table, and a hash over all rows."""

    table: str
    rows: int
    hash: str


class TransferEnd(Protocol):
    """A database in one transaction, as the source or target of a transfer."""

    async def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""

    async def value(self, sql: str) -> int:
        """Return the single integer that a query selects."""

    def rows(self, sql: str) -> AsyncIterator[Sequence[Row]]:
        """Yield all rows of a query in batches."""

    async def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Write rows into a table."""

    async def settle(self) -> None:
        """Rebuild what is not copied."""

    async def faults(self) -> list[str]:
        """Return all faults of the rows, including broken hash chains, one sentence each."""


Progress = Callable[[CopiedTable], None]


async def copy(source: TransferEnd, target: TransferEnd, progress: Progress) -> list[CopiedTable]:
    """Copy all tables and compare both sides; on an error, discard the target."""
    copied = []
    for table in TABLES:
        copied.append(await _copy_table(source, table, target))
        progress(copied[-1])
    await target.settle()
    for each in copied:
        if await _copy_table(target, each.table) != each:
            raise Internal(
                Code.INTERNAL,
                f"{each.table} was copied incorrectly; the target was discarded. Please report "
                "this.",
            )
    await _require_sound(target)
    return copied


async def count_rows(source: TransferEnd) -> list[CopiedTable]:
    """Return row counts and hashes of the tables that would be copied."""
    return [await _copy_table(source, table) for table in TABLES]


async def require_idle(source: TransferEnd) -> None:
    """Raise if turns are running, because their process would continue in the old store."""
    if held := await source.value(RUNNING_TURNS):
        raise Conflict(
            Code.TURN_RUNNING,
            f"Turns are running in {held} sessions: wait for their end or interrupt them, and stop "
            "every server. If a server was killed, start it once to end its turns.",
            {"sessions": held},
        )


async def require_empty(target: TransferEnd) -> None:
    """Raise if the store contains any rows."""
    for table in TABLES:
        if await target.value(has_rows_statement(table)):
            raise Conflict(
                Code.STORE_NOT_EMPTY,
                f"The target is not empty: it has {table}. Choose an empty one; nothing is ever "
                "overwritten.",
                {"table": table},
            )


async def _copy_table(
    source: TransferEnd, table: str, target: TransferEnd | None = None
) -> CopiedTable:
    """Read a whole table, copy it to the target if given, and return its count and hash."""
    # Sorted, because the column order may differ between the databases.
    columns = sorted(await source.columns(table))
    count = total = 0
    async for rows in source.rows(select_statement(table, columns)):
        if target is not None:
            await target.add(table, columns, rows)
        count += len(rows)
        # A commutative sum, because the databases sort ids that are not UUIDs differently.
        total += sum(int.from_bytes(hashlib.sha256(_encode(row)).digest()) for row in rows)
    return CopiedTable(table, count, f"{total % _MODULUS:064x}")


async def _require_sound(target: TransferEnd) -> None:
    if faults := await target.faults():
        raise Internal(
            Code.CORRUPT_STORE,
            f"The store is damaged, so nothing was copied: {faults[0]} Run `holdfast doctor`.",
            {"faults": faults},
        )
