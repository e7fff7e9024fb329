"""What the store said about tokens lately: asking it for every request would be asking too often.

Another process may revoke a token at any moment, so nothing is believed for longer than two
seconds. What this process changes itself is forgotten at once.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from holdfast.domain.tokens import Token
from holdfast.ports import Clock

FRESH_MS: Final = 1_000
LONGEST_MS: Final = 2_000
# Of each kind: guesses push out other guesses, and never a token that is good.
MOST: Final = 1_024

Key = bytes | str


@dataclass(slots=True)
class _Answer:
    """What was found, and when; `is_asked` while somebody asks again."""

    token: Token | None
    at: int
    is_asked: bool = False


class KnownTokens:
    """Answers by what was asked for: the digest of a secret, or the id of a token."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[Key, _Answer] = {}
        self._missing: dict[Key, _Answer] = {}
        self._changes = 0

    async def ask(self, key: Key, look: Callable[[], Awaitable[Token | None]]) -> Token | None:
        """Return what is known of a key, or look."""
        now, changes = self._clock.boot_ms(), self._changes
        answer = self._found.get(key) or self._missing.get(key)
        if answer is not None:
            # While one asks the others make do: a thousand streams must not ask all at once.
            longest = LONGEST_MS if answer.is_asked else FRESH_MS
            if now - answer.at < longest:
                return answer.token
            answer.is_asked = True
        token = await look()
        # What was read before a change is an answer still, and nothing to be kept.
        if changes == self._changes:
            if answer is not None and _rights(answer.token) != _rights(token):
                # Changed elsewhere: what is known of it by its other name is as old.
                self.forget()
            self._keep(key, _Answer(token, now))
        return token

    def forget(self) -> None:
        """Believe nothing any more, because a token has changed."""
        self._changes += 1
        self._found.clear()
        self._missing.clear()

    def _keep(self, key: Key, answer: _Answer) -> None:
        for answers in (self._found, self._missing):
            answers.pop(key, None)
        answers = self._missing if answer.token is None else self._found
        if len(answers) >= MOST:
            # The oldest: what is asked for again is put back at the end.
            del answers[next(iter(answers))]
        answers[key] = answer


def _rights(token: Token | None) -> tuple[object, ...] | None:
    return (token.scope, token.revoked_at, token.expires_at) if token is not None else None
