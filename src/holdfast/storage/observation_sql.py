"""The statements about claims and the entities they are about."""

from typing import Final

# What is kept about an entity.
SELECTED: Final = """
e.key, e.session_key, e.checksum, e.id, e.owner, e.entity_type, e.name, e.observations, e.first_ms,
       e.last_ms, e.known_ms, e.is_deleted, e.started_ms, e.started_priority, e.ended_ms,
       e.ended_priority, e.ended_place, e.duration, e.duration_priority, e.duration_place
""".strip()
# Beside it, the head of the claim that was written last.
WITH_NEWEST: Final = f"{SELECTED}, o.kind, o.content_hash, o.created_ms"
NEWEST: Final = "LEFT JOIN observations o ON o.entity_key = e.key AND o.ordinal = e.observations"

_KNOWN: Final = f"""
SELECT {WITH_NEWEST}
  FROM entities e
  {NEWEST}
""".strip()  # noqa: S608 — the columns are a constant of this file

ENTITY = f"""
-- One entity by what it is.
{_KNOWN}
 WHERE e.owner = :owner
   AND e.name = :name
   AND e.entity_type = :entity_type
"""

BY_ID = f"""
-- One entity by its id.
{_KNOWN}
 WHERE e.id = :id
   AND e.owner = :owner
"""

BY_KEY = f"""
-- One entity, whoever owns it.
{_KNOWN}
 WHERE e.key = :key
"""

NAMED = f"""
-- An owner's entities of a name, whatever their type.
{_KNOWN}
 WHERE e.owner = :owner
   AND e.name = :name
 ORDER BY e.entity_type
"""

KEYS = """
-- Entities of everybody, a few at a time.
SELECT key
  FROM entities
 WHERE key > :after
 ORDER BY key
 LIMIT :limit
"""

COUNTED = """
-- How many claims there are about an entity, and their times.
SELECT count(*), min(observed_ms), max(observed_ms), max(created_ms)
  FROM observations
 WHERE entity_key = :entity_key
"""

ADD = """
-- A new entity; a session of ours with that id is the same thing.
INSERT INTO entities (id, owner, entity_type, name, observations, first_ms, last_ms, known_ms,
                      is_deleted, started_ms, started_priority, ended_ms, ended_priority,
                      ended_place, duration, duration_priority, duration_place, session_key,
                      checksum)
VALUES (:id, :owner, :entity_type, :name, :observations, :first_ms, :last_ms, :known_ms,
        :is_deleted, :started_ms, :started_priority, :ended_ms, :ended_priority,
        :ended_place, :duration, :duration_priority, :duration_place,
        (SELECT key
           FROM sessions
          WHERE owner = :owner
            AND id = :name
            AND :entity_type = 'agent_session'),
        :checksum)
RETURNING key, session_key
"""

APPEND = """
-- The next claim about an entity.
INSERT INTO observations (entity_key, ordinal, owner, kind, source, observed_ms, created_ms,
                          idempotency_key, content_hash, checksum, content)
VALUES (:entity_key, :ordinal, :owner, :kind, :source, :observed_ms, :created_ms,
        :idempotency_key, :content_hash, :checksum, :content)
"""

KEYED = f"""
-- The claim that was made under a key, and what it is about.
SELECT o.ordinal, o.owner, o.kind, o.source, o.observed_ms, o.created_ms, o.idempotency_key,
       o.content_hash, o.checksum, o.content, {SELECTED}
  FROM observations o
  JOIN entities e ON e.key = o.entity_key
 WHERE o.owner = :owner
   AND o.idempotency_key = :idempotency_key
"""  # noqa: S608 — the columns are a constant of this file

SINCE = """
-- The claims about an entity from a number on.
SELECT ordinal, owner, kind, source, observed_ms, created_ms, idempotency_key, content_hash,
       checksum, content
  FROM observations
 WHERE entity_key = :entity_key
   AND ordinal >= :ordinal
 ORDER BY ordinal
"""

BACKWARDS = """
-- The newest claims about an entity in time order; what they say is read of those that fit.
SELECT o.ordinal, o.owner, o.kind, o.source, o.observed_ms, o.created_ms, o.idempotency_key,
       o.content_hash, o.checksum,
       CASE WHEN wanted.place = 1 OR wanted.size <= :bytes THEN o.content END
  FROM (SELECT ordinal,
               row_number() OVER newest_first AS place,
               sum(length(content)) OVER newest_first AS size
          FROM (SELECT ordinal, observed_ms, content
                  FROM observations
                 WHERE entity_key = :entity_key
                   AND (observed_ms, ordinal) < (:observed_ms, :ordinal)
                 ORDER BY observed_ms DESC, ordinal DESC
                 LIMIT :limit) nearest
        WINDOW newest_first AS (ORDER BY observed_ms DESC, ordinal DESC)) wanted
  JOIN observations o ON o.entity_key = :entity_key AND o.ordinal = wanted.ordinal
 ORDER BY o.observed_ms DESC, o.ordinal DESC
"""
