"""Cursors and page sizes of observed history."""

import re
from collections.abc import Callable, Sequence
from math import isnan
from typing import Final, TypeVar

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.queries import decode_count, encode_count
from holdfast.domain.time import format_iso8601, instant_of
from holdfast.observations.model import Entity, is_entity_id
from holdfast.observations.queries import PAGE_BYTES, EntityOrder, ListedEntity, Value
from holdfast.observations.snapshots import encode_entity
from holdfast.observations.timeline import TimelineEvent
from holdfast.ports.observations import EventPlace

_MOST: Final = 1 << 50
# Type prefix of a value, so that it decodes to the same value.
_KINDS: Final = {"i": int, "f": float, "s": str}
# Allowed type prefixes per order; all other orders use integer milliseconds.
_SPELLINGS: Final = {EntityOrder.DURATION: "if", EntityOrder.SESSION_ID: "s"}
_USUAL: Final = "i"
_EVENT: Final = re.compile(r"[0-9]tle_[0-9a-f]{24}")


def encode_place(listed: ListedEntity, marks: tuple[object, ...]) -> str | None:
    """Return the cursor after a listing row."""
    value = listed.value
    encoded = "n" if value is None else f"{type(value).__name__[0]}{value}"
    return encode_count((len(encoded), f"{encoded}{listed.entity_id}"), marks)


def decode_place(
    cursor: str | None, marks: tuple[object, ...], order: EntityOrder
) -> tuple[Value, str] | None:
    """Return the sort value and id of a cursor, or raise `Invalid`."""
    found = decode_count(cursor, marks)
    if found is None:
        return None
    length, text = found
    encoded, entity_id = text[:length], text[length:]
    if not is_entity_id(entity_id):
        raise _damaged()
    return (None if encoded == "n" else _value(encoded, order)), entity_id


def _value(encoded: str, order: EntityOrder) -> Value:
    if encoded[:1] not in tuple(_SPELLINGS.get(order, _USUAL)):
        raise _damaged()
    try:
        value = _KINDS[encoded[0]](encoded[1:])
    except ValueError:
        raise _damaged() from None
    # NaN has no order.
    if isinstance(value, float) and isnan(value):
        raise _damaged()
    return _countable(value) if isinstance(value, int) else value


def encode_event(event: TimelineEvent | None, marks: tuple[object, ...]) -> str | None:
    """Return the cursor after an event; None if there is no further event."""
    if event is None:
        return None
    timestamp, rank, event_id = event.place
    return encode_count((instant_of(timestamp), f"{rank}{event_id}"), marks)


def decode_event(cursor: str | None, marks: tuple[object, ...]) -> EventPlace | None:
    """Return the event position of a cursor, or raise `Invalid`."""
    found = decode_count(cursor, marks)
    if found is None:
        return None
    ms, text = found
    if _EVENT.fullmatch(text) is None:
        raise _damaged()
    try:
        return format_iso8601(ms), int(text[:1]), text[1:]
    except OverflowError:
        raise _damaged() from None


def decode_claim(cursor: str | None, marks: tuple[object, ...]) -> tuple[int, int] | None:
    """Return the time and ordinal of a claim cursor, or raise `Invalid`."""
    found = decode_count(cursor, marks)
    if found is None:
        return None
    try:
        return _countable(found[0]), _countable(int(found[1]))
    except ValueError:
        raise _damaged() from None


def _countable(number: int) -> int:
    """Return a number within the database's integer range, or raise for a forged cursor."""
    if abs(number) > _MOST:
        raise _damaged()
    return number


def _damaged() -> Invalid:
    return Invalid(
        Code.INVALID_CURSOR, "The cursor does not belong to this listing; start without a cursor."
    )


T = TypeVar("T")


def take_page(items: Sequence[T], size_of: Callable[[T], int]) -> tuple[T, ...]:
    """Return the first items that fit into the page size; at least one."""
    size = 0
    for count, item in enumerate(items):
        size += size_of(item)
        if count and size > PAGE_BYTES:
            return tuple(items[:count])
    return tuple(items)


class EntityPageBuilder:
    """Collects entities until a page is full; `last` is the row for the next cursor.

    Damaged entities are skipped and take no space.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[Entity] = []
        self.last: ListedEntity | None = None
        self.is_full = False
        self._limit = limit
        self._size = 0

    def put(self, listed: ListedEntity, entity: Entity | None) -> None:
        """Add an entity, or mark the page as full if it does not fit."""
        size = self._size + (0 if entity is None else len(encode_entity(entity)))
        is_heavy = bool(self.items) and size > PAGE_BYTES
        self.is_full = self.is_full or len(self.items) == self._limit or is_heavy
        if not self.is_full:
            self.items += [] if entity is None else [entity]
            self.last, self._size = listed, size
