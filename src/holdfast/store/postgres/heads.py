"""Session state rows: many locked and read in one statement, and cached while valid.

Each job runs up to its first query for its session, and continues after all rows were read.
"""

from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from types import coroutine
from typing import Any, Final, TypeVar

from msgspec import Struct

from holdfast.store.database import Row
from holdfast.store.sessions import HEAD_BY_KEY, HEAD_NAMES

T = TypeVar("T")

# Sorted by key, so that concurrent batches cannot deadlock.
HEADS: Final = HEAD_BY_KEY.replace(
    " WHERE s.key = :key",
    """  JOIN (SELECT unnest(CAST(:keys AS BIGINT[])) AS key
         UNION
        SELECT named.key
          FROM unnest(CAST(:owners AS TEXT[]), CAST(:ids AS TEXT[])) asked (owner, id)
          JOIN sessions named ON named.owner = asked.owner AND named.id = asked.id) wanted
    ON wanted.key = s.key
 ORDER BY s.key
   FOR NO KEY UPDATE OF s""",
)

# Cache limit; each row takes about 1 kB.
KNOWN_MOST: Final = 4_096
EPOCH: Final = HEAD_NAMES.index("epoch")


class Wish(Struct, frozen=True):
    """First query of a job: the key of a session, or None if it cannot be read ahead."""

    place: Row | None


@coroutine
def pause(wish: Wish) -> Generator[Wish, None, None]:
    """Suspend work at its first query."""
    yield wish


@coroutine
def going_on(work: Coroutine[Any, Any, T], stopped_at: object) -> Generator[Any, Any, T]:
    """Resume work that was suspended."""
    if not isinstance(stopped_at, Wish):
        yield stopped_at
    return (yield from work.__await__())


class Heads:
    """Session rows as stored, or as they will be after buffered writes."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._keys: dict[Row, int] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def get(self, place: Row) -> Row | None:
        """Return the row of a session by its key, or by owner and id."""
        key = place[0] if len(place) == 1 else self._keys.get(place)
        return None if key is None else self._rows.get(key)

    def keep(self, rows: Iterable[Row]) -> None:
        """Cache rows; a full cache is cleared first."""
        if len(self._rows) > KNOWN_MOST:
            self.clear()
        for row in rows:
            self._rows[row[0]] = row
            self._keys[row[2], row[1]] = row[0]

    def move(self, key: int, saved: Sequence[Any]) -> None:
        """Update the cached row of a session to its saved values."""
        row = self._rows.get(key)
        if row is not None:
            # No statement changes the ids and the fork position.
            self._rows[key] = (*row[:4], *saved[:-2], row[-2], saved[-2])

    def is_ahead(self, key: int, epoch: int) -> bool:
        """Return whether another process has taken the lease since an epoch."""
        row = self._rows.get(key)
        return row is not None and row[EPOCH] > epoch

    def forget(self, keys: Iterable[int]) -> None:
        """Remove sessions from the cache."""
        for key in keys:
            row = self._rows.pop(key, None)
            if row is not None:
                del self._keys[row[2], row[1]]

    def clear(self) -> None:
        """Clear the cache, because any row may have changed."""
        self._rows.clear()
        self._keys.clear()


def asked_for(places: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the parameters of the query for several sessions."""
    named = [place for place in places if len(place) > 1]
    return {
        "keys": [place[0] for place in places if len(place) == 1],
        "owners": [owner for owner, _ in named],
        "ids": [id_ for _, id_ in named],
    }
