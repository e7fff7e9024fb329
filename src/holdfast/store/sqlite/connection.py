"""One SQLite connection: how it is opened, what it is checked for, and what its errors mean.

Nothing here knows a table; threads and transactions are the business of `writer.py`.
"""

import random
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import apsw

from holdfast.domain.errors import (
    Code,
    Conflict,
    HoldfastError,
    Internal,
    StorageFull,
    Unavailable,
)
from holdfast.store.database import NOTHING, Parameters, Row, corrupt
from holdfast.store.sqlite.wal_anchor import Anchor
from holdfast.store.sqlite.wal_check import require_whole

APPLICATION_ID: Final = 0x486F6C64  # "Hold"
OLDEST_SQLITE: Final = (3, 51, 3)
BUSY_SECONDS: Final = 30.0
PLAIN_HEADER: Final = b"SQLite format 3\x00"


class Patience:
    """A busy handler that waits in short, uneven steps, so that everyone gets a turn."""

    def __init__(self) -> None:
        self.is_off = False
        self._deadline = 0.0

    def __call__(self, tries: int) -> bool:
        """Wait a little; tell whether it is worth another try."""
        now = time.monotonic()
        if tries == 0:
            self._deadline = now + BUSY_SECONDS
        if self.is_off:
            return False
        time.sleep(random.uniform(0.0002, 0.004))  # noqa: S311 — jitter, not a secret
        return now < self._deadline


class Connection:
    """A connection with our settings, in the form that tables use."""

    def __init__(
        self, raw: apsw.Connection, *, is_sealed: bool = False, anchor: Anchor | None = None
    ) -> None:
        """`is_sealed` tells that every page proves itself when it is decrypted."""
        self.raw = raw
        self.anchor = anchor
        self.is_sealed = is_sealed
        self.patience = Patience()
        # One cursor for all statements: a new one for each costs more than most statements.
        self._cursor = raw.cursor()

    def query(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        """Return all rows of a statement, for those who hold the connection themselves."""
        try:
            return self._cursor.execute(sql, parameters).fetchall()
        except apsw.CorruptError:
            self._forget()
            raise
        except UnicodeDecodeError as error:
            # Only damage makes a text that we wrote unreadable.
            raise corrupt("A row") from error

    def _forget(self) -> None:
        """Take another cursor: one that has met damage tells of it again at its next use."""
        self._cursor.close(True)
        self._cursor = self.raw.cursor()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Wait for nobody inside the block; who is in the way makes a statement raise."""
        self.patience.is_off = True
        try:
            yield
        finally:
            self.patience.is_off = False

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        return self.query(sql, parameters)

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int
    ) -> tuple[list[Row], bool]:
        # Row by row and without asking for sizes: SQLite reads a long row to pass over it.
        found: list[Row] = []
        total = 0
        cursor = self.raw.cursor()
        try:
            for row in cursor.execute(sql, parameters):
                total += sum(len(value) for value in row if isinstance(value, bytes))
                if found and total > size:
                    return found, True
                found.append(row)
        finally:
            cursor.close(True)
        return found, False

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        try:
            self._cursor.execute(sql, parameters)
        except apsw.CorruptError:
            self._forget()
            raise

    def pragma(self, name: str, value: str | int | None = None) -> Any:
        """Read a pragma, or set it and return what SQLite answers."""
        return self.raw.pragma(name, value) if value is not None else self.raw.pragma(name)

    def commit(self) -> None:
        """End a transaction; returns when it is on disk and the anchor of the log names it."""
        self.query("COMMIT")
        if self.anchor is not None:
            self.anchor.advance()

    def empty_log(self) -> None:
        """Move the whole log into the database file and cut it to nothing."""
        if self.anchor is not None:
            self.anchor.empty_log(self.raw)

    def close(self) -> None:
        """Let go of the file."""
        try:
            if self.anchor is not None:
                self.anchor.end(self.raw)
            self.raw.close()
        finally:
            if self.anchor is not None:
                self.anchor.close()


def is_plain(path: Path) -> bool:
    """Tell whether the file is a SQLite database that anyone can read."""
    # Through SQLite: whoever closes the file by other means takes away the locks that this process
    # has on it, and others would then believe that nobody has the store open.
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    with translate_errors():
        file = apsw.VFSFile("", str(path), flags)
        try:
            return file.xRead(len(PLAIN_HEADER), 0) == PLAIN_HEADER
        finally:
            file.xClose()


def connect(path: Path, key: bytes | None, *, vfs: str | None = None) -> Connection:
    """Open a connection with our settings; a wrong key or a foreign file is refused."""
    require_version(apsw.sqlite_lib_version())
    # Before SQLite opens the file: where the log is missing, it would make a new one.
    anchor = Anchor(path)
    try:
        with translate_errors():
            raw = apsw.Connection(str(path), vfs=vfs)
    except BaseException:
        anchor.close()
        raise
    connection = Connection(raw, is_sealed=key is not None, anchor=anchor)
    try:
        with translate_errors():
            _unlock(connection, key)
            # Before anything else: a store that lost its log may look like an empty one.
            require_whole(raw, path)
            anchor.compare(raw)
            # Judged before anything is set: a database of another program stays as it is.
            _require_ours(connection, path)
            _configure(connection)
            anchor.watch(raw)
    except BaseException:
        # What cannot be opened is left as it was found, its log too.
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raw.close()
        anchor.close()
        raise
    return connection


def require_version(version: str) -> None:
    """Refuse a SQLite that can corrupt a WAL when two connections reset it."""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise Internal(
            Code.CORRUPT_STORE,
            f"SQLite {version} is too old to be safe; install apsw-sqlite3mc with {wanted}.",
        )


def _unlock(connection: Connection, key: bytes | None) -> None:
    connection.raw.set_busy_handler(connection.patience)
    if key is not None:
        connection.pragma("key", f"raw:{key.hex()}")
    # The first touch of the file: here a wrong key shows.
    connection.pragma("schema_version")


def _keep_a_log(connection: Connection) -> None:
    """Switch the file to a log; SQLite does not wait here while others do the same."""
    wait = connection.patience
    for tries in count():
        try:
            connection.pragma("journal_mode", "wal")
            return
        except apsw.BusyError:
            if not wait(tries):
                raise


def _configure(connection: Connection) -> None:
    _keep_a_log(connection)
    # SQLite's own `lower` knows only the letters of ASCII.
    connection.raw.create_scalar_function("casefold", _casefold, 1, deterministic=True)
    connection.raw.create_scalar_function("crc32", _crc32, 1, deterministic=True)
    # A plan holds whatever is bound: otherwise a statement is prepared anew with every value that
    # could decide about a partial index, which takes ten times as long as running it.
    connection.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", "FULL")
    # macOS has a sync that does not reach the disk; these ask for the one that does.
    connection.pragma("fullfsync", 1)
    connection.pragma("checkpoint_fullfsync", 1)
    connection.pragma("foreign_keys", 1)
    # A file from elsewhere must not run functions by way of its views and triggers.
    connection.pragma("trusted_schema", 0)
    # Damaged pages are noticed when they are read and not when they have done harm.
    connection.pragma("cell_size_check", 1)
    # Deleted rows are overwritten and not only forgotten.
    connection.pragma("secure_delete", 1)
    # A temporary file would be plain text beside an encrypted store.
    connection.pragma("temp_store", "MEMORY")
    connection.pragma("journal_size_limit", 64 << 20)


def _casefold(*given: Any) -> Any:
    return given[0].casefold() if isinstance(given[0], str) else given[0]


def _crc32(*given: Any) -> Any:
    return zlib.crc32(str(given[0]).encode())


def _require_ours(connection: Connection, path: Path) -> None:
    # In this order: another process may be making the store, and makes both in one commit.
    tables = connection.query("SELECT count(*) FROM sqlite_schema")[0][0]
    application = connection.pragma("application_id")
    if application != APPLICATION_ID and (application != 0 or tables > 0):
        raise Conflict(
            Code.STORE_FOREIGN,
            f"{path} is a database of another program; choose another HOLDFAST_HOME.",
        )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn SQLite's errors into ours, and Python's own when there is no memory left."""
    try:
        yield
    except (apsw.Error, MemoryError) as error:
        raise translate_error(error) from error


def translate_error(error: apsw.Error | MemoryError) -> HoldfastError:
    """Return what an error of SQLite, or a lack of memory, means to a caller."""
    for kinds, told, code, message in _MEANINGS:
        if isinstance(error, kinds):
            return told(code, message)
    return Internal(Code.INTERNAL, "The store refused a statement; please report this.")


_Meaning = tuple[tuple[type[Exception], ...], type[HoldfastError], Code, str]

_MEANINGS: Final[tuple[_Meaning, ...]] = (
    (
        (apsw.FullError,),
        StorageFull,
        Code.STORAGE_FULL,
        "The disk is full; nothing was changed. Free some space and try again.",
    ),
    (
        (apsw.NotADBError,),
        Unavailable,
        Code.STORE_KEY_WRONG,
        "The store cannot be read with this key: the key is wrong, or the file is damaged. "
        "Check HOLDFAST_KEY, the keychain and the key file, or restore a backup.",
    ),
    (
        (apsw.CorruptError,),
        Internal,
        Code.CORRUPT_STORE,
        "The store is damaged; run `holdfast doctor`, or restore a backup.",
    ),
    (
        (apsw.BusyError, apsw.LockedError),
        Unavailable,
        Code.STORE_BUSY,
        "Another process kept the store locked; try again.",
    ),
    (
        (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError),
        Unavailable,
        Code.STORE_UNWRITABLE,
        "The store cannot be opened or written; check the rights of its folder and file, and how "
        "many files a process may have open.",
    ),
    (
        (apsw.IOError, apsw.NoMemError),
        Unavailable,
        Code.STORE_POISONED,
        "The disk or the memory failed; nothing is acknowledged until the store was reopened and "
        "verified. Repeat the request with the same id.",
    ),
    (
        (MemoryError,),
        Unavailable,
        Code.OUT_OF_MEMORY,
        "There was not enough memory. Repeat the request with the same id, or ask for less.",
    ),
)
