"""Timelines: what happened to an entity, and to whoever names it, in one order."""

from typing import Any

import msgspec
import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.queries import encode_count
from holdfast.observations.queries import Correction, TimelinePage, TimelineQuery
from holdfast.observations.timeline import EventType, TimelineEvent
from tests.marks import demands, each_case
from tests.observations.claims import (
    COMPLETE,
    DECISION,
    FEATURE_UNIT,
    RELEASE,
    UPDATE,
    VALIDATION,
    a_payload,
)
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

UNIT = "ent_0d066099de6edd63f03ad189"
NOTHING = TimelinePage(events=(), total=0, next_cursor=None)


async def told(house: Holdfast, entity_id: str, **wish: Any) -> TimelinePage:
    """Return the timeline of an entity."""
    return await house.observations.timeline(house.owner, entity_id, TimelineQuery(**wish))


async def submit(house: Holdfast, payload: Any = COMPLETE) -> None:
    """Submit what was observed of a session."""
    await house.observations.submit(house.owner, payload)


def words(events: tuple[TimelineEvent, ...]) -> list[str]:
    """Return what the events say."""
    return [each.description for each in events]


@demands("S3-093", "S3-093b", "S3-093c", "S3-091")
async def test_a_session_is_told_under_what_its_outcomes_name(quiet: Holdfast) -> None:
    await submit(quiet)

    own = await told(quiet, "abc123")
    named = await told(quiet, "FU-061")

    assert words(own.events) == [
        "Session abc123 started",
        "Checkpoint: spec_complete",
        "Checkpoint: tests_passing",
        "Session abc123 ended",
    ]
    assert [each.id for each in own.events] == [each.id for each in named.events]
    assert own.events[1].id == "tle_9b54bdb56286bef34e866588"
    assert own.events[1].details == {"name": "spec_complete", "has_state": True}
    assert {each.related_to for each in own.events} == {None}
    assert {each.related_to for each in named.events} == {("FU-061",)}
    assert (own.total, named.total, named.next_cursor) == (4, 4, None)
    assert await told(quiet, "ent_31ed4722e1f7ffa6ea9a9ed8") == own


@demands("S3-120", "S3-120b", "S3-120c", "S3-120d")
async def test_sessions_and_what_they_work_on_share_their_timelines(
    quiet: Holdfast, clock: SettableClock
) -> None:
    worked_on = [{"type": "created", "id": "FU-061"}, {"type": "worked_on", "id": "v0.2.3"}]
    await submit(quiet, a_payload(outcomes=worked_on))
    entities = quiet.observations.submit_entity
    await entities(quiet.owner, "feature_unit", FEATURE_UNIT)
    clock.advance(seconds=1)
    await entities(quiet.owner, "feature_unit", {**FEATURE_UNIT, "status": "in_progress"})
    await entities(quiet.owner, "release", {**RELEASE, "feature_units": []})
    await entities(quiet.owner, "agent_decision", {**DECISION, "context": {"session_id": "abc123"}})
    await entities(quiet.owner, "validation_result", {**VALIDATION, "target": "abc123"})

    assert words((await told(quiet, "FU-061")).events) == [
        "Session abc123 started",
        "Status of FU-061: planning",
        "Status of FU-061: in_progress",
    ]
    assert words((await told(quiet, "v0.2.3")).events) == [
        "Session abc123 started",
        "Status of v0.2.3: planning",
    ]
    assert words((await told(quiet, "abc123")).events) == [
        "Session abc123 started",
        "Decision: Use SQLite by default",
        "Validation: test passed",
    ]


async def test_an_id_and_a_key_give_the_same_events(quiet: Holdfast) -> None:
    await submit(quiet)
    entities = quiet.observations.submit_entity
    await entities(quiet.owner, "feature_unit", FEATURE_UNIT)
    await entities(quiet.owner, "release", RELEASE)
    await entities(quiet.owner, "validation_result", VALIDATION)
    await entities(quiet.owner, "agent_decision", {**DECISION, "context": {"feature_unit": UNIT}})

    by_key, by_id = await told(quiet, "FU-061"), await told(quiet, UNIT)

    assert by_key == by_id
    assert words(by_key.events) == [
        "Session abc123 started",
        "Checkpoint: spec_complete",
        "Decision: Use SQLite by default",
        "Checkpoint: tests_passing",
        "Validation: test passed",
        "Session abc123 ended",
        "Status of FU-061: planning",
        "Status of v0.2.3: planning",
    ]
    assert by_key.events[2].related_to == (UNIT,)
    assert by_key.events[6].related_to is None
    assert by_key.total == 8


async def test_who_names_an_entity_in_two_ways_is_told_of_once(quiet: Holdfast) -> None:
    entities = quiet.observations.submit_entity
    await entities(quiet.owner, "feature_unit", FEATURE_UNIT)
    both = [{"type": "worked_on", "id": "FU-061"}, {"type": "worked_on", "id": UNIT}]
    await submit(quiet, a_payload(outcomes=both))

    page = await told(quiet, "FU-061")

    assert words(page.events) == ["Session abc123 started", "Status of FU-061: planning"]
    assert page.total == 2
    assert set(page.events[0].related_to or ()) == {"FU-061", UNIT}


async def test_one_hop_is_told_and_no_more(quiet: Holdfast) -> None:
    await submit(quiet, a_payload(outcomes=[{"type": "worked_on", "id": "FU-061"}]))
    await quiet.observations.submit_entity(quiet.owner, "release", RELEASE)

    assert words((await told(quiet, "v0.2.3")).events) == ["Status of v0.2.3: planning"]


async def test_a_session_that_names_itself_is_told_of_once(quiet: Holdfast) -> None:
    await submit(quiet, a_payload(outcomes=[{"type": "self", "id": "abc123"}]))

    page = await told(quiet, "abc123")

    assert (words(page.events), page.total) == (["Session abc123 started"], 1)
    assert page.events[0].related_to == ("abc123",)


@each_case("name", ["never", "ent_000000000000000000000000", "FU-061"])
async def test_nothing_is_told_of_what_nobody_knows(quiet: Holdfast, name: str) -> None:
    await quiet.observations.submit(Owner("ada"), COMPLETE)

    assert await told(quiet, name) == NOTHING


@demands("S3-095")
async def test_a_timeline_is_cut_by_dates_both_inclusive(quiet: Holdfast) -> None:
    await submit(quiet)
    hour = "2025-12-31T11"

    wide = await told(quiet, "FU-061", start_date="2025-12-01", end_date="2026-01-31")
    day = await told(quiet, "FU-061", start_date="2025-12-31", end_date="2025-12-31")
    middle = await told(quiet, "FU-061", start_date=f"{hour}:15:00Z", end_date=f"{hour}:30:00.000Z")
    none = await told(quiet, "FU-061", start_date="2026-01-01")

    assert (wide.total, day.total, none) == (4, 4, NOTHING)
    assert words(middle.events) == ["Checkpoint: spec_complete", "Checkpoint: tests_passing"]
    assert middle.total == 2


async def test_kinds_of_events_are_chosen(quiet: Holdfast) -> None:
    await submit(quiet)
    session = await quiet.open()

    chosen = (EventType.SESSION_STARTED, EventType.SESSION_ENDED)
    page = await told(quiet, "FU-061", event_types=chosen)
    own = await told(quiet, "abc123", event_types=chosen[:1])
    ours = await told(quiet, session.id, event_types=chosen[1:])

    assert words(page.events) == ["Session abc123 started", "Session abc123 ended"]
    assert (page.total, own.total, ours) == (2, 1, NOTHING)


async def test_a_timeline_is_read_in_pages(quiet: Holdfast) -> None:
    for number in range(7):
        moments = [f"2026-01-01T0{number}:0{minute}:00Z" for minute in (1, 2, 3)]
        claim = a_payload(
            session_id=f"session-{number}",
            started_at="2026-01-01",
            checkpoints=[{"name": each, "timestamp": each} for each in moments],
            outcomes=[{"type": "unit", "id": "FU-1"}],
        )
        await submit(quiet, claim)
    await quiet.observations.submit_entity(
        quiet.owner, "feature_unit", {**FEATURE_UNIT, "id": "FU-1"}
    )
    every = await told(quiet, "FU-1")
    walked, cursor = [], None
    while True:
        page = await quiet.observations.timeline(
            quiet.owner, "FU-1", TimelineQuery(limit=4), cursor=cursor
        )
        walked += page.events
        assert page.total == 29
        cursor = page.next_cursor
        if cursor is None:
            break

    assert len(every.events) == 29
    assert tuple(walked) == every.events
    assert walked == sorted(walked, key=lambda each: each.place)


async def test_a_cursor_belongs_to_its_timeline(quiet: Holdfast) -> None:
    await submit(quiet)
    await quiet.observations.submit(Owner("ada"), COMPLETE)
    first = await told(quiet, "abc123", limit=1)

    for owner, name, wish in (
        (Owner("ada"), "abc123", TimelineQuery()),
        (quiet.owner, "FU-061", TimelineQuery()),
        (quiet.owner, "abc123", TimelineQuery(start_date="2025-01-01")),
        (quiet.owner, "abc123", TimelineQuery(event_types=(EventType.SESSION_ENDED,))),
    ):
        with pytest.raises(Invalid):
            await quiet.observations.timeline(owner, name, wish, cursor=first.next_cursor)


@pytest.mark.parametrize("place", [(1, 0, "nothing"), (1 << 62, 0, f"tle_{'a' * 24}")])
async def test_a_forged_cursor_is_refused(quiet: Holdfast, place: tuple[int, int, str]) -> None:
    marks = ("timeline", quiet.owner, "abc123", None, None, ())

    cursor = encode_count((0, msgspec.msgpack.encode(place).hex()), marks)

    with pytest.raises(Invalid) as caught:
        await quiet.observations.timeline(quiet.owner, "abc123", cursor=cursor)

    assert caught.value.code is Code.INVALID_CURSOR


async def test_a_timeline_follows_what_is_claimed(quiet: Holdfast) -> None:
    await submit(quiet)
    await submit(quiet, UPDATE)
    late = Correction(
        session_id="abc123",
        field="outcomes",
        value=[{"type": "unit", "id": "FU-062"}],
    )
    moved = Correction(session_id="abc123", field="ended_at", value=None)
    for correction in (late, moved):
        await quiet.observations.correct(quiet.owner, correction)

    assert await told(quiet, "FU-061") == NOTHING
    assert words((await told(quiet, "FU-062")).events) == [
        "Session abc123 started",
        "Checkpoint: spec_complete",
        "Checkpoint: tests_passing",
        "Checkpoint: committed",
    ]
    assert (await quiet.observations.rebuild()).differences == ()


async def test_a_session_that_names_much_and_does_much_is_told_of_as_well(
    quiet: Holdfast, clock: SettableClock
) -> None:
    moments = [f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z" for number in range(80)]
    claim = a_payload(
        checkpoints=[{"name": each, "timestamp": each} for each in moments],
        outcomes=[{"type": "unit", "id": f"FU-{number}"} for number in range(80)],
    )
    await submit(quiet, claim)
    await submit(quiet, a_payload(session_id="narrow", outcomes=claim["outcomes"][:1]))

    page = await told(quiet, "FU-0", limit=500)
    rest = await told(quiet, "FU-79", limit=500)
    assert (page.total, len(page.events), rest.total) == (82, 82, 81)
    assert {each.related_to for each in page.events} == {("FU-0",)}
    fewer = Correction(session_id="abc123", field="outcomes", value=claim["outcomes"][:1])
    await quiet.observations.correct(quiet.owner, fewer)
    assert (await told(quiet, "FU-0")).total == 82
    assert await told(quiet, "FU-79") == NOTHING
    assert (await quiet.observations.rebuild()).differences == ()
