"""What `holdfast doctor` looks for in the file: damaged pages, broken references, broken chains."""

from typing import Final

import apsw
from msgspec import Struct

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionId
from holdfast.ports import Segment
from holdfast.storage.database import checksum
from holdfast.storage.messages import Messages
from holdfast.storage.sqlite import Connection
from holdfast.storage.writer import drive

SESSIONS = """
-- Every notebook, with the numbers it claims to have handed out.
SELECT key, id, messages, events, chain, forked_at
  FROM sessions
 ORDER BY key
"""

EVENTS = """
-- All news of a session.
SELECT sequence, turn, at, payload, checksum
  FROM events
 WHERE session_key = :key
 ORDER BY sequence
"""

BODIES = """
-- Content that is protected by a checksum beside it.
SELECT 'agent ' || id, body, checksum FROM agents
 UNION ALL
SELECT 'model ' || id, body, checksum FROM models
 UNION ALL
SELECT 'session ' || s.id, o.body, o.checksum
  FROM openings o
  JOIN sessions s ON s.key = o.session_key
"""

_ALL: Final = -1


def faults(connection: Connection) -> list[str]:
    """Return every fault, one sentence each; one bad record does not hide its neighbours."""
    found = []
    # Each look by itself, because damage found by one says nothing about the others.
    for look in (_pages, _references, _bodies, _notebooks):
        try:
            found += look(connection)
        except apsw.Error as error:
            found.append(f"The file cannot be read any further: {error}.")
    return found


def _pages(connection: Connection) -> list[str]:
    rows = connection.query("PRAGMA integrity_check(20)")
    return [f"The file is damaged: {row[0]}." for row in rows if row[0] != "ok"]


def _references(connection: Connection) -> list[str]:
    rows = connection.query("PRAGMA foreign_key_check")
    return [f"A row of {row[0]} belongs to nothing in {row[2]}." for row in rows]


def _bodies(connection: Connection) -> list[str]:
    rows = connection.query(BODIES)
    return [f"{what} is damaged." for what, body, stored in rows if checksum(body) != stored]


class Claim(Struct, frozen=True):
    """What a session's row says about its rows."""

    key: int
    session_id: SessionId
    messages: int
    events: int
    chain: bytes
    forked_at: int | None


def _notebooks(connection: Connection) -> list[str]:
    found = []
    for row in connection.query(SESSIONS):
        claim = Claim(*row)
        found += chain_faults(connection, claim)
        found += _event_faults(connection, claim)
    return found


def chain_faults(connection: Connection, claim: Claim) -> list[str]:
    """Return the faults of one session's own rows: their chain, their numbers, their head."""
    first = (claim.forked_at or 0) + 1
    segment = Segment(claim.key, claim.session_id, first, claim.messages)
    try:
        rows = drive(Messages(connection).span(segment, limit=_ALL))
    except HoldfastError as error:
        return [error.message]
    if rows and rows[-1].hash != claim.chain.hex():
        return [f"Session {claim.session_id} does not end with its last message."]
    return []


def _event_faults(connection: Connection, claim: Claim) -> list[str]:
    found = []
    last = 0
    for sequence, turn, at, payload, stored in connection.query(EVENTS, {"key": claim.key}):
        last = sequence
        if checksum(f"{sequence}|{turn}|{at}|", payload) != stored:
            found.append(f"event {sequence} of session {claim.session_id} is damaged.")
    if last > claim.events:
        found.append(f"Session {claim.session_id} has events past its last, {claim.events}.")
    return found
