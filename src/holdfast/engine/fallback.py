"""Which model is asked next when one fails: decided by the kind of failure and nothing else.

Waiting is the caller's business; the random part of a pause is an argument.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.models import Model
from holdfast.ports import Failed, FailureKind

PATIENCE: Final = 15.0
FIRST_PAUSE: Final = 0.5
ATTEMPTS: Final = 2
_DOUBLINGS_MOST: Final = 32


class Next(Enum):
    """What to do after a failure."""

    AGAIN = auto()
    OTHER = auto()
    OTHER_PROVIDER = auto()
    NOTHING = auto()


class Entry(Struct, frozen=True, kw_only=True):
    """One model of the chain, and how often it may be asked."""

    model: Model
    attempts: int


# What is left to do when the same model is not asked again.
ELSEWHERE: Final[Mapping[FailureKind, Next]] = {
    FailureKind.RATE_LIMIT: Next.OTHER,
    FailureKind.UNAVAILABLE: Next.OTHER,
    FailureKind.AUTH: Next.OTHER_PROVIDER,
    FailureKind.TOO_LONG: Next.NOTHING,
    FailureKind.BAD_REQUEST: Next.NOTHING,
    FailureKind.FILTERED: Next.NOTHING,
    FailureKind.CANCELLED: Next.NOTHING,
    FailureKind.UNKNOWN: Next.NOTHING,
}
_AGAIN: Final = frozenset({FailureKind.RATE_LIMIT, FailureKind.UNAVAILABLE})


def chain_of(models: tuple[Model, ...], settings: LlmRuntime) -> tuple[Entry, ...]:
    """Return the chain with its attempts: the first model's are those of the agent's retry rule."""
    attempts = {choice.model_id: choice.max_attempts for choice in settings.models}
    first = settings.retry.max if settings.retry else None
    return tuple(
        Entry(
            model=model,
            attempts=(first if not place else None) or attempts.get(model.id) or ATTEMPTS,
        )
        for place, model in enumerate(models)
    )


def after(failed: Failed, *, attempt: int, entry: Entry) -> Next:
    """Return what to do after the nth attempt of an entry has failed."""
    # Nothing was sent: the same would happen again, and no attempt was used.
    if not failed.sent:
        return Next.OTHER_PROVIDER if failed.kind is FailureKind.AUTH else Next.OTHER
    patient = (failed.retry_after or 0) <= PATIENCE
    if failed.kind in _AGAIN and patient and attempt < entry.attempts:
        return Next.AGAIN
    return ELSEWHERE[failed.kind]


def pause(failed: Failed, *, attempt: int, luck: float, settings: LlmRuntime) -> float:
    """Return how long to wait before asking again: full jitter, never less than was asked for."""
    first = FIRST_PAUSE
    if settings.retry and settings.retry.backoff_ms:
        first = settings.retry.backoff_ms / 1000
    linear = settings.retry is not None and settings.retry.backoff == "linear"
    # No more doublings than it takes to reach the ceiling: a float has an end.
    longest = first * attempt if linear else first * 2 ** min(attempt - 1, _DOUBLINGS_MOST)
    return max(min(longest, PATIENCE) * luck, failed.retry_after or 0.0)


class Course:
    """Where in the chain a step is, and where its failures lead."""

    def __init__(self, chain: tuple[Entry, ...]) -> None:
        self._chain = chain
        self._place = 0
        self.attempt = 1
        self._first_skip: Failed | None = None
        self._has_sent = False

    @property
    def entry(self) -> Entry:
        """Return whom to ask now."""
        return self._chain[self._place]

    def turn(self, failed: Failed) -> bool:
        """Go where the failure leads; `False` when that is nowhere."""
        self._has_sent |= failed.sent
        self._first_skip = self._first_skip or failed
        how = after(failed, attempt=self.attempt, entry=self.entry)
        if how is Next.AGAIN:
            self.attempt += 1
            return True
        following = self._other(how)
        if following is None:
            return False
        self._place, self.attempt = following, 1
        return True

    def verdict(self, failed: Failed) -> Failed:
        """Return the failure that ends the step: the first one, when nobody could be asked."""
        return failed if self._has_sent or self._first_skip is None else self._first_skip

    def _other(self, how: Next) -> int | None:
        if how is Next.NOTHING:
            return None
        provider = self.entry.model.provider
        for later in range(self._place + 1, len(self._chain)):
            if how is Next.OTHER or self._chain[later].model.provider != provider:
                return later
        return None
