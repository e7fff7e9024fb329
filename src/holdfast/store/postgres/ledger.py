"""Buffer of rows to write in a transaction, grouped by session."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from holdfast.store.postgres.columns import EVENTS, MESSAGES, SESSIONS
from holdfast.store.postgres.errors import fenced
from holdfast.store.postgres.ledger_sql import FEW, Shape

# Size limit of a batch; a single larger job is written alone.
BYTES_MOST: Final = 8 << 20
_EPOCH: Final = tuple(SESSIONS).index("epoch")
_PARTS: Final = tuple(MESSAGES).index("parts")
_PAYLOAD: Final = tuple(EVENTS).index("payload")


class Ledger:
    """Buffered rows of messages, events and session states."""

    def __init__(self) -> None:
        self._messages: list[Sequence[Any]] = []
        self._events: list[Sequence[Any]] = []
        # If a session is saved twice, only the last row is written.
        self.sessions: dict[int, Sequence[Any]] = {}
        self._keys: set[int] = set()
        # Bytes of messages and events; all other values are small.
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._keys)

    def is_of_one(self, keys: Collection[int]) -> bool:
        """Return whether all rows belong to one session, and its state is saved."""
        return len(keys) == 1 and self.sessions.keys() == self._keys == set(keys)

    def concerns(self, key: int) -> bool:
        """Return whether rows of a session are buffered."""
        return key in self._keys

    def add(self, table: Mapping[str, str], key: int, values: Sequence[Any]) -> None:
        """Buffer the rows of one statement, given as its values in order."""
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
            # One statement inserts several events and binds the session key once.
            width = len(EVENTS) - 1
            starts = range(1, len(values), width)
            self._events.extend((key, *values[at : at + width]) for at in starts)
            self.size += sum(map(len, values[_PAYLOAD::width]))

    def join(self, other: "Ledger") -> None:
        """Append all rows of another ledger."""
        self._messages += other._messages
        self._events += other._events
        self.sessions |= other.sessions
        self._keys |= other._keys
        self.size += other.size

    @property
    def shape(self) -> Shape:
        """Return the number of rows per table; None for many."""
        return Shape(*map(_told, (self._messages, self._events, self.sessions)))

    def values(self) -> Iterator[Any]:
        """Yield all values to bind."""
        for rows in (self._messages, self._events, list(self.sessions.values())):
            yield from bound(rows)

    def clear(self) -> None:
        """Drop all rows."""
        for rows in (self._messages, self._events, self.sessions, self._keys):
            rows.clear()
        self.size = 0


def bound(rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Return few rows value by value, and many rows column by column."""
    return chain.from_iterable(rows) if len(rows) <= FEW else zip(*rows, strict=True)


def _told(rows: Collection[Any]) -> int | None:
    return len(rows) if len(rows) <= FEW else None
