"""Consistency check of an unencrypted store at open, and restricted access to damaged tables.

Every row is protected by the hash chain or a checksum, but a missing row can only be noticed from
the pages around it. In an encrypted store every page is authenticated. In an unencrypted store this
module compares trees with their order, indexes with their rows, and rows with each other. In an
inconsistent table only verifiable rows are returned: lookups that find nothing and listings raise.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final

import apsw
import msgspec

from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Gap
from holdfast.store.database import NOTHING, Parameters, Row, checksum
from holdfast.store.sqlite.connection import Connection

TABLES = """
-- Every table of the store.
SELECT name
  FROM sqlite_schema
 WHERE type = 'table'
   AND name NOT LIKE 'sqlite_%'
"""

SIZE = """
-- Size of the store in pages.
SELECT page_count * page_size
  FROM pragma_page_count, pragma_page_size
"""

PAGES = """
-- Faults in the pages of one table and its indexes.
SELECT integrity_check
  FROM pragma_integrity_check(:name)
"""

IN_ORDER = """
-- Session keys in the order in which their pages are checked.
SELECT key
  FROM sessions NOT INDEXED
 ORDER BY key
"""

LEFT_BEHIND = """
-- Calls without a session.
SELECT 'A row of calls belongs to nothing in sessions.'
  FROM calls c
  LEFT JOIN sessions s ON s.key = c.session_key
 WHERE s.key IS NULL
"""

MISSING_SETTINGS = """
-- Sessions without a settings row.
SELECT 'Session ' || s.id || ' lacks its settings.', s.key
  FROM sessions s
  LEFT JOIN openings o ON o.session_key = s.key
 WHERE o.session_key IS NULL
"""

WRONG_FORK_POINT = """
-- Forks whose first own row does not follow their fork point.
SELECT 'Session ' || s.id || ' does not start at its fork point.', s.key
  FROM sessions s
 WHERE s.forked_at IS NOT NULL
   AND s.forked_at + 1 != coalesce(
       (SELECT m.sequence
          FROM messages m
         WHERE m.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
         ORDER BY m.key
         LIMIT 1), s.messages + 1)
"""

AGENTS = """
-- Indexed columns and body of each agent.
SELECT id, owner, slug, name, status, body, checksum
  FROM agents
"""

MODELS = """
-- Indexed columns and body of each model.
SELECT id, provider, name, body, checksum
  FROM models
"""

APPROVALS = """
-- Indexed columns and body of each approval.
SELECT id, call_id, digest, state, body, checksum
  FROM approvals
"""

TOKENS = """
-- Indexed columns and body of each token.
SELECT id, owner, kind, body, checksum
  FROM tokens
"""

PROGRAMS = """
-- Indexed columns and body of each agent process.
SELECT state, body, checksum
  FROM programs
"""

WAITS = """
-- Indexed columns and body of each wait.
SELECT reason, body, checksum
  FROM waits
"""

HELD_TURNS = """
-- Indexed columns and body of each held turn.
SELECT turn, body, checksum
  FROM held_turns
"""

CHILDREN = """
-- By which calls children are said to be opened, and what their rows say themselves.
SELECT call_id, body, checksum
  FROM children
"""

CLIENT_REQUESTS = """
-- Indexed columns and body of each request to a client.
SELECT claim, body, checksum
  FROM client_requests
"""

WORKERS = """
-- Indexed columns and body of each worker.
SELECT owner, id, body, checksum
  FROM workers
"""

# Rules between rows; each names the table whose answers depend on the rule.
_RULES: Final = (
    ("sessions", MISSING_SETTINGS),
    ("sessions", WRONG_FORK_POINT),
    ("calls", LEFT_BEHIND),
)
# Path of each indexed column inside the body.
_FILED: Final = (
    ("agents", AGENTS, ("id", "owner", "slug", "name", "status")),
    ("models", MODELS, ("id", "provider", "name")),
    ("approvals", APPROVALS, ("question.id", "question.call_id", "question.digest", "state")),
    ("tokens", TOKENS, ("id", "owner", "kind")),
    ("programs", PROGRAMS, ("state",)),
    ("waits", WAITS, ("reason",)),
    ("held_turns", HELD_TURNS, ("turn",)),
    ("children", CHILDREN, ("call_id",)),
    ("client_requests", CLIENT_REQUESTS, ("claim",)),
    ("workers", WORKERS, ("owner", "id")),
)
# The check takes about 2 ms per MiB: above this size, skip the growing tables at start.
WHOLE_MOST: Final = 128 << 20
_GROWING: Final = frozenset(
    {
        "messages",
        "events",
        "deltas",
        "media",
        "media_uses",
        "calls",
        "costs",
        "foreign_records",
        "graph_checkpoints",
        "graph_values",
        "graph_items",
        "graph_writes",
        "zone_files",
        "zone_parts",
    }
    | {"entities", "observations", "snapshots", "timeline", "mentioned_ids"}
    | {"search_index", "search_index_data", "search_index_idx", "search_words"}
)
# Tables whose answers depend on a table, if not only itself; messages are events as well.
_ANSWERS: Final = {
    "migrations": (),
    "openings": ("sessions",),
    "tombstones": ("sessions",),
    "foreign_sessions": ("foreign",),
    "foreign_records": ("foreign",),
    "graph_checkpoints": ("graphs",),
    "graph_values": ("graphs",),
    "graph_items": ("graphs",),
    "graph_writes": ("graphs",),
    "forgotten": ("events",),
    "deltas": ("events",),
    "messages": ("messages", "events"),
    "media_uses": ("media",),
    "sign_in_codes": ("tokens",),
    "desks": ("zones",),
    "marks": ("zones",),
    "zone_files": ("zones",),
    "zone_parts": ("zones",),
    "entities": ("observations", "projections"),
    "snapshots": ("projections",),
    "timeline": ("projections",),
    "search_words": (),
    **dict.fromkeys(
        (
            *("search_index", "search_index_config", "search_index_data", "search_index_idx"),
            *("search_graves", "search_tail", "search_titles"),
        ),
        ("search",),
    ),
    "mentioned_ids": ("projections",),
}
# Methods whose results are verifiable; all other methods of an inconsistent table raise.
_VERIFIABLE: Final = {
    "sessions": frozenset({"get", "get_by_key", "state", "state_by_key", "lineage"}),
    "messages": frozenset({"by_id", "span"}),
    "events": frozenset({"after", "items"}),
    "media": frozenset({"read"}),
    # These do not read search results; they are required to rebuild the index.
    "search": frozenset({"backlog", "catch_up", "empty", "remove_documents", "sum"}),
    "tokens": frozenset({"by_digest", "by_id"}),
}
_ROW: Final = re.compile(r"\brow (\d+) ")
_NO_FAULTS: Final[tuple[list[Row], list[Row]]] = ([], [("ok",)])
# SQLite stops after this many faults.
_FAULTS_MOST: Final = 100

FaultyRows = Mapping[str, frozenset[int]]


def contradictions(connection: Connection) -> list[str]:
    """Return every inconsistency between rows as a sentence."""
    return [str(fault[0]) for _, faults in _disputes(connection) for fault in faults]


def find_faulty_rows(connection: Connection) -> FaultyRows:
    """Return the inconsistent tables and the keys of the sessions involved."""
    is_large = connection.query(SIZE)[0][0] > WHOLE_MOST
    tables = [name for (name,) in connection.query(TABLES) if not (is_large and name in _GROWING)]
    looks = [(name, _pages(connection, name)) for name in tables]
    faulty: dict[str, frozenset[int]] = {}
    for table, faults in [*looks, *_disputes(connection)]:
        if faults not in _NO_FAULTS:
            named = frozenset(fault[1] for fault in faults if len(fault) > 1)
            for name in _ANSWERS.get(table, (table,)):
                faulty[name] = faulty.get(name, frozenset()) | named
    return faulty


def _pages(connection: Connection, table: str) -> list[Row]:
    """Return the faults in the pages of a table, with the key of the session if known."""
    faults = _run_check(connection, PAGES, {"name": table})
    if table != "sessions" or faults in _NO_FAULTS:
        return faults
    # SQLite reports the position of a row, not its key.
    keys = [row[0] for row in _run_check(connection, IN_ORDER, NOTHING)]
    numbers = {int(number) for fault in faults for number in _ROW.findall(str(fault[0]))}
    is_cut_off = len(faults) >= _FAULTS_MOST
    named = [key for number, key in enumerate(keys, 1) if is_cut_off or number in numbers]
    return [*faults, *(("", key) for key in named)]


def _disputes(connection: Connection) -> Iterator[tuple[str, list[Row]]]:
    """Yield for each rule between rows its table and the violations."""
    for table, sql in _RULES:
        yield table, _run_check(connection, sql, NOTHING)
    for table, sql, places in _FILED:
        filed = _run_check(connection, sql, NOTHING)
        wrong = [row for row in filed if len(row) == 1 or _is_misfiled(row, places)]
        yield table, [(f"{table}: columns and body of {row[0]} differ.",) for row in wrong]


def _is_misfiled(row: Row, paths: Sequence[str]) -> bool:
    """Return whether the columns of a row differ from its verified body."""
    *columns, body, stored = row
    # A row with a bad checksum raises when it is read; it says nothing about other rows.
    if checksum(body) != stored:
        return False
    said = msgspec.json.decode(body)
    return columns != [
        reduce(lambda part, name: part.get(name), place.split("."), said) for place in paths
    ]


def _run_check(connection: Connection, sql: str, parameters: Parameters) -> list[Row]:
    """Return the rows of a check; an error during the check is a finding, too."""
    try:
        return connection.query(sql, parameters)
    except (apsw.Error, Internal) as error:
        return [(str(error),)]


class FaultyTable:
    """Wraps the methods of an inconsistent table; only verifiable results are returned."""

    def __init__(self, table: Any, name: str, rows: frozenset[int]) -> None:
        self._table = table
        self._name = name
        self._rows = rows
        self._db = table._db

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._table, verb)

        async def call(*given: Any, **named: Any) -> Any:
            is_verifiable = verb in _VERIFIABLE.get(self._name, ())
            found = await method(*given, **named) if is_verifiable else None
            # What an inconsistent table lacks may be there: neither `None` nor a gap is certain.
            if found is None or self._is_named(found) or _has_gap(found):
                raise doubtful(self._name)
            return found

        return call

    def _is_named(self, result: Any) -> bool:
        """Return whether a result depends on an inconsistent row."""
        parts = result if isinstance(result, tuple) else (result,)
        # The parent id of a fork may come from any of these rows.
        return any(
            getattr(part, "key", None) in self._rows
            or (self._rows and getattr(part, "forked_from", None) is not None)
            for part in parts
        )


def _has_gap(result: Any) -> bool:
    return isinstance(result, list) and any(isinstance(each, Gap) for each in result)


def doubtful(table: str) -> Internal:
    """Return the error for a table whose pages contradict each other."""
    return Internal(
        Code.CORRUPT_STORE,
        f"Table {table} is inconsistent, so its listings and writes are disabled; run `holdfast "
        "doctor`, or restore a backup.",
        {"table": table},
    )
