"""The doorbell: rings at once for what this process writes, and soon for what others write.

Other processes are noticed by asking SQLite, twenty times a second and only while somebody
listens, whether the file has changed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self
from weakref import WeakValueDictionary

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import SessionKey
from holdfast.ports import Notification
from holdfast.services.background_tasks import Background, rest

log = logging.getLogger(__name__)

# Within the tenth of a second that people call at once, at a thousandth of a core.
INTERVAL: Final = 0.05
# No version of any store.
NEVER: Final = (-1, -1)


class _Door:
    """All who listen for one session."""

    def __init__(self) -> None:
        # A counter beside the event, because a bell taken late must not hear an old ring.
        self.rings = 0
        self.rung = asyncio.Event()
        # What the last ring was about, if its ringer knew.
        self.told: Notification | None = None

    def ring(self, told: Notification | None = None) -> None:
        self.rings += 1
        self.told = told
        # A new one each time: all who wait for the old one are woken together.
        self.rung.set()
        self.rung = asyncio.Event()


class StoreBell:
    """One listener's ear."""

    def __init__(self, door: _Door) -> None:
        self._door = door
        self._heard = door.rings

    async def rung(self) -> Notification | None:
        """Return once the door was rung after this bell was taken; what was told, if only once."""
        while self._door.rings == self._heard:
            await self._door.rung.wait()
        return self._door.told if self._door.rings == self._heard + 1 else None


class StoreDoorbell(Background):
    """Implements the `Doorbell` port. Use as a context manager: it watches the file."""

    def __init__(self, version: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        """`version` returns a value that changes when another process writes."""
        super().__init__()
        self._version = version
        self._doors: WeakValueDictionary[SessionKey, _Door] = WeakValueDictionary()
        self._listening = asyncio.Event()
        self._seen = NEVER

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.start(self._watch())
        return self

    def listen(self, key: SessionKey) -> StoreBell:
        """Start listening for a session."""
        door = self._doors.get(key)
        if door is None:
            door = self._doors[key] = _Door()
        self._listening.set()
        return StoreBell(door)

    def ring(self, key: SessionKey, tell: Callable[[], Notification] | None = None) -> None:
        """Tell everyone here who listens for the session."""
        try:
            door = self._doors.get(key)
            if door is not None:
                door.ring(tell and tell())
        except MemoryError:
            # What was written is written; the next look rings everywhere.
            self._seen = NEVER

    async def _watch(self) -> None:
        while True:
            # Readers would wait for ever if the watch ended; it looks again soon.
            with suppress(MemoryError):
                await self._listening.wait()
                await self._look()
                if not self._doors:
                    self._listening.clear()
            await rest(INTERVAL)

    async def _look(self) -> None:
        """Ring everywhere if somebody else has written since the last look."""
        try:
            version = await self._version()
            if version != self._seen:
                self._ring_everywhere()
                # Only now: whoever could not be rung for is rung for next time.
                self._seen = version
        except HoldfastError as error:
            log.warning("the store cannot be watched: %s", error.message)
        except Exception:
            log.exception("the doorbell met a fault of ours")

    def _ring_everywhere(self) -> None:
        # Apart from the loop above, whose variables would keep the last door alive for ever.
        for door in list(self._doors.values()):
            door.ring()
