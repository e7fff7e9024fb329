"""A time that does not jump: what the wall clock would show had nobody set it.

Idleness is measured with it. A clock that is set forward a day must not look like a day in which
nothing happened.
"""

from datetime import datetime, timedelta
from typing import Final

from holdfast.ports import Clock

JUMP: Final = timedelta(minutes=1)


class SteadyTime:
    """Follows the wall clock, and a jump of it only after some time has really passed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._booted = self._boot_time()
        self._jumped_at: int | None = None

    def now(self, patience: timedelta) -> datetime:
        """Return the earlier of both times; a jump is believed after so much patience."""
        shown = self._boot_time()
        if abs(shown - self._booted) <= JUMP:
            self._booted = min(shown, self._booted)
            self._jumped_at = None
        elif self._jumped_at is None:
            self._jumped_at = self._clock.boot_ms()
        elif self._clock.boot_ms() - self._jumped_at >= patience / timedelta(milliseconds=1):
            self._booted = shown
            self._jumped_at = None
        return min(self._clock.now(), self._booted + self._since_boot())

    def _boot_time(self) -> datetime:
        """Return when the machine booted, as the wall clock sees it now."""
        return self._clock.now() - self._since_boot()

    def _since_boot(self) -> timedelta:
        return timedelta(milliseconds=self._clock.boot_ms())
