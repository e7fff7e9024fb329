"""A limit on claims: so many in a minute for each owner, then a wait."""

from collections import deque
from math import ceil
from typing import Final

from holdfast.domain.errors import Code, LimitReached
from holdfast.domain.ids import Owner
from holdfast.ports import Clock

PER_MINUTE: Final = 600
WINDOW_MS: Final = 60_000


class SubmissionRates:
    """Counts each owner's claims of the last minute; 0 is no limit."""

    def __init__(self, clock: Clock, most: int = PER_MINUTE) -> None:
        self._clock = clock
        self._most = most
        self._made: dict[Owner, deque[int]] = {}

    def count(self, owner: Owner) -> None:
        """Count one more, or refuse it; what is refused does not count."""
        if not self._most:
            return
        # By the clock that nobody sets: otherwise an hour put back would be an hour of waiting.
        now = self._clock.boot_ms()
        made = self._made.setdefault(owner, deque())
        while made and now - made[0] >= WINDOW_MS:
            made.popleft()
        if len(made) >= self._most:
            raise _too_many(self._most, made[0] + WINDOW_MS - now)
        made.append(now)


def _too_many(most: int, wait_ms: int) -> LimitReached:
    seconds = ceil(wait_ms / 1000)
    return LimitReached(
        Code.RATE_LIMITED,
        f"More than {most} observations in a minute; try again in {seconds} s.",
        {"limit": most, "retry_after": seconds},
    )
