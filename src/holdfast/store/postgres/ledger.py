"""What waits to be written for the sessions of a transaction, each row for its own session."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from holdfast.store.postgres.columns import EVENTS, MESSAGES, SESSIONS
from holdfast.store.postgres.errors import fenced
from holdfast.store.postgres.ledger_sql import FEW, Shape

# As many as wait for others; a single job may have more, and is written by itself.
BYTES_MOST: Final = 8 << 20
_EPOCH: Final = tuple(SESSIONS).index("epoch")
_PARTS: Final = tuple(MESSAGES).index("parts")
_PAYLOAD: Final = tuple(EVENTS).index("payload")


class Ledger:
    """Rows that wait, each for its own session."""

    def __init__(self) -> None:
        self._messages: list[Sequence[Any]] = []
        self._events: list[Sequence[Any]] = []
        # Of a session that was saved twice only what was saved last is written.
        self.sessions: dict[int, Sequence[Any]] = {}
        self._keys: set[int] = set()
        # The bytes of messages and of news: all else is short.
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._keys)

    def is_of_one(self, keys: Collection[int]) -> bool:
        """Tell whether one session is all that it is about, and is saved in the end."""
        return len(keys) == 1 and self.sessions.keys() == self._keys == set(keys)

    def concerns(self, key: int) -> bool:
        """Tell whether something waits that is about a session."""
        return key in self._keys

    def add(self, table: Mapping[str, str], key: int, values: Sequence[Any]) -> None:
        """Have the rows of one statement wait: its values in their order."""
        self._keys.add(key)
        if table is SESSIONS:
            before = self.sessions.get(key)
            if before is not None and before[_EPOCH] > values[_EPOCH]:
                raise fenced()
            self.sessions[key] = values
        elif table is MESSAGES:
            self._messages.append(values)
            self.size += len(values[_PARTS])
        else:
            # It tells several pieces of news, and names the session once.
            width = len(EVENTS) - 1
            starts = range(1, len(values), width)
            self._events.extend((key, *values[at : at + width]) for at in starts)
            self.size += sum(map(len, values[_PAYLOAD::width]))

    def join(self, other: "Ledger") -> None:
        """Have all rows of another one wait here."""
        self._messages += other._messages
        self._events += other._events
        self.sessions |= other.sessions
        self._keys |= other._keys
        self.size += other.size

    @property
    def shape(self) -> Shape:
        """Return how many rows wait, as far as it is told."""
        return Shape(*map(_told, (self._messages, self._events, self.sessions)))

    def values(self) -> Iterator[Any]:
        """Yield all that is bound to write it."""
        for rows in (self._messages, self._events, list(self.sessions.values())):
            yield from bound(rows)

    def clear(self) -> None:
        """Have nothing wait any more."""
        for rows in (self._messages, self._events, self.sessions, self._keys):
            rows.clear()
        self.size = 0


def bound(rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Return few rows value by value, and many column by column."""
    return chain.from_iterable(rows) if len(rows) <= FEW else zip(*rows, strict=True)


def _told(rows: Collection[Any]) -> int | None:
    return len(rows) if len(rows) <= FEW else None
