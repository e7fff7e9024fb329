"""A connection as the tables see it: statements in, rows out; and how stored content is checked.

The methods are coroutines that never wait on SQLite, so the same table code serves a database
that does wait (decision 0008).
"""

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import msgspec

from holdfast.domain.errors import Code, Internal

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
NOTHING: Final[Parameters] = {}


class Database(Protocol):
    """Runs statements inside the current transaction.

    `is_sealed` tells that every page proves itself, so that an index can be believed.
    """

    is_sealed: bool

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        """Return all rows of a query."""

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int
    ) -> tuple[list[Row], bool]:
        """Return the first rows of a query, up to so many bytes, and whether others are left out.

        At least one is returned, if there is one. `sizes` selects how large the same rows are;
        both statements have a parameter `limit`.
        """

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        """Run a statement for its effect."""


def checksum(*columns: object) -> int:
    """Return the checksum kept beside stored content that no hash chain protects."""
    # CRC and no hash: it is there against decay, and the chain is there against change.
    total = 0
    for column in columns:
        total = zlib.crc32(column if type(column) is bytes else str(column).encode(), total)
    return total


def require_sound(stored: int, *columns: object, what: str) -> None:
    """Refuse content that is not what was written."""
    if checksum(*columns) != stored:
        raise corrupt(what)


@contextmanager
def legible(what: str) -> Iterator[None]:
    """Refuse content that was written so, and cannot be read as what it should be."""
    try:
        yield
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise corrupt(what) from error


def corrupt(what: str) -> Internal:
    """Return the error for a row that cannot be what was written."""
    return Internal(
        Code.CORRUPT_ROW,
        f"{what} is damaged and is not shown; run `holdfast doctor`, or restore a backup.",
        {"row": what},
    )


encode = msgspec.json.Encoder().encode


def sound(rows: Iterable[Row], decode: Callable[[Row], T]) -> Iterator[T]:
    """Yield what rows hold, passing over damaged ones: one bad record never hides its neighbours.

    A damaged row is named in the log and by `holdfast doctor`.
    """
    for row in rows:
        try:
            yield decode(row)
        except Internal as error:
            log.error("%s", error.message)
