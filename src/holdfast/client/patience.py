"""How long a client waits, and how long before it tries again."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """Seconds, all of them.

    `request` is how long a request that did not get through is sent again, `silence` how long
    a stream may say nothing before it is taken for dead; between two tries lies a `pause` that
    doubles up to `longest`.
    """

    request: float = 15.0
    silence: float = 45.0
    pause: float = 0.2
    longest: float = 10.0

    def before(self, attempt: int, least: float | None = None) -> float:
        """Return how long to wait before a further attempt; the first of them has number 1.

        `least` takes the place of the pause, where the server has said how long that should be.
        """
        # Spread, so that all who were cut off at once do not come back at once.
        spread = random.uniform(0.5, 1.0)  # noqa: S311 — nobody gains by guessing it
        doublings = 2 ** min(attempt - 1, 20)
        if least is None:
            return float(min(self.pause * doublings, self.longest) * spread)
        # Never earlier than the server has said.
        return float(max(least, min(least * doublings, self.longest)) * (0.5 + spread))
