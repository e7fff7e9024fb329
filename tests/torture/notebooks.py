"""The store as plain SQL shows it, on a connection of its own: rows in, values out, no judgement.

Written from the schema, without a line of Holdfast: only SQL, and the chain computed anew.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw

from holdfast.store.sqlite.connection import set_key
from tests.torture.machine import DATABASE

CHAIN_START = bytes(32)
APPENDED = "message.appended"


@dataclass(frozen=True)
class Row:
    """A message as it is stored."""

    sequence: int
    id: str
    turn: int
    role: str
    parts: bytes
    model_id: str | None
    created_at: int
    hash: bytes
    event: int

    @property
    def content(self) -> list[dict[str, Any]]:
        """Return the parts."""
        decoded: list[dict[str, Any]] = json.loads(self.parts)
        return decoded

    @property
    def text(self) -> str:
        """Return the words of the row."""
        return "".join(part["text"] for part in self.content if part.get("type") == "text")

    @property
    def news(self) -> "News":
        """Return the event that a row is: it takes a number of its own."""
        told = {"type": APPENDED, "message_id": self.id, "role": self.role}
        payload = json.dumps(told | {"sequence": self.sequence}, separators=(",", ":")).encode()
        return News(self.event, self.turn or None, self.created_at, APPENDED, payload)


@dataclass(frozen=True)
class News:
    """An event as it is stored."""

    sequence: int
    turn: int | None
    at: int
    name: str
    payload: bytes

    @property
    def body(self) -> dict[str, Any]:
        """Return the payload."""
        decoded: dict[str, Any] = json.loads(self.payload)
        return decoded


@dataclass(frozen=True)
class Notebook:
    """A session with all its own rows."""

    key: int
    id: str
    status: str
    turn: int
    settled: int
    messages: int
    events: int
    chain: bytes
    holder: str | None
    until: int
    epoch: int
    parent: int | None
    forked_at: int | None
    rows: tuple[Row, ...]
    news: tuple[News, ...]
    calls: tuple[tuple[str, str, str], ...]
    # Questions that nobody has answered.
    waiting: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Tell whether turns may still be played."""
        return self.status in {"pending", "running", "idle"}


@dataclass(frozen=True)
class Books:
    """Everything in the store that can be judged."""

    notebooks: dict[int, Notebook]
    tombstones: frozenset[str]
    faults: tuple[str, ...]

    def by_id(self) -> dict[str, Notebook]:
        """Return the notebooks by session id."""
        return {book.id: book for book in self.notebooks.values()}

    def history(self, book: Notebook) -> list[Row]:
        """Return the whole record of a session, inherited rows first."""
        if book.parent is None:
            return list(book.rows)
        ancestor = self.notebooks.get(book.parent)
        inherited = self.history(ancestor) if ancestor else []
        kept = [row for row in inherited if row.sequence <= (book.forked_at or 0)]
        return kept + list(book.rows)


@contextmanager
def reading(path: Path, key: bytes | None) -> Iterator[apsw.Connection]:
    """Open the file for reading, in one snapshot."""
    connection = apsw.Connection(str(path))
    # A reader that is the last to close must not remove the log past its anchor.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        if key is not None:
            set_key(connection, key)
        connection.set_busy_timeout(10_000)
        connection.pragma("query_only", 1)
        connection.execute("BEGIN")
        yield connection
    finally:
        connection.close()


@contextmanager
def looking(home: Path) -> Iterator[Any]:
    """Look into the store of a home in one snapshot, wherever its rows are kept."""
    if (url := os.environ.get(DATABASE)) is not None:
        from tests.raw_rows import raw_rows

        with raw_rows(url) as rows:
            rows.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield rows
        return
    with reading(home / "history.db", key_beside(home)) as connection:
        yield connection


def key_beside(home: Path) -> bytes | None:
    """Return the key that lies beside a store, if it has one."""
    file = home / "key"
    return bytes.fromhex(file.read_text().strip()) if file.exists() else None


def read_books(home: Path) -> Books:
    """Return everything in the store of a home; what SQLite itself finds wrong is a fault."""
    with looking(home) as connection:
        faults = _faults(connection) if isinstance(connection, apsw.Connection) else []
        rows = _grouped(connection, _row, MESSAGES)
        news = _grouped(connection, _news, EVENTS)
        calls: dict[int, list[tuple[str, str, str]]] = {}
        for key, *call in connection.execute(CALLS):
            calls.setdefault(key, []).append((call[0], call[1], call[2]))
        waiting: dict[int, list[str]] = {}
        for key, question in connection.execute(WAITING):
            waiting.setdefault(key, []).append(question)
        notebooks = {
            row[0]: Notebook(
                **dict(zip(COLUMNS.split(), row, strict=True)),
                rows=tuple(rows.get(row[0], ())),
                news=_merged(news.get(row[0], []), rows.get(row[0], [])),
                calls=tuple(calls.get(row[0], ())),
                waiting=tuple(waiting.get(row[0], ())),
            )
            for row in connection.execute(SESSIONS)
        }
        tombstones = frozenset(row[0] for row in connection.execute("SELECT id FROM tombstones"))
    return Books(notebooks, tombstones, tuple(faults))


def _faults(connection: apsw.Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
    orphans = connection.execute("PRAGMA foreign_key_check")
    return found + [f"a row of {row[0]} is an orphan" for row in orphans]


def linked(previous: bytes, row: Row) -> bytes:
    """Return the hash that a row must carry after the row with this hash."""
    columns = f"{row.id}|{row.sequence}|{row.turn}|{row.role}|{row.model_id or ''}|"
    return hashlib.sha256(previous + f"{columns}{row.created_at}|".encode() + row.parts).digest()


COLUMNS = "key id status turn settled messages events chain holder until epoch parent forked_at"

SESSIONS = """
SELECT key, id, status, turn, settled, messages, events, chain, holder, until, epoch, forked_key,
       forked_at
  FROM sessions
 ORDER BY key
"""

MESSAGES = """
SELECT session_key, sequence, id, turn, role, parts, model_id, created_at, hash, event
  FROM messages
 ORDER BY session_key, sequence
"""

EVENTS = """
SELECT session_key, sequence, turn, at, name, ids, payload
  FROM stored_events
 ORDER BY key
"""

CALLS = """
SELECT session_key, id, state, effect
  FROM calls
 ORDER BY session_key, sequence
"""

WAITING = """
SELECT session_key, id
  FROM approvals
 WHERE state = 'waiting'
"""


def _row(sequence: int, id_: bytes, turn: int, role: str, parts: bytes, *rest: Any) -> Row:
    model, created_at, hash_, event = rest
    model_id = _spelled(model) if isinstance(model, bytes) else model
    return Row(sequence, _spelled(id_), turn, role, parts, model_id, created_at, hash_, event)


# Stored as one byte each, numbered from 1.
FIELDS = (
    b',"step":',
    b',"model":"',
    b',"stop_reason":"stop"',
    b',"usage":{"input":',
    b',"output":',
    b',"cache_read":',
    b',"microcents":',
    b',"priced":',
)


def _news(sequence: int, turn: int | None, at: int, name: str, *rest: bytes | None) -> News:
    """Return an event with all that it says: its name and its ids are not in its payload."""
    ids, payload = rest[0] or b"", rest[1] or b""
    for number, field in enumerate(FIELDS, 1):
        payload = payload.replace(bytes([number]), field)
    told = {"type": name}
    for place, field in enumerate(("message_id", "model_id")):
        if id_ := ids[place * 16 : place * 16 + 16]:
            told[field] = _spelled(id_)
    start = json.dumps(told, separators=(",", ":")).encode()[:-1]
    return News(sequence, turn, at, name, start + payload)


def _spelled(id_: bytes) -> str:
    return str(UUID(bytes=id_))


def _merged(news: list[News], rows: list[Row]) -> tuple[News, ...]:
    """Return the whole log; rows that a fork copied from its parent were never its news."""
    appended = [row.news for row in rows if row.event]
    return tuple(sorted(news + appended, key=lambda each: each.sequence))


def _grouped(connection: Any, made: Any, sql: str) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for key, *columns in connection.execute(sql):
        groups.setdefault(key, []).append(made(*columns))
    return groups
