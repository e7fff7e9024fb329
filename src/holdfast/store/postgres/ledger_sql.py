"""Statements that write buffered messages, events and session states.

One statement for all tables, because a round trip takes longer than writing a row. Few rows are
bound as single values, because unpacking arrays is slow; many rows are bound as arrays.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import count, islice
from typing import Final

from msgspec import Struct

from holdfast.store.postgres.columns import EVENTS, KNOWN, MESSAGES, SESSIONS

FEW: Final = 4

WRITE: Final = """
-- All that waits.
WITH new_messages AS (
    INSERT INTO messages (session_key, sequence, id, turn, role, parts, model_id, created_at, hash,
                          event, told)
    SELECT * FROM given_messages
), new_events AS (
    INSERT INTO events (session_key, stays, sequence, turn, at, name, ids, payload, checksum)
    SELECT * FROM given_events
), saved AS (
    UPDATE sessions
       SET title = given.title, status = given.status, last_stop = given.last_stop,
           reason = given.reason, turn = given.turn, settled = given.settled,
           messages = given.messages, events = given.events, began = given.began,
           chain = given.chain, holder = given.holder, until = given.until, epoch = given.epoch,
           tokens_in = given.tokens_in, tokens_out = given.tokens_out,
           microcents = given.microcents, requests = given.requests,
           updated_at = given.updated_at, started_at = given.started_at,
           finished_at = given.finished_at, checksum = given.checksum
      FROM given_sessions
     WHERE sessions.key = given.key
       AND sessions.epoch <= given.epoch
    RETURNING 1
)
SELECT count(*) FROM saved
"""

NOTE: Final = WRITE.replace(
    "-- All that waits.",
    "-- All that waits, and the number of this commit in the row of its process.",
).replace(
    ")\nSELECT count(*) FROM saved",
    """), noted AS (
    INSERT INTO writers (name, number) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET number = excluded.number, at = excluded.at
)
SELECT CAST(pg_current_xact_id() AS TEXT),
       CASE WHEN CAST($4 AS TEXT) IS NOT NULL THEN pg_notify($3, $4) END,
       (SELECT count(*) FROM saved)""",
)

# Sorted, so that concurrent batches cannot deadlock.
_CONDITIONS: Final = """WITH found AS (
    SELECT s.key
      FROM sessions s
      JOIN given_known ON given.key = s.key
     WHERE (s.events, s.until, s.epoch, s.updated_at, s.forked_at, s.checksum)
           IS NOT DISTINCT FROM (given.events, given.until, given.epoch, given.updated_at,
                                 given.forked_at, given.checksum)
     ORDER BY s.key
       FOR NO KEY UPDATE OF s
), noted AS (
    UPDATE writers
       SET number = $2, at = now()
     WHERE name = $1
       AND number < $2
       AND (SELECT count(*) FROM found) = $5
    RETURNING 1
), new_messages AS ("""

DRAFT: Final = (
    WRITE.replace(
        "-- All that waits.",
        "-- All that waits, if notebooks stand where they should and nobody has given it up.",
    )
    .replace("WITH new_messages AS (", _CONDITIONS)
    .replace("given_messages", "given_messages WHERE EXISTS (SELECT 1 FROM noted)")
    .replace("given_events", "given_events WHERE EXISTS (SELECT 1 FROM noted)")
    .replace(
        "given.epoch\n    RET", "given.epoch\n       AND EXISTS (SELECT 1 FROM noted)\n    RET"
    )
    .replace(
        "SELECT count(*) FROM saved",
        # Divides by zero if a row was not saved, which rolls back the whole statement.
        """SELECT CASE WHEN EXISTS (SELECT 1 FROM noted) THEN pg_notify($3, $4) END,
       1 / CAST((SELECT count(*) FROM saved) = $5 * (SELECT count(*) FROM noted) AS INTEGER),
       EXISTS (SELECT 1 FROM noted)""",
    )
)

_TABLE: Final = "(VALUES rows)"
_EMPTY: Final = "(SELECT rows LIMIT 0)"


class Shape(Struct, frozen=True):
    """Number of rows per table; None for many."""

    messages: int | None
    events: int | None
    sessions: int | None


@lru_cache(maxsize=512)
def filled(text: str, shape: Shape, bound: int = 0) -> str:
    """Return the statement for a shape; its values follow `bound` other parameters."""
    places = count(bound + 1)
    for name, columns, rows in (
        ("given_known", KNOWN, shape.sessions),
        ("given_messages", MESSAGES, shape.messages),
        ("given_events", EVENTS, shape.events),
        ("given_sessions", SESSIONS, shape.sessions),
    ):
        if name in text:
            text = text.replace(name, _rows(columns, rows, places))
    return text


def _rows(columns: Mapping[str, str], rows: int | None, places: Iterable[int]) -> str:
    """Return a table expression `given` with the rows and columns."""
    names = f" given ({', '.join(columns)})"
    if rows is None:
        return f"unnest({_cast(columns, places, '[]')}){names}"
    # An empty table needs one row of NULLs to define the column types.
    none = ", ".join(f"CAST(NULL AS {kind})" for kind in columns.values())
    values = ", ".join(f"({_cast(columns, places)})" for _ in range(rows))
    table = _TABLE if rows else _EMPTY
    return table.replace("rows", values or none) + names


def _cast(columns: Mapping[str, str], places: Iterable[int], suffix: str = "") -> str:
    kinds = zip(islice(places, len(columns)), columns.values(), strict=True)
    return ", ".join(f"CAST(${place} AS {kind}{suffix})" for place, kind in kinds)
