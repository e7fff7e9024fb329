"""The statements of `sessions.py`, apart because they are many."""

from typing import Any, Final

from holdfast.domain.queries import SessionOrder, SessionQuery, StatusWish
from holdfast.domain.times import microseconds

_HEAD: Final = """
s.key, s.id, s.owner, s.agent_id, s.title, s.status, s.last_stop, s.reason, s.turn, s.settled,
       s.messages, s.events, s.began, s.chain, s.holder, s.until, s.epoch, s.tokens_in,
       s.tokens_out, s.microcents, s.requests, s.updated_at, s.started_at, s.finished_at,
       s.forked_at, s.checksum
""".strip()
HEAD_NAMES: Final = tuple(name.strip().removeprefix("s.") for name in _HEAD.split(","))

_SESSION: Final = f"""
{_HEAD},
       s.repo_id, p.id, s.created_at, o.body, o.checksum, g.body, g.checksum
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
  LEFT JOIN sessions p ON p.key = s.forked_key
  LEFT JOIN programs g ON g.session_key = s.key
""".strip()

ADD = """
-- A new notebook, with a key that no other has or had; a fork keeps a pointer to the row it leaves
-- its parent at.
INSERT INTO sessions (key, id, owner, agent_id, repo_id, forked_key, forked_at, title, status,
                      last_stop, reason, turn, settled, messages, events, began, chain, holder,
                      until, epoch, tokens_in, tokens_out, microcents, requests, created_at,
                      updated_at, started_at, finished_at, checksum)
VALUES ((SELECT coalesce(max(used.key), 0) + 1
           FROM (SELECT max(key) AS key FROM sessions
                  UNION ALL
                 SELECT max(key) FROM tombstones) used),
        :id, :owner, :agent_id, :repo_id,
        (SELECT key FROM sessions WHERE owner = :owner AND id = :forked_id), :forked_at, :title,
        :status, :last_stop, :reason, :turn, :settled, :messages, :events, :began, :chain, :holder,
        :until, :epoch, :tokens_in, :tokens_out, :microcents, :requests, :created_at, :updated_at,
        :started_at, :finished_at, :checksum)
RETURNING key
"""

ADD_OPENING = """
-- What is frozen when a session opens.
INSERT INTO openings (session_key, digest, body, checksum)
VALUES (:session_key, :digest, :body, :checksum)
"""

BY_ROW = """
-- How many sessions an owner has, by the rows themselves.
SELECT count(*)
  FROM sessions NOT INDEXED
 WHERE owner = :owner
"""

BY_INDEX = """
-- How many sessions an owner has, by the index that listings use.
SELECT count(*)
  FROM sessions INDEXED BY sessions_by_time
 WHERE owner = :owner
"""

DIGEST = """
-- The request that opened a session.
SELECT o.digest
  FROM openings o
  JOIN sessions s ON s.key = o.session_key
 WHERE s.owner = :owner
   AND s.id = :id
"""

HEAD = f"""
-- Where a notebook stands.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.owner = :owner
   AND s.id = :id
"""  # noqa: S608 — the columns are a constant of this file

HEAD_BY_KEY = f"""
-- Where a notebook stands, whoever owns it.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.key = :key
"""  # noqa: S608 — the columns are a constant of this file

BEGINNING = """
-- Sessions whose ids begin so; no id holds a letter behind f.
SELECT id
  FROM sessions
 WHERE owner = :owner
   AND id >= :text
   AND id < :text || 'g'
 ORDER BY id
 LIMIT :limit
"""

SAVE = """
-- Where a notebook stands after a write.
UPDATE sessions
   SET title = :title, status = :status, last_stop = :last_stop, reason = :reason, turn = :turn,
       settled = :settled, messages = :messages, events = :events, began = :began, chain = :chain,
       holder = :holder, until = :until, epoch = :epoch, tokens_in = :tokens_in,
       tokens_out = :tokens_out, microcents = :microcents, requests = :requests,
       updated_at = :updated_at, started_at = :started_at, finished_at = :finished_at,
       checksum = :checksum
 WHERE key = :key
"""

GET = f"""
-- One session, whole.
SELECT {_SESSION}
 WHERE s.owner = :owner
   AND s.id = :id
"""

GET_BY_KEY = f"""
-- One session, whole, whoever owns it.
SELECT {_SESSION}
 WHERE s.key = :key
"""

PATCH = """
-- What the owner may change; the title is in the row that changes anyway.
UPDATE openings
   SET body = :body, checksum = :checksum
 WHERE session_key = :key
"""

LINEAGE = """
-- A session and the sessions it was forked from, youngest first.
WITH RECURSIVE line (key, id, messages, forked_key, forked_at, depth) AS (
    SELECT key, id, messages, forked_key, forked_at, 0
      FROM sessions
     WHERE key = :key
     UNION ALL
    SELECT s.key, s.id, s.messages, s.forked_key, s.forked_at, line.depth + 1
      FROM sessions s
      JOIN line ON s.key = line.forked_key
)
SELECT key, id, messages, forked_at
  FROM line
 ORDER BY depth
"""

FORKS = f"""
-- The sessions that point into this one.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.forked_key = :key
 ORDER BY s.created_at, s.id
"""  # noqa: S608 — the columns are a constant of this file

EXTEND = """
-- All leases of a process, extended in one statement.
UPDATE sessions
   SET until = :until
 WHERE holder = :holder
RETURNING key
"""

UNSETTLED = f"""
-- Sessions in which a turn is open or waits.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.turn > s.settled
   AND s.status IN ('pending', 'running', 'idle')
 ORDER BY s.key
"""  # noqa: S608 — the columns are a constant of this file

SLOTS = """
-- Open sessions whose agent is a program of its own; such a one always works in a repository.
SELECT count(*)
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND CASE WHEN json_valid(CAST(o.body AS TEXT))
            THEN json_extract(CAST(o.body AS TEXT), '$.agent.runtime.type') END = 'acp'
"""

IDLE = f"""
-- Open sessions bound to a repository in which nothing happened for some time.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND s.updated_at < :before
 ORDER BY s.key
"""  # noqa: S608 — the columns are a constant of this file

INHERIT = """
-- Rows of an ancestor, written again as the fork's own; the chain does not know whose row it is.
INSERT INTO messages (session_key, sequence, id, turn, role, parts, model_id, created_at, hash,
                      event, told)
SELECT :session_key, sequence, id, turn, role, parts, model_id, created_at, hash, 0, 0
  FROM messages
 WHERE session_key = :ancestor
   AND sequence BETWEEN :first AND :last
"""

INHERIT_MEDIA = """
-- The contents of an ancestor, held by its fork from now on.
INSERT INTO media_uses (session_key, hash, mime_type)
SELECT :session_key, hash, mime_type
  FROM media_uses
 WHERE session_key = :ancestor
    ON CONFLICT DO NOTHING
"""

DETACH = """
-- A fork that stands alone.
UPDATE sessions
   SET forked_key = NULL, forked_at = NULL
 WHERE key = :key
"""

REMOVE = """
-- A session goes, and by cascade all that belongs to it.
DELETE FROM sessions
 WHERE key = :key
"""

BURY = """
-- What stays of a deleted session: its id, which its owner never uses again, and its key.
INSERT INTO tombstones (key, id, owner, deleted_at)
VALUES (:key, :id, :owner, :deleted_at)
"""

IS_BURIED = """
-- Whether an owner deleted a session of that id.
SELECT 1
  FROM tombstones
 WHERE owner = :owner
   AND id = :id
"""

# Names come from this table and never from a caller.
_ORDER: Final = {
    SessionOrder.CREATED_AT: "s.created_at",
    SessionOrder.UPDATED_AT: "s.updated_at",
}


def page_sql(query: SessionQuery) -> tuple[str, dict[str, Any]]:
    """Return the statement for a page: names come from tables, values are bound."""
    conditions, parameters = _conditions(query)
    column = _ORDER[query.order]
    if query.before is not None:
        conditions.append(f"({column}, s.id) < (:before_at, :before_id)")
        parameters |= {"before_at": microseconds(query.before[0]), "before_id": query.before[1]}
    parameters |= {"limit": query.limit, "offset": query.offset}
    sql = (
        f"-- A page of sessions.\nSELECT {_SESSION}\n WHERE {' AND '.join(conditions)}\n"
        f" ORDER BY {column} DESC, s.id DESC\n LIMIT :limit OFFSET :offset"
    )
    return sql, parameters


def count_sql(query: SessionQuery) -> tuple[str, dict[str, Any]]:
    """Return the statement that counts all matches of a query."""
    conditions, parameters = _conditions(query)
    joined = "JOIN openings o ON o.session_key = s.key" if query.tags else ""
    sql = (
        "-- How many sessions match.\n"
        f"SELECT count(*) FROM sessions s {joined} WHERE {' AND '.join(conditions)}"
    )
    return sql, parameters


def _conditions(query: SessionQuery) -> tuple[list[str], dict[str, Any]]:
    conditions = ["s.owner = :owner"]
    parameters: dict[str, Any] = {"owner": query.owner}
    if query.agent_id is not None:
        conditions.append("s.agent_id = :agent_id")
        parameters["agent_id"] = query.agent_id
    if query.repo_id is not None:
        conditions.append("s.repo_id = :repo_id")
        parameters["repo_id"] = query.repo_id
    if query.is_bound:
        conditions.append("s.repo_id IS NOT NULL")
    if query.forked_from is not None:
        conditions.append(
            "s.forked_key = (SELECT key FROM sessions WHERE owner = :owner AND id = :forked_from)"
        )
        parameters["forked_from"] = query.forked_from
    if query.text is not None:
        conditions.append("instr(casefold(s.title), casefold(:text)) > 0")
        parameters["text"] = query.text
    for number, status in enumerate(query.statuses):
        parameters[f"status_{number}"] = status.value
    if query.statuses:
        names = ", ".join(f":status_{number}" for number in range(len(query.statuses)))
        conditions.append(f"s.status IN ({names})")
    if query.wishes:
        conditions.append(_wished(query.wishes, parameters))
    for number, tag in enumerate(query.tags):
        wanted = f":tag_{number}"
        tags = "json_each(CAST(o.body AS TEXT), '$.tags')"
        conditions.append(f"EXISTS (SELECT 1 FROM {tags} WHERE value = {wanted})")  # noqa: S608
        parameters[f"tag_{number}"] = tag
    return conditions, parameters


def _wished(wishes: tuple[StatusWish, ...], parameters: dict[str, Any]) -> str:
    """Return the condition that one of the wishes holds; its values go to the parameters."""
    told = []
    for number, wish in enumerate(wishes):
        parameters[f"wish_{number}"] = wish.status.value
        told.append(_ENDED[wish.has_failed] + f":wish_{number}")
    return f"({' OR '.join(told)})"


# A session that has played no turn has not failed.
_ENDED: Final = {
    None: "s.status = ",
    True: "s.last_stop IS NOT DISTINCT FROM 'error' AND s.status = ",
    False: "s.last_stop IS DISTINCT FROM 'error' AND s.status = ",
}
