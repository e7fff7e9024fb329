"""The machine under us: its clocks, its randomness, its processes, its doorbell."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from holdfast.domain.events import Event
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import Holder
from holdfast.domain.sessions import SessionState


class Notification(Struct, frozen=True):
    """All that one entry has added to the news of a session, and where the session stands since."""

    head: SessionState
    news: Sequence[Event]


class Clock(Protocol):
    """Two clocks: one to tell people the time, one that nobody can set."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC; it may jump."""

    def boot_ms(self) -> int:
        """Return milliseconds since the machine booted; equal for all its processes."""


class Randomness(Protocol):
    """Where ids and jitter come from."""

    def bits(self, count: int) -> int:
        """Return an integer of that many random bits."""


class Machine(Protocol):
    """This process among the others on its machine."""

    def holder(self) -> Holder:
        """Return who we are when we hold a lease."""

    def is_gone(self, holder: Holder) -> bool:
        """Tell whether that process is proven dead; `False` when nothing can be proven."""


class Bell(Protocol):
    """One listener's ear at the door."""

    async def rung(self) -> Notification | None:
        """Return as soon as the session was written to after `listen` was called.

        With what was written, if there was one ring only and the ringer knew; else read the log.
        """


class Doorbell(Protocol):
    """Tells readers that a session has news, whichever process wrote it."""

    def listen(self, key: SessionKey) -> Bell:
        """Start listening; take the bell before reading, so that no ring is lost."""

    def ring(self, key: SessionKey, tell: Callable[[], Notification] | None = None) -> None:
        """Tell everyone who listens; `tell` is asked what was written, if anybody does."""
