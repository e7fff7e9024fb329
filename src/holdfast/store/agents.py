"""The `agents` table."""

import msgspec

from holdfast.domain.agents import Agent
from holdfast.domain.ids import AgentId, Owner
from holdfast.domain.queries import AgentQuery
from holdfast.domain.time import microseconds
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    encode,
    reading_of,
    require_sound,
    sound,
    with_row_lock,
)

ADD = """
-- Insert an agent: the body has all fields, the columns those that are searched.
INSERT INTO agents (id, owner, slug, name, status, created_at, body, checksum, digest)
VALUES (:id, :owner, :slug, :name, :status, :created_at, :body, :checksum, :digest)
"""

DIGEST = """
-- Digest of the request that created an agent.
SELECT digest
  FROM agents
 WHERE owner = :owner
   AND id = :id
"""

IS_USED = """
-- Whether an agent has sessions.
SELECT 1
  FROM sessions
 WHERE agent_id = :id
   AND owner = :owner
 LIMIT 1
"""

REMOVE = """
-- Delete an agent; fails if it has sessions.
DELETE FROM agents
 WHERE owner = :owner
   AND id = :id
"""

SAVE = """
-- Update an agent.
UPDATE agents
   SET slug = :slug, name = :name, status = :status, body = :body, checksum = :checksum
 WHERE owner = :owner
   AND id = :id
"""

BY_ID = """
-- One agent of an owner.
SELECT id, body, checksum
  FROM agents
 WHERE id = :id
   AND owner = :owner
"""

BY_SLUG = """
-- One agent of an owner, by its slug.
SELECT id, body, checksum
  FROM agents
 WHERE slug = :slug
   AND owner = :owner
"""

ID_OF = """
-- The id of an agent of an owner, by its id or else by its slug.
SELECT id
  FROM agents
 WHERE owner = :owner
   AND (id = :name OR slug = :name)
 ORDER BY slug = :name
 LIMIT 1
"""

PAGE = """
-- An owner's agents, newest first, after a key.
SELECT id, body, checksum, created_at
  FROM agents
 WHERE owner = :owner
   AND (CAST(:status AS TEXT) IS NULL OR status = :status)
   AND (CAST(:text AS TEXT) IS NULL OR instr(casefold(name), casefold(:text)) > 0
        OR instr(casefold(slug), casefold(:text)) > 0)
   AND (CAST(:created_at AS BIGINT) IS NULL
        OR (created_at, id) < (:created_at, :before_id))
 ORDER BY created_at DESC, id DESC
 LIMIT :limit
"""

_decoder = msgspec.json.Decoder(Agent)


class AgentRows:
    """Agents in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, agent: Agent, digest: bytes = b"") -> None:
        await self._db.execute(ADD, _columns(agent) | {"digest": digest})

    async def digest(self, owner: Owner, agent_id: AgentId) -> bytes | None:
        rows = await self._db.fetch(DIGEST, {"owner": owner, "id": agent_id})
        return rows[0][0] or b"" if rows else None

    async def save(self, agent: Agent) -> None:
        await self._db.execute(SAVE, _columns(agent))

    async def by_id(self, owner: Owner, agent_id: AgentId) -> Agent | None:
        rows = await self._db.fetch(
            with_row_lock(self._db, BY_ID), {"id": agent_id, "owner": owner}
        )
        return _agent(rows[0]) if rows else None

    async def by_slug(self, owner: Owner, slug: str) -> Agent | None:
        rows = await self._db.fetch(
            with_row_lock(self._db, BY_SLUG), {"slug": slug, "owner": owner}
        )
        return _agent(rows[0]) if rows else None

    async def id_of(self, owner: Owner, name: str) -> AgentId | None:
        rows = await self._db.fetch(with_row_lock(self._db, ID_OF), {"owner": owner, "name": name})
        return AgentId(rows[0][0]) if rows else None

    async def page(self, query: AgentQuery) -> list[Agent]:
        before = query.before
        found: list[Agent] = []
        parameters = {
            "owner": query.owner,
            "status": query.status,
            "text": query.text or None,
            "created_at": microseconds(before[0]) if before else None,
            "before_id": before[1] if before else None,
            "limit": query.limit,
        }
        while True:
            rows = await self._db.fetch(PAGE, parameters)
            # Tags and damage are only visible after decoding, so fetch until the page is full.
            for agent in sound((row[:3] for row in rows), _agent):
                if set(query.tags) <= set(agent.tags):
                    found.append(agent)
                if len(found) == query.limit:
                    return found
            if len(rows) < query.limit:
                return found
            parameters |= {"created_at": rows[-1][3], "before_id": rows[-1][0]}

    async def is_used(self, owner: Owner, agent_id: AgentId) -> bool:
        return bool(await self._db.fetch(IS_USED, {"owner": owner, "id": agent_id}))

    async def remove(self, owner: Owner, agent_id: AgentId) -> None:
        await self._db.execute(REMOVE, {"owner": owner, "id": agent_id})


def _columns(agent: Agent) -> dict[str, object]:
    # The body holds the whole agent; the columns repeat the fields that queries filter on.
    body = encode(agent)
    return {
        "id": agent.id,
        "owner": agent.owner,
        "slug": agent.slug,
        "name": agent.name,
        "status": agent.status.value,
        "created_at": microseconds(agent.created_at),
        "body": body,
        "checksum": checksum(body),
    }


def _agent(row: Row) -> Agent:
    agent_id, body, stored = row
    require_sound(stored, body, what=f"agent {agent_id}")
    with reading_of(f"agent {agent_id}"):
        return _decoder.decode(body)
