"""Where sessions stand: many rows locked and read by one statement, and kept while they are true.

Work is begun up to where it asks for its session, and goes on when all heads were read.
"""

from collections.abc import Coroutine, Generator, Iterable, Iterator, Sequence
from types import coroutine
from typing import Any, Final, TypeVar

from msgspec import Struct

from holdfast.store.database import Row
from holdfast.store.sessions import HEAD_BY_KEY, HEAD_NAMES

T = TypeVar("T")

# By key, so that nobody who does the same waits for us while we wait for them.
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

# As many as are worth a look; each takes a kilobyte.
KNOWN_MOST: Final = 4_096
EPOCH: Final = HEAD_NAMES.index("epoch")


class Wish(Struct, frozen=True):
    """What work asks for first: the names of a session, or nothing that could be read ahead."""

    place: Row | None


@coroutine
def pause(wish: Wish) -> Generator[Wish, None, None]:
    """Have work stop where it asks for something."""
    yield wish


@coroutine
def going_on(work: Coroutine[Any, Any, T], stopped_at: object) -> Generator[Any, Any, T]:
    """Go on with work that was begun."""
    if not isinstance(stopped_at, Wish):
        yield stopped_at
    return (yield from work.__await__())


class Heads:
    """Rows of sessions as they are known to be stored, or are about to be."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._keys: dict[Row, int] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def get(self, place: Row) -> Row | None:
        """Return the row of a session by its key, or by its owner and its id."""
        key = place[0] if len(place) == 1 else self._keys.get(place)
        return None if key is None else self._rows.get(key)

    def keep(self, rows: Iterable[Row]) -> None:
        """Keep rows; of too many, only these."""
        if len(self._rows) > KNOWN_MOST:
            self.clear()
        for row in rows:
            self._rows[row[0]] = row
            self._keys[row[2], row[1]] = row[0]

    def move(self, key: int, saved: Sequence[Any]) -> None:
        """Keep what a row becomes by being saved."""
        row = self._rows.get(key)
        if row is not None:
            # Its names and its origin are as they were: no statement changes them.
            self._rows[key] = (*row[:4], *saved[:-2], row[-2], saved[-2])

    def is_ahead(self, key: int, epoch: int) -> bool:
        """Tell whether a session is known to have gone to somebody else since an epoch."""
        row = self._rows.get(key)
        return row is not None and row[EPOCH] > epoch

    def forget(self, keys: Iterable[int]) -> None:
        """Keep nothing of some sessions."""
        for key in keys:
            row = self._rows.pop(key, None)
            if row is not None:
                del self._keys[row[2], row[1]]

    def clear(self) -> None:
        """Keep nothing: anything may have been changed."""
        self._rows.clear()
        self._keys.clear()


def asked_for(places: Sequence[Row]) -> dict[str, list[Any]]:
    """Return what is bound to ask for all of them."""
    named = [place for place in places if len(place) > 1]
    return {
        "keys": [place[0] for place in places if len(place) == 1],
        "owners": [owner for owner, _ in named],
        "ids": [id_ for _, id_ in named],
    }
