"""The machine: its clocks, randomness, processes, and notifications between processes."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from holdfast.domain.events import Event, Gap, decode_event
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import Holder
from holdfast.domain.sessions import SessionState

# The key that is rung when clients are asked to run calls, or need not run them any more.
REQUESTS: Final = SessionKey(0)


class Frame(Struct):
    """An event as readers get it, shared by all of them; decoded lazily and at most once.

    After `cool` only the envelope remains, because most readers are past the event by then.
    """

    sequence: int
    envelope: bytes
    decoded: Event | None = None
    # Encodings per surface, cached so that a hundred readers cost one encoding.
    forms: dict[str, bytes] | None = {}

    @property
    def event(self) -> Event:
        """Return the event."""
        if self.decoded is not None:
            return self.decoded
        event = decode_event(self.envelope)
        if self.forms is not None:
            self.decoded = event
        return event

    def form(self, name: str, make: "Callable[[Frame], bytes]") -> bytes:
        """Return a surface's encoding of the event; cached until the event is cooled."""
        if self.forms is None:
            return make(self)
        made = self.forms.get(name)
        if made is None:
            made = self.forms[name] = make(self)
        return made

    def cool(self) -> None:
        """Drop the decoded event and all cached encodings."""
        self.decoded = self.forms = None


Item = Frame | Gap


def end_of(item: Item) -> int:
    """Return the last sequence number that an item covers."""
    return item.to_sequence if isinstance(item, Gap) else item.sequence


class Notification(Struct, frozen=True):
    """The events that one write added to a session, and the session state after it."""

    state: SessionState
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
