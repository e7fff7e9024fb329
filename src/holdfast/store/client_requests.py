"""The `client_requests` table: calls that a client was asked to run, and the clients' claims."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec import Struct

from holdfast.domain.calls import Call, CallState, ClientRequest, is_open, with_request
from holdfast.domain.ids import AgentId, CallId, Owner, SessionId, SessionKey
from holdfast.domain.time import microseconds
from holdfast.ports.system import REQUESTS
from holdfast.store.database import Database, Row, checksum, encode, require_sound

SAVE = """
-- Insert or replace a request to a client, with its claim and its outcome.
INSERT INTO client_requests (session_key, call_id, claim, until, body, checksum)
VALUES (:session_key, :call_id, :claim, :until, :body, :checksum)
ON CONFLICT (session_key, call_id)
DO UPDATE SET claim = excluded.claim, until = excluded.until, body = excluded.body,
              checksum = excluded.checksum
"""
OF = """
-- The request to a client to run a call.
SELECT body, checksum
  FROM client_requests
 WHERE session_key = :session_key
   AND call_id = :call_id
"""
OF_SESSION_ID = """
-- The request to a client to run a call of an owner's session.
SELECT r.body, r.checksum
  FROM client_requests r
  JOIN sessions s ON s.key = r.session_key
 WHERE s.owner = :owner
   AND s.id = :session_id
   AND r.call_id = :call_id
"""
BY_CLAIM = """
-- The call of a claim, in an owner's sessions.
SELECT r.session_key, s.id, r.call_id, c.state
  FROM client_requests r
  JOIN sessions s ON s.key = r.session_key
  JOIN calls c ON c.session_key = r.session_key AND c.id = r.call_id
 WHERE r.claim = :claim
   AND s.owner = :owner
"""
LOST = """
-- Claims whose lease has run out.
SELECT session_key, call_id, claim
  FROM client_requests
 WHERE claim IS NOT NULL
   AND until <= :now
 ORDER BY session_key, call_id
 LIMIT :limit
"""
FREE = """
-- Requested calls of a tool that are not reserved, in an owner's sessions.
SELECT c.session_key, s.id, c.id
  FROM calls c
  JOIN sessions s ON s.key = c.session_key
  JOIN client_requests r ON r.session_key = c.session_key AND r.call_id = c.id
 WHERE c.state = 'requested'
   AND c.name = :name
   AND s.owner = :owner
   AND r.until <= :now{conditions}
 ORDER BY c.session_key
 LIMIT :limit
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(ClientRequest)


class ClaimedCall(Struct, frozen=True):
    """The call that a claim is about."""

    key: SessionKey
    session_id: SessionId
    call_id: CallId
    state: CallState


class ClientRequestRows:
    """Requests to clients in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, call_id: CallId, request: ClientRequest) -> None:
        """Store a request; other processes are notified of one that is free."""
        body = encode(request)
        row = {
            "session_key": key,
            "call_id": call_id,
            "claim": request.claim,
            "until": microseconds(request.holder.until) if request.holder else 0,
            "body": body,
        }
        await self._db.execute(SAVE, row | {"checksum": checksum(body)})
        if request.holder is None:
            self._db.touch(REQUESTS)

    async def of(self, key: SessionKey, call_id: CallId) -> ClientRequest | None:
        rows = await self._db.fetch(OF, {"session_key": key, "call_id": call_id})
        return _request_of(rows[0]) if rows else None

    async def by_claim(self, owner: Owner, claim: str) -> ClaimedCall | None:
        rows = await self._db.fetch(BY_CLAIM, {"owner": owner, "claim": claim})
        if not rows:
            return None
        key, session_id, call_id, state = rows[0]
        return ClaimedCall(SessionKey(key), SessionId(session_id), call_id, CallState(state))

    async def lost(self, now: int, *, limit: int) -> list[tuple[SessionKey, CallId, str]]:
        """Return the claims whose lease has run out."""
        rows = await self._db.fetch(LOST, {"now": now, "limit": limit})
        return [(SessionKey(key), CallId(call_id), claim) for key, call_id, claim in rows]

    async def free(
        self,
        owner: Owner,
        name: str,
        now: int,
        *,
        agents: Collection[AgentId] = (),
        sessions: Collection[SessionId] = (),
        limit: int,
    ) -> list[tuple[SessionKey, SessionId, CallId]]:
        """Return requested calls of a tool that no client holds, of these agents and sessions."""
        parameters = {"owner": owner, "name": name, "now": now, "limit": limit}
        conditions = ""
        for column, values in (("agent_id", agents), ("id", sessions)):
            if values:
                named = {f"{column}_{number}": value for number, value in enumerate(values)}
                conditions += f"\n   AND s.{column} IN (:{', :'.join(named)})"
                parameters |= named
        rows = await self._db.fetch(FREE.format(conditions=conditions), parameters)
        return [(SessionKey(key), SessionId(id_), CallId(call)) for key, id_, call in rows]

    async def add_requests(self, owner: Owner, calls: Iterable[Call]) -> list[Call]:
        """Return calls of an owner, those that wait for a client with what is known of that."""
        return [await self._with_request(owner, call) if is_open(call) else call for call in calls]

    async def _with_request(self, owner: Owner, call: Call) -> Call:
        parameters = {"owner": owner, "session_id": call.session_id, "call_id": call.id}
        rows = await self._db.fetch(OF_SESSION_ID, parameters)
        return with_request(call, _request_of(rows[0])) if rows else call


def _request_of(row: Row) -> ClientRequest:
    require_sound(row[1], row[0], what="a request to a client")
    return _decoder.decode(row[0])
