"""A database connection as the tables see it, and checks of stored content. Coroutines, so that one
table code serves SQLite and Postgres.
"""

import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import apsw
import msgspec

from holdfast.domain.errors import Code, Internal

UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_is_uuid: Final = re.compile(UUID).fullmatch


def uuid_bytes(ids: str) -> bytes:
    """Return the 16 bytes of each of the UUIDs that follow one another."""
    return bytes.fromhex(ids.replace("-", ""))


def pack_id(id_: str) -> bytes | str:
    """Return an id as it is stored; one that is no UUID as it is."""
    # Only our own spelling: what is stored has to give back the very letters.
    return uuid_bytes(id_) if _is_uuid(id_) else id_


def format_id(stored: Any) -> Any:
    """Return the id that is stored, of whichever kind; of damage something that is no id."""
    if not isinstance(stored, bytes):
        return stored
    # In groups of four letters, because to cut three hyphens out is quicker than to put four in.
    text = stored.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"


DAMAGE = (apsw.CorruptError,)
FOUND = """
-- Rows of a stretch, one after another and without looking for any.
SELECT sequence, id, turn, role, parts, model_id, created_at, hash
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence BETWEEN :first AND :last
"""
HASH_FOUND = """
-- The hash of one row, without looking for it.
SELECT hash
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence = :sequence
"""
NUMBER_FOUND = """
-- The number of one row, without looking for it.
SELECT sequence
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +id = :id
"""
TOLD_OF_FOUND = """
-- One message as news, without looking for it.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence = :sequence
"""
APPENDED_FOUND = """
-- Messages as news, one after another and without looking for any.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages NOT INDEXED
 WHERE +session_key = :session_key
   AND +sequence >= :first
 LIMIT :limit
"""
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


async def fetch_rows(
    database: Database, sql: str, otherwise: str, parameters: Parameters
) -> list[Row]:
    """Return the rows of a query, by another one where damage is in the way of the first."""
    try:
        return await database.fetch(sql, parameters)
    except DAMAGE:
        return await database.fetch(otherwise, parameters)


async def fetch_around_damage(database: Database, key: int, wanted: range) -> list[Row]:
    """Return the rows of a stretch that can be read; those that cannot are left out."""
    if not wanted:
        return []
    asked = {"session_key": key, "first": wanted.start, "last": wanted.stop - 1}
    try:
        return await database.fetch(FOUND, asked)
    except DAMAGE:
        if len(wanted) == 1:
            return []
    middle = wanted.start + len(wanted) // 2
    return [
        *await fetch_around_damage(database, key, range(wanted.start, middle)),
        *await fetch_around_damage(database, key, range(middle, wanted.stop)),
    ]


log = logging.getLogger(__name__)
T = TypeVar("T")


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
def reading_of(what: str) -> Iterator[None]:
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
