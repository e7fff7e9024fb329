"""Threads run out, or an event loop is blocked: the store refuses or goes on, and works again."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.models import model_of
from holdfast.ports.store import Brief
from holdfast.store.sqlite.store import SqliteStore
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio


async def _names(store: SqliteStore) -> set[str]:
    return {model.name for model in await store.read(lambda tx: tx.models.all())}


def _adding(name: str) -> Callable[[Any], Any]:
    return lambda tx: tx.models.add(model_of(f"a:{name}"))


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


@contextmanager
def threads_left(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """Let so many more threads be started."""
    start, left = threading.Thread.start, [count]

    def refuse(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    with monkeypatch.context() as famine:
        famine.setattr(threading.Thread, "start", refuse)
        yield


async def test_a_store_that_gets_no_thread_is_refused_and_leaves_none_behind(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with threads_left(monkeypatch, 0), pytest.raises(Unavailable) as caught:
        SqliteStore(file, KEY)

    assert caught.value.code is Code.SYSTEM_LIMIT
    assert _threads() == []
    store = SqliteStore(file, KEY)
    await store.write(_adding("one"))
    assert await _names(store) == {"one"}
    await store.close()


async def test_a_read_that_gets_no_thread_is_refused_and_the_next_one_works(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(file, KEY)
    await store.write(_adding("one"))

    with threads_left(monkeypatch, 0), pytest.raises(Unavailable) as caught:
        await _names(store)

    assert caught.value.code is Code.SYSTEM_LIMIT
    assert await _names(store) == {"one"}
    await store.close()
    assert _threads() == []


def _threads() -> list[str]:
    return [each.name for each in threading.enumerate() if "holdfast" in each.name]


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

    assert _threads() == []
    again = SqliteStore(file, KEY)
    assert await _names(again) == {"one"}
    await again.close()


class _ForgetfulLoop(asyncio.SelectorEventLoop):
    """Drops some callbacks, as Python does with those for which it has no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets: list[str] = []

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return super().call_soon(self._drop_forgotten(callback), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._drop_forgotten(callback), *args, context=context)

    def _drop_forgotten(self, callback: Any) -> Any:
        name = getattr(getattr(callback, "func", callback), "__name__", "")
        if name not in self.forgets:
            return callback
        self.forgets.remove(name)
        return lambda *_: None


@pytest.mark.parametrize("forgotten", ["_gather", "_run_group", "_resolve", "_wake"])
def test_a_callback_that_the_event_loop_drops_is_sent_again(file: Path, forgotten: str) -> None:
    loop = _ForgetfulLoop()

    async def write_and_read() -> set[str]:
        store = SqliteStore(file, KEY)
        try:
            async with asyncio.timeout(30):
                loop.forgets.append(forgotten)
                await store.write(_adding("one"))
                return await _names(store)
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        found = runner.run(write_and_read())

    assert found == {"one"}
    assert loop.forgets == []
