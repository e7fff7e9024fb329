"""Memory or threads run out: the store refuses, forgets nobody who waits, and works again."""

import asyncio
import builtins
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.models import model_of
from holdfast.ports.store import Brief
from holdfast.store.sqlite import jobs as sqlite_jobs
from holdfast.store.sqlite.jobs import Answer
from holdfast.store.sqlite.reader import READERS
from holdfast.store.sqlite.store import SqliteStore
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio


async def _names(store: SqliteStore) -> set[str]:
    return {model.name for model in await store.read(lambda tx: tx.models.all())}


def _starving(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return the function, which at first finds no memory so many times."""
    left = [times]

    def starved(*given: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return function(*given)

    return starved


@pytest.mark.parametrize("name", ["islice", "all"])
@pytest.mark.parametrize("is_brief", [False, True])
async def test_a_writer_without_memory_forgets_nobody_who_waits(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, name: str, is_brief: bool
) -> None:
    function = getattr(builtins, name, islice)
    monkeypatch.setattr(
        f"holdfast.store.sqlite.writer.{name}", _starving(function, 3), raising=False
    )
    loop = asyncio.get_running_loop()
    # What the loop is told of is the lack of memory, and nothing but it.
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))

    async with asyncio.timeout(30):
        for number in range(3):
            add = _adding(f"{number}")
            await store.write(Brief(add) if is_brief else add)

    assert await _names(store) == {"0", "1", "2"}
    assert [type(each["exception"]) for each in told] == [MemoryError] * len(told)


@pytest.mark.parametrize("door", ["writer", "reader"])
async def test_whoever_waits_is_told_again_when_the_loop_has_lost_the_word(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    # What a loop does with a callback for which it finds no memory: it is said, and forgotten.
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    await store.write(_adding("first"))
    monkeypatch.setattr("holdfast.store.sqlite.jobs._tell", _starving(sqlite_jobs._tell, 1))

    async with asyncio.timeout(30):
        await (_names(store) if door == "reader" else store.write(_adding("second")))

    assert [type(each["exception"]) for each in lost] == [MemoryError]


def _adding(name: str) -> Callable[[Any], Any]:
    return lambda tx: tx.models.add(model_of(f"a:{name}"))


@pytest.mark.parametrize("door", ["writer", "reader"])
async def test_whoever_has_no_memory_to_ask_is_refused(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    def starved(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as famine:
        famine.setattr(f"holdfast.store.sqlite.{door}.Job", starved)
        with pytest.raises(Unavailable) as caught:
            await (_names(store) if door == "reader" else store.write(_adding("one")))

    assert caught.value.code is Code.OUT_OF_MEMORY
    await store.write(_adding("two"))
    assert await _names(store) == {"two"}


async def test_nobody_waits_for_a_loop_that_was_invited_and_does_not_come(
    store: SqliteStore,
) -> None:
    is_written = threading.Event()
    is_invited = threading.Event()

    async def asks_and_is_busy() -> None:
        writing = asyncio.create_task(store.write(Brief(_adding("one"))))
        # The task has asked by now, and nothing on this loop goes on from here.
        await asyncio.sleep(0)
        is_invited.set()
        is_written.wait()
        await writing

    busy = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(asks_and_is_busy())))
    await asyncio.to_thread(is_invited.wait)
    async with asyncio.timeout(30):
        await store.write(Brief(_adding("two")))
    is_written.set()
    await busy

    assert await _names(store) == {"one", "two"}


@pytest.mark.parametrize("started", range(READERS + 1))
async def test_a_store_that_gets_no_threads_is_refused_and_leaves_none_behind(
    file: Path, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    start = threading.Thread.start
    left = [started]

    def refuse(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    with monkeypatch.context() as famine:
        famine.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unavailable) as caught:
            SqliteStore(file, KEY)

    assert caught.value.code is Code.SYSTEM_LIMIT
    assert [each.name for each in threading.enumerate() if "holdfast" in each.name] == []
    store = SqliteStore(file, KEY)
    await store.write(_adding("one"))
    assert await _names(store) == {"one"}
    await store.close()


async def test_a_store_that_gets_no_thread_to_wait_in_closes_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(file, KEY)
    waiting = asyncio.create_task(store.write(Brief(_adding("one"))))
    await asyncio.sleep(0)

    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as famine:
        famine.setattr(asyncio, "to_thread", refuse)
        await store.close()
    await waiting

    assert [each.name for each in threading.enumerate() if "holdfast" in each.name] == []
    again = SqliteStore(file, KEY)
    assert await _names(again) == {"one"}
    await again.close()


async def test_who_waits_is_woken_although_the_loop_had_no_memory_for_it(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    asked: list[object] = []

    def starved(callback: Any, *given: Any, context: Any = None) -> asyncio.Handle:
        # Whoever waits for an answer is woken with it.
        if given and isinstance(given[0], Answer) and len(asked) < 3:
            asked.append(callback)
            raise MemoryError
        return call_soon(callback, *given, context=context)

    call_soon = loop.call_soon
    with monkeypatch.context() as famine:
        famine.setattr(loop, "call_soon", starved)
        async with asyncio.timeout(30):
            await store.write(_adding("one"))
            names = await _names(store)

    assert (names, len(asked)) == ({"one"}, 3)
