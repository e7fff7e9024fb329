"""Write session commits on Postgres: one statement for the rows of any number of sessions.

A round trip takes longer than writing a row. Few rows are bound as single values, because unpacking
arrays is slow; many rows are bound as arrays.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.commits import SessionCommit
from holdfast.store.commit import (
    APPROVAL_CONFLICT,
    APPROVALS,
    CALL_CONFLICT,
    CALLS,
    COSTS,
    EVENTS,
    EXPECTED,
    MESSAGES,
    STATE,
    approval_row,
    call_row,
    cost_row,
    event_rows,
    message_rows,
    state_row,
)
from holdfast.store.database import Row, encode

_FEW: Final = 4
# Arrays that are sent as text, because asyncpg checks each of their values for a nested array.
_AS_TEXT: Final = {"BIGINT", "TEXT"}
_ESCAPED: Final = re.compile(r'["\\]')
_TABLES: Final = (
    ("messages", MESSAGES, ""),
    ("events", EVENTS, ""),
    ("deltas", EVENTS, ""),
    ("calls", CALLS, CALL_CONFLICT),
    ("costs", COSTS, ""),
    ("approvals", APPROVALS, APPROVAL_CONFLICT),
)
_COLUMNS: Final = (STATE | EXPECTED, *(columns for _, columns, _ in _TABLES))
# A lease is extended by a statement of its own, so an unchanged epoch must not shorten it.
_UNTIL: Final = (
    "CASE WHEN sessions.epoch = given.epoch AND given.holder IS NOT NULL"
    " THEN greatest(sessions.until, given.until) ELSE given.until END"
)
_SET: Final = ", ".join(
    f"{name} = {_UNTIL if name == 'until' else f'given.{name}'}" for name in STATE
)

# Locked in key order, so that concurrent groups cannot deadlock.
_FOUND: Final = """
-- Lock the sessions that still have the expected version.
WITH given AS (
    SELECT * FROM :states
), found AS (
    SELECT s.key, s.title
      FROM sessions s
      JOIN given ON given.key = s.key
     WHERE s.epoch = given.was_epoch
       AND s.holder IS NOT DISTINCT FROM given.was_holder
       AND s.messages = given.was_messages
       AND s.events = given.was_events
       AND s.updated_at = given.was_updated_at
       AND s.chain = given.was_chain
     ORDER BY s.key
       FOR NO KEY UPDATE OF s:skip
)"""
# Nothing is written unless all sessions are found: after a lost connection the number tells only
# whether the statement was applied, and not for which sessions.
_NOTED: Final = """, noted AS (
    INSERT INTO writers (name, number)
    SELECT $1, $2 WHERE (SELECT count(*) FROM found) = (SELECT count(*) FROM given)
        ON CONFLICT (name) DO UPDATE SET number = excluded.number, at = now()
     WHERE writers.number < excluded.number
    RETURNING 1
)"""
_SAVED: Final = f""", saved AS (
    UPDATE sessions
       SET {_SET}
      FROM given
     WHERE sessions.key = given.key
       AND EXISTS (SELECT 1 FROM :gate)
    RETURNING 1
), titled AS (
    INSERT INTO search_tail (key, first, last)
    SELECT found.key, 0, 0
      FROM found
      JOIN given ON given.key = found.key
     WHERE found.title IS DISTINCT FROM given.title
       AND EXISTS (SELECT 1 FROM :gate)
        ON CONFLICT DO NOTHING
)"""  # noqa: S608 — the columns are a constant
_INSERTED: Final = """, new_:table AS (
    INSERT INTO :table (:columns)
    SELECT * FROM :rows WHERE EXISTS (SELECT 1 FROM :gate)
    :conflict
)"""
# The division rolls the statement back if a session that was found was not saved.
_GROUPED: Final = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM noted) THEN pg_notify($3, $4) END,
       1 / CAST((SELECT count(*) FROM saved)
                = (SELECT count(*) FROM given) * (SELECT count(*) FROM noted) AS INTEGER),
       EXISTS (SELECT 1 FROM noted),
       ARRAY(SELECT key FROM found)
"""
_APPENDED: Final = "\nSELECT count(*) FROM saved\n"


class CommitRows(Struct):
    """The rows of a commit: the state of its session, and those of each table; `size` in bytes."""

    key: int
    state: Row
    tables: tuple[list[Row], ...]
    size: int

    def extend(self, later: "CommitRows") -> None:
        """Add a commit that builds on this one, to write both at once."""
        self.state = later.state[: len(STATE)] + self.state[len(STATE) :]
        self.size += later.size
        for (_, _, conflict), rows, more in zip(_TABLES, self.tables, later.tables, strict=True):
            rows.extend(more)
            if conflict and more:
                # A statement may change a row only once; session and id come first.
                rows[:] = {row[:2]: row for row in rows}.values()


def build_commit_rows(commit: SessionCommit) -> CommitRows:
    """Return the rows of a commit."""
    key = commit.before.key
    state = state_row(commit, checks=True)
    tables = (
        message_rows(commit),
        *event_rows(commit, checks=True),
        [call_row(key, each, checks=True) for each in commit.calls],
        [cost_row(key, each, checks=True) for each in commit.costs],
        [approval_row(key, each) for each in commit.approvals],
    )
    size = sum(len(row.content) for row in commit.messages)
    size += sum(len(row.content) for row in commit.events)
    return CommitRows(key, state, tables, size)


def group_statement(
    group: Sequence[CommitRows], *note: Any, skip: bool = False
) -> tuple[str, list[Any]]:
    """Return the statement that writes commits of several sessions and commits by itself.

    `note` are the name of the writer, the number of the commit, and the notification. It writes
    nothing unless every session is as expected; it returns whether it has written, and the keys of
    the sessions that are. With `skip` it does not wait for rows that another process has locked.
    Without a note it runs inside a transaction, and returns the number of sessions that it wrote.
    """
    tables = [[each.state for each in group]]
    for parts in zip(*[each.tables for each in group], strict=True):
        tables.append(list(chain.from_iterable(parts)))
    values = list(note)
    for columns, rows in zip(_COLUMNS, tables, strict=True):
        if len(rows) <= _FEW:
            values.extend(chain.from_iterable(rows))
        else:
            values.extend(map(_array, columns.values(), zip(*rows, strict=True)))
    shape = tuple([len(rows) if len(rows) <= _FEW else None for rows in tables])
    return _statement_for(shape, len(note), skip), values


def _array(kind: str, values: tuple[Any, ...]) -> Any:
    """Return a column as a parameter."""
    if kind not in _AS_TEXT:
        return values
    text = encode(values)[1:-1].decode()
    if "\\" in text:
        # JSON escapes some characters by a letter; Postgres takes each after a backslash as it is.
        escaped = (each and _ESCAPED.sub(r"\\\g<0>", each) for each in values)
        text = ",".join("null" if each is None else f'"{each}"' for each in escaped)
    return f"{{{text}}}"


@lru_cache(maxsize=512)
def _statement_for(shape: tuple[int | None, ...], bound: int, skip: bool) -> str:
    """Return the statement for a number of rows per table, None for many.

    Its values follow `bound` other parameters; without any it runs inside a transaction.
    """
    places = count(bound + 1)
    states, *rows = shape
    sql = _FOUND.replace(":states", _rows(STATE | EXPECTED, states, places))
    sql = sql.replace(":skip", " SKIP LOCKED" if skip else "") + (_NOTED if bound else "") + _SAVED
    for (table, columns, conflict), number in zip(_TABLES, rows, strict=True):
        if number != 0:
            sql += (
                _INSERTED.replace(":table", table)
                .replace(":columns", ", ".join(columns))
                .replace(":rows", _rows(columns, number, places))
                .replace(":conflict", conflict)
            )
    return sql.replace(":gate", "noted" if bound else "found") + (_GROUPED if bound else _APPENDED)


def _rows(columns: Mapping[str, str], number: int | None, numbers: Iterable[int]) -> str:
    """Return a table expression with the rows as parameters."""
    names = f" bound ({', '.join(columns)})"
    if number is None:
        return f"unnest({', '.join(map(_array_cast, columns.values(), numbers))}){names}"
    rows = [", ".join(map(_cast, columns.values(), numbers)) for _ in range(number)]
    values = "), (".join(rows)
    return f"(VALUES ({values})){names}"


def _cast(kind: str, number: int) -> str:
    return f"CAST(${number} AS {kind})"


def _array_cast(kind: str, number: int) -> str:
    return f"CAST({_cast('TEXT', number) if kind in _AS_TEXT else f'${number}'} AS {kind}[])"
