"""What `holdfast doctor` looks for in the file: damaged pages, broken references, broken chains.

It reads with the same eyes as everybody else: a row that a table would refuse is a fault here.
"""

import hashlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import HoldfastError
from holdfast.domain.events import MISSING
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
# Ranges of missing numbers that a sentence names.
_NAMED: Final = 8


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
    return _of_each_session(connection, _notebook)


def missing_events(connection: Connection) -> list[str]:
    """Return which events are gone that nothing explains; no message is lost with them."""
    return _of_each_session(connection, lambda each, head: _told(lambda: _lacking(each, head)))


def _of_each_session(
    connection: Connection, look: Callable[[Connection, Head], list[str]]
) -> list[str]:
    found = []
    for (key,) in connection.query(SESSIONS):
        try:
            head = drive(Sessions(connection).head_by_key(key))
        except HoldfastError as error:
            found.append(error.message)
            continue
        if head is not None:
            found += look(connection, head)
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
    """Return the events of a session that are not what was written."""
    events = Events(connection)
    found = [
        f"event {number} of session {head.session_id} is damaged."
        for number in await events.damaged(head)
    ]
    if not found:
        # Read in order as well: two rows of one number are refused only there.
        await _gaps(events, head)
    return found


async def _lacking(connection: Connection, head: Head) -> list[str]:
    """Return the events of a session that are gone though Holdfast did not remove them."""
    events = Events(connection)
    # Damage is reported by another look, and nothing can be read in order past it.
    if await events.damaged(head):
        return []
    lost = [gap for gap in await _gaps(events, head) if await events.missing(head, *gap) == MISSING]
    if not lost:
        return []
    named = ", ".join(
        f"{first} to {last}" if last > first else f"{first}" for first, last in lost[:_NAMED]
    )
    more = f" and {len(lost) - _NAMED} more ranges" if len(lost) > _NAMED else ""
    lacking = f"Session {head.session_id} lacks events that Holdfast did not remove: {named}{more}."
    return [f"{lacking} Readers get a gap there; no message is affected."]


async def _gaps(events: Events, head: Head) -> list[tuple[int, int]]:
    """Walk a session's log; return the first and the last number of each gap."""
    found = []
    last = 0
    while last < head.events:
        frames = await events.after(head, last, limit=_PAGE)
        for number in [frame.sequence for frame in frames] or [head.events + 1]:
            if number > last + 1:
                found.append((last + 1, number - 1))
            last = number
    return found


def _told(look: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[str]:
    """Return the faults that a look returns, or the one that it was refused with."""
    try:
        return [fault for fault in drive(look()) if isinstance(fault, str)]
    except HoldfastError as error:
        return [error.message]


# What is looked for in rows, wherever they are kept.
ROWS: Final = (_bodies, _contents, _repos, zone_faults, observation_faults, _notebooks)
