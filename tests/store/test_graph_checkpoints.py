"""Checkpoints of graphs in the store: lists by element, writes, copies, and what is swept away."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.graph_checkpoints import (
    LIST,
    GraphCheckpoint,
    GraphWrite,
    ListRef,
    Typed,
)
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import a_head, a_session, an_id

pytestmark = pytest.mark.anyio


def items_of(*texts: object) -> list[Typed]:
    return [("json", str(text).encode()) for text in texts]


def checkpoint(id_: str, **more: Any) -> GraphCheckpoint:
    return GraphCheckpoint(namespace="", id=id_, parent_id=None, body=id_.encode(), **more)


async def test_lists_are_read_as_they_were_stored(store: SqliteStore, head: SessionState) -> None:
    chance = random.Random(7)
    versions: list[tuple[ListRef, list[Typed]]] = []

    async def work(tx: Tx) -> list[tuple[list[Typed], list[Typed]]]:
        for number in range(150):
            older = chance.choice(versions) if versions and chance.random() < 0.9 else None
            before = older[1] if older else []
            kept = before[: chance.randint(0, len(before))] if chance.random() < 0.4 else before
            items = [*kept, *items_of(*([number] * chance.randint(1, 3)))]
            versions.append((await tx.graphs.set_list(head.key, items, older, number), items))
        return [(await tx.graphs.items(head.key, ref), items) for ref, items in versions]

    found = await store.write(work)

    assert all(one == other for one, other in found)
    assert max(ref.depth for ref, _ in versions) > 2


async def test_a_list_is_written_whole_when_it_would_continue_too_many(
    store: SqliteStore, head: SessionState
) -> None:
    async def work(tx: Tx) -> list[int]:
        older: tuple[ListRef, list[Typed]] | None = None
        depths = []
        for number in range(11):
            items = [*items_of(1, 2, 3), *items_of(f"edit {number}")]
            older = await tx.graphs.set_list(head.key, items, older, number), items
            depths.append(older[0].depth)
        return depths

    assert await store.write(work) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]


async def test_a_longer_list_stores_only_what_is_new(
    store: SqliteStore, head: SessionState
) -> None:
    first = items_of(1, 2, 3)

    async def work(tx: Tx) -> tuple[ListRef, ListRef, ListRef]:
        one = await tx.graphs.set_list(head.key, first, None, 10)
        two = await tx.graphs.set_list(head.key, [*first, *items_of(4)], (one, first), 11)
        # Another branch of the first version: the place after its end is taken.
        three = await tx.graphs.set_list(head.key, [*first, *items_of(5)], (one, first), 12)
        return one, two, three

    assert await store.write(work) == (ListRef(10, 3), ListRef(10, 4), ListRef(12, 4, 1))


async def test_the_first_write_stays_unless_it_is_a_special_one(
    store: SqliteStore, head: SessionState
) -> None:
    writes = [
        GraphWrite(task_id="t", number=number, channel="c", value=("json", b"1"), task_path="b")
        for number in (0, -1)
    ]
    later = [replace(write, value=("json", b"2"), task_path="a") for write in writes]

    async def work(tx: Tx) -> list[GraphWrite]:
        await tx.graphs.write(head.key, "", "1", writes)
        await tx.graphs.write(head.key, "", "1", later)
        return await tx.graphs.writes(head.key, "", "1")

    assert await store.write(work) == [later[1], writes[0]]


async def test_hidden_checkpoints_are_not_the_newest(
    store: SqliteStore, head: SessionState
) -> None:
    async def work(tx: Tx) -> list[Any]:
        for each in (checkpoint("1", run_id="r"), checkpoint("2"), checkpoint("3")):
            await tx.graphs.save(head.key, each)
        await tx.graphs.hide(head.key, checkpoint("3"))
        await tx.graphs.remove(head.key, checkpoint("2"))
        return [
            await tx.graphs.newest(head.key, ""),
            await tx.graphs.one(head.key, "", "3"),
            await tx.graphs.one(head.key, "", "2"),
            [row.id for row in await tx.graphs.all(head.key)],
        ]

    hidden = replace(checkpoint("3"), hidden=True)
    assert await store.write(work) == [checkpoint("1"), hidden, None, ["3", "1"]]


async def test_what_no_checkpoint_uses_is_swept_and_a_copy_keeps_it(
    store: SqliteStore, head: SessionState
) -> None:
    first, other = items_of(1, 2, 3), items_of(1, 2, 9)

    async def keep(tx: Tx, version: str, ref: ListRef) -> None:
        content = f"[{ref.list},{ref.length},{ref.depth}]".encode()
        await tx.graphs.set_value(head.key, "", "c", version, (LIST, content))

    async def work(tx: Tx) -> list[Any]:
        target = await tx.sessions.add(
            replace(a_session(), id=an_id(77)), replace(a_head(), session_id=an_id(77)), b"digest"
        )
        one = await tx.graphs.set_list(head.key, first, None, 10)
        two = await tx.graphs.set_list(head.key, other, (one, first), 11)
        three = await tx.graphs.set_list(head.key, items_of(7, 8), None, 12)
        for version, ref in (("1", one), ("2", two), ("3", three)):
            await keep(tx, version, ref)
        await tx.graphs.copy(head.key, target.key)
        await tx.graphs.sweep(head.key, {("", "c", "2")})
        return [
            await tx.graphs.versions(head.key),
            await tx.graphs.items(head.key, two),
            await tx.graphs.items(head.key, three),
            len(await tx.graphs.versions(target.key)),
            await tx.graphs.items(target.key, three),
        ]

    assert await store.write(work) == [{("", "c", "2")}, other, [], 3, items_of(7, 8)]
