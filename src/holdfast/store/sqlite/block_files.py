"""Read the databases in another program's folder; tables are recognised by their columns.

A database with a pending log is copied to a temporary folder first, because opening it in place
would write to the folder.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from holdfast.domain.errors import Code, Unavailable
from holdfast.ports.blocks import Block, BlockFile
from holdfast.store.sqlite.connection import PLAIN_HEADER

TABLES = """
-- Ordinary tables of a database; a virtual table would run code.
SELECT name
  FROM sqlite_schema
 WHERE type = 'table'
   AND rootpage > 0
 ORDER BY name
"""

COLUMNS = """
-- The columns of a table.
SELECT name
  FROM pragma_table_info(:name)
"""

# Limit on one value: the file is untrusted and could exhaust memory.
_VALUE_LARGEST: Final = 256 << 20
# Suffixes of the write-ahead log and the rollback journal of a database.
_BESIDE: Final = ("-wal", "-journal")

_Table = tuple[apsw.Connection, str]

_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "blocks": frozenset({"oid", "data"}),
    "files": frozenset({"zoneid", "name", "size", "createdts", "modts"}),
    "parts": frozenset({"zoneid", "name", "partidx", "data"}),
}


class BlockFolder:
    """Implements the `BlockSource` port on a folder of SQLite files; `close` closes them."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = os.path.realpath(folder)
        self._stack = ExitStack()
        self._found: dict[str, list[_Table]] | None = None

    def close(self) -> None:
        """Close the databases and remove the temporary copies."""
        self._stack.close()

    def blocks(self) -> list[Block] | None:
        """Return every block, or None if the folder lacks one of the required tables."""
        found = self._tables()
        if not all(found.values()):
            return None
        metas: dict[str, dict[str, Any]] = {}
        # Tables of pages and windows may have the same columns; their ids are different.
        for connection, table in found["blocks"]:
            # The table name comes from the foreign schema and is quoted; no caller value is in the
            # SQL.
            rows = self._rows(connection, f"SELECT oid, data FROM {table}", {})  # noqa: S608
            for oid, data in rows:
                metas[str(oid)] = metas.get(str(oid)) or _meta(data)
        return [Block(oid=oid, meta=meta) for oid, meta in metas.items()]

    def stat(self, zone: str, name: str) -> BlockFile | None:
        """Return size and times of a file."""
        (connection, table), _ = self._contents()
        rows = self._rows(
            connection,
            f"SELECT size, createdts, modts FROM {table}"  # noqa: S608
            " WHERE zoneid = :zone AND name = :name",
            {"zone": zone, "name": name},
        )
        if not rows:
            return None
        size, created, modified = (each if isinstance(each, int) else 0 for each in rows[0])
        return BlockFile(size=max(size, 0), created_ms=created, modified_ms=modified)

    def pieces(self, zone: str, name: str) -> Iterator[bytes]:
        """Yield the content of a file part by part; raise if a part is missing."""
        _, (connection, table) = self._contents()
        known = self.stat(zone, name)
        left = known.size if known else 0
        number = 0
        while left > 0:
            rows = self._rows(
                connection,
                f"SELECT data FROM {table}"  # noqa: S608
                " WHERE zoneid = :zone AND name = :name AND partidx = :part",
                {"zone": zone, "name": name, "part": number},
            )
            piece = rows[0][0] if rows else b""
            if not isinstance(piece, bytes) or not piece:
                raise _unreadable(f"part {number} of {name} of block {zone} is missing")
            yield piece[:left]
            left -= len(piece)
            number += 1

    def _contents(self) -> tuple[_Table, _Table]:
        """Return the tables of files and of parts, from the same database if possible."""
        found = self._tables()
        pairs = [(files, parts) for files in found["files"] for parts in found["parts"]]
        return next((pair for pair in pairs if pair[0][0] is pair[1][0]), pairs[0])

    def _tables(self) -> dict[str, list[_Table]]:
        if self._found is None:
            self._found = {kind: [] for kind in _KINDS}
            for file in self._databases():
                connection = self._open(file)
                for (table,) in self._rows(connection, TABLES, {}):
                    columns = {name for (name,) in self._rows(connection, COLUMNS, {"name": table})}
                    for kind, wanted in _KINDS.items():
                        if wanted <= columns:
                            self._found[kind].append((connection, _quote(table)))
        return self._found

    def _databases(self) -> list[Path]:
        try:
            files = sorted(each for each in Path(self.path).iterdir() if each.is_file())
            return [each for each in files if _has_database_header(each)]
        except OSError as error:
            raise _unreadable(error.strerror or "the folder cannot be read") from error

    def _open(self, file: Path) -> apsw.Connection:
        beside = [file.with_name(file.name + end) for end in _BESIDE]
        try:
            logs = [each for each in beside if each.exists() and each.stat().st_size]
            if logs:
                aside = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
                for log in logs:
                    shutil.copyfile(log, aside / log.name)
                file = Path(shutil.copyfile(file, aside / file.name))
                return self._connect(file, "mode=rw")
            return self._connect(file, "mode=ro&immutable=1")
        except OSError as error:
            raise _unreadable(error.strerror or "a database cannot be read") from error

    def _connect(self, file: Path, how: str) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE
        if "immutable" in how:
            flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY
        try:
            connection = apsw.Connection(f"{file.as_uri()}?{how}", flags=flags)
        except apsw.Error as error:
            raise _unreadable(str(error)) from error
        self._stack.callback(connection.close)
        # The file is untrusted: its schema must not call functions with side effects.
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _VALUE_LARGEST)
        return connection

    def _rows(
        self, connection: apsw.Connection, sql: str, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql, dict(parameters)).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise _unreadable(str(error)) from error


def _meta(data: Any) -> dict[str, Any]:
    """Return the metadata of a block; empty if it cannot be decoded."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return {}
    meta = document.get("meta") if isinstance(document, dict) else None
    return meta if isinstance(meta, dict) else {}


def _has_database_header(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(PLAIN_HEADER)) == PLAIN_HEADER


def _quote(table: str) -> str:
    doubled = table.replace('"', '""')
    return f'"{doubled}"'


def _unreadable(why: str) -> Unavailable:
    return Unavailable(
        Code.STORE_UNWRITABLE, f"The folder to import from cannot be read: {why}.", {}
    )
