"""Where new ids and secrets come from: the clock and the randomness of the ports."""

from holdfast.domain.ids import uuid7
from holdfast.domain.times import microseconds
from holdfast.domain.tokens import SECRET_BITS, secret_of
from holdfast.ports import Clock, Randomness


class Mint:
    """Makes ids that sort by the time they were made, and secrets that nobody can guess."""

    def __init__(self, clock: Clock, randomness: Randomness) -> None:
        self._clock = clock
        self._randomness = randomness

    def new(self) -> str:
        """Return a new UUID, version 7."""
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))

    def secret(self) -> str:
        """Return the secret of a new token."""
        return secret_of(self._randomness.bits(SECRET_BITS))
