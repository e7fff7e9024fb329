"""One SQLite connection: opening, settings, checks and error translation.

Threads and transactions are handled in `writer.py`.
"""

import os
import random
import time
import zlib
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import (
    Code,
    Conflict,
    HoldfastError,
    Internal,
    StorageFull,
    Unavailable,
)
from holdfast.domain.ids import SessionKey
from holdfast.store.database import NOTHING, Parameters, Row, TakeRows, corrupt
from holdfast.store.sqlite.commit import write_commit
from holdfast.store.sqlite.wal_anchor import Anchor
from holdfast.store.sqlite.wal_check import require_whole

T = TypeVar("T")
APPLICATION_ID: Final = 0x486F6C64  # "Hold"
OLDEST_SQLITE: Final = (3, 51, 3)
BUSY_SECONDS: Final = 30.0
PLAIN_HEADER: Final = b"SQLite format 3\x00"
# Ciphers by the bytes that they reserve in each page for nonce and tag; the header says how many.
_CIPHERS: Final = {32: "chacha20", 64: "aegis"}
_RESERVED_AT: Final = 20
# Of new stores: authenticates a page in a fifth of the time where the processor has AES.
_NEW_CIPHER: Final = "aegis"


class Patience:
    """Busy handler with short random delays, so that no waiting process starves."""

    def __init__(self) -> None:
        self.is_off = False
        self._deadline = 0.0

    def __call__(self, tries: int) -> bool:
        """Sleep briefly; return whether to retry."""
        now = time.monotonic()
        if tries == 0:
            self._deadline = now + BUSY_SECONDS
        if self.is_off:
            return False
        time.sleep(random.uniform(0.0002, 0.004))  # noqa: S311 — jitter, not a secret
        return now < self._deadline


class Connection:
    """A connection with Holdfast's settings, as the table modules use it."""

    # A transaction that writes excludes all others, so rows need no locks.
    for_update = ""

    def __init__(
        self, raw: apsw.Connection, *, is_sealed: bool = False, anchor: Anchor | None = None
    ) -> None:
        """`is_sealed` is true if every page is authenticated on decryption."""
        self.raw = raw
        self.anchor = anchor
        self.is_sealed = is_sealed
        self.checks_rows = not is_sealed
        self.patience = Patience()
        # One cursor for all statements, because creating one costs more than most statements.
        self.cursor = raw.cursor()

    def query(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        """Return all rows of a statement, synchronously."""
        try:
            return self.cursor.execute(sql, parameters).fetchall()
        except apsw.CorruptError:
            self._forget()
            raise
        except UnicodeDecodeError as error:
            # Holdfast only writes valid UTF-8, so this is damage.
            raise corrupt("A row") from error

    def _forget(self) -> None:
        """Replace the cursor: after a corruption error its next use raises the error again."""
        self.cursor.close(True)
        self.cursor = self.raw.cursor()

    async def fetch(self, sql: str, parameters: Parameters = NOTHING) -> list[Row]:
        return self.query(sql, parameters)

    async def fetch_within(
        self, sql: str, sizes: str, parameters: Parameters, size: int, take: TakeRows[T]
    ) -> T:
        # Ignores `sizes`: SQLite reads a long row even to skip it, so reading rows costs the same.
        cursor = self.raw.cursor()
        try:
            return take(cursor.execute(sql, parameters))
        finally:
            cursor.close(True)

    async def execute(self, sql: str, parameters: Parameters = NOTHING) -> None:
        self._run(sql, parameters)

    def _run(self, sql: str, parameters: Parameters = NOTHING) -> None:
        try:
            self.cursor.execute(sql, parameters)
        except apsw.CorruptError:
            self._forget()
            raise

    async def execute_many(self, sql: str, rows: Iterable[Parameters]) -> None:
        for each in rows:
            await self.execute(sql, each)

    def touch(self, key: SessionKey) -> None:
        """Do nothing: other processes poll the version of the file."""

    async def lock(self, name: str) -> None:
        """Do nothing: a transaction that writes excludes all others."""

    async def append(self, commit: SessionCommit) -> None:
        write_commit(self.cursor, commit, checks=self.checks_rows)

    def pragma(self, name: str, value: str | int | None = None) -> Any:
        """Read a pragma, or set it and return SQLite's answer."""
        return self.raw.pragma(name, value) if value is not None else self.raw.pragma(name)

    def data_version(self) -> int:
        """Return a number that changes when another connection has written; never waits."""
        self.patience.is_off = True
        try:
            return int(self.query("PRAGMA data_version")[0][0])
        finally:
            self.patience.is_off = False

    def begin(self) -> None:
        """Begin a transaction that writes; ends one that was left open."""
        if self.raw.in_transaction:
            self._run("ROLLBACK")
        self._run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit; returns after the fsync and after the anchor of the log was updated."""
        self._run("COMMIT")
        if self.anchor is not None:
            self.patience.is_off = True
            try:
                self.anchor.advance()
            finally:
                self.patience.is_off = False

    def empty_log(self) -> None:
        """Checkpoint the write-ahead log into the database file and truncate it."""
        if self.anchor is not None:
            self.anchor.empty_log(self.raw)

    def close(self) -> None:
        """Close the connection and its anchor."""
        try:
            if self.anchor is not None:
                self.anchor.end(self.raw)
            self.raw.close()
        finally:
            if self.anchor is not None:
                self.anchor.close()


@contextmanager
def ending_without_memory() -> Iterator[None]:
    """End the process if memory runs out where no caller can be notified; the next recovers."""
    try:
        yield
    except MemoryError:
        os.abort()


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only awaits its transaction, which never suspends on SQLite."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    work.close()
    raise RuntimeError("work inside a transaction awaited something other than the transaction")


def is_plain(path: Path) -> bool:
    """Return whether the file is an unencrypted SQLite database."""
    with translate_errors():
        return _read_header(path).startswith(PLAIN_HEADER)


def _read_header(path: str | Path) -> bytes:
    """Return the beginning of a database file, which may be shorter than its header."""
    # Read through SQLite: closing any other descriptor of the file drops this process's POSIX
    # locks, and other processes would take the store for closed.
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    file = apsw.VFSFile("", str(path), flags)
    try:
        return file.xRead(_RESERVED_AT + 1, 0)
    finally:
        file.xClose()


def cipher_of(path: str | Path) -> str:
    """Return the cipher of an encrypted file; that of new stores if the file is empty."""
    header = _read_header(path)
    is_written = len(header) > _RESERVED_AT
    return _CIPHERS.get(header[_RESERVED_AT], _NEW_CIPHER) if is_written else _NEW_CIPHER


def set_key(raw: apsw.Connection, key: bytes, *, cipher: str | None = None) -> None:
    """Give a new connection the key of its file; `cipher` is for a file that is still empty."""
    raw.pragma("cipher", cipher or cipher_of(raw.filename))
    raw.pragma("key", f"raw:{key.hex()}")


def connect(path: Path, key: bytes | None, *, vfs: str | None = None) -> Connection:
    """Open a connection with Holdfast's settings; raise for a wrong key or a foreign file."""
    require_version(apsw.sqlite_lib_version())
    # Before SQLite opens the file, because it would create a missing log.
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
            # Check this first: a store that lost its log may appear empty.
            require_whole(raw, path)
            anchor.compare(raw)
            # Check before setting anything, so that another program's database stays unchanged.
            _require_ours(connection, path)
            _configure(connection)
            anchor.watch(raw)
    except BaseException:
        # Leave a store that cannot be opened unchanged, including its log.
        raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        raw.close()
        anchor.close()
        raise
    return connection


def require_version(version: str) -> None:
    """Raise for SQLite versions that can corrupt a WAL when two connections reset it."""
    if tuple(int(part) for part in version.split(".")[:3]) < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise Internal(
            Code.CORRUPT_STORE,
            f"SQLite {version} is too old to be safe; install apsw-sqlite3mc with {wanted}.",
        )


def _unlock(connection: Connection, key: bytes | None) -> None:
    connection.raw.set_busy_handler(connection.patience)
    if key is not None:
        set_key(connection.raw, key)
    # The first read of the file, which fails if the key is wrong.
    connection.pragma("schema_version")


def _keep_a_log(connection: Connection) -> None:
    """Switch to WAL mode, with retries: SQLite does not call the busy handler here."""
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
    # SQLite's `lower` only handles ASCII.
    connection.raw.create_scalar_function("casefold", _casefold, 1, deterministic=True)
    connection.raw.create_scalar_function("crc32", _crc32, 1, deterministic=True)
    # Stable query plans: otherwise SQLite prepares a statement again for every value that could
    # match a partial index, which takes ten times as long as running it.
    connection.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.pragma("synchronous", "FULL")
    # On macOS, fsync does not flush the disk cache; these settings use F_FULLFSYNC.
    connection.pragma("fullfsync", 1)
    connection.pragma("checkpoint_fullfsync", 1)
    connection.pragma("foreign_keys", 1)
    # Views and triggers of an untrusted file must not call functions with side effects.
    connection.pragma("trusted_schema", 0)
    # Detect damaged pages on read, before they cause further damage.
    connection.pragma("cell_size_check", 1)
    # Overwrite deleted rows with zeros, so that they cannot be recovered.
    connection.pragma("secure_delete", 1)
    # A temporary file would be unencrypted.
    connection.pragma("temp_store", "MEMORY")
    connection.pragma("journal_size_limit", 64 << 20)


def _casefold(*given: Any) -> Any:
    return given[0].casefold() if isinstance(given[0], str) else given[0]


def _crc32(*given: Any) -> Any:
    return zlib.crc32(str(given[0]).encode())


def _require_ours(connection: Connection, path: Path) -> None:
    # In this order, to avoid a race: a process creating the store commits both together.
    tables = connection.query("SELECT count(*) FROM sqlite_schema")[0][0]
    application = connection.pragma("application_id")
    if application != APPLICATION_ID and (application != 0 or tables > 0):
        raise Conflict(
            Code.STORE_FOREIGN,
            f"{path} is a database of another program; choose another HOLDFAST_HOME.",
        )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Translate SQLite errors and MemoryError into Holdfast errors."""
    try:
        yield
    except (apsw.Error, MemoryError) as error:
        raise translate_error(error) from error


def translate_error(error: apsw.Error | MemoryError) -> HoldfastError:
    """Return the Holdfast error for a SQLite error or a MemoryError."""
    for kinds, error_class, code, message in _MEANINGS:
        if isinstance(error, kinds):
            return error_class(code, message)
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
