"""News by type, and where to go on from an event's id."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.app import Environment
from holdfast.domain.errors import Code, Internal, Invalid, NotFound
from holdfast.domain.events import Event, Gap, event_id, name_of
from holdfast.domain.sessions import Session
from tests.builders import AT, an_id
from tests.houses import House, counted, counting_house, played, raw
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose first turn streams."""
    async with counting_house(home, outside) as house:
        yield house


@pytest.fixture
async def session(house: House) -> Session:
    """Play that turn."""
    return await counted(house)


def _names(items: tuple[Event | Gap, ...]) -> list[tuple[int, str]]:
    return [(item.sequence, name_of(item.payload)) for item in items if isinstance(item, Event)]


@pytest.mark.parametrize("look", [1, 3, 1_000])
async def test_news_of_some_types_are_listed_alone(
    house: House, session: Session, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    monkeypatch.setattr("holdfast.services.event_stream.LOOK", look)
    types = {"message.appended", "turn.ended"}

    page = await house.events.list(house.owner, session.id, types=types)

    assert _names(page.items) == [
        (2, "message.appended"),
        (10, "message.appended"),
        (12, "turn.ended"),
    ]
    assert (len(page.items), page.next_cursor) == (3, None)


async def test_a_page_of_some_types_goes_on_where_it_ended(house: House, session: Session) -> None:
    first = await house.events.list(house.owner, session.id, types=["message.appended"], limit=1)
    assert first.next_cursor is not None
    rest = await house.events.list(
        house.owner, session.id, types=["message.appended"], after=int(first.next_cursor)
    )

    assert (_names(first.items), first.next_cursor) == ([(2, "message.appended")], "2")
    assert (_names(rest.items), rest.next_cursor) == ([(10, "message.appended")], None)


async def test_where_nothing_is_found_for_long_the_page_says_where_to_go_on(
    house: House, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.event_stream.LOOK", 2)
    monkeypatch.setattr("holdfast.services.event_stream.LIST_MOST", 4)

    page = await house.events.list(house.owner, session.id, types=["turn.ended"], limit=4)

    assert (page.items, page.next_cursor) == ((), "4")


async def test_gaps_are_told_among_types_that_may_have_been_in_them(
    house: House, session: Session, clock: SettableClock
) -> None:
    clock.advance(days=30)
    await house.maintenance.prune()

    with_text = await house.events.list(house.owner, session.id, types=["step.delta", "turn.ended"])
    without = await house.events.list(house.owner, session.id, types=["turn.ended"])

    assert with_text.items == (Gap(from_sequence=5, to_sequence=9), *without.items)
    assert (_names(without.items), len(without.items)) == ([(12, "turn.ended")], 1)


async def test_no_type_at_all_is_nothing(house: House, session: Session) -> None:
    page = await house.events.list(house.owner, session.id, types=())

    assert (page.items, page.next_cursor) == ((), None)


async def test_all_news_of_old_turns_may_be_forgotten_and_that_is_told(
    house: House, session: Session, clock: SettableClock
) -> None:
    rows = await house.read(session.id)
    whole = (await house.events.list(house.owner, session.id)).items
    clock.advance(days=30)
    assert await house.maintenance.forget(timedelta(days=31)) == 0

    # All but the two messages, which are news of their own.
    assert await house.maintenance.forget(timedelta(days=29)) == 10

    left = (await house.events.list(house.owner, session.id)).items
    assert left == (
        Gap(from_sequence=1, to_sequence=1, reason="retention"),
        whole[1],
        Gap(from_sequence=3, to_sequence=9, reason="retention"),
        whole[9],
        Gap(from_sequence=11, to_sequence=12, reason="retention"),
    )
    rest = await house.events.list(house.owner, session.id, after=10)
    assert rest.items == (Gap(from_sequence=11, to_sequence=12, reason="retention"),)
    typed = await house.events.list(house.owner, session.id, types=["turn.ended"])
    assert [type(item) for item in typed.items] == [Gap, Gap, Gap]
    assert await house.read(session.id) == rows
    assert await house.store.check() == []
    assert await house.maintenance.forget(timedelta(days=29)) == 0


async def test_news_of_a_turn_that_waits_or_ended_lately_is_not_forgotten(
    house: House, session: Session, clock: SettableClock
) -> None:
    clock.advance(days=30)
    await house.send(session.id, "more")
    await played(house, session.id)
    whole = (await house.events.list(house.owner, session.id)).items
    other = await house.open()
    clock.advance(hours=1)

    assert await house.maintenance.forget(timedelta(days=29)) == 10

    kept = (await house.events.list(house.owner, session.id, after=12)).items
    assert kept == whole[12:]
    assert len((await house.events.list(house.owner, other.id)).items) == 1


async def test_many_old_news_go_in_several_batches(
    house: House, session: Session, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.maintenance.PRUNE_BATCH", 3)
    monkeypatch.setattr("holdfast.services.maintenance.LOOK_BATCH", 1)
    for _ in range(2):
        await house.open()
    clock.advance(days=30)

    assert await house.maintenance.forget(timedelta(days=29)) == 10


async def test_damage_is_not_taken_for_what_was_forgotten(
    house: House, session: Session, clock: SettableClock
) -> None:
    clock.advance(days=30)
    await house.maintenance.forget(timedelta(days=29))
    with raw(house.config.home) as connection:
        connection.execute("UPDATE forgotten SET through = through + 1")

    with pytest.raises(Internal) as caught:
        await house.events.list(house.owner, session.id)

    assert caught.value.code is Code.CORRUPT_ROW


async def test_a_type_that_does_not_exist_is_refused(house: House, session: Session) -> None:
    with pytest.raises(Invalid) as caught:
        await house.events.list(house.owner, session.id, types=["turn.ended", "x", "a"])

    assert (caught.value.code, caught.value.details) == (
        Code.INVALID_FILTER,
        {"types": ["a", "x"]},
    )


async def test_every_event_is_found_by_its_id(house: House, session: Session) -> None:
    page = await house.events.list(house.owner, session.id)

    found = [
        await house.events.sequence_of(house.owner, session.id, item.id)
        for item in page.items
        if isinstance(item, Event)
    ]

    assert found == list(range(1, 13))


async def test_an_event_that_was_pruned_still_has_its_number(
    house: House, session: Session, clock: SettableClock
) -> None:
    page = await house.events.list(house.owner, session.id)
    ids = [item.id for item in page.items if isinstance(item, Event)]
    clock.advance(days=30)
    await house.maintenance.prune()

    assert await house.events.sequence_of(house.owner, session.id, ids[5]) == 6


async def test_an_id_of_no_event_of_the_session_is_not_found(
    house: House, session: Session
) -> None:
    other = await house.open()
    (opened,) = (await house.events.list(house.owner, other.id)).items
    assert isinstance(opened, Event)
    wrong = [
        opened.id,
        an_id(1),
        "",
        "nonsense",
        event_id(session.id, 0, AT),
        event_id(session.id, 13, AT),
        # Its number is there, at another time.
        event_id(session.id, 2, AT.replace(year=2020)),
        event_id(session.id, 1, AT.replace(year=2020)),
    ]

    for each in wrong:
        with pytest.raises(NotFound) as caught:
            await house.events.sequence_of(house.owner, session.id, each)
        assert caught.value.code is Code.EVENT_NOT_FOUND
