"""Blocking calls: an event loop in a thread of its own, and objects whose verbs wait for it."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from inspect import isawaitable
from typing import Any, Final, TypeVar

from holdfast.api import Holdfast
from holdfast.ask.children import OpenChild
from holdfast.domain.errors import Code, Conflict, Invalid

T = TypeVar("T")

# Seconds to wait for the end of a verb that Ctrl-C has cancelled.
PATIENCE: Final = 10.0
_END: Final = object()
# Its result has an asynchronous iterator inside; `exports.export` returns the whole content.
LEFT_OUT: Final = {"exports": frozenset({"stream"})}


class LoopThread:
    """Opens a Holdfast on an event loop of its own, and runs its verbs there."""

    def __init__(self, manager: AbstractAsyncContextManager[Holdfast]) -> None:
        self._manager = manager
        self._process = os.getpid()
        self._opened: Future[Holdfast] = Future()
        self._thread = threading.Thread(target=self._run, name="holdfast", daemon=True)
        self._error: BaseException | None = None

    def open(self) -> Holdfast:
        """Start the thread and return what was opened."""
        self._thread.start()
        return self._opened.result()

    def close(self) -> None:
        """Leave what was opened and end the thread."""
        # Only this thread exists in a child process.
        if os.getpid() != self._process:
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Run something on the loop and return its result; Ctrl-C cancels it first."""
        ended = threading.Event()

        async def run() -> T:
            try:
                return await awaitable
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            ended.wait(PATIENCE)
            raise

    @property
    def is_open(self) -> bool:
        """Return whether verbs can still run here."""
        return os.getpid() == self._process and self._thread.is_alive()

    def require_usable(self) -> None:
        """Refuse a verb that would wait for itself, or for a thread of another process."""
        if os.getpid() != self._process:
            raise Conflict(
                Code.STORE_CLOSED,
                "This process was forked after Holdfast was opened; open it again here.",
            )
        if threading.current_thread() is self._thread:
            raise Invalid(
                Code.WRONG_THREAD,
                "A blocking verb cannot run on the event loop of holdfast.sync; use the "
                "asynchronous API there.",
            )
        if not self.is_open:
            raise Conflict(Code.STORE_CLOSED, "Holdfast is closed; open it again.")

    def _run(self) -> None:
        try:
            asyncio.run(self._hold())
        # Raised where it was opened, or where it is closed.
        except BaseException as error:  # noqa: BLE001
            if self._opened.done():
                self._error = error
            else:
                self._opened.set_exception(error)

    async def _hold(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        # Entered and left by one task, as its background tasks require.
        async with self._manager as opened:
            self._opened.set_result(opened)
            await self._closing.wait()


class BlockingVerbs:
    """An object of the API whose verbs block; asynchronous iterators are iterators."""

    def __init__(self, target: Any, thread: LoopThread, left_out: frozenset[str]) -> None:
        self._target = target
        self._thread = thread
        self._left_out = left_out

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in self._left_out:
            raise AttributeError(f"holdfast.sync has no {name}")
        value = getattr(self._target, name)
        return self._blocking(value) if callable(value) else value

    def _blocking(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._thread.require_usable()
            result = verb(*args, **named)
            if isawaitable(result):
                done = self._thread.wait(result)
                # The verbs of a child block, too.
                is_child = isinstance(done, OpenChild)
                return BlockingVerbs(done, self._thread, frozenset()) if is_child else done
            return _items(self._thread, result)

        return call


class BlockingHoldfast(BlockingVerbs):
    """The verbs of `Holdfast`, blocking."""

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"holdfast.sync has no {name}; use the asynchronous API")
        value = super().__getattr__(name)
        if name not in _GROUPS:
            return value
        return BlockingVerbs(value, self._thread, LEFT_OUT.get(name, frozenset()))


_PUBLIC: Final = frozenset(name for name in dir(Holdfast) if not name.startswith("_"))
_GROUPS: Final = frozenset(
    name for name in _PUBLIC - {"owner"} if isinstance(getattr(Holdfast, name), property)
)


def _items(thread: LoopThread, items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous iterator."""
    try:
        while True:
            thread.require_usable()
            item: Any = thread.wait(anext(items, _END))
            if item is _END:
                return
            yield item
    finally:
        if thread.is_open:
            thread.wait(items.aclose())


@contextmanager
def open_in_thread(manager: AbstractAsyncContextManager[Any]) -> Iterator[BlockingHoldfast]:
    """Open a Holdfast in a thread of its own, and close it at the end of the block."""
    thread = LoopThread(manager)
    target = thread.open()
    try:
        yield BlockingHoldfast(target, thread, frozenset())
    finally:
        thread.close()
