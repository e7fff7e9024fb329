"""Reaches the store from any thread and any event loop, with the outcome of each write known."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from importlib import import_module
from typing import Any, TypeVar

from holdfast.api import LocalHoldfast
from holdfast.domain.errors import Code, Invalid

T = TypeVar("T")


class Bridge:
    """Runs work of a Holdfast on the event loop that it was opened on."""

    def __init__(self, hf: Any, what: str) -> None:
        """`hf` is what `open_holdfast` or `holdfast.sync.open_holdfast` gives."""
        # The blocking verbs wrap the object whose store is used.
        target = getattr(hf, "_target", hf)
        if not isinstance(target, LocalHoldfast) or target.foreign is None:
            raise Invalid(
                Code.OPTION_NOT_OFFERED,
                f"{what} needs the store in the same process; use open_holdfast instead of "
                "connect.",
            )
        self.hf = target
        self.parts = target.foreign.get_component()

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self.parts.sessions.loop
        return loop

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work and return its result; a cancelled caller learns of it when the work is done."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            # No asyncio loop runs here: the framework uses trio.
            return await _in_trio(self._submit(work))
        if here is self._loop:
            return await _outcome(asyncio.ensure_future(work()))
        return await _outcome(asyncio.wrap_future(self._submit(work)))

    def run_sync(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work and block until it is done; refused where it would block itself."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            raise Invalid(
                Code.WRONG_THREAD,
                "A blocking method cannot run on the event loop of Holdfast; use the asynchronous "
                "one, or open Holdfast with holdfast.sync.open_holdfast.",
            )
        return self._submit(work).result()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work(), self._loop)


async def _outcome(future: "asyncio.Future[T]") -> T:
    """Wait for a future despite cancellations, and pass them on afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = cancelled or error
    if cancelled is not None:
        # Retrieved, so that a failure is not reported as forgotten.
        future.cancelled() or future.exception()
        raise cancelled
    return future.result()


async def _in_trio(future: "Future[T]") -> T:
    trio: Any = import_module("trio")
    with trio.CancelScope(shield=True):
        wait: Awaitable[T] = trio.to_thread.run_sync(future.result)
        result = await wait
    await trio.lowlevel.checkpoint_if_cancelled()
    return result
