"""Listings: equal entities by their ids, and those without a value last in both directions."""

import pytest

from holdfast.domain.ids import LOCAL_OWNER, EntityId, SessionId, SessionKey
from holdfast.observations.model import EntityType
from holdfast.observations.queries import (
    Direction,
    EntityListing,
    EntityOrder,
    HostedSession,
    ListedEntity,
    Value,
    hosted_value,
    in_order,
    is_behind,
)


def a_listing(direction: Direction, after: tuple[Value, str] | None = None) -> EntityListing:
    """Return a listing of sessions."""
    return EntityListing(
        owner=LOCAL_OWNER,
        entity_type=EntityType.AGENT_SESSION,
        order=EntityOrder.DURATION,
        direction=direction,
        after=after,
        limit=10,
    )


def listed(value: Value, name: str) -> ListedEntity:
    """Return an entity in a listing."""
    return ListedEntity(value=value, entity_id=EntityId(name))


MANY = [listed(2, "d"), listed(None, "b"), listed(1.5, "c"), listed(2, "a"), listed(None, "a")]


@pytest.mark.parametrize(
    ("direction", "names"), [(Direction.ASC, "cadab"), (Direction.DESC, "adcab")]
)
def test_equals_are_ordered_by_their_ids(direction: Direction, names: str) -> None:
    assert "".join(each.entity_id for each in in_order(MANY, a_listing(direction))) == names


@pytest.mark.parametrize("direction", Direction)
def test_behind_each_place_is_what_follows_it(direction: Direction) -> None:
    every = in_order(MANY, a_listing(direction))

    for number, place in enumerate(every):
        listing = a_listing(direction, (place.value, place.entity_id))
        assert [each for each in every if is_behind(each, listing)] == every[number + 1 :]
    assert all(is_behind(each, a_listing(direction)) for each in every)


@pytest.mark.parametrize("direction", Direction)
def test_words_are_ordered_as_words(direction: Direction) -> None:
    every = in_order([listed("b", "1"), listed("ab", "2")], a_listing(direction))

    listing = a_listing(direction, (every[0].value, every[0].entity_id))
    assert [each for each in every if is_behind(each, listing)] == every[1:]


def test_a_journal_alone_is_ordered_by_what_it_claims() -> None:
    closed = HostedSession(
        key=SessionKey(1),
        id=SessionId("s"),
        created_at=5_000_999,
        updated_at=9_000_000,
        finished_at=7_500_001,
    )
    opened = HostedSession(
        key=SessionKey(1), id=SessionId("s"), created_at=1, updated_at=2, finished_at=None
    )
    brief = HostedSession(
        key=SessionKey(1), id=SessionId("s"), created_at=1, updated_at=2, finished_at=3
    )

    assert [hosted_value(closed, each) for each in EntityOrder] == [5_000, 7_500, 2.5, 9_000, "s"]
    assert [hosted_value(opened, each) for each in EntityOrder] == [0, None, None, 0, "s"]
    assert hosted_value(brief, EntityOrder.DURATION) is None
