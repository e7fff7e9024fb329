"""The `client_requests` table: calls that a client was asked to run."""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState, ClientRequest
from holdfast.domain.ids import CallId, Owner, SessionKey
from holdfast.store.database import Database, Row, checksum, encode, require_sound

SAVE = """
-- Insert or replace a request to a client, or its outcome.
INSERT INTO client_requests (session_key, call_id, body, checksum)
VALUES (:session_key, :call_id, :body, :checksum)
ON CONFLICT (session_key, call_id)
DO UPDATE SET body = excluded.body, checksum = excluded.checksum
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

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(ClientRequest)


class ClientRequestRows:
    """Requests to clients in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, call_id: CallId, request: ClientRequest) -> None:
        body = encode(request)
        row = {"session_key": key, "call_id": call_id, "body": body}
        await self._db.execute(SAVE, row | {"checksum": checksum(body)})

    async def of(self, key: SessionKey, call_id: CallId) -> ClientRequest | None:
        rows = await self._db.fetch(OF, {"session_key": key, "call_id": call_id})
        return _request_of(rows[0]) if rows else None

    async def add_deadlines(self, owner: Owner, calls: Iterable[Call]) -> list[Call]:
        """Return calls of an owner, those that wait for a client with their deadlines."""
        return [
            await self._with_deadline(owner, call) if call.state is CallState.REQUESTED else call
            for call in calls
        ]

    async def _with_deadline(self, owner: Owner, call: Call) -> Call:
        parameters = {"owner": owner, "session_id": call.session_id, "call_id": call.id}
        rows = await self._db.fetch(OF_SESSION_ID, parameters)
        return replace(call, deadline_at=_request_of(rows[0]).deadline_at) if rows else call


def _request_of(row: Row) -> ClientRequest:
    require_sound(row[1], row[0], what="a request to a client")
    return _decoder.decode(row[0])
