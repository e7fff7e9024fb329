"""Answers about history have an end: so many bytes, nothing that is damaged, and only real text."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.model import EntityType
from holdfast.observations.queries import EntityQuery, HistoryQuery, TimelineQuery
from tests.marks import each_case
from tests.observations.claims import FEATURE_UNIT, a_payload
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

LONG = "x" * 60_000
# About 400 KB: two of them fit on a page, and three do not.
HEAVY = [{"type": str(n), "result": "success", "details": {"text": LONG}} for n in range(7)]
LONE = "lone\ud800"


async def query(house: Holdfast, sql: str) -> Any:
    """Run a statement on the writer's own connection."""

    async def run(tx: Any) -> Any:
        return await tx.observations._db.fetch(sql)

    return await house.store.write(run)


async def pages(read: Callable[[str | None], Awaitable[Any]]) -> list[Any]:
    """Return all pages of a listing."""
    found, cursor = [], None
    while not found or cursor is not None:
        found.append(await read(cursor))
        cursor = found[-1].next_cursor
    return found


async def test_claims_are_listed_by_as_many_as_fit(quiet: Holdfast, clock: SettableClock) -> None:
    for number in range(5):
        clock.advance(seconds=1)
        await quiet.observations.submit(quiet.owner, a_payload(actions=HEAVY, duration=1 + number))

    found = await pages(
        lambda cursor: quiet.observations.list_observations(quiet.owner, "abc123", cursor=cursor)
    )

    assert [[each.ordinal for each in page.items] for page in found] == [[5, 4], [3, 2], [1]]
    assert {page.total for page in found} == {5}


async def test_a_session_is_shown_with_as_many_claims_as_fit(
    quiet: Holdfast, clock: SettableClock
) -> None:
    for number in range(4):
        clock.advance(seconds=1)
        await quiet.observations.submit(quiet.owner, a_payload(actions=HEAVY, duration=1 + number))

    now = await quiet.observations.show(quiet.owner, "abc123")
    then = await quiet.observations.show(quiet.owner, "abc123", at="2999-01-01")

    assert [each.ordinal for each in now.observations] == [4, 3]
    assert (then.observations, then.observations_total) == (now.observations, 4)


async def test_sessions_are_listed_by_as_many_as_fit(quiet: Holdfast) -> None:
    for number in range(5):
        claim = a_payload(session_id=f"heavy-{number}", actions=HEAVY)
        await quiet.observations.submit(quiet.owner, claim)

    every = await pages(lambda cursor: quiet.observations.query(quiet.owner, cursor=cursor))
    few = await pages(
        lambda cursor: quiet.observations.query(
            quiet.owner, HistoryQuery(limit=2, at="2999-01-01"), cursor=cursor
        )
    )

    assert [len(page.items) for page in every] == [len(page.items) for page in few] == [2, 2, 1]
    assert {each.key for page in every for each in page.items} == {f"heavy-{n}" for n in range(5)}


@pytest.mark.parametrize("filters", [None, {"description": {"contains": "xxx"}}])
async def test_entities_are_listed_by_as_many_as_fit(
    quiet: Holdfast, clock: SettableClock, filters: Any
) -> None:
    for number in range(20):
        clock.advance(seconds=1)
        unit = {**FEATURE_UNIT, "id": f"FU-{number:02}", "description": LONG}
        await quiet.observations.submit_entity(quiet.owner, "feature_unit", unit)
    wish = EntityQuery(entity_type=EntityType.FEATURE_UNIT, filters=filters)

    found = await pages(
        lambda cursor: quiet.observations.entities(quiet.owner, wish, cursor=cursor)
    )

    told = [each.key for page in found for each in page.items]
    assert told == [f"FU-{number:02}" for number in reversed(range(20))]
    assert [len(page.items) for page in found] == [17, 3]
    assert {page.total for page in found} == {20}


async def test_events_are_told_by_as_many_as_fit(quiet: Holdfast) -> None:
    names = [{"name": str(n), "timestamp": f"2025-12-31T11:0{n % 9}:00Z"} for n in range(19)]
    claim = a_payload(checkpoints=names, outcomes=[{"type": "unit", "id": LONG}])
    await quiet.observations.submit(quiet.owner, claim)

    # Each says by which id it was found, and that one is long.
    found = await pages(
        lambda cursor: quiet.observations.timeline(quiet.owner, LONG, cursor=cursor)
    )

    assert [len(page.events) for page in found] == [17, 3]
    assert len({each.id for page in found for each in page.events}) == 20


async def test_a_damaged_event_is_passed_over_and_said(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    names = [{"name": str(n), "timestamp": f"2025-12-31T11:0{n}:00Z"} for n in range(6)]
    claim = a_payload(checkpoints=names, outcomes=[{"type": "unit", "id": "FU-1"}])
    await quiet.observations.submit(quiet.owner, claim)
    await query(quiet, "UPDATE timeline SET body = x'7b7d' WHERE rank = 1 AND ms % 240000 = 0")
    wish = TimelineQuery(limit=2)

    for asked in ("abc123", "FU-1"):
        found = await pages(
            lambda cursor, asked=asked: quiet.observations.timeline(
                quiet.owner, asked, wish, cursor=cursor
            )
        )
        told = [event.description for page in found for event in page.events]
        assert told == ["Session abc123 started", *(f"Checkpoint: {n}" for n in (1, 2, 3, 5))]
        assert [len(page.events) for page in found] == [2, 2, 1]

    assert "an event of entity 1 is damaged" in caplog.text


async def test_a_damaged_claim_hides_neither_the_others_nor_what_is_known(
    quiet: Holdfast, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        clock.advance(seconds=1)
        await quiet.observations.submit(quiet.owner, a_payload(duration=1 + number))
    await query(quiet, "DROP TRIGGER observations_are_never_edited")
    await query(quiet, "UPDATE observations SET source = 'x' WHERE ordinal IN (2, 3)")

    found = await pages(
        lambda cursor: quiet.observations.list_observations(
            quiet.owner, "abc123", limit=2, cursor=cursor
        )
    )
    shown = await quiet.observations.show(quiet.owner, "abc123")

    assert [[each.ordinal for each in page.items] for page in found] == [[5, 4], [], [1]]
    assert [each.ordinal for each in shown.observations] == [5, 4, 1]
    assert (shown.observations_total, shown.entity.snapshot["duration"]) == (5, 5)
    assert "observation 3 of ent_" in caplog.text


async def test_a_damaged_entity_does_not_end_a_listing(
    quiet: Holdfast, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        clock.advance(seconds=1)
        unit = {**FEATURE_UNIT, "id": f"FU-{number}"}
        await quiet.observations.submit_entity(quiet.owner, "feature_unit", unit)
    await query(
        quiet,
        "UPDATE snapshots SET body = x'00' WHERE entity_key ="
        " (SELECT key FROM entities WHERE name = 'FU-2')",
    )
    wish = EntityQuery(entity_type=EntityType.FEATURE_UNIT, limit=2)

    found = await pages(
        lambda cursor: quiet.observations.entities(quiet.owner, wish, cursor=cursor)
    )

    assert [each.key for page in found for each in page.items] == ["FU-3", "FU-1", "FU-0"]
    assert "the snapshot of" in caplog.text


async def test_a_damaged_claim_does_not_end_a_listing_of_the_past(
    quiet: Holdfast, clock: SettableClock, caplog: pytest.LogCaptureFixture
) -> None:
    past = format_iso8601(milliseconds(clock.now()))
    for duration in (1, 2):
        for name in ("first", "other"):
            await quiet.observations.submit(
                quiet.owner, a_payload(session_id=name, duration=duration)
            )
        clock.advance(seconds=1)
    await query(quiet, "DROP TRIGGER observations_are_never_edited")
    await query(
        quiet,
        "UPDATE observations SET source = 'x' WHERE entity_key ="
        " (SELECT key FROM entities WHERE name = 'other')",
    )

    found = await quiet.observations.query(quiet.owner, HistoryQuery(at=past))

    assert [(each.key, each.snapshot["duration"]) for each in found.items] == [("first", 1)]
    assert "observation 1 of ent_" in caplog.text


async def test_who_is_damaged_hides_no_timeline_that_it_is_on(
    quiet: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    session, other = await quiet.open(), await quiet.open()
    for name in (session.id, other.id, "abc123"):
        claim = a_payload(session_id=name, outcomes=[{"type": "unit", "id": "FU-1"}])
        await quiet.observations.submit(quiet.owner, claim)
    await query(quiet, f"UPDATE entities SET duration = 5 WHERE name = '{session.id}'")
    await query(quiet, "DROP TRIGGER observations_are_never_edited")
    await query(
        quiet,
        "UPDATE observations SET source = 'x' WHERE entity_key ="
        f" (SELECT key FROM entities WHERE name = '{other.id}')",
    )

    page = await quiet.observations.timeline(quiet.owner, "FU-1")

    # Of the first only its row is damaged, and its events are kept elsewhere.
    assert {each.session_id for each in page.events} == {"abc123", session.id}
    assert caplog.text.count("is damaged") == 2


@each_case(
    ("field", "read"),
    [
        ("session_id", lambda house: house.observations.show(house.owner, LONE)),
        ("session_id", lambda house: house.observations.show(house.owner, LONE, at="2999-01-01")),
        ("session_id", lambda house: house.observations.list_observations(house.owner, LONE)),
        ("session_id", lambda house: house.observations.checkpoint(house.owner, LONE, "a")),
        ("name", lambda house: house.observations.checkpoint(house.owner, "abc123", LONE)),
        ("entity_id", lambda house: house.observations.timeline(house.owner, LONE)),
    ],
)
async def test_half_a_character_names_nothing(
    quiet: Holdfast, field: str, read: Callable[[Holdfast], Awaitable[Any]]
) -> None:
    with pytest.raises(Invalid) as caught:
        await read(quiet)

    assert (caught.value.code, caught.value.details) == (Code.INVALID_TEXT, {"field": field})
