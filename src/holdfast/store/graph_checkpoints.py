"""The `graph_*` tables: checkpoints of graphs, their values and what their tasks have written.

A value that is a list is stored by element, so that a version that only adds to the one before
costs what it adds. What a kind means only the framework's serializer knows, except `LIST`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.store.database import Database, Row, checksum, format_id, require_sound

# The kind of a value whose content is a `ListRef`.
LIST: Final = ":list"
# How many lists may continue one another before one is written whole.
_DEEPEST: Final = 8
Typed = tuple[str, bytes]

SAVE = """
-- A checkpoint, in place of one with the same id.
INSERT INTO graph_checkpoints
       (session_key, namespace, id, parent_id, run_id, hidden, body, checksum)
VALUES (:session_key, :namespace, :id, :parent_id, :run_id, 0, :body, :checksum)
ON CONFLICT (session_key, namespace, id)
DO UPDATE SET parent_id = excluded.parent_id, run_id = excluded.run_id, hidden = 0,
              body = excluded.body, checksum = excluded.checksum
"""
ONE = """
-- A checkpoint of a session.
SELECT namespace, id, parent_id, hidden, body, checksum
  FROM graph_checkpoints
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND id = :id
"""
NEWEST = """
-- The newest checkpoint of a namespace.
SELECT namespace, id, parent_id, hidden, body, checksum
  FROM graph_checkpoints
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND hidden = 0
 ORDER BY id DESC
 LIMIT 1
"""
ALL = """
-- The checkpoints of a session, the newest first.
SELECT namespace, id, parent_id, hidden, body, checksum
  FROM graph_checkpoints
 WHERE session_key = :session_key
 ORDER BY id DESC, namespace
"""
OF_RUN = """
-- The checkpoints of an owner that a run has made.
SELECT s.id, g.namespace, g.id
  FROM graph_checkpoints g
  JOIN sessions s ON s.key = g.session_key
  JOIN foreign_sessions f ON f.session_key = g.session_key
 WHERE g.run_id = :run_id
   AND g.hidden = 0
   AND f.owner = :owner
"""
HIDE = """
-- A checkpoint is not shown any more; others are read with it.
UPDATE graph_checkpoints
   SET hidden = 1
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND id = :id
"""
REMOVE = """
-- A checkpoint is not needed any more.
DELETE FROM graph_checkpoints
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND id = :id
"""
REMOVE_WRITES = """
-- What the tasks of a checkpoint have written.
DELETE FROM graph_writes
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND checkpoint_id = :id
"""
SET_VALUE = """
-- A version of a channel.
INSERT INTO graph_values (session_key, namespace, channel, version, kind, content, checksum)
VALUES (:session_key, :namespace, :channel, :version, :kind, :content, :checksum)
ON CONFLICT (session_key, namespace, channel, version)
DO UPDATE SET kind = excluded.kind, content = excluded.content, checksum = excluded.checksum
"""
VALUE = """
-- A version of a channel.
SELECT kind, content, checksum
  FROM graph_values
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND channel = :channel
   AND version = :version
"""
VALUES = """
-- All versions of all channels.
SELECT namespace, channel, version
  FROM graph_values
 WHERE session_key = :session_key
"""
REMOVE_VALUE = """
-- A version that no checkpoint has any more.
DELETE FROM graph_values
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND channel = :channel
   AND version = :version
"""
LISTS = """
-- The numbers of the lists.
SELECT DISTINCT list
  FROM graph_items
 WHERE session_key = :session_key
"""
LENGTH = """
-- The position after the last element of a list.
SELECT coalesce(max(position), -1) + 1
  FROM graph_items
 WHERE session_key = :session_key
   AND list = :list
"""
ADD_ITEM = """
-- An element of a list.
INSERT INTO graph_items (session_key, list, position, kind, content, checksum)
VALUES (:session_key, :list, :position, :kind, :content, :checksum)
"""
ITEMS = """
-- The elements of a list before a position, and the list that it continues.
SELECT position, kind, content, checksum
  FROM graph_items
 WHERE session_key = :session_key
   AND list = :list
   AND position < :before
 ORDER BY position
"""
REMOVE_LIST = """
-- A list that no version is in any more.
DELETE FROM graph_items
 WHERE session_key = :session_key
   AND list = :list
"""
WRITE_ONCE = """
-- A write of a task; the first one of its number stays.
INSERT INTO graph_writes
       (session_key, namespace, checkpoint_id, task_id, number, task_path, channel, kind, content,
        checksum)
VALUES (:session_key, :namespace, :checkpoint_id, :task_id, :number, :task_path, :channel, :kind,
        :content, :checksum)
ON CONFLICT (session_key, namespace, checkpoint_id, task_id, number) DO NOTHING
"""
WRITE_AGAIN = """
-- A write of a task; the last one of its number stays.
INSERT INTO graph_writes
       (session_key, namespace, checkpoint_id, task_id, number, task_path, channel, kind, content,
        checksum)
VALUES (:session_key, :namespace, :checkpoint_id, :task_id, :number, :task_path, :channel, :kind,
        :content, :checksum)
ON CONFLICT (session_key, namespace, checkpoint_id, task_id, number)
DO UPDATE SET task_path = excluded.task_path, channel = excluded.channel, kind = excluded.kind,
              content = excluded.content, checksum = excluded.checksum
"""
WRITES = """
-- What the tasks of a checkpoint have written, in the order in which a run applies it.
SELECT task_id, number, task_path, channel, kind, content, checksum
  FROM graph_writes
 WHERE session_key = :session_key
   AND namespace = :namespace
   AND checkpoint_id = :id
 ORDER BY task_path, task_id, number
"""
COPY_CHECKPOINTS = """
-- The checkpoints of one session become another's, too.
INSERT INTO graph_checkpoints
       (session_key, namespace, id, parent_id, run_id, hidden, body, checksum)
SELECT CAST(:target AS BIGINT), namespace, id, parent_id, run_id, hidden, body, checksum
  FROM graph_checkpoints
 WHERE session_key = :source
"""
COPY_VALUES = """
-- Values, in the same way.
INSERT INTO graph_values
       (session_key, namespace, channel, version, kind, content, checksum)
SELECT CAST(:target AS BIGINT), namespace, channel, version, kind, content, checksum
  FROM graph_values
 WHERE session_key = :source
"""
COPY_ITEMS = """
-- Elements of lists, in the same way.
INSERT INTO graph_items
       (session_key, list, position, kind, content, checksum)
SELECT CAST(:target AS BIGINT), list, position, kind, content, checksum
  FROM graph_items
 WHERE session_key = :source
"""
COPY_WRITES = """
-- Writes of tasks, in the same way.
INSERT INTO graph_writes
       (session_key, namespace, checkpoint_id, task_id, number, task_path, channel, kind, content,
        checksum)
SELECT CAST(:target AS BIGINT), namespace, checkpoint_id, task_id, number, task_path, channel,
       kind, content, checksum
  FROM graph_writes
 WHERE session_key = :source
"""
COPY: Final = (COPY_CHECKPOINTS, COPY_VALUES, COPY_ITEMS, COPY_WRITES)


class GraphCheckpoint(Struct, frozen=True, kw_only=True):
    """A checkpoint; `body` is what the framework's module makes of it."""

    namespace: str
    id: str
    parent_id: str | None
    body: bytes
    hidden: bool = False
    run_id: str | None = None


class GraphWrite(Struct, frozen=True, kw_only=True):
    """A value that a task has written to a channel; a negative number is overwritten."""

    task_id: str
    number: int
    channel: str
    value: Typed
    task_path: str = ""


class ListRef(Struct, frozen=True, array_like=True):
    """The first elements of a list; `depth` counts the lists that it continues."""

    list: int
    length: int
    depth: int = 0


_decode_ref: Final = msgspec.json.Decoder(ListRef).decode
_encode_ref: Final = msgspec.json.Encoder().encode


class GraphRows:
    """Checkpoints of graphs in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, checkpoint: GraphCheckpoint) -> None:
        row = {
            "session_key": key,
            "namespace": checkpoint.namespace,
            "id": checkpoint.id,
            "parent_id": checkpoint.parent_id,
            "run_id": checkpoint.run_id,
            "body": checkpoint.body,
            "checksum": checksum(checkpoint.body),
        }
        await self._db.execute(SAVE, row)

    async def one(self, key: SessionKey, namespace: str, id_: str) -> GraphCheckpoint | None:
        rows = await self._db.fetch(ONE, _place(key, namespace, id_))
        return _checkpoint(rows[0]) if rows else None

    async def newest(self, key: SessionKey, namespace: str) -> GraphCheckpoint | None:
        rows = await self._db.fetch(NEWEST, {"session_key": key, "namespace": namespace})
        return _checkpoint(rows[0]) if rows else None

    async def all(self, key: SessionKey) -> list[GraphCheckpoint]:
        return [_checkpoint(row) for row in await self._db.fetch(ALL, {"session_key": key})]

    async def of_run(self, owner: Owner, run_id: str) -> list[tuple[SessionId, str, str]]:
        rows = await self._db.fetch(OF_RUN, {"owner": owner, "run_id": run_id})
        return [(SessionId(format_id(found)), namespace, id_) for found, namespace, id_ in rows]

    async def hide(self, key: SessionKey, checkpoint: GraphCheckpoint) -> None:
        await self._db.execute(HIDE, _place(key, checkpoint.namespace, checkpoint.id))

    async def remove(self, key: SessionKey, checkpoint: GraphCheckpoint) -> None:
        place = _place(key, checkpoint.namespace, checkpoint.id)
        await self._db.execute(REMOVE, place)
        await self._db.execute(REMOVE_WRITES, place)

    async def copy(self, source: SessionKey, target: SessionKey) -> None:
        for statement in COPY:
            await self._db.execute(statement, {"source": source, "target": target})

    async def set_value(
        self, key: SessionKey, namespace: str, channel: str, version: str, value: Typed
    ) -> None:
        row = _version(key, namespace, channel, version) | _content(value)
        await self._db.execute(SET_VALUE, row)

    async def value(
        self, key: SessionKey, namespace: str, channel: str, version: str
    ) -> Typed | ListRef | None:
        """Return a version of a channel; a list as the reference to its elements."""
        rows = await self._db.fetch(VALUE, _version(key, namespace, channel, version))
        if not rows:
            return None
        kind, content, stored = rows[0]
        require_sound(stored, content, what=f"the value of channel {channel}")
        return _decode_ref(content) if kind == LIST else (kind, content)

    async def versions(self, key: SessionKey) -> set[tuple[str, str, str]]:
        """Return the namespace, the channel and the version of every value."""
        rows = await self._db.fetch(VALUES, {"session_key": key})
        return {(namespace, channel, version) for namespace, channel, version in rows}

    async def items(self, key: SessionKey, ref: ListRef) -> list[Typed]:
        """Return the elements of a list."""
        asked = {"session_key": key, "list": ref.list, "before": ref.length}
        found: list[Typed] = []
        for position, kind, content, stored in await self._db.fetch(ITEMS, asked):
            require_sound(stored, content, what=f"the list {ref.list}")
            if position < 0:
                found += await self.items(key, _decode_ref(content))
            else:
                found.append((kind, content))
        # The list that it continues may go on after its end.
        return found[: ref.length]

    async def set_list(
        self,
        key: SessionKey,
        items: Sequence[Typed],
        older: tuple[ListRef, Sequence[Typed]] | None,
        number: int,
    ) -> ListRef:
        """Store a list, as a continuation of an `older` one with these elements if it is one.

        A new list gets the `number`, which must never have been one.
        """
        before, known = older or (None, ())
        common = _common(items, known)
        if before is not None and common == before.length == await self._length(key, before.list):
            await self._add(key, before.list, common, items[common:])
            return ListRef(before.list, len(items), before.depth)
        if before is None or common * 2 < len(items) or before.depth >= _DEEPEST:
            await self._add(key, number, 0, items)
            return ListRef(number, len(items))
        base = _encode_ref(ListRef(before.list, common, before.depth))
        await self._add(key, number, -1, [(LIST, base)])
        await self._add(key, number, common, items[common:])
        return ListRef(number, len(items), before.depth + 1)

    async def _length(self, key: SessionKey, number: int) -> int:
        rows = await self._db.fetch(LENGTH, {"session_key": key, "list": number})
        return int(rows[0][0])

    async def _add(self, key: SessionKey, number: int, first: int, items: Iterable[Typed]) -> None:
        rows = [
            {"session_key": key, "list": number, "position": position, **_content(item)}
            for position, item in enumerate(items, first)
        ]
        await self._db.execute_many(ADD_ITEM, rows)

    async def write(
        self, key: SessionKey, namespace: str, checkpoint_id: str, writes: Iterable[GraphWrite]
    ) -> None:
        """Store what a task has written, also for a checkpoint that is not stored yet."""
        place = {"session_key": key, "namespace": namespace, "checkpoint_id": checkpoint_id}
        for write in writes:
            row = {
                **place,
                "task_id": write.task_id,
                "number": write.number,
                "task_path": write.task_path,
                "channel": write.channel,
                **_content(write.value),
            }
            await self._db.execute(WRITE_AGAIN if write.number < 0 else WRITE_ONCE, row)

    async def writes(self, key: SessionKey, namespace: str, id_: str) -> list[GraphWrite]:
        found = []
        for row in await self._db.fetch(WRITES, _place(key, namespace, id_)):
            task_id, number, task_path, channel, kind, content, stored = row
            require_sound(stored, content, what=f"a write of task {task_id}")
            found.append(
                GraphWrite(
                    task_id=task_id,
                    number=number,
                    channel=channel,
                    value=(kind, content),
                    task_path=task_path,
                )
            )
        return found

    async def sweep(self, key: SessionKey, used: set[tuple[str, str, str]]) -> None:
        """Remove the values that are not `used`, by namespace, channel and version."""
        kept: set[int] = set()
        gone = await self.versions(key) - used
        for namespace, channel, version in used:
            value = await self.value(key, namespace, channel, version)
            if isinstance(value, ListRef):
                await self._reach(key, value, kept)
        await self._db.execute_many(REMOVE_VALUE, [_version(key, *each) for each in gone])
        lists = [number for (number,) in await self._db.fetch(LISTS, {"session_key": key})]
        rows = [{"session_key": key, "list": each} for each in lists if each not in kept]
        await self._db.execute_many(REMOVE_LIST, rows)

    async def _reach(self, key: SessionKey, ref: ListRef, kept: set[int]) -> None:
        if ref.list in kept:
            return
        kept.add(ref.list)
        rows = await self._db.fetch(ITEMS, {"session_key": key, "list": ref.list, "before": 0})
        for _, _, content, _ in rows:
            await self._reach(key, _decode_ref(content), kept)


def _common(items: Sequence[Typed], known: Sequence[Typed]) -> int:
    for position, (one, other) in enumerate(zip(items, known, strict=False)):
        if one != other:
            return position
    return min(len(items), len(known))


def _place(key: SessionKey, namespace: str, id_: str) -> dict[str, object]:
    return {"session_key": key, "namespace": namespace, "id": id_}


def _version(key: SessionKey, namespace: str, channel: str, version: str) -> dict[str, object]:
    place = {"session_key": key, "namespace": namespace}
    return {**place, "channel": channel, "version": version}


def _content(value: Typed) -> dict[str, object]:
    kind, content = value
    return {"kind": kind, "content": content, "checksum": checksum(content)}


def _checkpoint(row: Row) -> GraphCheckpoint:
    namespace, id_, parent_id, hidden, body, stored = row
    require_sound(stored, body, what=f"the checkpoint {id_}")
    return GraphCheckpoint(
        namespace=namespace, id=id_, parent_id=parent_id, body=body, hidden=bool(hidden)
    )
