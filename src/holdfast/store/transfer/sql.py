"""SQL of a transfer, built only from Holdfast's own table and column names."""

from collections.abc import Sequence
from typing import Final

# Sort key of each table; tables come after the tables they reference.
TABLES: Final = {
    "agents": "owner, id",
    "models": "id",
    "repos": "id",
    "sessions": "key",
    "openings": "session_key",
    "tombstones": "key",
    "messages": "key",
    "events": "key",
    "deltas": "key",
    "calls": "session_key, id",
    "costs": "session_key, turn, request_id",
    "approvals": "id",
    "media": "hash",
    "media_uses": "session_key, hash",
    "tokens": "id",
    "sign_in_codes": "digest",
    "programs": "session_key",
    "forgotten": "session_key",
    "waits": "session_key",
    "held_turns": "session_key",
    "client_requests": "session_key, call_id",
    "workers": "owner, id",
    "children": "session_key",
    "foreign_sessions": "session_key",
    "foreign_records": "session_key, stream, ordinal",
    "graph_checkpoints": "session_key, namespace, id",
    "graph_values": "session_key, namespace, channel, version",
    "graph_items": "session_key, list, position",
    "graph_writes": "session_key, namespace, checkpoint_id, task_id, number",
    "zone_files": "key",
    "zone_parts": "key",
    "desks": "owner, zone",
    "marks": "name",
    "entities": "key",
    "observations": "entity_key, ordinal",
    "snapshots": "entity_key",
    "timeline": "entity_key, ms, rank, id",
    "mentioned_ids": "owner, name, entity_key",
}

RUNNING_TURNS = """
-- Sessions with a running turn, or one that was killed.
SELECT count(*)
  FROM sessions
 WHERE holder IS NOT NULL
"""

EVERY: Final = ", ".join(TABLES)


def select_statement(table: str, columns: Sequence[str]) -> str:
    """Return the query for all rows of a table, in key order."""
    names, order = _quote(columns), TABLES[table]
    return f"SELECT {names} FROM {table} ORDER BY {order}"  # noqa: S608 — constant names


def insert_statement(table: str, columns: Sequence[str], placeholders: str) -> str:
    """Return the INSERT for one row with the given placeholders."""
    names = _quote(columns)
    return f"INSERT INTO {table} ({names}) VALUES ({placeholders})"  # noqa: S608 — constant names


def has_rows_statement(table: str) -> str:
    """Return the query that checks whether a table has a row."""
    return f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1) found"  # noqa: S608 — constant name


def sequence_statement(table: str) -> str:
    """Return the statement that moves the key sequence of a table past its largest key."""
    return f"""
SELECT setval(pg_get_serial_sequence('{table}', 'key'), coalesce(max(key), 1), max(key) IS NOT NULL)
  FROM {table}
"""  # noqa: S608 — constant name


def lock_statement(mode: str) -> str:
    """Return the statement that locks all tables against writers."""
    return f"LOCK TABLE {EVERY} IN {mode} MODE"


def _quote(columns: Sequence[str]) -> str:
    return ", ".join(f'"{each}"' for each in columns)
