"""Ctrl-C, SIGTERM and a terminal that is closed: the first stops the turn, the next one leaves.

Only a turn that this chat asked for is stopped so; one that it merely reads along goes on, and a
person at a prompt can still stop it with Ctrl-C. Outside a turn both leave, unless a prompt takes
care of Ctrl-C. Either way what was said is on disk, and an open turn can be resumed.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self


class Signals:
    """Listens for signals while it is entered; leaving cancels the task that entered it."""

    def __init__(self) -> None:
        self.is_leaving = False
        self.has_prompt = False
        self._stop: asyncio.Event | None = None
        self._is_own = False
        self._main: asyncio.Task[object] | None = None
        self._before = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> Self:
        self._main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupted)
        loop.add_signal_handler(signal.SIGTERM, self._terminated)
        # Whoever starts a command so that it ignores this one wants it to go on.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._terminated)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGHUP)
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)
        # Removing ours leaves Python's default there, not the handler that asyncio had set.
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def turn(self, *, own: bool) -> Iterator[asyncio.Event]:
        """Yield what is set when the running turn is to be stopped; `own` is one we asked for."""
        self._stop = asyncio.Event()
        self._is_own = own
        try:
            yield self._stop
        finally:
            self._stop = None

    def _interrupted(self) -> None:
        # A person who presses a key at the prompt means the answer that is on the screen.
        may_stop = self._is_own or self.has_prompt
        if self._stop is not None and may_stop and not self._stop.is_set():
            self._stop.set()
        elif self._stop is not None or not self.has_prompt:
            # A key that was meant for the answer may come when the turn has just ended.
            self.leave()

    def _terminated(self) -> None:
        self.is_leaving = True
        if self._stop is not None and self._is_own:
            self._stop.set()
        else:
            self.leave()

    def leave(self) -> None:
        """End the conversation at once, whatever it waits for."""
        self.is_leaving = True
        if self._main is not None:
            self._main.cancel()
