"""Brief work runs where it is asked for; only what has to be waited for goes to a thread."""

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Invalid, Unavailable
from holdfast.domain.models import model_of
from holdfast.ports.store import Brief, Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.houses import raw
from tests.store.holding import on_a_slow_disk

pytestmark = pytest.mark.anyio


def _adding(store: SqliteStore, name: str) -> asyncio.Task[None]:
    work = Brief(lambda tx: tx.models.add(model_of(f"a:{name}")))
    return asyncio.create_task(store.write(work))


async def _names(store: SqliteStore) -> set[str]:
    return {model.name for model in await store.read(lambda tx: tx.models.all())}


async def _where(tx: Tx) -> threading.Thread:
    await tx.models.all()
    return threading.current_thread()


async def test_brief_work_runs_on_the_thread_that_asks(store: SqliteStore) -> None:
    here = threading.current_thread()

    assert await store.write(Brief(_where)) is here
    assert await store.read(Brief(_where)) is here
    assert await store.write(_where) is not here
    assert await store.read(_where) is not here


async def test_the_loop_runs_on_while_the_disk_is_waited_for(file: Path) -> None:
    async with on_a_slow_disk(file) as (store, disk):
        waiting = _adding(store, "one")
        await disk.is_reached()
        # Read past the commit that is on its way, and not from what it has not brought to disk.
        seen = await store.read(Brief(lambda tx: tx.models.all()))
        assert (waiting.done(), seen) == (False, [])
        disk.arrive()
        await waiting


async def test_the_loop_runs_on_while_another_process_writes(
    store: SqliteStore, home: Path
) -> None:
    with raw(home) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = _adding(store, "one")
        for _ in range(10):
            await asyncio.sleep(0)
        seen = await store.read(Brief(lambda tx: tx.models.all()))
        assert (waiting.done(), seen) == (False, [])
        other.execute("COMMIT")

    await waiting
    assert await _names(store) == {"one"}


async def test_brief_work_that_is_refused_in_its_middle_takes_nothing_else_with_it(
    store: SqliteStore,
) -> None:
    async def refuse(tx: Tx) -> None:
        await tx.models.add(model_of("a:refused"))
        raise Invalid(Code.INVALID_INPUT, "no")

    before = _adding(store, "before")
    refused = asyncio.create_task(store.write(Brief(refuse)))
    after = _adding(store, "after")

    await asyncio.gather(before, after)
    with pytest.raises(Invalid, match="no"):
        await refused
    assert await _names(store) == {"before", "after"}


async def test_brief_work_that_was_meant_to_read_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(Unavailable) as caught:
        await store.read(Brief(lambda tx: tx.models.add(model_of("a:stray"))))

    assert caught.value.code is Code.STORE_UNWRITABLE
    assert await _names(store) == set()


@pytest.mark.parametrize("is_refused", [False, True])
async def test_brief_work_that_reads_twice_sees_one_state(
    store: SqliteStore, home: Path, is_refused: bool
) -> None:
    await _adding(store, "one")
    seen: list[tuple[int, int]] = []

    async def look(tx: Tx) -> tuple[int, int]:
        first = len(await tx.models.all())
        if not seen:
            with raw(home) as other:
                other.execute("DELETE FROM models")
        seen.append((first, len(await tx.models.all())))
        if is_refused and first != seen[-1][1]:
            raise Invalid(Code.INVALID_INPUT, "two states")
        return seen[-1]

    assert await store.read(Brief(look)) == (0, 0)
    assert seen == [(1, 0), (0, 0)]


async def test_brief_work_of_a_loop_that_is_gone_is_in_nobodys_way(store: SqliteStore) -> None:
    def abandon() -> None:
        loop = asyncio.new_event_loop()
        work = Brief(lambda tx: tx.models.add(model_of("a:abandoned")))
        task = loop.create_task(store.write(work))
        # One round: it has asked for the connection, and is gone before it could use it.
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        # It will never be told, and that is not worth a word of the collector.
        task._log_destroy_pending = False

    await asyncio.to_thread(abandon)

    await _adding(store, "two")
    assert "two" in await _names(store)
