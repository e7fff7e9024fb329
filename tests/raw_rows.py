"""The rows of a database past all our rules, in the form in which tests look into a file."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import apsw
import asyncpg

from tests.loop_apart import LoopApart

# What tests say to SQLite, as Postgres has it.
_WORDS: Final = (
    (re.compile(r"x'([0-9a-f]*)'"), r"CAST('\\x\1' AS BYTEA)"),
    (re.compile(r"\bAS BLOB\b"), "AS BYTEA"),
    (re.compile(r"zeroblob\((\d+|length\(\w+\))\)"), r"decode(repeat('00', \1), 'hex')"),
    (re.compile(r"replace\(parts,"), "replace(convert_from(parts, 'UTF8'),"),
    (re.compile(r"DROP TRIGGER \w+"), "SET session_replication_role = replica"),
    (
        re.compile(r"pragma_table_info\(\?\)"),
        "(SELECT column_name AS name FROM information_schema.columns"
        " WHERE table_name = ? ORDER BY ordinal_position) columns",
    ),
)


class Rows(list[tuple[Any, ...]]):
    """What a statement found; `get` is the one value of one row, as a file's cursor has it."""

    @property
    def get(self) -> Any:
        plain = [row[0] if len(row) == 1 else row for row in self]
        return plain[0] if len(plain) == 1 else plain or None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self)


class RawRows:
    """A connection whose statements are waited for, also by who has a loop of its own."""

    def __init__(self, url: str) -> None:
        self._apart = LoopApart()
        self._told = ""
        self._connection = self._apart.run(_connected(url))

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        """Run a statement; what is refused is told with the errors of a file."""
        for ours, theirs in _WORDS:
            sql = ours.sub(theirs, sql)
        places = count(1)
        numbered = re.sub(r"\?", lambda _: f"${next(places)}", sql)
        try:
            found, self._told = self._apart.run(self._asked(numbered, values))
            return Rows(map(tuple, found))
        except (asyncpg.RaiseError, asyncpg.IntegrityConstraintViolationError) as error:
            raise apsw.ConstraintError(str(error)) from error
        except asyncpg.PostgresError as error:
            raise apsw.SQLError(str(error)) from error

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        return int(self._told.rpartition(" ")[2])

    async def _asked(self, sql: str, values: Sequence[Any]) -> tuple[Any, str]:
        statement = await self._connection.prepare(sql)
        return await statement.fetch(*values), statement.get_statusmsg()

    def close(self) -> None:
        """Let go of the database."""
        self._apart.run(self._connection.close())
        self._apart.close()


async def _connected(url: str) -> asyncpg.Connection:
    return await asyncpg.connect(url)


@contextmanager
def raw_rows(url: str) -> Iterator[RawRows]:
    """Look into a database."""
    rows = RawRows(url)
    try:
        yield rows
    finally:
        rows.close()
