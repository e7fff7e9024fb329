"""SQLite file as the source or target of a transfer."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.search.documents import EMPTY
from holdfast.store.database import Row
from holdfast.store.sqlite import checks as sqlite_checks
from holdfast.store.sqlite.backup import clean_failures, clear_place, draft_beside, give_name
from holdfast.store.sqlite.checksums import fill_checksums
from holdfast.store.sqlite.connection import Connection, connect, translate_errors
from holdfast.store.sqlite.files import sync_file, sync_folder
from holdfast.store.sqlite.migrate import require_not_newer, require_not_older, up, version
from holdfast.store.transfer.run import insert_statement

# Batch size, small enough that large rows fit into memory.
BATCH_SIZE: Final = 200

COLUMNS = """
-- Column names of a table.
SELECT name
  FROM pragma_table_info(:table)
"""


class FileEnd:
    """Implements `TransferEnd` on one SQLite connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def columns(self, table: str) -> list[str]:
        with translate_errors():
            return [row[0] for row in self._connection.query(COLUMNS, {"table": table})]

    async def value(self, sql: str) -> int:
        with translate_errors():
            return int(self._connection.query(sql)[0][0])

    async def rows(self, sql: str) -> AsyncIterator[Sequence[Row]]:
        with translate_errors():
            found = self._connection.raw.cursor().execute(sql)
            while rows := list(islice(found, BATCH_SIZE)):
                yield rows

    async def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        sql = insert_statement(table, columns, ", ".join("?" * len(columns)))
        with translate_errors():
            self._connection.raw.cursor().executemany(sql, rows)

    async def settle(self) -> None:
        with translate_errors():
            for sql in EMPTY:
                self._connection.query(sql)

    async def faults(self) -> list[str]:
        return sqlite_checks.faults(self._connection)


@contextmanager
def from_file(path: Path, key: bytes | None) -> Iterator[FileEnd]:
    """Open a store for reading; holds the write lock to keep other writers out."""
    connection = connect(path, key)
    try:
        require_not_newer(version(connection))
        require_not_older(version(connection))
        with translate_errors():
            connection.query("BEGIN IMMEDIATE")
            # Taken back at the end: only the copy is to have them.
            fill_checksums(connection)
        yield FileEnd(connection)
    finally:
        if connection.raw.in_transaction:
            connection.query("ROLLBACK")
        connection.close()


@contextmanager
def into_file(path: Path, key: bytes | None) -> Iterator[FileEnd]:
    """Create a store in a draft file; it is renamed to `path` on success and deleted on failure."""
    with clean_failures(path), draft_beside(path) as draft:
        connection = connect(draft, key)
        try:
            up(connection)
            with translate_errors():
                connection.query("BEGIN IMMEDIATE")
            yield FileEnd(connection)
            with translate_errors():
                connection.commit()
        finally:
            connection.close()
        sync_file(draft)
        clear_place(path)
        give_name(draft, path)
        sync_folder(path.parent)


def require_there(path: Path) -> None:
    """Raise if the source does not exist, because opening it would create a store."""
    if not path.is_file():
        raise NotFound(Code.NOT_A_FILE, f"There is no store at {path} yet; nothing to copy.")


def require_absent(path: Path) -> None:
    """Raise if the target exists."""
    if path.exists() or path.is_symlink():
        raise Conflict(Code.FILE_EXISTS, f"{path} already exists; a store is never overwritten.")
