"""Listings: observed sessions and sessions of ours in one order, page by page, now and then."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.messages import Role, Text
from holdfast.domain.queries import encode_count
from holdfast.domain.sessions import Session
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.model import Entity, EntityType
from holdfast.observations.queries import (
    Correction,
    Direction,
    EntityOrder,
    EntityQuery,
    HistoryQuery,
    TimelineQuery,
    order_value,
)
from tests.marks import demands, each_case
from tests.observations.claims import FEATURE_UNIT, MINIMAL, RELEASE, a_payload
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


async def observe(house: Holdfast, session_id: str, **more: Any) -> None:
    """Submit what was observed of a session."""
    await house.observations.submit(house.owner, a_payload(session_id=session_id, **more))


async def used(house: Holdfast) -> Session:
    """Open a session with a message in it."""
    session = await house.open()
    draft = MessageDraft(role=Role.SYSTEM, parts=(Text(text="a note"),))
    await house.messages.record(house.owner, session.id, draft)
    return session


async def mixed(house: Holdfast, clock: SettableClock) -> None:
    """Fill a house with sessions of every sort, several of one moment."""
    for number in range(3):
        await used(house)
        session = await used(house)
        clock.advance(seconds=7)
        await house.sessions.close(house.owner, session.id)
        joined = await used(house)
        started = f"2026-0{number + 1}-01T00:00:00Z"
        await observe(house, joined.id, started_at=started)
        clock.advance(milliseconds=5)
        both = await used(house)
        ended = "2027-01-01T00:00:00Z"
        await observe(house, both.id, started_at=started, ended_at=ended, duration=9)
        clock.advance(seconds=3)
        await house.sessions.close(house.owner, both.id)
        await observe(house, f"seen-{number}", started_at=started, duration=2 + number)
        await observe(house, f"other-{number}", ended_at="2026-02-01")
    corrected = await used(house)
    await house.sessions.close(house.owner, corrected.id)
    for field, value in (("duration", 77.5), ("ended_at", None), ("started_at", "2020-01-01")):
        right = Correction(session_id=corrected.id, field=field, value=value)
        await house.observations.correct(house.owner, right)
    await observe(house, "deleted")
    await house.observations.delete(house.owner, "deleted")


def sorted_by(entities: Sequence[Entity], order: EntityOrder, direction: Direction) -> list[str]:
    """Return the keys of entities as the rules order them, computed the plain way."""
    by_id = sorted(entities, key=lambda each: each.entity_id)
    having = [each for each in by_id if order_value(each, order) is not None]
    having.sort(
        key=lambda each: order_value(each, order),  # type: ignore[arg-type,return-value]
        reverse=direction is Direction.DESC,
    )
    lacking = [each for each in by_id if order_value(each, order) is None]
    return [each.key for each in (*having, *lacking)]


async def walked(house: Holdfast, query: HistoryQuery) -> list[Entity]:
    """Return everything that is listed, page by page."""
    found: list[Entity] = []
    cursor = None
    while True:
        page = await house.observations.query(house.owner, query, cursor=cursor)
        assert len(page.items) <= query.limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            assert page.total == len(found)
            return found


@demands("S3-105b", "S3-106", "S3-106b", "S3-106c")
async def test_sessions_are_listed_newest_first(quiet: Holdfast) -> None:
    for day in (1, 3, 2):
        await observe(quiet, f"day-{day}", started_at=f"2026-01-0{day}T00:00:00Z")

    page = await quiet.observations.query(quiet.owner, HistoryQuery(limit=2))
    rest = await quiet.observations.query(
        quiet.owner, HistoryQuery(limit=2), cursor=page.next_cursor
    )

    assert [each.key for each in page.items] == ["day-3", "day-2"]
    assert [each.key for each in rest.items] == ["day-1"]
    assert (page.total, rest.total, rest.next_cursor) == (3, 3, None)


@demands("S3-106")
async def test_every_order_holds_whoever_is_listed(quiet: Holdfast, clock: SettableClock) -> None:
    await mixed(quiet, clock)

    for order, direction in product(EntityOrder, Direction):
        every = await walked(quiet, HistoryQuery(limit=500, order_by=order, order=direction))
        by_few = await walked(quiet, HistoryQuery(limit=3, order_by=order, order=direction))

        assert len(every) == 19
        assert [each.key for each in every] == sorted_by(every, order, direction)
        assert by_few == every
        assert "deleted" not in [each.key for each in every]


async def test_what_has_no_beginning_left_stands_where_it_was_first_spoken_of(
    quiet: Holdfast, clock: SettableClock
) -> None:
    corrected = []
    for _ in range(2):
        session = await used(quiet)
        clock.advance(minutes=1)
        right = Correction(session_id=session.id, field="duration", value=3)
        await quiet.observations.correct(quiet.owner, right)
        await quiet.sessions.delete(quiet.owner, session.id)
        clock.advance(minutes=1)
        corrected.append(session.id)
    opened = await used(quiet)

    every = await walked(quiet, HistoryQuery(limit=1))

    assert [each.key for each in every] == [opened.id, *reversed(corrected)]


async def test_an_offset_leads_into_a_listing(quiet: Holdfast, clock: SettableClock) -> None:
    await mixed(quiet, clock)
    every = (await quiet.observations.query(quiet.owner)).items

    page = await quiet.observations.query(quiet.owner, HistoryQuery(limit=4, offset=5))
    rest = await quiet.observations.query(
        quiet.owner, HistoryQuery(limit=100), cursor=page.next_cursor
    )
    beyond = await quiet.observations.query(quiet.owner, HistoryQuery(offset=2_000))

    assert page.items == every[5:9]
    assert rest.items == every[9:]
    assert (beyond.items, beyond.next_cursor) == ((), None)


async def test_a_cursor_belongs_to_its_owner_and_its_query(quiet: Holdfast) -> None:
    for number in range(3):
        await observe(quiet, f"seen-{number}")
        claim = a_payload(session_id=f"seen-{number}")
        await quiet.observations.submit(Owner("ada"), claim)
    one = HistoryQuery(limit=1)
    cursor = (await quiet.observations.query(quiet.owner, one)).next_cursor
    wrong = [
        (Owner("ada"), one),
        (quiet.owner, HistoryQuery(limit=1, order=Direction.ASC)),
        (quiet.owner, HistoryQuery(limit=1, order_by=EntityOrder.DURATION)),
        (quiet.owner, HistoryQuery(limit=1, at="2027-01-01")),
        (quiet.owner, HistoryQuery(limit=1, offset=1)),
    ]

    for owner, query in wrong:
        with pytest.raises(Invalid):
            await quiet.observations.query(owner, query, cursor=cursor)


@each_case(
    ("order", "value"),
    [
        (EntityOrder.STARTED_AT, "abc"),
        (EntityOrder.STARTED_AT, 1.5),
        (EntityOrder.STARTED_AT, 1 << 60),
        (EntityOrder.DURATION, float("nan")),
        (EntityOrder.DURATION, "abc"),
        (EntityOrder.SESSION_ID, 5),
    ],
)
@each_case("entity_id", [f"ent_{'0' * 24}", "ent_1"])
async def test_a_forged_cursor_is_refused(
    quiet: Holdfast, order: EntityOrder, value: object, entity_id: str
) -> None:
    marks = ("history", quiet.owner, order, Direction.DESC, None, None)
    cursor = encode_count((0, msgspec.msgpack.encode((value, entity_id)).hex()), marks)

    with pytest.raises(Invalid) as caught:
        await quiet.observations.query(quiet.owner, HistoryQuery(order_by=order), cursor=cursor)

    assert caught.value.code is Code.INVALID_CURSOR


async def test_what_comes_meanwhile_shifts_nothing(quiet: Holdfast, clock: SettableClock) -> None:
    await mixed(quiet, clock)
    every = (await quiet.observations.query(quiet.owner)).items
    query = HistoryQuery(limit=6)
    first = await quiet.observations.query(quiet.owner, query)
    clock.advance(days=400)
    await used(quiet)
    await observe(quiet, "brand-new", started_at="2030-01-01")

    rest = await quiet.observations.query(quiet.owner, cursor=first.next_cursor)

    assert (*first.items, *rest.items) == every


async def test_a_listing_is_shown_as_it_was(quiet: Holdfast, clock: SettableClock) -> None:
    await mixed(quiet, clock)
    await observe(quiet, "revived")
    await quiet.observations.delete(quiet.owner, "revived")
    then = format_iso8601(milliseconds(clock.now()))
    every = await walked(quiet, HistoryQuery())
    # By kind, so that each third has some of every kind, whatever their ids are.
    thirds = sorted(every, key=lambda each: (each.hosted, "ended_at" in each.snapshot))
    clock.advance(days=1)
    for entity in thirds[::3]:
        await observe(quiet, entity.key, duration=1000, ended_at="2029-01-01")
    for entity in thirds[1::3]:
        if entity.hosted:
            await quiet.sessions.resume(quiet.owner, entity.key)
            await quiet.sessions.close(quiet.owner, entity.key)
    await quiet.observations.delete(quiet.owner, every[0].key)
    assert any(each.hosted and "ended_at" in each.snapshot for each in thirds[2::3])
    await quiet.observations.restore(quiet.owner, "revived")
    await used(quiet)

    for order, direction in product(EntityOrder, Direction):
        query = HistoryQuery(limit=7, at=then, order_by=order, order=direction)
        before = await walked(quiet, query)

        assert {each.key for each in before} == {each.key for each in every}
        assert [each.key for each in before] == sorted_by(before, order, direction)
        submitted = {each.key: each.snapshot for each in every if not each.hosted}
        assert {each.key: each.snapshot for each in before if not each.hosted} == submitted


async def test_entities_of_a_type_are_listed_by_what_they_say(quiet: Holdfast) -> None:
    for number, status in enumerate(("planning", "deployed", "deployed")):
        unit = {**FEATURE_UNIT, "id": f"FU-{number}", "status": status}
        await quiet.observations.submit_entity(quiet.owner, "feature_unit", unit)
    await quiet.observations.submit_entity(quiet.owner, "release", RELEASE)
    wish = EntityQuery(
        entity_type=EntityType.FEATURE_UNIT,
        filters={"status": "deployed", "id": {"contains": "FU-"}},
        order_by=EntityOrder.SESSION_ID,
        order=Direction.ASC,
        limit=1,
    )

    first = await quiet.observations.entities(quiet.owner, wish)
    second = await quiet.observations.entities(quiet.owner, wish, cursor=first.next_cursor)
    every = await quiet.observations.entities(
        quiet.owner, EntityQuery(entity_type=EntityType.FEATURE_UNIT, limit=2)
    )

    assert {first.items[0].key, second.items[0].key} == {"FU-1", "FU-2"}
    assert (first.total, second.total, second.next_cursor) == (2, 2, None)
    assert (len(every.items), every.total) == (2, 3)
    rest = await quiet.observations.entities(
        quiet.owner,
        EntityQuery(entity_type=EntityType.FEATURE_UNIT, limit=2),
        cursor=every.next_cursor,
    )
    assert {each.key for each in (*every.items, *rest.items)} == {"FU-0", "FU-1", "FU-2"}
    with pytest.raises(Invalid):
        await quiet.observations.entities(
            quiet.owner,
            EntityQuery(entity_type=EntityType.FEATURE_UNIT),
            cursor=first.next_cursor,
        )


async def test_sessions_are_found_by_what_they_say_ours_too(quiet: Holdfast) -> None:
    session = await used(quiet)
    await quiet.observations.submit(quiet.owner, MINIMAL)

    async def found(**filters: Any) -> list[str]:
        wish = EntityQuery(entity_type=EntityType.AGENT_SESSION, filters=filters)
        return [each.key for each in (await quiet.observations.entities(quiet.owner, wish)).items]

    assert await found(started_at={"gte": "2026-01-01"}) == [session.id]
    assert await found(session_id="abc123") == ["abc123"]


async def test_a_damaged_entity_does_not_hide_its_neighbours(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    await observe(quiet, "damaged")
    await observe(quiet, "sound-one")

    async def harm(tx: Any) -> None:
        await tx.projections._db.execute(
            "UPDATE snapshots SET checksum = 0 WHERE entity_key ="
            " (SELECT key FROM entities WHERE name = 'damaged')"
        )

    await quiet.store.write(harm)
    page = await quiet.observations.query(quiet.owner)

    assert [each.key for each in page.items] == ["sound-one"]
    assert "is damaged" in caplog.text
    rebuilt = await quiet.observations.rebuild()
    assert len(rebuilt.differences) == 1
    assert len((await quiet.observations.query(quiet.owner)).items) == 2


async def test_the_previous_session_is_one_that_was_used(
    quiet: Holdfast, clock: SettableClock
) -> None:
    worked = await used(quiet)
    clock.advance(minutes=1)
    unused = await quiet.open()
    fork = await quiet.sessions.fork(quiet.owner, worked.id)
    latest = HistoryQuery(limit=1)

    before = await quiet.observations.query(quiet.owner, latest)
    shown = await quiet.observations.show(quiet.owner, unused.id)
    await observe(quiet, unused.id, started_at="2030-01-01")
    after = await quiet.observations.query(quiet.owner, latest)

    # A fork has inherited its message; nothing happened in it yet.
    assert fork.id not in {worked.id, unused.id}
    assert ([each.key for each in before.items], before.total) == ([worked.id], 1)
    assert shown.entity.key == unused.id
    assert (after.total, (await walked(quiet, HistoryQuery()))[1].key) == (2, worked.id)


@each_case(
    ("query", "wish"),
    [
        (HistoryQuery, {"limit": 0}),
        (HistoryQuery, {"limit": 501}),
        (HistoryQuery, {"offset": -1}),
        (HistoryQuery, {"offset": 2_001}),
        (EntityQuery, {"entity_type": EntityType.RELEASE, "limit": 0}),
        (TimelineQuery, {"limit": 501}),
    ],
)
def test_a_page_has_its_limits(query: Any, wish: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        query(**wish)

    assert caught.value.code is Code.INVALID_LIMIT
