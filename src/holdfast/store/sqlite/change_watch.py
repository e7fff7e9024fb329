"""Notify readers of commits: immediately for this process, by polling for other processes.

Writes of other processes are detected by reading SQLite's data version twenty times a second, only
while there are listeners.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self
from weakref import WeakValueDictionary

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey
from holdfast.ports.system import Follower, Notification
from holdfast.services.background_tasks import Background, sleep_despite_memory_error

log = logging.getLogger(__name__)

# Below the 100 ms that users perceive as immediate, at about 0.1 % of a core.
INTERVAL: Final = 0.05
# Differs from every store version.
NEVER: Final = (-1, -1)


class _Listeners:
    """All listeners of one session."""

    def __init__(self) -> None:
        # A counter beside the event, because a new listener must not receive an earlier ring.
        self.rings = 0
        self.rung = asyncio.Event()

    def ring(self) -> None:
        self.rings += 1
        # A new event each time, so that all waiters of the old one wake together.
        self.rung.set()
        self.rung = asyncio.Event()


class StoreBell:
    """One listener of a session."""

    def __init__(self, listeners: _Listeners) -> None:
        self._listeners = listeners
        self._seen = listeners.rings

    async def rung(self) -> None:
        """Wait for a ring after this bell was created."""
        while self._listeners.rings == self._seen:
            await self._listeners.rung.wait()


class StoreDoorbell(Background):
    """Implements the `Doorbell` port. Use as a context manager: it polls the file."""

    def __init__(self, version: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`version` returns a value that changes when another process writes."""
        super().__init__()
        self._version = version
        self.rings = 0
        self._listeners: WeakValueDictionary[SessionKey, _Listeners] = WeakValueDictionary()
        self._followers: dict[SessionKey, Follower] = {}
        self._listening = asyncio.Event()
        self._seen = NEVER

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.start(self._watch())
        return self

    def listen(self, key: SessionKey) -> StoreBell:
        """Start listening for a session."""
        listeners = self._listeners.get(key)
        if listeners is None:
            listeners = self._listeners[key] = _Listeners()
        self._listening.set()
        return StoreBell(listeners)

    def follow(self, key: SessionKey, follower: Follower | None) -> None:
        """Set or remove the follower of a session."""
        if follower is None:
            self._followers.pop(key, None)
        else:
            self._followers[key] = follower
            self._listening.set()

    def ring(self, key: SessionKey, tell: Callable[[], Notification] | None = None) -> None:
        """Notify the follower and all listeners of a session in this process."""
        self.rings += 1
        try:
            if (follower := self._followers.get(key)) is not None:
                follower(tell)
            if self._listeners and (listeners := self._listeners.get(key)) is not None:
                listeners.ring()
        except MemoryError:
            # The commit is done and must not fail; the next poll notifies everyone instead.
            self._seen = NEVER

    async def _watch(self) -> None:
        while True:
            # If the watch ended, readers would wait forever; it polls again after a pause.
            with suppress(MemoryError):
                await self._listening.wait()
                await self._poll()
                if not self._listeners and not self._followers:
                    self._listening.clear()
            await sleep_despite_memory_error(INTERVAL)

    async def _poll(self) -> None:
        """Wake all listeners if another process has written since the last poll."""
        try:
            version = await self._version()
            if version != self._seen:
                self._ring_everywhere()
                # Set only after ringing, so that a failed ring is repeated at the next poll.
                self._seen = version
        except HoldfastError as error:
            log.warning("the store cannot be watched: %s", error.message)
        except Exception:
            log.exception("internal error in the change watcher")

    def _ring_everywhere(self) -> None:
        self.rings += 1
        for follower in list(self._followers.values()):
            follower(None)
        # A separate function, because a loop variable in `_watch` would keep the last one alive.
        for listeners in list(self._listeners.values()):
            listeners.ring()
