"""The statements of listings: entities with claims, sessions of ours without, and those with both.

Each of the three is listed by itself, by an index where the order is the usual one.
"""

from typing import Any, Final

from holdfast.domain.entity_listings import Listing
from holdfast.domain.entity_queries import EntityOrder
from holdfast.domain.histories import Direction
from holdfast.storage.observation_sql import SELECTED

_CLAIMED: Final = {
    EntityOrder.STARTED_AT: "e.started_ms",
    EntityOrder.ENDED_AT: "e.ended_ms",
    EntityOrder.DURATION: "e.duration",
    EntityOrder.LAST_OBSERVATION_AT: "e.last_ms",
    EntityOrder.SESSION_ID: "e.name",
}

# Of a claim and the journal, what has more weight is shown; of equal weight, what came later, and
# of beginnings the earlier one. An ordinary claim weighs 100, and so does the journal.
_BOTH: Final = {
    EntityOrder.STARTED_AT: """
        CASE WHEN e.started_priority > 100 THEN e.started_ms
             WHEN e.started_priority = 100 AND e.started_ms < s.created_ms THEN e.started_ms
             ELSE s.created_ms
        END
    """,
    EntityOrder.ENDED_AT: """
        CASE WHEN s.finished_ms IS NULL
               OR e.ended_priority > 100
               OR (e.ended_priority = 100 AND e.ended_place >= s.finished_ms)
             THEN e.ended_ms
             ELSE s.finished_ms
        END
    """,
    EntityOrder.DURATION: """
        CASE WHEN s.finished_ms IS NULL
               OR s.finished_ms <= s.created_ms
               OR e.duration_priority > 100
               OR (e.duration_priority = 100 AND e.duration_place >= s.finished_ms)
             THEN e.duration
             ELSE (s.finished_ms - s.created_ms) / 1000.0
        END
    """,
    EntityOrder.LAST_OBSERVATION_AT: """
        CASE WHEN s.updated_ms > e.last_ms THEN s.updated_ms ELSE e.last_ms END
    """,
    EntityOrder.SESSION_ID: "e.name",
}

CLAIMED: Final = """
-- Entities that no session of ours is, in order.
SELECT value, id, key, NULL
  FROM (SELECT {value} AS value, e.id, e.key
          FROM entities e
         WHERE e.owner = :owner
           AND e.entity_type = :entity_type
           AND e.is_deleted = 0
           AND e.session_key IS NULL) claimed
 WHERE {conditions}
 ORDER BY value {direction}, id
 LIMIT :limit
"""

BOTH: Final = """
-- Entities that are sessions of ours as well, in order.
SELECT value, id, key, session_key
  FROM (SELECT {value} AS value, e.id, e.key, e.session_key
          FROM entities e
          JOIN (SELECT key,
                       created_at / 1000 AS created_ms,
                       updated_at / 1000 AS updated_ms,
                       CASE WHEN status NOT IN ('pending', 'running', 'idle')
                            THEN finished_at / 1000 END AS finished_ms
                  FROM sessions) s ON s.key = e.session_key
         WHERE e.owner = :owner
           AND e.is_deleted = 0
           AND e.session_key IS NOT NULL) both_kinds
 WHERE {conditions}
 ORDER BY value {direction}, id
 LIMIT :limit
"""

HOSTED: Final = """
-- Sessions of ours that nobody has claimed anything about.
SELECT s.key, s.id, s.created_at, s.updated_at,
       CASE WHEN s.status NOT IN ('pending', 'running', 'idle') THEN s.finished_at END
  FROM sessions s
 WHERE s.owner = :owner
   AND s.created_at BETWEEN :first AND :last
   AND NOT EXISTS (SELECT 1 FROM entities e WHERE e.session_key = s.key)
"""

BOUND: Final = """
-- When the last of so many sessions was opened.
SELECT s.created_at
  FROM sessions s
 WHERE s.owner = :owner
   AND s.created_at BETWEEN :first AND :last
   AND NOT EXISTS (SELECT 1 FROM entities e WHERE e.session_key = s.key)
 ORDER BY s.created_at {direction}
 LIMIT 1 OFFSET :limit - 1
"""

COUNT: Final = """
-- How many entities no session of ours is.
SELECT count(*)
  FROM entities
 WHERE owner = :owner
   AND entity_type = :entity_type
   AND is_deleted = 0
   AND session_key IS NULL
"""

COUNT_HOSTED: Final = """
-- How many sessions there are, but for those whose history was deleted.
SELECT (SELECT count(*) FROM sessions WHERE owner = :owner)
       - (SELECT count(*)
            FROM entities
           WHERE owner = :owner
             AND session_key IS NOT NULL
             AND is_deleted = 1)
"""

EVERY: Final = f"""
-- Every entity of a type.
SELECT {SELECTED}
  FROM entities e
 WHERE e.owner = :owner
   AND e.entity_type = :entity_type
"""  # noqa: S608 — the columns are a constant of another file


def claimed_arms(listing: Listing) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements for entities that no session of ours is."""
    return _arms(listing, _CLAIMED[listing.order], CLAIMED)


def both_arms(listing: Listing) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements for entities that are sessions of ours as well."""
    return _arms(listing, _BOTH[listing.order], BOTH)


def _arms(listing: Listing, value: str, sql: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements of a listing: first what has a value, then what has none."""
    is_down = listing.direction is Direction.DESC
    having, lacking = dict[str, Any](), dict[str, Any]()
    conditions = {"value IS NOT NULL": having, "value IS NULL": lacking}
    if listing.after is not None:
        having["value"], having["id"] = listing.after
        # Entered by the value alone, which an index can do; the ids tell equals apart.
        conditions = {_BEHIND[listing.direction]: having, "value IS NULL": lacking}
        if listing.after[0] is None:
            conditions = {"value IS NULL AND id > :id": {"id": listing.after[1]}}
    direction = "DESC" if is_down else "ASC"
    return [
        (sql.format(value=value, conditions=condition, direction=direction), asked)
        for condition, asked in conditions.items()
    ]


_BEHIND: Final = {
    Direction.DESC: "value <= :value AND (value < :value OR id > :id)",
    Direction.ASC: "value >= :value AND (value > :value OR id > :id)",
}
