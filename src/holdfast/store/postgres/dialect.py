"""Translate SQL written for both databases into Postgres SQL (decision 0022).

Only parameters and a few function names are replaced. Statements that differ by more are in
`OVERRIDES`, by their SQLite text, so that the table modules only know that one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from holdfast.search import documents
from holdfast.store import costs, sessions
from holdfast.store.database import Parameters
from holdfast.store.postgres.errors import nul_error

# Text in quotes and comments is matched to skip it, because it holds no parameters.
_TOKENS: Final = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:(?P<name>[a-z_][a-z0-9_]*)", re.DOTALL
)
_COMMENTS: Final = re.compile(r"--[^\n]*")
NUL: Final = "\x00"
_BYTES: Final = re.compile(r"\bx'([0-9a-f]*)'")

# Names that differ in Postgres; the first migration creates the functions.
_WORDS: Final = (
    (
        "json_each(CAST(o.body AS TEXT), '$.tags')",
        "json_array_elements_text(read_json(o.body) -> 'tags') t (value)",
    ),
    ("json_each(:", "listed(:"),
    ("instr(", "strpos("),
    ("casefold(", "folded("),
    ("AS BLOB", "AS BYTEA"),
    ("CROSS JOIN", "JOIN"),
    ("+s.owner", "s.owner"),
    # SQLite treats -1 as no limit.
    ("LIMIT :limit", "LIMIT nullif(CAST(:limit AS BIGINT), -1)"),
    ("OFFSET :limit - 1", "OFFSET CAST(:limit AS BIGINT) - 1"),
)


_KEY: Final = """(SELECT coalesce(max(used.key), 0) + 1
           FROM (SELECT max(key) AS key FROM sessions
                  UNION ALL
                 SELECT max(key) FROM tombstones) used)"""

_ALL_ROWS: Final = """
-- Stored messages of several ranges, range by range.
SELECT t.place - 1, m.sequence, m.role, m.created_at, m.parts
  FROM json_array_elements(CAST(:stretches AS JSON)) WITH ORDINALITY t (stretch, place)
  JOIN LATERAL (SELECT *
                  FROM messages
                 WHERE key BETWEEN
                       CAST(t.stretch ->> 0 AS BIGINT) << 32 | CAST(t.stretch ->> 1 AS BIGINT)
                   AND CAST(t.stretch ->> 0 AS BIGINT) << 32 | CAST(t.stretch ->> 2 AS BIGINT)
                OFFSET 0) m ON TRUE
 ORDER BY t.place, m.sequence
"""

# Statements that differ in more than names, by their SQLite text.
OVERRIDES: Final[Mapping[str, str]] = {
    sessions.ADD: sessions.ADD.replace(_KEY, "nextval('session_keys')"),
    sessions.SLOTS: """
-- Open sessions of ACP agents, which always have a repository.
SELECT count(*)
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND read_json(o.body) #>> '{agent,runtime,type}' = 'acp'
""",
    costs.OF_OWNER: costs.OF_OWNER.replace(":after_id", "CAST(:after_id AS VARCHAR)"),
    costs.OF_ONE: costs.OF_ONE.replace(":after_id", "CAST(:after_id AS VARCHAR)"),
    documents.MATCHING: """
-- Documents of a range that contain all words, or more words than the index can hold.
SELECT document
  FROM search_index
 WHERE (words @@ asked_for(:expression) OR is_large)
   AND document BETWEEN :low AND :high
 ORDER BY document DESC
 LIMIT :limit
""",
    documents.ADD: """
-- Insert documents; a vector has at most one megabyte.
INSERT INTO search_index (document, words, is_large)
SELECT CAST(given ->> 0 AS BIGINT),
       array_to_tsvector(CASE WHEN is_large THEN '{}' ELSE string_to_array(given ->> 1, ' ') END),
       is_large
  FROM json_array_elements(CAST(:documents AS JSON)) given,
       LATERAL (SELECT octet_length(given ->> 1) > 1000000 AS is_large) judged
    ON CONFLICT (document) DO UPDATE SET words = excluded.words, is_large = excluded.is_large
""",
    documents.REMOVE: """
-- Delete a document.
DELETE FROM search_index
 WHERE document = :document
""",
    documents.HAS_SECURE_DELETE: """
-- Whether deleted words leave the index at once; they do.
SELECT 1
""",
    documents.ALL_ROWS: _ALL_ROWS,
    documents.SIZES: _ALL_ROWS.replace(*documents.TO_SIZES),
    # Per range, because the planner would otherwise scan all messages.
    documents.BACKLOG: """
-- Number and size of the documents that are not in the index yet.
SELECT count(*), CAST(coalesce(sum(size), 0) AS BIGINT)
  FROM search_tail t
  JOIN LATERAL (SELECT length(m.parts) AS size
                  FROM messages m
                 WHERE t.key > 0
                   AND m.key BETWEEN t.key << 32 | t.first
                                 AND t.key << 32 | coalesce(t.last, 4294967295)
                 UNION ALL
                SELECT length(o.content)
                  FROM observations o
                 WHERE t.key < 0
                   AND o.entity_key = -t.key
                   AND o.ordinal BETWEEN t.first AND coalesce(t.last, 4611686018427387904)
                 UNION ALL
                SELECT 0 WHERE t.first = 0) waiting ON TRUE
""",
    documents.SUM: """
-- Number of words in the index, and a checksum of all of them.
SELECT count(*), CAST(coalesce(sum(hashtextextended(term, doc) % 4294967291), 0) AS BIGINT)
  FROM search_words
""",
    documents.EMPTY[0]: "DELETE FROM search_index",
}


class Statement(Struct, frozen=True):
    """SQL with numbered parameters, the parameter names in order, and whether it writes."""

    sql: str
    names: tuple[str, ...]
    is_write: bool = False

    def values(self, parameters: Parameters) -> list[Any]:
        """Return the values to bind; text with NUL is rejected on write and matches nothing."""
        values = [parameters[name] for name in self.names]
        if any([type(value) is str and NUL in value for value in values]):  # noqa: C419 — quicker
            if self.is_write:
                raise nul_error()
            # Stored text contains neither NUL nor this noncharacter, so the query finds nothing.
            return [
                value.replace(NUL, "\uffff") if isinstance(value, str) else value
                for value in values
            ]
        return values


@lru_cache(maxsize=4_096)
def statement_of(text: str) -> Statement:
    """Return a statement as Postgres takes it."""
    sql = OVERRIDES.get(text, text)
    verb = _COMMENTS.sub("", sql).split(maxsplit=1)[0]
    for ours, theirs in _WORDS:
        sql = sql.replace(ours, theirs)
    sql = _BYTES.sub(r"CAST('\\x\1' AS BYTEA)", sql)
    places: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return found[0]
        return f"${places.setdefault(name, len(places) + 1)}"

    numbers = _TOKENS.sub(number, sql)
    return Statement(numbers, tuple(places), verb not in {"SELECT", "WITH"})
