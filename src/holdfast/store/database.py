"""Database connection protocol for the table modules, and integrity checks of stored rows.

Methods are coroutines so that the same table code runs on SQLite and Postgres.
"""

import gc
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import apsw
import msgspec

from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import SessionKey

UUID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_is_uuid: Final = re.compile(UUID).fullmatch


def pack_id(id_: str) -> bytes | str:
    """Return the stored form of an id: 16 bytes for a UUID, otherwise the id unchanged."""
    # Only the canonical lower-case format: unpacking must return the same characters.
    return bytes.fromhex(id_.replace("-", "")) if _is_uuid(id_) else id_


# Highest number of a message or an event in its session, and the mask of the number in a key.
LAST_NUMBER: Final = (1 << 32) - 1


def row_key(session: int, number: int) -> int:
    """Return the key of a message or an event: rows of a session lie together, in their order."""
    # A number from a caller must not lead into the rows of another session.
    return session << 32 | min(max(number, 0), LAST_NUMBER)


def format_id(stored: Any) -> Any:
    """Return the id for a stored value; a damaged value gives a string that is not a valid id."""
    if not isinstance(stored, bytes):
        return stored
    # Groups of two bytes, because removing three hyphens is faster than inserting four.
    text = stored.hex("-", 2)
    return f"{text[:4]}{text[5:29]}{text[30:34]}{text[35:]}"


DAMAGE = (apsw.CorruptError,)
Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
NOTHING: Final[Parameters] = {}

T = TypeVar("T")
TakeRows = Callable[[Iterable[Row]], T]


class Database(Protocol):
    """Runs statements inside the current transaction.

    `is_sealed` is true if every page is authenticated, so that indexes can be trusted. With
    `checks_rows` sessions, events, calls and costs have a checksum that is checked when they are
    read; where SQLite authenticates every page it would prove nothing more, and is 0. `for_update`
    is the clause that locks the rows of a query until the commit; it is empty if no other process
    can change them, and on a connection that only reads.
    """

    is_sealed: bool
    checks_rows: bool
    for_update: str

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        """Return all rows of a query."""

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int, take: TakeRows[T]
    ) -> T:
        """Return what `take` makes of the rows of a query, which it reads one by one.

        It stops at the row with which they have more than `size` bytes, which is the last one
        that it is certain to get. `sizes` selects the sizes of the same rows; both statements have
        a parameter `limit`.
        """

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        """Run a statement and discard its result."""

    async def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        """Run a statement once for each row of parameters."""

    async def append(self, commit: SessionCommit) -> None:
        """Write a commit; raises `VersionConflictError` if the session has changed."""

    def touch(self, key: SessionKey) -> None:
        """Notify other processes of a session when the transaction commits."""

    async def lock(self, name: str) -> None:
        """Wait for other transactions with the lock of that name; holds it until the commit."""


def take_within(size: int) -> TakeRows[tuple[list[Row], bool]]:
    """Return a reader of rows up to `size` bytes, at least one, and whether these are all."""

    def take(rows: Iterable[Row]) -> tuple[list[Row], bool]:
        found: list[Row] = []
        total = 0
        with paused_collector():
            for row in rows:
                # A loop, because a generator for each row takes longer than reading it.
                for value in row:
                    if type(value) is bytes:
                        total += len(value)
                if found and total > size:
                    return found, False
                found.append(row)
        return found, True

    return take


def with_row_lock(database: Database, sql: str, table: str = "", *, skip: bool = False) -> str:
    """Return a query that locks its rows, of one table if there are several, until the commit.

    With `skip` it leaves out rows that another transaction has locked.
    """
    clause = database.for_update
    if not clause:
        return sql
    return f"{sql.rstrip()}\n{clause}{table and f' OF {table}'}{' SKIP LOCKED' if skip else ''}"


log = logging.getLogger(__name__)


def checksum(*columns: object) -> int:
    """Return the checksum for stored content that the hash chain does not cover."""
    # CRC-32 is enough here: it detects bit rot. The hash chain detects tampering.
    total = 0
    for column in columns:
        total = zlib.crc32(column if type(column) is bytes else str(column).encode(), total)
    return total


def require_sound(stored: int, *columns: object, what: str) -> None:
    """Raise if stored content does not match its checksum."""
    if checksum(*columns) != stored:
        raise corrupt(what)


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the garbage collector while many rows are read, because all of them stay alive."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def reading_of(what: str) -> Iterator[None]:
    """Raise a corrupt-row error if content with a valid checksum cannot be decoded."""
    try:
        yield
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise corrupt(what) from error


def corrupt(what: str) -> Internal:
    """Return the error for a damaged row."""
    return Internal(
        Code.CORRUPT_ROW,
        f"{what} is damaged and is not shown; run `holdfast doctor`, or restore a backup.",
        {"row": what},
    )


encode = msgspec.json.Encoder().encode


def sound(rows: Iterable[Row], decode: Callable[[Row], T]) -> Iterator[T]:
    """Yield decoded rows and skip damaged ones, so that one bad row does not hide the others.

    Damaged rows are logged here and reported by `holdfast doctor`.
    """
    for row in rows:
        try:
            yield decode(row)
        except Internal as error:
            log.error("%s", error.message)
