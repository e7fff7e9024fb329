"""Entities in a listing: what each is ordered by, and how they follow one another."""

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct

from holdfast.domain.entity_queries import EntityOrder
from holdfast.domain.entity_types import EntityType
from holdfast.domain.histories import Direction
from holdfast.domain.ids import EntityId, Owner, SessionId, SessionKey

Value = int | float | str | None


class Listed(Struct, frozen=True, kw_only=True):
    """An entity in a listing: what it is ordered by, and where it is found.

    One that nobody has claimed anything about is a session of ours and has no key of its own.
    """

    value: Value
    entity_id: EntityId
    key: int | None = None
    session_key: SessionKey | None = None


class Listing(Struct, frozen=True, kw_only=True):
    """What is listed, how, behind which value and id, and how much of it."""

    owner: Owner
    entity_type: EntityType
    order: EntityOrder
    direction: Direction
    after: tuple[Value, str] | None = None
    limit: int


class Hosted(Struct, frozen=True, kw_only=True):
    """A session of ours that nobody has claimed anything about; times are in microseconds."""

    key: SessionKey
    id: SessionId
    created_at: int
    updated_at: int
    finished_at: int | None


def in_order(found: Iterable[Listed], listing: Listing) -> list[Listed]:
    """Return entities as they are listed: those without a value last, equal ones by their ids."""
    by_id = sorted(found, key=lambda each: each.entity_id)
    having = [each for each in by_id if each.value is not None]
    is_down = listing.direction is Direction.DESC
    # Sorting keeps the order of equals, also where it is reversed.
    having.sort(key=_value, reverse=is_down)
    return having + [each for each in by_id if each.value is None]


def is_behind(each: Listed, listing: Listing) -> bool:
    """Tell whether an entity comes behind the place from which on is listed."""
    if listing.after is None:
        return True
    value, entity_id = listing.after
    if each.value == value:
        return each.entity_id > entity_id
    if each.value is None or value is None:
        return each.value is None
    is_larger = _compared(each.value, value)
    return is_larger == (listing.direction is Direction.ASC)


def hosted_value(hosted: Hosted, order: EntityOrder) -> Value:
    """Return what a session's journal alone is ordered by."""
    created_ms = hosted.created_at // 1000
    finished_ms = None if hosted.finished_at is None else hosted.finished_at // 1000
    match order:
        case EntityOrder.STARTED_AT:
            return created_ms
        case EntityOrder.ENDED_AT:
            return finished_ms
        case EntityOrder.DURATION:
            lasted = 0 if finished_ms is None else finished_ms - created_ms
            return lasted / 1000 if lasted > 0 else None
        case EntityOrder.LAST_OBSERVATION_AT:
            return hosted.updated_at // 1000
        case EntityOrder.SESSION_ID:
            return hosted.id
        case _ as never:
            assert_never(never)


def _value(each: Listed) -> int | float | str:
    assert each.value is not None  # noqa: S101 — a fault of ours
    return each.value


def _compared(one: int | float | str, other: int | float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one) > str(other)
    return one > other
