"""Documents of the full-text index, and the SQL of search."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Final

from msgspec import Struct

from holdfast.domain.messages import Role, decode_parts
from holdfast.domain.time import microseconds
from holdfast.search.query import SearchRequest, Term
from holdfast.search.tokenizer import text_of, tool_of, words_of
from holdfast.store.database import Row

# A document number combines a key with a number within that key in the lower bits.
WIDTH: Final = 24
NUMBERS: Final = 1 << WIDTH
# Numbers of observations are below those of all messages.
FIRST_CLAIM: Final = -(1 << 62)
LOWEST: Final = FIRST_CLAIM
HIGHEST: Final = (1 << 62) - 1
_DAY: Final = 86_400_000_000
_DIGITS: Final = 5
_LAST_DAY: Final = 10**_DIGITS - 1


class DocumentOrigin(Struct, frozen=True):
    """Owner, agent and repository of a document."""

    owner: str
    agent_id: str | None = None
    repo_id: str | None = None


def document_number(key: int, number: int) -> int:
    """Return the number of a document; a negative key is that of an entity."""
    return key << WIDTH | number if key > 0 else FIRST_CLAIM + (-key << WIDTH | number)


def source_of(position: int) -> tuple[int, int]:
    """Return the key and the number within it from a document number."""
    if position >= 0:
        return position >> WIDTH, position & (NUMBERS - 1)
    return -((position - FIRST_CLAIM) >> WIDTH), (position - FIRST_CLAIM) & (NUMBERS - 1)


def message_words(origin: DocumentOrigin, row: Row) -> str:
    """Return the indexed words of a message row: role, microseconds and encoded parts."""
    role, at, stored = row
    parts = decode_parts(stored)
    tool = tool_of(parts)
    marks = (*_marks(origin, at // _DAY), role_mark(role))
    return _join(text_of(parts), marks if tool is None else (*marks, mark("t", tool)))


def text_words(origin: DocumentOrigin, at: int, text: str) -> str:
    """Return the indexed words of a title or an observation."""
    return _join(text, _marks(origin, at // _DAY))


@lru_cache(maxsize=1_024)
def mark(kind: str, value: str) -> str:
    """Return a filter term that cannot occur as a word of a text."""
    # The tokenizer never emits a dot, but the index accepts it, because it is not ASCII.
    return f"·{kind}{hashlib.blake2s(value.encode(), digest_size=6).hexdigest()}"


def role_mark(role: Role | str) -> str:
    """Return the filter term of a role."""
    return mark("u", str(role))


def days(since: datetime | None, until: datetime | None) -> tuple[int, int]:
    """Return the first and the last matching day, clamped to the valid range."""
    first = 0 if since is None else microseconds(since) // _DAY
    last = _LAST_DAY if until is None else microseconds(until) // _DAY
    return max(first, 0), min(last, _LAST_DAY)


def day_beginnings(first: int, last: int) -> list[str]:
    """Return the fewest day terms or prefixes that cover the days from first to last.

    Whole tens, hundreds and so on are covered by their common prefix.
    """
    found = []
    at = first
    while at <= last:
        size = 1
        while at % (size * 10) == 0 and at + size * 10 - 1 <= last and size < _LAST_DAY:
            size *= 10
        kept = _DIGITS - (len(str(size)) - 1)
        found.append(f"·d{at:0{_DIGITS}}"[: 2 + kept])
        at += size
    return found


# Cached, because the messages of a session have the same ones all day.
@lru_cache(maxsize=1_024)
def _marks(origin: DocumentOrigin, day: int) -> tuple[str, ...]:
    marks = [mark("o", origin.owner), f"·d{min(max(day, 0), _LAST_DAY):0{_DIGITS}}"]
    if origin.agent_id is not None:
        marks.append(mark("a", origin.agent_id))
    if origin.repo_id is not None:
        marks.append(mark("r", origin.repo_id))
    return tuple(marks)


def _join(text: str, terms: Iterable[str]) -> str:
    # Sorted, so that the same text always produces the same index.
    return " ".join(sorted({*words_of(text), *terms}))


MATCHING = """
-- Documents of a range that contain all words.
SELECT rowid
  FROM search_index
 WHERE search_index MATCH :expression
   AND rowid BETWEEN :low AND :high
 ORDER BY rowid DESC
 LIMIT :limit
"""
ADD = """
-- Insert documents.
INSERT INTO search_index (rowid, words)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
  FROM json_each(:documents)
"""
REMOVE = """
-- Delete a document; FTS needs the words it was added with.
INSERT INTO search_index (search_index, rowid, words)
VALUES ('delete', :document, :words)
"""
HAS_SECURE_DELETE = """
-- Whether secure-delete is on: deleted words leave the index at once.
SELECT 1
  FROM search_index_config
 WHERE k = 'secure-delete'
   AND v = 1
"""
SET_SECURE_DELETE = """
-- Turn on secure-delete: deleted words are removed and not only marked.
INSERT INTO search_index (search_index, rank)
VALUES ('secure-delete', 1)
"""
TAIL = """
-- Ranges that are not in the index yet.
SELECT key, first, last
  FROM search_tail
 ORDER BY key, first
 LIMIT :limit
"""
OWN_TAIL = """
-- Ranges of one owner that are not in the index yet.
SELECT t.key, t.first, t.last
  FROM search_tail t
  JOIN sessions s ON s.key = t.key
 WHERE s.owner = :owner
 UNION ALL
SELECT t.key, t.first, t.last
  FROM search_tail t
  JOIN entities e ON e.key = -t.key
 WHERE e.owner = :owner
"""
TAIL_OF = """
-- Ranges of one session that are not in the index yet.
SELECT first, last
  FROM search_tail
 WHERE key = :key
"""
NOTE = """
-- Add a range to the backlog.
INSERT INTO search_tail (key, first, last)
VALUES (:key, :first, :last)
    ON CONFLICT DO NOTHING
"""
MOVE = """
-- Shorten a range of the backlog.
UPDATE search_tail
   SET first = :next
 WHERE key = :key
   AND first = :first
"""
DONE = """
-- Remove a range from the backlog.
DELETE FROM search_tail
 WHERE key = :key
   AND first = :first
"""
FORGET_TAIL = """
-- Remove a deleted session from the backlog.
DELETE FROM search_tail
 WHERE key = :key
"""
BACKLOG = """
-- Number and size of the documents in the backlog.
SELECT count(*), coalesce(sum(size), 0)
  FROM (SELECT length(m.parts) AS size
          FROM search_tail t
          JOIN messages m ON m.key BETWEEN t.key << 32 | t.first
                                       AND t.key << 32 | coalesce(t.last, 4294967295)
         UNION ALL
        SELECT length(o.content)
          FROM search_tail t
          JOIN observations o ON o.entity_key = -t.key
                             AND o.ordinal BETWEEN t.first AND coalesce(t.last, 4611686018427387904)
         UNION ALL
        SELECT 0 FROM search_tail WHERE first = 0) waiting
"""
ORIGIN = """
-- Owner, agent, repository, title and creation time of a session.
SELECT owner, agent_id, repo_id, title, created_at
  FROM sessions
 WHERE key = :key
"""
ORIGINS = """
-- Owner, agent, repository and last message number of several sessions.
SELECT key, messages, owner, agent_id, repo_id
  FROM sessions
 WHERE key IN (SELECT value FROM json_each(:keys))
 ORDER BY key
"""
ALL_ROWS = """
-- Stored messages of several ranges, range by range.
SELECT t.key, m.sequence, m.role, m.created_at, m.parts
  FROM json_each(:stretches) t
 CROSS JOIN messages m
    ON m.key BETWEEN json_extract(t.value, '$[0]') << 32 | json_extract(t.value, '$[1]')
                 AND json_extract(t.value, '$[0]') << 32 | json_extract(t.value, '$[2]')
 ORDER BY t.key, m.key
"""
# Replaces the message columns by their size.
TO_SIZES = ("m.role, m.created_at, m.parts", "coalesce(length(m.parts), 0)")
SIZES = ALL_ROWS.replace(*TO_SIZES)
ROWS = """
-- Stored messages of a range.
SELECT sequence, role, created_at, parts
  FROM messages
 WHERE key BETWEEN CAST(:key AS BIGINT) << 32 | :first AND CAST(:key AS BIGINT) << 32 | :last
 ORDER BY key
 LIMIT :limit
"""
CLAIMED = """
-- Lock an entity.
SELECT 1
  FROM entities
 WHERE key = :key
"""
CLAIMS = """
-- Stored observations of a range.
SELECT o.ordinal, e.owner, o.created_ms, o.content
  FROM observations o
  JOIN entities e ON e.key = o.entity_key
 WHERE o.entity_key = :key
   AND o.ordinal BETWEEN :first AND :last
 ORDER BY o.ordinal
 LIMIT :limit
"""
FIRST_USER_MESSAGE = """
-- The first user message of a range.
SELECT sequence
  FROM messages
 WHERE key BETWEEN CAST(:key AS BIGINT) << 32 | :first AND CAST(:key AS BIGINT) << 32 | :last
   AND role = 'user'
 ORDER BY key
 LIMIT 1
"""
TITLE = """
-- The indexed title of a session.
SELECT title
  FROM search_titles
 WHERE session_key = :key
"""
KEEP_TITLE = """
-- Insert or replace the indexed title of a session.
INSERT INTO search_titles (session_key, title)
VALUES (:key, :title)
    ON CONFLICT (session_key) DO UPDATE SET title = excluded.title
"""
FORGET_TITLE = """
-- Delete the indexed title of a session.
DELETE FROM search_titles
 WHERE session_key = :key
"""
NOTE_REMOVED = """
-- Record a removed document whose words are still in the index.
INSERT INTO search_graves (document, words)
VALUES (:document, :words)
    ON CONFLICT (document) DO UPDATE SET words = excluded.words
"""
TAKE_REMOVED = """
-- Take removed documents whose words are still in the index.
DELETE FROM search_graves
 WHERE document IN (SELECT document FROM search_graves ORDER BY document LIMIT :limit)
RETURNING document, words
"""
SUM = """
-- Number of words in the index, and a checksum of all of them.
SELECT count(*), coalesce(sum(crc32(term) * (doc % 65521 + 65521) % 4294967291), 0)
  FROM search_words
"""
EMPTY = (
    "INSERT INTO search_index (search_index) VALUES ('delete-all')",
    "DELETE FROM search_titles",
    "DELETE FROM search_graves",
    "DELETE FROM search_tail",
    """
INSERT INTO search_tail (key, first)
SELECT session_key, min(sequence) FROM messages GROUP BY session_key
""",
    """
INSERT INTO search_tail (key, first, last)
SELECT key, 0, 0 FROM sessions WHERE title IS NOT NULL
""",
    """
INSERT INTO search_tail (key, first)
SELECT -entity_key, min(ordinal) FROM observations GROUP BY entity_key
""",
)
NAMED = """
-- Entities of an owner with the name of a session.
SELECT key
  FROM entities
 WHERE owner = :owner
   AND name = :name
   AND entity_type = 'agent_session'
"""


def expression(request: SearchRequest) -> str:
    """Return the FTS expression: words and filter terms, each quoted as a literal."""
    parts = [_words(term) for term in request.terms.wanted]
    parts += [f'"{each}"' for each in _mark_conditions(request)]
    if request.since is not None or request.until is not None:
        found = day_beginnings(*days(request.since, request.until))
        clause = " OR ".join(f'"{each}" *' for each in found)
        # A term that matches no document, because the range of days is empty.
        parts.append(f"({clause})" if found else '"·"')
    # Excluded phrases are checked later: their single words are allowed.
    without = [_words(term) for term in request.terms.unwanted if len(term.words) == 1]
    clause = " AND ".join(parts)
    return f"({clause}) NOT ({' OR '.join(without)})" if without else clause


def _words(term: Term) -> str:
    *exact, last = term.words
    quoted = [f'"{word}"' for word in exact]
    return " AND ".join([*quoted, f'"{last}" *' if term.is_beginning else f'"{last}"'])


def _mark_conditions(request: SearchRequest) -> list[str]:
    marks = [mark("o", request.owner)]
    if request.agent_id is not None:
        marks.append(mark("a", request.agent_id))
    if request.repo_id is not None:
        marks.append(mark("r", request.repo_id))
    if request.role is not None:
        marks.append(role_mark(request.role))
    if request.tool is not None:
        marks.append(mark("t", request.tool))
    return marks
