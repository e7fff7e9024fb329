"""A second event loop in a thread of its own, for what takes the processor long.

The vendors' packages work for seconds on a long history before they send anything. Beside the house
they may: here turns would stop and leases run out meanwhile.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_WAITING_MOST: Final = 256


class Aside:
    """The second loop; its thread runs from the first use until it is closed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def stream(self, make: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """Yield what the generator yields there; when this is closed, that has been closed.

        It is made, run and closed by one task, and waits while nobody takes what it has yielded.
        """
        pipe = _Pipe[T](here=asyncio.get_running_loop(), there=self._running())
        pumping = asyncio.run_coroutine_threadsafe(pipe.fill(make), pipe.there)
        try:
            while items := await pipe.take():
                for item in items:
                    yield item
            if pipe.error is not None:
                raise pipe.error
        finally:
            pumping.cancel()
            await pipe.over.wait()

    async def aclose(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do one last thing there, then end the thread; a later use begins a new one."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(last(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon, because a program that forgets to close us must be able to end.
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="holdfast-llm", daemon=True
            )
            self._thread.start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()


class _Pipe(Generic[T]):
    """What was yielded there and not taken here yet."""

    def __init__(
        self, *, here: asyncio.AbstractEventLoop, there: asyncio.AbstractEventLoop
    ) -> None:
        self.there = there
        self.over = asyncio.Event()
        self.error: Exception | None = None
        self._here = here
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._lock = threading.Lock()
        self._items: list[T] = []

    async def fill(self, make: Callable[[], AsyncGenerator[T, None]]) -> None:
        """Run the generator to its end; on the loop there."""
        try:
            async with aclosing(make()) as generator:
                async for item in generator:
                    with self._lock:
                        self._items.append(item)
                        is_full = len(self._items) >= _WAITING_MOST
                    self._tell(self._due.set)
                    if is_full:
                        # Whoever takes sets it on this loop, so not before we wait.
                        self._room.clear()
                        await self._room.wait()
        # Raised here and not there, where nobody listens.
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self._tell(self._end)

    async def take(self) -> list[T]:
        """Return what has come since the last time; nothing when nothing more will; here."""
        while True:
            self._due.clear()
            is_over = self.over.is_set()
            with self._lock:
                items, self._items = self._items, []
            if items:
                self.there.call_soon_threadsafe(self._room.set)
            if items or is_over:
                return items
            await self._due.wait()

    def _end(self) -> None:
        self.over.set()
        self._due.set()

    def _tell(self, what: Callable[[], None]) -> None:
        # The loop here may be gone, when a program ends without closing anything.
        with suppress(RuntimeError):
            self._here.call_soon_threadsafe(what)
