"""What `holdfast doctor` looks for in observed history: damaged claims, and gaps between them.

Whether what was computed from them is what it should be, only computing it again can tell.
"""

from holdfast.domain.errors import Internal
from holdfast.ports.observations import Known
from holdfast.storage.database import checksum
from holdfast.storage.entity_rows import known_of
from holdfast.storage.event_rows import event_of
from holdfast.storage.jobs import drive
from holdfast.storage.observation_sql import SELECTED
from holdfast.storage.observations import Observations
from holdfast.storage.sqlite import Connection

ENTITIES = f"""
-- Every entity.
SELECT {SELECTED}
  FROM entities e
 ORDER BY e.key
"""  # noqa: S608 — the columns are a constant of another file

BODIES = """
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

STRANGERS = """
-- Entities that are another session than they say.
SELECT e.id
  FROM entities e
  LEFT JOIN sessions s ON s.owner = e.owner AND s.id = e.name AND e.entity_type = 'agent_session'
 WHERE e.session_key IS DISTINCT FROM s.key
"""


def observation_faults(connection: Connection) -> list[str]:
    """Return every fault, one sentence each; claims are read entity by entity, for the memory."""
    found = [
        f"the snapshot of {entity_id} is damaged; `holdfast doctor --rebuild` makes it anew."
        for entity_id, body, stored in connection.query(BODIES)
        if checksum(body) != stored
    ]
    found += [
        f"{entity_id} is another session than it says; `holdfast doctor --rebuild` puts it right."
        for (entity_id,) in connection.query(STRANGERS)
    ]
    for row in connection.query(ENTITIES):
        try:
            found += _of_entity(connection, known_of(row))
        except Internal as error:
            found.append(error.message)
    return found


def _of_entity(connection: Connection, known: Known) -> list[str]:
    drive(Observations(connection).since(known, 1))
    try:
        for row in connection.query(EVENTS, {"key": known.key}):
            event_of(row, "an event")
    except Internal:
        return [
            f"an event of {known.entity_id} is damaged; `holdfast doctor --rebuild` makes it anew."
        ]
    return []
