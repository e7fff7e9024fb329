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
from holdfast.store.transfer.sql import RUNNING_TURNS, TABLES, has_rows_statement, select_statement

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
