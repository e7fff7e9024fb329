"""What all processes of a simulated world share: time, luck, a disk, bells, and a past."""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import Holder
from holdfast.ports.store import Store
from holdfast.ports.system import Follower, Notification
from tests.torture.simulated.disks import Disk

BEGINNING = datetime(2026, 11, 5, 12, 0, tzinfo=UTC)


class World:
    """Implements the ports `Clock` and `Randomness`; one seed makes all of it."""

    def __init__(self, disk: Disk, luck: random.Random, wrap: Callable[[Store], Store]) -> None:
        self.disk = disk
        self.luck = luck
        self.wrap = wrap
        self.dead: set[Holder] = set()
        self.skew = timedelta()
        self.faults: list[str] = []
        # How often each unsafe call has acted, by its key.
        self.acts: Counter[str] = Counter()
        self.doors: dict[SessionKey, Door] = {}
        # Questions that were answered when nobody waited for them.
        self.pauses = 0
        self.bells: list[Bells] = []
        self._trace = hashlib.sha256()
        disk.committed = self._ring_soon

    def now(self) -> datetime:
        """Return a time that people can set, and in a storm do."""
        return BEGINNING + timedelta(seconds=asyncio.get_running_loop().time()) + self.skew

    def lease_clock_ms(self) -> int:
        """Return a time that nobody can set."""
        return round(asyncio.get_running_loop().time() * 1000)

    def bits(self, count: int) -> int:
        """Return bits of the seed."""
        return self.luck.getrandbits(count)

    def note(self, *what: Any) -> None:
        """Write down that something has happened, and when: two equal lives have equal traces."""
        self._trace.update(f"{asyncio.get_running_loop().time():.6f} {what}\n".encode())

    def _ring_soon(self) -> None:
        """Ring everywhere a little later, as whoever watches the file does."""
        late = self.luck.random() * 0.05
        asyncio.get_running_loop().call_later(late, self._ring)

    def _ring(self) -> None:
        for door in self.doors.values():
            door.ring()
        for bells in self.bells:
            bells.rings += 1
            for follower in list(bells.followers.values()):
                bells.context.run(follower, None)

    @property
    def trace(self) -> str:
        """Return the hash of everything that has happened."""
        return self._trace.hexdigest()


class Door:
    """All who listen for one session, in whatever process."""

    def __init__(self) -> None:
        self.rings = 0
        self.rung = asyncio.Event()

    def ring(self) -> None:
        """Wake everybody up."""
        self.rings += 1
        self.rung.set()
        self.rung = asyncio.Event()


class Ear:
    """Implements the `Bell` port."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._heard = door.rings

    async def rung(self) -> None:
        """Return once the door was rung after this ear was lent."""
        while self._door.rings == self._heard:
            await self._door.rung.wait()


class Bells:
    """Implements the `Doorbell` port: whoever writes is heard here at once, and soon everywhere."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rings = 0
        # What a follower starts belongs to its own process, whichever has written.
        self.context = copy_context()
        self.followers: dict[SessionKey, Follower] = {}
        world.bells.append(self)

    def follow(self, key: SessionKey, follower: Follower | None) -> None:
        """Tell one follower of a session what is written here."""
        if follower is None:
            self.followers.pop(key, None)
        else:
            self.followers[key] = follower

    def listen(self, key: SessionKey) -> Ear:
        """Lend an ear."""
        return Ear(self._world.doors.setdefault(key, Door()))

    def ring(self, key: SessionKey, tell: Callable[[], Notification] | None = None) -> None:
        """Tell everybody."""
        self._world.note("written", key)
        self.rings += 1
        if (follower := self.followers.get(key)) is not None:
            follower(tell)
        self._world.doors.setdefault(key, Door()).ring()
