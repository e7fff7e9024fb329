"""A whole store moved into another database: table by table, counted and hashed on both sides.

What search computes is computed anew; every other row goes as it is (decision 0039).
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Internal
from holdfast.store.database import Row
from holdfast.store.transfer.sql import HELD, TABLES, looking, reading

_MODULUS: Final = 1 << 256
_encode: Final = msgspec.msgpack.Encoder().encode


class CopiedTable(Struct, frozen=True):
    """What a table holds: how many rows, and a hash over all of them."""

    table: str
    rows: int
    hash: str


class TransferEnd(Protocol):
    """A database in one transaction, to be read from, or written to as a whole."""

    async def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""

    async def value(self, sql: str) -> int:
        """Return the one number that a query returns."""

    def rows(self, sql: str) -> AsyncIterator[Sequence[Row]]:
        """Yield all rows of a query, some at a time."""

    async def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Write rows into a table."""

    async def settle(self) -> None:
        """Compute what is not copied."""

    async def faults(self) -> list[str]:
        """Return what is wrong with the rows, chains among them, one sentence each."""


Tell = Callable[[CopiedTable], None]


async def copy(source: TransferEnd, target: TransferEnd, tell: Tell) -> list[CopiedTable]:
    """Copy everything and compare both sides; whatever is raised, the target is not to be kept."""
    copied = []
    for table in TABLES:
        copied.append(await _told(source, table, target))
        tell(copied[-1])
    await target.settle()
    for each in copied:
        if await _told(target, each.table) != each:
            raise Internal(
                Code.INTERNAL,
                f"{each.table} arrived otherwise than it was sent; nothing was kept. Please report "
                "this.",
            )
    await _require_sound(target)
    return copied


async def count_rows(source: TransferEnd) -> list[CopiedTable]:
    """Return what would be copied."""
    return [await _told(source, table) for table in TABLES]


async def require_idle(source: TransferEnd) -> None:
    """Refuse a store in which turns run: whoever plays them would go on in the old one."""
    if held := await source.value(HELD):
        raise Conflict(
            Code.TURN_RUNNING,
            f"Turns are running in {held} sessions: wait for their end or interrupt them, and stop "
            "every server. Where one was killed, start it once more: it ends what was left.",
            {"sessions": held},
        )


async def require_empty(target: TransferEnd) -> None:
    """Refuse a store with anything in it."""
    for table in TABLES:
        if await target.value(looking(table)):
            raise Conflict(
                Code.STORE_NOT_EMPTY,
                f"The target has {table} already; nothing is ever copied over what is there. "
                "Choose an empty one.",
                {"table": table},
            )


async def _told(source: TransferEnd, table: str, target: TransferEnd | None = None) -> CopiedTable:
    """Read a table to its end, into a target if there is one, and say what it holds."""
    # In the order of their names, which is the same on both sides.
    columns = sorted(await source.columns(table))
    count = total = 0
    async for rows in source.rows(reading(table, columns)):
        if target is not None:
            await target.add(table, columns, rows)
        count += len(rows)
        # A sum, because ids that are no UUIDs stand in another order on the other side.
        total += sum(int.from_bytes(hashlib.sha256(_encode(row)).digest()) for row in rows)
    return CopiedTable(table, count, f"{total % _MODULUS:064x}")


async def _require_sound(target: TransferEnd) -> None:
    if faults := await target.faults():
        raise Internal(
            Code.CORRUPT_STORE,
            f"The store is damaged, so nothing was copied: {faults[0]} Run `holdfast doctor`.",
            {"faults": faults},
        )
