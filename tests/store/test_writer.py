"""One writer that commits in groups: each caller gets its own fate, and only after the commit."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Internal, Invalid, Unavailable
from holdfast.domain.models import Model, model_of
from holdfast.ports.store import Brief, Tx
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import an_agent
from tests.houses import raw
from tests.store.conftest import KEY
from tests.store.faulty_vfs import DISK, VFS
from tests.store.holding import held, on_a_slow_disk

pytestmark = pytest.mark.anyio


def _adding(store: SqliteStore, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(store.write(lambda tx: tx.models.add(model_of(f"a:{name}"))))


async def _names(store: SqliteStore) -> set[str]:
    return {model.name for model in await store.read(lambda tx: tx.models.all())}


async def test_work_that_is_refused_takes_nothing_else_with_it(store: SqliteStore) -> None:
    async def refuse(tx: Tx) -> None:
        await tx.models.add(model_of("a:refused"))
        raise Invalid(Code.INVALID_INPUT, "no")

    async with held(store):
        before = _adding(store, "before")
        refused = asyncio.create_task(store.write(refuse))
        after = _adding(store, "after")

    await asyncio.gather(before, after)
    with pytest.raises(Invalid, match="no"):
        await refused
    assert await _names(store) == {"before", "after"}


async def test_a_statement_that_breaks_a_constraint_fails_alone(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(tx: Tx) -> None:
        await tx.agents.add(an_agent())
        await tx.agents.add(an_agent())

    async with held(store):
        broken = asyncio.create_task(store.write(twice))
        sound = _adding(store, "sound")

    with pytest.raises(Internal) as caught:
        await broken
    await sound
    assert caught.value.code is Code.INTERNAL
    assert caplog.messages == ["a statement violated a constraint"]
    found = await store.read(lambda tx: tx.agents.by_slug(an_agent().owner, "helper"))
    assert (found, await _names(store)) == (None, {"sound"})


async def test_a_hundred_callers_share_one_sync(file: Path) -> None:
    store = SqliteStore(file, KEY, vfs=VFS)
    try:
        async with held(store):
            waiting = [_adding(store, str(number)) for number in range(100)]
            synced = DISK.asked["sync", "history.db-wal"]
        await asyncio.gather(*waiting)
        assert DISK.asked["sync", "history.db-wal"] - synced <= 2
        assert len(await _names(store)) == 100
    finally:
        await store.close()


async def test_nobody_is_told_before_the_commit_is_on_disk(file: Path) -> None:
    async with on_a_slow_disk(file) as (store, disk):
        waiting = _adding(store, "one")
        await disk.is_reached()
        await asyncio.sleep(0)
        assert not waiting.done()
        disk.arrive()
        await waiting


async def test_who_stopped_waiting_before_the_work_began_is_spared_it(store: SqliteStore) -> None:
    async with held(store):
        cancelled = _adding(store, "cancelled")
        kept = _adding(store, "kept")
        await asyncio.sleep(0)
        cancelled.cancel()

    await kept
    assert cancelled.cancelled()
    assert await _names(store) == {"kept"}


async def test_who_comes_when_all_others_have_stopped_waiting_is_served(
    store: SqliteStore,
) -> None:
    for number in range(20):
        gone = asyncio.create_task(store.write(Brief(_one(f"gone{number}"))))
        await asyncio.sleep(0)
        gone.cancel()
        # As a task: it comes right after the group without anybody in it was taken.
        await asyncio.create_task(store.write(Brief(_one(f"here{number}"))))

    assert await _names(store) == {f"here{number}" for number in range(20)}


def _one(name: str) -> Callable[[Tx], Coroutine[Any, Any, None]]:
    return lambda tx: tx.models.add(model_of(f"a:{name}"))


async def test_who_stops_waiting_in_mid_work_leaves_it_written(store: SqliteStore) -> None:
    async with held(store):
        cancelled = _adding(store, "one")
        await asyncio.sleep(0)
        done = asyncio.Event()

        async def cancel_in_the_middle(tx: Tx) -> None:
            # This runs on the writer's thread, after the group was formed.
            loop.call_soon_threadsafe(lambda: (cancelled.cancel(), done.set()))

        loop = asyncio.get_running_loop()
        last = asyncio.create_task(store.write(cancel_in_the_middle))

    await done.wait()
    await asyncio.wait([last, cancelled])
    assert await _names(store) == {"one"}
    await _adding(store, "two")


async def test_work_may_await_nothing_but_its_transaction(store: SqliteStore) -> None:
    async def stray(tx: Tx) -> None:
        await tx.models.add(model_of("a:stray"))
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaited something other"):
        await store.write(stray)
    with pytest.raises(RuntimeError, match="awaited something other"):
        await store.read(lambda tx: asyncio.sleep(0))

    assert await _names(store) == set()
    await _adding(store, "one")


async def test_work_that_was_meant_to_read_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(Unavailable) as caught:
        await store.read(lambda tx: tx.models.add(model_of("a:stray")))

    assert caught.value.code is Code.STORE_UNWRITABLE
    assert await _names(store) == set()


async def test_work_returns_what_it_returns(store: SqliteStore) -> None:
    async def work(tx: Tx) -> list[Model]:
        await tx.models.add(model_of("a:one"))
        return await tx.models.all()

    assert await store.write(work) == [model_of("a:one")]


async def test_callers_on_other_loops_are_told_on_theirs(store: SqliteStore) -> None:
    def elsewhere(name: str) -> None:
        async def add() -> None:
            await store.write(lambda tx: tx.models.add(model_of(f"a:{name}")))

        asyncio.run(add())

    await asyncio.gather(*(asyncio.to_thread(elsewhere, f"{n}") for n in range(4)))

    assert len(await _names(store)) == 4


async def test_a_loop_that_is_gone_is_told_nothing(store: SqliteStore) -> None:
    async with held(store):

        def abandon() -> None:
            loop = asyncio.new_event_loop()
            task = loop.create_task(store.write(lambda tx: tx.models.add(model_of("a:one"))))
            loop.run_until_complete(asyncio.wait([task], timeout=0.01))
            task.add_done_callback(lambda _: None)
            abandoned.append(task)
            loop.close()

        abandoned: list[asyncio.Task[None]] = []
        await asyncio.to_thread(abandon)

    await _adding(store, "two")
    assert await _names(store) == {"one", "two"}


async def test_who_comes_behind_a_loop_that_is_gone_is_served(store: SqliteStore) -> None:
    async def ask_and_leave() -> None:
        asyncio.create_task(store.write(_one("gone")))  # noqa: RUF006 — it is left alone
        await asyncio.sleep(0)

    async with held(store):
        await asyncio.to_thread(lambda: asyncio.run(ask_and_leave()))
        behind = asyncio.create_task(store.write(_one("behind")))

    async with asyncio.timeout(10):
        await behind
    assert await _names(store) == {"behind"}


async def test_what_was_submitted_is_finished_before_the_store_closes(file: Path) -> None:
    store = SqliteStore(file, KEY)
    waiting = [_adding(store, str(number)) for number in range(20)]
    await asyncio.sleep(0)

    await store.close()
    await asyncio.gather(*waiting)

    again = SqliteStore(file, KEY)
    assert len(await _names(again)) == 20
    await again.close()


async def test_a_closed_store_does_nothing_more_and_may_be_closed_again(file: Path) -> None:
    store = SqliteStore(file, KEY)
    await store.close()
    await store.close()

    for verb in (
        lambda: store.write(lambda tx: tx.models.all()),
        lambda: store.read(lambda tx: tx.models.all()),
        store.version,
        store.check,
        store.scrub,
    ):
        with pytest.raises(Unavailable) as caught:
            await verb()
        assert caught.value.code is Code.STORE_CLOSED


async def test_readers_see_one_instant_and_keep_nobody_from_writing(store: SqliteStore) -> None:
    reading, written = threading.Event(), threading.Event()

    async def look_twice(tx: Tx) -> tuple[int, int]:
        before = len(await tx.models.all())
        reading.set()
        written.wait()
        return before, len(await tx.models.all())

    looking = asyncio.create_task(store.read(look_twice))
    await asyncio.to_thread(reading.wait)
    await _adding(store, "one")
    written.set()

    assert await looking == (0, 0)
    assert await _names(store) == {"one"}


async def test_more_readers_than_places_wait_for_their_turn(store: SqliteStore) -> None:
    await _adding(store, "one")

    found = await asyncio.gather(*(_names(store) for _ in range(50)))

    assert found == [{"one"}] * 50


async def test_removed_rows_leave_the_log_once_no_reader_is_in_the_way(
    store: SqliteStore, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await _adding(store, "one")
    log = file.with_name("history.db-wal")
    assert log.stat().st_size > 0

    with caplog.at_level(logging.WARNING):
        assert await store.scrub()

    assert log.stat().st_size == 0
    assert await _names(store) == {"one"}


async def test_a_reader_in_the_way_puts_the_scrub_off(store: SqliteStore, home: Path) -> None:
    await _adding(store, "one")
    with raw(home) as connection:
        connection.execute("BEGIN; SELECT count(*) FROM models").fetchall()
        await _adding(store, "two")

        assert not await store.scrub()
        assert not store.is_scrubbed

    assert await store.scrub()
    assert store.is_scrubbed
