"""Postgres versions of statements that differ in more than a name, and row locks.

Each is found by its SQLite text, so that the table modules only know that one.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.observations import rows
from holdfast.search import documents
from holdfast.store import (
    agent_processes,
    sessions,
)
from holdfast.store import (
    agents as store_agents,
)
from holdfast.store import (
    costs as store_costs,
)
from holdfast.store import (
    tokens as store_tokens,
)
from holdfast.store.postgres.columns import EVENTS, MESSAGES, SESSIONS
from holdfast.zones import tables as zone_tables

_KEY: Final = """(SELECT coalesce(max(used.key), 0) + 1
           FROM (SELECT max(key) AS key FROM sessions
                  UNION ALL
                 SELECT max(key) FROM tombstones) used)"""

_ALL_ROWS: Final = """
-- Messages of several stretches as they are stored, one stretch after another.
SELECT t.place - 1, m.sequence, m.role, m.created_at, m.parts
  FROM json_array_elements(CAST(:stretches AS JSON)) WITH ORDINALITY t (stretch, place)
  JOIN LATERAL (SELECT *
                  FROM messages
                 WHERE session_key = CAST(t.stretch ->> 0 AS BIGINT)
                   AND sequence BETWEEN CAST(t.stretch ->> 1 AS BIGINT)
                                    AND CAST(t.stretch ->> 2 AS BIGINT)
                OFFSET 0) m ON TRUE
 ORDER BY t.place, m.sequence
"""

TWINS: Final[Mapping[str, str]] = {
    sessions.ADD: sessions.ADD.replace(_KEY, "nextval('session_keys')"),
    "sessions.SAVE": "sessions.SAVE".replace(
        " WHERE key = :key", " WHERE key = :key\n   AND epoch <= :epoch"
    ),
    sessions.SLOTS: """
-- Open sessions whose agent is a program of its own; such a one always works in a repository.
SELECT count(*)
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND read_json(o.body) #>> '{agent,runtime,type}' = 'acp'
""",
    store_costs.OF_OWNER: store_costs.OF_OWNER.replace(":after_id", "CAST(:after_id AS VARCHAR)"),
    store_costs.OF_ONE: store_costs.OF_ONE.replace(":after_id", "CAST(:after_id AS VARCHAR)"),
    documents.MATCHING: """
-- The documents of a stretch that hold all the words, or more than the index can say.
SELECT document
  FROM search_index
 WHERE (words @@ asked_for(:expression) OR is_large)
   AND document BETWEEN :low AND :high
 ORDER BY document DESC
 LIMIT :limit
""",
    documents.ADD: """
-- A new document; a vector holds no more than a megabyte.
INSERT INTO search_index (document, words, is_large)
SELECT :document,
       array_to_tsvector(CASE WHEN is_large THEN '{}' ELSE string_to_array(:words, ' ') END),
       is_large
  FROM (SELECT octet_length(:words) > 1000000 AS is_large) judged
    ON CONFLICT (document) DO UPDATE SET words = excluded.words, is_large = excluded.is_large
""",
    documents.TAKE_OUT: """
-- A document that is gone.
DELETE FROM search_index
 WHERE document = :document
""",
    documents.IS_THOROUGH: """
-- Whether the index forgets words at once: it does.
SELECT 1
""",
    documents.ALL_ROWS: _ALL_ROWS,
    documents.SIZES: _ALL_ROWS.replace(*documents.TO_SIZES),
    # Per range, because the planner would otherwise scan all messages.
    documents.BACKLOG: """
-- How much is not in the index yet.
SELECT count(*), CAST(coalesce(sum(size), 0) AS BIGINT)
  FROM search_tail t
  JOIN LATERAL (SELECT length(m.parts) AS size
                  FROM messages m
                 WHERE t.key > 0
                   AND m.session_key = t.key
                   AND m.sequence BETWEEN t.first AND coalesce(t.last, 4611686018427387904)
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
-- How many words the index holds, and a sum over all of them.
SELECT count(*), CAST(coalesce(sum(hashtextextended(term, doc) % 4294967291), 0) AS BIGINT)
  FROM search_words
""",
    documents.EMPTY[0]: "DELETE FROM search_index",
}

_ROW: Final = "FOR NO KEY UPDATE"

# Writers lock the rows that they read, so that the values stay valid until the commit.
LOCKING: Final[Mapping[str, str]] = {
    sessions.HEAD: _ROW,
    sessions.HEAD_BY_KEY: _ROW,
    documents.ORIGIN: _ROW,
    documents.ORIGINS: _ROW,
    documents.TAIL: f"{_ROW} SKIP LOCKED",
    store_agents.BY_ID: _ROW,
    store_agents.BY_SLUG: _ROW,
    store_tokens.BY_ID: _ROW,
    store_tokens.BY_DIGEST: _ROW,
    store_tokens.LOCAL: _ROW,
    agent_processes.GET: _ROW,
    zone_tables.SEATED: _ROW,
    zone_tables.ONE: _ROW,
    zone_tables.OF_ZONE: _ROW,
    rows.ENTITY: f"{_ROW} OF e",
    rows.BY_ID: f"{_ROW} OF e",
    rows.BY_KEY: f"{_ROW} OF e",
}

# Locks to take before a query whose rows are not locked themselves.
FIRST: Final[Mapping[str, str]] = {
    documents.CLAIMS: "SELECT 1 FROM entities WHERE key = :key FOR NO KEY UPDATE",
    sessions.SLOTS: "SELECT pg_advisory_xact_lock(hashtext('holdfast slots'))",
}

# Statements after which listeners are notified; the value names the session key parameter.
RINGING: Final[Mapping[str, str]] = {"sessions.SAVE": "key", sessions.REMOVE: "key"}

# Statements whose rows are buffered per session; the value names the key parameter.
WAITING: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "m.APPEND": ("session_key", MESSAGES),
    "e.APPEND": ("session_key", EVENTS),
    "sessions.SAVE": ("key", SESSIONS),
}

# Batched, because writers do not read what they change.
PATIENT: Final = frozenset({documents.ADD, documents.DONE})

# Statements that return the state row of one session.
KEYED: Final = frozenset({sessions.HEAD, sessions.HEAD_BY_KEY})

# These must change a row; otherwise another process holds the lease.
HITTING: Final = frozenset({"sessions.SAVE"})
