"""A limit against guessing: so many wrong tries in a minute, whoever makes them, then a wait."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Final

from holdfast.domain.errors import Code, Denied, LimitReached
from holdfast.ports import Clock

MOST: Final = 10
WINDOW_MS: Final = 60_000


class Guesses:
    """Counts the wrong tries of the last minute."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: deque[int] = deque()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a try, unless it goes well or fails by no fault of its own."""
        now = self._clock.boot_ms()
        while self._wrong and now - self._wrong[0] >= WINDOW_MS:
            self._wrong.popleft()
        if len(self._wrong) >= MOST:
            raise _too_many(self._wrong[0] + WINDOW_MS - now)
        # Counted before it is known: of many tries at once none may slip through meanwhile.
        self._wrong.append(now)
        try:
            yield
        except Denied:
            raise
        except BaseException:
            self._take_back(now)
            raise
        self._take_back(now)

    def _take_back(self, at: int) -> None:
        # It may have left by itself, if the answer took more than the minute.
        with suppress(ValueError):
            self._wrong.remove(at)


def _too_many(wait_ms: int) -> LimitReached:
    seconds = ceil(wait_ms / 1000)
    return LimitReached(
        Code.SIGN_IN_LIMIT,
        f"Too many wrong sign-in codes; try again in {seconds} s.",
        {"retry_after": seconds},
    )
