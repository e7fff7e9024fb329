"""What `holdfast doctor` looks for in the file: damaged pages, broken references, broken chains.

It reads with the same eyes as everybody else: a row that a table would refuse is a fault here.
"""

import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import HoldfastError
from holdfast.domain.sessions import Head
from holdfast.ports import Segment
from holdfast.storage.calls import Calls
from holdfast.storage.costs import Costs
from holdfast.storage.database import checksum
from holdfast.storage.doubts import contradictions
from holdfast.storage.events import Events
from holdfast.storage.jobs import drive
from holdfast.storage.messages import Messages
from holdfast.storage.observation_checks import observation_faults
from holdfast.storage.repos import Repos
from holdfast.storage.sessions import Sessions
from holdfast.storage.sqlite import Connection
from holdfast.storage.zone_checks import zone_faults

T = TypeVar("T")
Look = Callable[[Connection], list[str]]

SESSIONS = """
-- Every notebook.
SELECT key
  FROM sessions
 ORDER BY key
"""

OWNERS = """
-- Everybody who registered a repository.
SELECT DISTINCT owner
  FROM repos
 ORDER BY owner
"""

BODIES = """
-- Content that is protected by a checksum beside it.
SELECT 'agent ' || id, body, checksum FROM agents
 UNION ALL
SELECT 'model ' || id, body, checksum FROM models
 UNION ALL
SELECT 'approval ' || id, body, checksum FROM approvals
 UNION ALL
SELECT 'token ' || id, body, checksum FROM tokens
 UNION ALL
SELECT 'a sign-in code', body, checksum FROM sign_in_codes
 UNION ALL
SELECT 'the program of session ' || s.id, g.body, g.checksum
  FROM programs g
  JOIN sessions s ON s.key = g.session_key
"""

CONTENTS = """
-- The name of every content.
SELECT hash
  FROM media
"""

CONTENT = """
-- One content.
SELECT content
  FROM media
 WHERE hash = :hash
"""

_ALL: Final = -1
_PAGE: Final = 1_000


def faults(connection: Connection) -> list[str]:
    """Return every fault, one sentence each; one bad record does not hide its neighbours."""
    return judged(connection, (_pages, _references, contradictions, *ROWS))


def judged(connection: Connection, looks: Sequence[Look]) -> list[str]:
    """Return what looks find."""
    found = []
    # Each look by itself, because damage found by one says nothing about the others.
    for look in looks:
        try:
            found += look(connection)
        except (apsw.Error, HoldfastError) as error:
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


def _contents(connection: Connection) -> list[str]:
    """Return the contents that are not what they are named after; one at a time, for the memory."""
    found = []
    for (name,) in connection.query(CONTENTS):
        rows = connection.query(CONTENT, {"hash": name})
        if not rows or hashlib.sha256(rows[0][0]).digest() != name:
            found.append(f"the content sha256:{bytes(name).hex()} is damaged.")
    return found


def _repos(connection: Connection) -> list[str]:
    repos = Repos(connection)
    owners = [row[0] for row in connection.query(OWNERS)]
    return [fault for owner in owners for fault in _told(partial(repos.all, owner))]


def _notebooks(connection: Connection) -> list[str]:
    found = []
    for (key,) in connection.query(SESSIONS):
        try:
            head = drive(Sessions(connection).head_by_key(key))
        except HoldfastError as error:
            found.append(error.message)
            continue
        if head is not None:
            found += _notebook(connection, head)
    return found


def _notebook(connection: Connection, head: Head) -> list[str]:
    return [
        *_told(lambda: _opening(connection, head)),
        *_told(lambda: _chain(connection, head)),
        *_told(lambda: _news(connection, head)),
        *_told(lambda: Calls(connection).of_session(head)),
        *_told(lambda: Costs(connection).of_session(head)),
    ]


async def _opening(connection: Connection, head: Head) -> list[str]:
    """Read what was frozen when the session opened; it is refused if it is damaged."""
    await Sessions(connection).get_by_key(head.key)
    return []


async def _chain(connection: Connection, head: Head) -> list[str]:
    """Return the faults of a session's own rows that only its head can tell."""
    own = Segment(head.key, head.session_id, head.inherited + 1, head.messages)
    rows = await Messages(connection).span(own, limit=_ALL)
    if rows and rows[-1].hash != head.chain.hex():
        return [f"Session {head.session_id} does not end with its last message."]
    return []


async def _news(connection: Connection, head: Head) -> list[str]:
    """Walk a session's log; return where numbers are missing that nothing explains."""
    events = Events(connection)
    found = [
        f"event {number} of session {head.session_id} is damaged."
        for number in await events.damaged(head)
    ]
    # Past damage nothing can be read in order, and so nothing said about what is missing.
    if found:
        return found
    last = 0
    while frames := await events.after(head, last, limit=_PAGE):
        for frame in frames:
            first = last + 1
            is_gap = frame.sequence > first
            if is_gap and await events.missing(head, first, frame.sequence - 1) is None:
                found.append(f"Session {head.session_id} lacks events from {first} on.")
            last = frame.sequence
    if last != head.events and await events.missing(head, last + 1, head.events) is None:
        found.append(f"The log of session {head.session_id} ends at {last}, not {head.events}.")
    return found


def _told(look: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[str]:
    """Return the faults that a look returns, or the one that it was refused with."""
    try:
        return [fault for fault in drive(look()) if isinstance(fault, str)]
    except HoldfastError as error:
        return [error.message]


# What is looked for in rows, wherever they are kept.
ROWS: Final = (_bodies, _contents, _repos, zone_faults, observation_faults, _notebooks)
