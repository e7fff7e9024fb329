"""The statements about what is computed from claims: snapshots, events, and who names whom."""

from holdfast.storage.observation_sql import NEWEST, WITH_NEWEST

SAVE = """
-- An entity as it is now; what it is never changes.
UPDATE entities
   SET observations = :observations, first_ms = :first_ms, last_ms = :last_ms,
       known_ms = :known_ms, is_deleted = :is_deleted, started_ms = :started_ms,
       started_priority = :started_priority, ended_ms = :ended_ms,
       ended_priority = :ended_priority, ended_place = :ended_place, duration = :duration,
       duration_priority = :duration_priority, duration_place = :duration_place,
       checksum = :checksum
 WHERE key = :key
"""

SAVE_IN_PLACE = """
-- The same of one that is listed where it was: an index is written whether it changes or not.
UPDATE entities
   SET observations = :observations, first_ms = :first_ms, last_ms = :last_ms,
       known_ms = :known_ms, ended_ms = :ended_ms, ended_priority = :ended_priority,
       ended_place = :ended_place, duration = :duration, duration_priority = :duration_priority,
       duration_place = :duration_place, checksum = :checksum
 WHERE key = :key
"""

PUT_BODY = """
-- A snapshot, in the place of the one before.
INSERT INTO snapshots (entity_key, checksum, body)
VALUES (:key, :checksum, :body)
    ON CONFLICT (entity_key) DO UPDATE
   SET checksum = excluded.checksum, body = excluded.body
"""

DROP_BODY = """
-- A snapshot that has become too large.
DELETE FROM snapshots
 WHERE entity_key = :key
"""

BODY = """
-- A snapshot.
SELECT body, checksum
  FROM snapshots
 WHERE entity_key = :key
"""

EVENT_SUMS = """
-- Where the events of an entity stand, and their sums.
SELECT ms, rank, id, type, checksum, CASE WHEN :thorough THEN body END
  FROM timeline
 WHERE entity_key = :key
"""

PUT_EVENT = """
-- An event, in the place of what stood there.
INSERT INTO timeline (entity_key, ms, rank, id, type, checksum, body)
VALUES (:key, :ms, :rank, :id, :type, :checksum, :body)
    ON CONFLICT (entity_key, ms, rank, id) DO UPDATE
   SET type = excluded.type, checksum = excluded.checksum, body = excluded.body
"""

DROP_EVENT = """
-- An event that is none any more.
DELETE FROM timeline
 WHERE entity_key = :key
   AND (ms, rank, id) = (:ms, :rank, :id)
"""

NAMES = """
-- The ids that an entity names.
SELECT n.name, m.name_key, m.is_wide
  FROM mentions m
  JOIN names n ON n.key = m.name_key
 WHERE m.entity_key = :key
"""

NAME_KEY = """
-- What an id is kept under.
SELECT key
  FROM names
 WHERE owner = :owner
   AND name = :name
"""

ADD_NAME = """
-- An id that nobody has named before.
INSERT INTO names (owner, name)
VALUES (:owner, :name)
RETURNING key
"""

PUT_MENTION = """
-- That an entity names an id.
INSERT INTO mentions (name_key, entity_key, is_wide)
VALUES (:name_key, :key, :is_wide)
    ON CONFLICT (name_key, entity_key) DO UPDATE
   SET is_wide = excluded.is_wide
"""

DROP_MENTION = """
-- That an entity does not name an id any more.
DELETE FROM mentions
 WHERE name_key = :name_key
   AND entity_key = :key
"""

PUT_MENTIONED = """
-- An event under an id that its entity names.
INSERT INTO mentioned_timeline (name_key, ms, rank, id, type, entity_key)
VALUES (:name_key, :ms, :rank, :id, :type, :key)
    ON CONFLICT (name_key, ms, rank, id) DO UPDATE
   SET type = excluded.type, entity_key = excluded.entity_key
"""

PUT_ALL_MENTIONED = """
-- All events of an entity under an id that it names.
INSERT INTO mentioned_timeline (name_key, ms, rank, id, type, entity_key)
SELECT :name_key, ms, rank, id, type, entity_key
  FROM timeline
 WHERE entity_key = :key
    ON CONFLICT (name_key, ms, rank, id) DO UPDATE
   SET type = excluded.type, entity_key = excluded.entity_key
 WHERE (mentioned_timeline.type, mentioned_timeline.entity_key)
       != (excluded.type, excluded.entity_key)
RETURNING 1
"""

DROP_MENTIONED = """
-- An event that stands under an id no more.
DELETE FROM mentioned_timeline
 WHERE name_key = :name_key
   AND (ms, rank, id) = (:ms, :rank, :id)
"""

SWEEP = """
-- Events under ids that their entity does not name, or does not have.
DELETE FROM mentioned_timeline
 WHERE NOT EXISTS (SELECT 1
                     FROM mentions m
                    WHERE m.name_key = mentioned_timeline.name_key
                      AND m.entity_key = mentioned_timeline.entity_key
                      AND m.is_wide = 0)
    OR NOT EXISTS (SELECT 1
                     FROM timeline t
                    WHERE t.entity_key = mentioned_timeline.entity_key
                      AND t.ms = mentioned_timeline.ms
                      AND t.rank = mentioned_timeline.rank
                      AND t.id = mentioned_timeline.id)
RETURNING 1
"""

RELINK = """
-- Entities that are another session than they say, or one that they do not know of.
UPDATE entities
   SET session_key = (SELECT s.key
                        FROM sessions s
                       WHERE s.owner = entities.owner
                         AND s.id = entities.name
                         AND entities.entity_type = 'agent_session')
 WHERE session_key IS DISTINCT FROM (SELECT s.key
                                       FROM sessions s
                                      WHERE s.owner = entities.owner
                                        AND s.id = entities.name
                                        AND entities.entity_type = 'agent_session')
RETURNING 1
"""

HOSTED_APART = f"""
-- Sessions of ours that name an id; looked up from their side, because they are the fewer.
SELECT {WITH_NEWEST}
  FROM entities e
 CROSS JOIN mentions m ON m.entity_key = e.key
  {NEWEST}
 WHERE e.owner = :owner
   AND e.session_key IS NOT NULL
   AND m.name_key = :name_key
"""  # noqa: S608 — the columns are a constant of another file

WIDE_APART = f"""
-- Wide entities that name an id.
SELECT {WITH_NEWEST}
  FROM mentions m
  JOIN entities e ON e.key = m.entity_key
  {NEWEST}
 WHERE m.name_key = :name_key
   AND m.is_wide = 1
"""  # noqa: S608 — the columns are a constant of another file

SEVERAL_APART = f"""
-- Entities that name several of these ids.
SELECT {WITH_NEWEST}
  FROM (SELECT entity_key
          FROM mentions
         WHERE name_key IN (SELECT value FROM json_each(:name_keys))
         GROUP BY entity_key
        HAVING count(*) > 1) m
  JOIN entities e ON e.key = m.entity_key
  {NEWEST}
"""  # noqa: S608 — the columns are a constant of another file

MENTIONED_BY = """
-- Which of these ids an entity names.
SELECT name_key
  FROM mentions
 WHERE entity_key = :key
   AND name_key IN (SELECT value FROM json_each(:name_keys))
"""

EVENTS = """
-- Events of an entity in order.
SELECT t.ms, t.rank, t.id, t.type, t.checksum, t.body, t.entity_key
  FROM timeline t
 WHERE t.entity_key = :key
   AND {conditions}
 ORDER BY t.ms, t.rank, t.id
 LIMIT :limit
"""

COUNT_EVENTS = """
-- How many events an entity has.
SELECT count(*)
  FROM timeline t
 WHERE t.entity_key = :key
   AND {conditions}
"""

MENTIONED = """
-- Events of all who name an id, in order; each is looked up where it is kept.
SELECT t.ms, t.rank, t.id, e.type, e.checksum, e.body, t.entity_key
  FROM mentioned_timeline t
  LEFT JOIN timeline e ON e.entity_key = t.entity_key
                      AND e.ms = t.ms AND e.rank = t.rank AND e.id = t.id
 WHERE t.name_key = :name_key
   AND {conditions}
 ORDER BY t.ms, t.rank, t.id
 LIMIT :limit
"""

COUNT_MENTIONED = """
-- How many events those have who name an id.
SELECT count(*)
  FROM mentioned_timeline t
 WHERE t.name_key = :name_key
   AND {conditions}
"""
