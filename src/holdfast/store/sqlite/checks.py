"""What `holdfast doctor` checks: damaged pages, broken references and hash chains."""

import hashlib
import stat
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import HoldfastError, Internal
from holdfast.domain.events import MISSING
from holdfast.domain.sessions import SessionState
from holdfast.observations.projections import KnownEntity
from holdfast.observations.rows import SELECTED, event_of, known_of
from holdfast.observations.tables import ObservationTables
from holdfast.ports.store import Segment
from holdfast.store.calls import CallRows
from holdfast.store.costs import CostRows
from holdfast.store.database import checksum
from holdfast.store.events import EventRows
from holdfast.store.messages import MessageRows
from holdfast.store.repos import RepoRows
from holdfast.store.sessions import SessionRows
from holdfast.store.sqlite.connection import Connection, drive
from holdfast.store.sqlite.files import UNSUITABLE, file_system_of
from holdfast.store.sqlite.integrity import contradictions
from holdfast.store.sqlite.migrate import version
from holdfast.zones.lines import LineCount, count_lines
from holdfast.zones.model import PART_SIZE, ZoneFile
from holdfast.zones.tables import PART, REST, file_of, part_of, rest_of

ENTITIES = f"""
-- Every entity.
SELECT {SELECTED}
  FROM entities e
 ORDER BY e.key
"""  # noqa: S608 — the columns are a constant of another file
OBSERVATION_BODIES = """
-- Every snapshot.
SELECT e.id, s.body, s.checksum
  FROM snapshots s
  JOIN entities e ON e.key = s.entity_key
"""
EVENTS = """
-- The events of an entity.
SELECT ms, rank, id, type, checksum, body
  FROM timeline
 WHERE entity_key = :key
"""
WRONG_SESSIONS = """
-- Entities that refer to the wrong session.
SELECT e.id
  FROM entities e
  LEFT JOIN sessions s ON s.owner = e.owner AND s.id = e.name AND e.entity_type = 'agent_session'
 WHERE e.session_key IS DISTINCT FROM s.key
"""


def observation_faults(connection: Connection) -> list[str]:
    """Return all faults of observations; reads entity by entity to limit memory use."""
    found = [
        f"the snapshot of {entity_id} is damaged; `holdfast doctor --rebuild` recreates it."
        for entity_id, body, stored in connection.query(OBSERVATION_BODIES)
        if checksum(body) != stored
    ]
    found += [
        f"{entity_id} refers to the wrong session; `holdfast doctor --rebuild` repairs it."
        for (entity_id,) in connection.query(WRONG_SESSIONS)
    ]
    for row in connection.query(ENTITIES):
        try:
            found += _of_entity(connection, known_of(row))
        except Internal as error:
            found.append(error.message)
    return found


def _of_entity(connection: Connection, known: KnownEntity) -> list[str]:
    drive(ObservationTables(connection).since(known, 1))
    try:
        for row in connection.query(EVENTS, {"key": known.key}):
            event_of(row, "an event")
    except Internal:
        return [
            f"an event of {known.entity_id} is damaged; `holdfast doctor --rebuild` recreates it."
        ]
    return []


FILES = """
-- Every file of every zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
  FROM zone_files
 ORDER BY owner, zone, name
"""
NUMBERS = """
-- The numbers of a file's parts.
SELECT DISTINCT part
  FROM zone_parts
 WHERE file_key = :file_key
 ORDER BY part
"""


def zone_faults(connection: Connection) -> list[str]:
    """Return all faults of zone files; reads part by part to limit memory use."""
    found = []
    for row in connection.query(FILES):
        try:
            found += _of_file(connection, file_of(row))
        except Internal:
            found.append(f"{row[2]} {row[3]} is damaged.")
    return found


def _of_file(connection: Connection, file: ZoneFile) -> list[str]:
    named = f"{file.zone} {file.name}"
    found: list[str] = []
    tally, size = LineCount(), 0
    for number, (part,) in enumerate(connection.query(NUMBERS, {"file_key": file.key})):
        what = f"part {part} of {named}"
        try:
            rows = connection.query(PART, {"file_key": file.key, "part": part})
            before, content = part_of(rows, what)
            if number == file.parts - 1:
                content += rest_of(connection.query(REST, {"key": file.key}), file, what)
        except Internal:
            return [*found, f"{what} is damaged."]
        is_full = len(content) == PART_SIZE or number == file.parts - 1
        if part != number or before != tally or not is_full:
            found.append(f"{what} does not follow the part before it.")
        tally, size = count_lines(tally, content), size + len(content)
    if (size, tally) != (file.size, LineCount(file.ended, file.tail)):
        found.append(f"the content of {named} does not match its size and line count.")
    return found


T = TypeVar("T")
Check = Callable[[Connection], list[str]]
SESSIONS = """
-- Keys of all sessions.
SELECT key
  FROM sessions
 ORDER BY key
"""
OWNERS = """
-- Owners with a repository.
SELECT DISTINCT owner
  FROM repos
 ORDER BY owner
"""
BODIES = """
-- Rows with a checksum of their content.
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
 UNION ALL
SELECT 'the wait of session ' || s.id, w.body, w.checksum
  FROM waits w
  JOIN sessions s ON s.key = w.session_key
 UNION ALL
SELECT 'the held turn of session ' || s.id, h.body, h.checksum
  FROM held_turns h
  JOIN sessions s ON s.key = h.session_key
 UNION ALL
SELECT 'the request to a client for call ' || r.call_id, r.body, r.checksum
  FROM client_requests r
 UNION ALL
SELECT 'worker ' || k.id, k.body, k.checksum
  FROM workers k
 UNION ALL
SELECT 'record ' || f.ordinal || ' of a framework', f.raw, f.checksum
  FROM foreign_records f
 UNION ALL
SELECT 'the parent of session ' || s.id, c.body, c.checksum
  FROM children c
  JOIN sessions s ON s.key = c.session_key
 UNION ALL
SELECT 'checkpoint ' || g.id, g.body, g.checksum
  FROM graph_checkpoints g
 UNION ALL
SELECT 'the value of channel ' || v.channel, v.content, v.checksum
  FROM graph_values v
 UNION ALL
SELECT 'element ' || i.position || ' of list ' || i.list, i.content, i.checksum
  FROM graph_items i
 UNION ALL
SELECT 'a write of task ' || w.task_id, w.content, w.checksum
  FROM graph_writes w
"""
ORPHANS = """
-- Rows without a session, in tables without a foreign key.
SELECT 'messages' WHERE EXISTS (SELECT 1 FROM messages WHERE session_key NOT IN
                                       (SELECT key FROM sessions))
 UNION ALL
SELECT 'events' WHERE EXISTS (SELECT 1 FROM stored_events WHERE session_key NOT IN
                                     (SELECT key FROM sessions))
"""
CONTENTS = """
-- Hashes of all media.
SELECT hash
  FROM media
"""
CONTENT = """
-- One media content.
SELECT content
  FROM media
 WHERE hash = :hash
"""
_ALL: Final = -1
_PAGE: Final = 1_000
# Limit on the ranges of missing numbers listed in a message.
_NAMED: Final = 8


def faults(connection: Connection) -> list[str]:
    """Return every fault as a sentence; a bad row does not hide the faults of other rows."""
    return check_rows(connection, (_pages, _references, contradictions, *ROWS))


def check_rows(connection: Connection, checks: Sequence[Check]) -> list[str]:
    """Run checks and return all their findings."""
    found = []
    # Errors are caught per check, because a failed check must not stop the others.
    for check in checks:
        try:
            found += check(connection)
        except (apsw.Error, HoldfastError) as error:
            found.append(f"The file cannot be read any further: {error}.")
    return found


def _pages(connection: Connection) -> list[str]:
    rows = connection.query("PRAGMA integrity_check(20)")
    return [f"The file is damaged: {row[0]}." for row in rows if row[0] != "ok"]


def _references(connection: Connection) -> list[str]:
    rows = connection.query("PRAGMA foreign_key_check")
    return [f"A row of {row[0]} belongs to nothing in {row[2]}." for row in rows]


def _strays(connection: Connection) -> list[str]:
    rows = connection.query(ORPHANS)
    return [f"A row of {table} belongs to nothing in sessions." for (table,) in rows]


def _bodies(connection: Connection) -> list[str]:
    rows = connection.query(BODIES)
    return [f"{what} is damaged." for what, body, stored in rows if checksum(body) != stored]


def _contents(connection: Connection) -> list[str]:
    """Return media that do not match their hash; reads one at a time to limit memory use."""
    found = []
    for (name,) in connection.query(CONTENTS):
        rows = connection.query(CONTENT, {"hash": name})
        if not rows or hashlib.sha256(rows[0][0]).digest() != name:
            found.append(f"the content sha256:{bytes(name).hex()} is damaged.")
    return found


def _repos(connection: Connection) -> list[str]:
    repos = RepoRows(connection)
    owners = [row[0] for row in connection.query(OWNERS)]
    return [fault for owner in owners for fault in _list_faults(partial(repos.all, owner))]


def _histories(connection: Connection) -> list[str]:
    return _of_each_session(connection, _session)


def missing_events(connection: Connection) -> list[str]:
    """Return unexplained gaps in the event logs; messages are not affected."""
    return _of_each_session(
        connection, lambda each, state: _list_faults(lambda: _missing_events(each, state))
    )


def _of_each_session(
    connection: Connection, check: Callable[[Connection, SessionState], list[str]]
) -> list[str]:
    found = []
    for (key,) in connection.query(SESSIONS):
        try:
            state = drive(SessionRows(connection).state_by_key(key))
        except HoldfastError as error:
            found.append(error.message)
            continue
        if state is not None:
            found += check(connection, state)
    return found


def _session(connection: Connection, state: SessionState) -> list[str]:
    return [
        *_list_faults(lambda: _settings(connection, state)),
        *_list_faults(lambda: _chain(connection, state)),
        *_list_faults(lambda: _events(connection, state)),
        *_list_faults(lambda: CallRows(connection).of_session(state)),
        *_list_faults(lambda: CostRows(connection).of_session(state)),
    ]


async def _settings(connection: Connection, state: SessionState) -> list[str]:
    """Decode the data frozen at session creation; raises if it is damaged."""
    await SessionRows(connection).get_by_key(state.key)
    return []


async def _chain(connection: Connection, state: SessionState) -> list[str]:
    """Return faults of a session's own messages that only show against its state row."""
    own = Segment(state.key, state.session_id, state.inherited + 1, state.messages)
    rows = await MessageRows(connection).span(own, limit=_ALL)
    if rows and rows[-1].chain != state.chain:
        return [f"Session {state.session_id} does not end with its last message."]
    return []


async def _events(connection: Connection, state: SessionState) -> list[str]:
    """Return the damaged events of a session."""
    events = EventRows(connection)
    found = [
        f"event {number} of session {state.session_id} is damaged."
        for number in await events.damaged(state)
    ]
    if not found:
        # Read in order as well, because only that detects duplicate numbers.
        await _gaps(events, state)
    return found


async def _missing_events(connection: Connection, state: SessionState) -> list[str]:
    """Return the missing events of a session that Holdfast did not delete."""
    events = EventRows(connection)
    # Damage is reported by another check, and the log cannot be read in order past it.
    if await events.damaged(state):
        return []
    lost = [
        gap for gap in await _gaps(events, state) if await events.missing(state, *gap) == MISSING
    ]
    if not lost:
        return []
    named = ", ".join(
        f"{first} to {last}" if last > first else f"{first}" for first, last in lost[:_NAMED]
    )
    more = f" and {len(lost) - _NAMED} more ranges" if len(lost) > _NAMED else ""
    lacking = (
        f"Session {state.session_id} lacks events that Holdfast did not remove: {named}{more}."
    )
    return [f"{lacking} Readers get a gap there; no message is affected."]


async def _gaps(events: EventRows, state: SessionState) -> list[tuple[int, int]]:
    """Read the event log of a session; return the first and last number of each gap."""
    found = []
    last = 0
    while last < state.events:
        frames = await events.after(state, last, limit=_PAGE)
        for number in [frame.sequence for frame in frames] or [state.events + 1]:
            if number > last + 1:
                found.append((last + 1, number - 1))
            last = number
    return found


def _list_faults(check: Callable[[], Coroutine[Any, Any, list[T]]]) -> list[str]:
    """Return the faults that a check returns, or the message of the error that it raises."""
    try:
        return [fault for fault in drive(check()) if isinstance(fault, str)]
    except HoldfastError as error:
        return [error.message]


# Checks on rows, independent of the database.
ROWS: Final = (_strays, _bodies, _contents, _repos, zone_faults, observation_faults, _histories)
_OTHERS: Final = 0o077
_OURS: Final = ("history.db", "key", "server.json", "token")
FILLED = """
-- Whether the store has anything that a user created.
SELECT EXISTS (SELECT 1 FROM sessions)
    OR EXISTS (SELECT 1 FROM agents)
    OR EXISTS (SELECT 1 FROM repos)
"""
OBSERVED = """
-- Whether the store has observations.
SELECT EXISTS (SELECT 1 FROM entities)
"""
OBSERVING: Final = 8


def is_filled(connection: Connection) -> bool:
    """Return whether dropping the schema would delete user data."""
    found = version(connection)
    statements = [FILLED, *([OBSERVED] if found >= OBSERVING else [])]
    return found > 0 and any(connection.query(each)[0][0] for each in statements)


def library_version() -> str:
    """Return the version of the SQLite library."""
    return apsw.sqlite_lib_version()


def open_permissions(home: Path) -> list[str]:
    """Return a sentence for the home and each Holdfast file that other users can access."""
    if not home.is_dir():
        return []
    ours = [path for path in sorted(home.iterdir()) if path.name.startswith(_OURS)]
    found = []
    for path in (home, *ours):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & _OTHERS:
            found.append(f"{path} has mode {mode:04o}: others than its owner can reach it.")
    return found


def unsuitable_file_system(home: Path) -> str | None:
    """Return the file system type of the home if a store is not safe on it."""
    kind = file_system_of(home)
    is_bad = kind is not None and (kind in UNSUITABLE or kind.startswith("fuse."))
    return kind if is_bad else None
