"""The machine: its clocks, randomness, processes, and notifications between processes."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import Holder
from holdfast.domain.sessions import SessionState


class Frame(Struct, frozen=True):
    """An event as sent to readers: its sequence number and its encoded envelope."""

    sequence: int
    envelope: bytes


class Notification(Struct, frozen=True):
    """The events that one write added to a session, and the session state after it."""

    head: SessionState
    frames: Sequence[Frame]


class Clock(Protocol):
    """Two clocks: the wall clock, and a monotonic one that cannot be set."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC; it may jump."""

    def lease_clock_ms(self) -> int:
        """Return milliseconds since the machine booted; equal for all its processes."""


class Randomness(Protocol):
    """Source of ids and jitter."""

    def bits(self, count: int) -> int:
        """Return an integer of that many random bits."""


class Machine(Protocol):
    """This process and the others on the same machine."""

    def holder(self) -> Holder:
        """Return this process's identity as a lease holder."""

    def is_gone(self, holder: Holder) -> bool:
        """Return whether that process is proven dead; `False` if it cannot be proven."""


class Bell(Protocol):
    """One listener's subscription to a session."""

    async def rung(self) -> None:
        """Return as soon as the session was written to after `listen` was called."""


# Receives what a commit wrote, as a function that describes it; `None` if only the log knows.
Follower = Callable[[Callable[[], Notification] | None], None]


class Doorbell(Protocol):
    """Notifies readers of new events in a session, written by any process."""

    # How often anything was notified.
    rings: int

    def listen(self, key: SessionKey) -> Bell:
        """Subscribe; call it before reading the log, so that no notification is lost (race)."""

    def follow(self, key: SessionKey, follower: Follower | None) -> None:
        """Call the session's only follower at each notification; `None` ends that."""

    def ring(self, key: SessionKey, tell: Callable[[], Notification] | None = None) -> None:
        """Notify the follower and all listeners; `tell` is called only if its result is used."""
