"""The folder of another program: its databases, recognised by their columns and only read.

A database whose log still holds something is copied aside first, because reading it where it is
would write beside it.
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
from holdfast.storage.sqlite import PLAIN_HEADER

TABLES = """
-- The tables of a database.
SELECT name
  FROM sqlite_schema
 WHERE type = 'table'
 ORDER BY name
"""

COLUMNS = """
-- The columns of a table.
SELECT name
  FROM pragma_table_info(:name)
"""

_KINDS: Final[Mapping[str, frozenset[str]]] = {
    "blocks": frozenset({"oid", "data"}),
    "files": frozenset({"zoneid", "name", "size", "createdts", "modts"}),
    "parts": frozenset({"zoneid", "name", "partidx", "data"}),
}


class BlockFolder:
    """Implements the `BlockSource` port on a folder of SQLite files; `close` lets go of them."""

    def __init__(self, folder: Path) -> None:
        self.path: Final = os.path.realpath(folder)
        self._stack = ExitStack()
        self._found: dict[str, tuple[apsw.Connection, str]] | None = None

    def close(self) -> None:
        """Let go of the databases."""
        self._stack.close()

    def blocks(self) -> list[Block] | None:
        """Return every block; nothing where the folder holds none of what is looked for."""
        found = self._tables()
        if set(found) != set(_KINDS):
            return None
        connection, table = found["blocks"]
        # The name is a foreign schema's own, and quoted; no value of a caller is in it.
        rows = self._rows(connection, f"SELECT oid, data FROM {table}", {})  # noqa: S608
        return [Block(oid=str(oid), meta=_meta(data)) for oid, data in rows]

    def stat(self, zone: str, name: str) -> BlockFile | None:
        """Return what is known of a file."""
        connection, table = self._tables()["files"]
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
        """Yield the content of a file, part by part; one that is not whole is refused."""
        connection, table = self._tables()["parts"]
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

    def _tables(self) -> dict[str, tuple[apsw.Connection, str]]:
        if self._found is None:
            self._found = {}
            for file in self._databases():
                connection = self._opened(file)
                for (table,) in self._rows(connection, TABLES, {}):
                    columns = {name for (name,) in self._rows(connection, COLUMNS, {"name": table})}
                    for kind, wanted in _KINDS.items():
                        if wanted <= columns and kind not in self._found:
                            self._found[kind] = connection, _quoted(table)
        return self._found

    def _databases(self) -> list[Path]:
        try:
            files = sorted(each for each in Path(self.path).iterdir() if each.is_file())
            return [each for each in files if _begins_like_one(each)]
        except OSError as error:
            raise _unreadable(error.strerror or "the folder cannot be read") from error

    def _opened(self, file: Path) -> apsw.Connection:
        log = file.with_name(f"{file.name}-wal")
        try:
            if log.exists() and log.stat().st_size:
                aside = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
                shutil.copyfile(log, aside / log.name)
                file = Path(shutil.copyfile(file, aside / file.name))
                return self._connected(file, "mode=rw")
            return self._connected(file, "mode=ro&immutable=1")
        except OSError as error:
            raise _unreadable(error.strerror or "a database cannot be read") from error

    def _connected(self, file: Path, how: str) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE
        if "immutable" in how:
            flags = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READONLY
        try:
            connection = apsw.Connection(f"{file.as_uri()}?{how}", flags=flags)
        except apsw.Error as error:
            raise _unreadable(str(error)) from error
        self._stack.callback(connection.close)
        return connection

    def _rows(
        self, connection: apsw.Connection, sql: str, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql, dict(parameters)).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise _unreadable(str(error)) from error


def _meta(data: Any) -> dict[str, Any]:
    """Return what is said about a block; one of which nothing can be read is nobody's."""
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return {}
    meta = document.get("meta") if isinstance(document, dict) else None
    return meta if isinstance(meta, dict) else {}


def _begins_like_one(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(PLAIN_HEADER)) == PLAIN_HEADER


def _quoted(table: str) -> str:
    doubled = table.replace('"', '""')
    return f'"{doubled}"'


def _unreadable(why: str) -> Unavailable:
    return Unavailable(
        Code.STORE_UNWRITABLE, f"The folder to import from cannot be read: {why}.", {}
    )
