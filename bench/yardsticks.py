"""Bare SQLite and bare JSON: what the same bytes cost without us."""

import json
import threading
import time
from pathlib import Path

import apsw

PAYLOAD = json.dumps([{"type": "text", "text": "x" * 200}])


def raw_store(path: Path) -> apsw.Cursor:
    """Return a cursor on a bare table with the settings that durability needs."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(60_000)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE IF NOT EXISTS messages (session TEXT, sequence INTEGER, parts TEXT,"
        " PRIMARY KEY (session, sequence))"
    )
    return cursor


def raw_appends(cursor: apsw.Cursor, first: int, count: int) -> float:
    """Return rows per second: one row, one commit."""
    started = time.perf_counter()
    for sequence in range(first, first + count):
        cursor.execute("BEGIN IMMEDIATE")
        cursor.execute("INSERT INTO messages VALUES (?, ?, ?)", ("one", sequence, PAYLOAD))
        cursor.execute("COMMIT")
    return count / (time.perf_counter() - started)


def emptied(cursor: apsw.Cursor) -> apsw.Cursor:
    """Empty the table, so that a longer run does not slow the yardstick down."""
    cursor.execute("DELETE FROM messages")
    return cursor


def raw_turns(cursor: apsw.Cursor, count: int, session: str = "t", *, commits: int = 4) -> float:
    """Return turns per second: a row in each commit, and one read of the rows of the turn."""
    started = time.perf_counter()
    for turn in range(count):
        first = turn * commits
        for sequence in range(first, first + commits):
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("INSERT INTO messages VALUES (?, ?, ?)", (session, sequence, PAYLOAD))
            cursor.execute("COMMIT")
        cursor.execute(
            "SELECT sequence, parts FROM messages WHERE session = ? AND sequence >= ?",
            (session, first),
        ).fetchall()
    return count / (time.perf_counter() - started)


def raw_turns_at_once(cursors: list[apsw.Cursor], count: int, *, commits: int = 4) -> float:
    """Return turns per second of as many sessions at a time, each with a connection of its own."""
    threads = [
        threading.Thread(
            target=raw_turns, args=(cursor, count, f"t{number}"), kwargs={"commits": commits}
        )
        for number, cursor in enumerate(cursors)
    ]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(cursors) * count / (time.perf_counter() - started)


def raw_read(path: Path, last: int, count: int) -> float:
    """Return the seconds to select and decode the last rows of a bare table."""
    started = time.perf_counter()
    cursor = apsw.Connection(str(path)).cursor()
    rows = cursor.execute(
        "SELECT sequence, parts FROM messages WHERE session = 'one' AND sequence > ?"
        " ORDER BY sequence",
        (last - count,),
    ).fetchall()
    decoded = [(sequence, json.loads(parts)) for sequence, parts in rows]
    seconds = time.perf_counter() - started
    if len(decoded) != count:
        raise AssertionError(f"{len(decoded)} rows")
    return seconds
