"""How much of a listing fits into one answer: so many bytes, and always the first item."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from holdfast.domain.entities import Entity
from holdfast.domain.entity_listings import Listed
from holdfast.domain.histories import PAGE_BYTES
from holdfast.services.observation_projections import encoded

T = TypeVar("T")

# A page of what may be large ends here; its cursor leads on.
LIST_BYTES: Final = 4 << 20
READ_AT_ONCE: Final = 50
encode: Final = msgspec.json.Encoder().encode


def fitting(items: Sequence[T], size_of: Callable[[T], int]) -> tuple[T, ...]:
    """Return the first of the items, as many as fit."""
    size = 0
    for count, item in enumerate(items):
        size += size_of(item)
        if count and size > PAGE_BYTES:
            return tuple(items[:count])
    return tuple(items)


async def filled(
    read: Callable[[T | None, int], Awaitable[list[T]]], limit: int
) -> tuple[tuple[T, ...], bool]:
    """Return items up to a limit or a size, and whether there are more.

    `read` returns so many items behind another one, or the first. Few are read at a time, because
    how large they are is known only then.
    """
    found: list[T] = []
    size = 0
    while True:
        wanted = min(limit + 1 - len(found), READ_AT_ONCE)
        more = await read(found[-1] if found else None, wanted)
        for item in more:
            if len(found) == limit or size > LIST_BYTES:
                return tuple(found), True
            found.append(item)
            size += len(encode(item))
        if len(more) < wanted:
            return tuple(found), False


class EntitySheet:
    """Entities as they are put on one page, until it is full; `last` is whom the next one follows.

    One that is damaged is told of nowhere and passed over, so it takes no room.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[Entity] = []
        self.last: Listed | None = None
        self.is_full = False
        self._limit = limit
        self._size = 0

    def put(self, listed: Listed, entity: Entity | None) -> None:
        """Put one more on the page, or note that it does not fit any more."""
        size = self._size + (0 if entity is None else len(encoded(entity)))
        is_heavy = bool(self.items) and size > PAGE_BYTES
        self.is_full = self.is_full or len(self.items) == self._limit or is_heavy
        if not self.is_full:
            self.items += [] if entity is None else [entity]
            self.last, self._size = listed, size
