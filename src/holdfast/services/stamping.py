"""Clock, id factory and secret redaction used by every write."""

from collections.abc import Callable

from msgspec import Struct

from holdfast.domain.ids import uuid7
from holdfast.domain.secrets import Scrubber
from holdfast.domain.time import EPOCH, MICROSECOND
from holdfast.domain.tokens import SECRET_BITS, secret_of
from holdfast.ports.system import Clock, Randomness


class IdFactory:
    """Creates time-ordered ids and unguessable secrets."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self) -> str:
        """Return a new UUID, version 7."""
        return self.new_at((self._clock.now() - EPOCH) // MICROSECOND)

    def new_at(self, now: int) -> str:
        """Return a new UUID, version 7, of a time in microseconds."""
        return uuid7(now // 1000, self._randomness.bits(74))

    def secret(self) -> str:
        """Return the secret of a new token."""
        return secret_of(self._randomness.bits(SECRET_BITS))


class Stamping(Struct, frozen=True, kw_only=True):
    """Clock, id factory and secret scrubber."""

    clock: Clock
    id_factory: IdFactory
    # Called for each write, because a secret may have become known since.
    scrubber: Callable[[], Scrubber] = Scrubber

    def now(self) -> int:
        """Return the current time in microseconds."""
        # As `microseconds`, without a call of its own: every commit is stamped.
        return (self.clock.now() - EPOCH) // MICROSECOND
