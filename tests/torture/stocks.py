"""A store of any size, made quickly: one session lived for real, and as many copies as it takes.

A row's hash does not know whose row it is, so copied rows are as sound as the first ones.
"""

import random
from pathlib import Path

import apsw
from msgspec.structs import replace

from holdfast import Holdfast, Session, SessionId, open_holdfast
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.sqlite.connection import set_key
from tests.torture.clients.house import new_id, settings
from tests.torture.notebooks import key_beside
from tests.torture.recovery import recovered

BATCH = 500

MESSAGES = """
INSERT INTO messages
SELECT s.key << 32 | m.sequence, m.id, m.turn, m.role, m.model_id, m.created_at, m.hash, m.event,
       m.event_checksum, m.parts
  FROM sessions s
  JOIN messages m ON m.session_key = :template
 WHERE s.key BETWEEN :first AND :last
 ORDER BY s.key, m.sequence
"""

EVENTS = """
INSERT INTO events
SELECT s.key << 32 | e.sequence, e.turn, e.at, e.name, e.ids, e.payload, e.checksum
  FROM sessions s
  JOIN events e ON e.session_key = :template
 WHERE s.key BETWEEN :first AND :last
 ORDER BY s.key, e.sequence
"""


async def stock(
    home: Path, luck: random.Random, *, sessions: int, messages: int, words: int = 10
) -> list[str]:
    """Fill a home with so many sessions of so many messages each; return their ids."""
    template = new_id(luck)
    async with open_holdfast(config=settings(home)) as house:
        await house.open(id=template)
        await house.send(SessionId(template), f"tardy {template}")
        for number in range(messages - 3):
            await house.send(SessionId(template), f"message {number} " + "words " * words)
    await recovered(home)
    ids = [new_id(luck) for _ in range(sessions - 1)]
    async with open_holdfast(config=settings(home)) as house:
        for start in range(0, len(ids), BATCH):
            await _add_copies(house, template, ids[start : start + BATCH])
    _copy_rows(home, template)
    return [template, *ids]


async def _add_copies(house: Holdfast, template: str, ids: list[str]) -> None:
    async def work(tx: Tx) -> None:
        found = await tx.sessions.get(house.owner, SessionId(template))
        assert found is not None
        session, head = found
        for number in ids:
            await tx.sessions.add(*_copy(session, head, SessionId(number)), b"")

    await house.store.write(work)


def _copy(session: Session, head: SessionState, number: SessionId) -> tuple[Session, SessionState]:
    return replace(session, id=number), replace(head, session_id=number)


def _copy_rows(home: Path, template: str) -> None:
    connection = apsw.Connection(str(home / "history.db"))
    try:
        key = key_beside(home)
        if key is not None:
            set_key(connection, key)
        connection.pragma("synchronous", "OFF")
        first, last = connection.execute("SELECT min(key) + 1, max(key) FROM sessions").get
        own = connection.execute("SELECT key FROM sessions WHERE id = ?", (template,)).get
        for start in range(first, last + 1, BATCH):
            batch = {"template": own, "first": start, "last": min(start + BATCH - 1, last)}
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(MESSAGES, batch)
            connection.execute(EVENTS, batch)
            connection.execute(EVENTS.replace("events", "deltas"), batch)
            connection.execute("COMMIT")
    finally:
        connection.close()
