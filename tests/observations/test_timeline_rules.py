"""Timelines: what happened to entities and when, under every id it is told under."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.domain.errors import Invalid
from holdfast.domain.ids import EntityId
from holdfast.observations.as_of import EVERYTHING, AsOf, parse_as_of, parse_window
from holdfast.observations.model import Entity, EntityType, ObservationKind
from holdfast.observations.timeline import (
    _EVENTS,
    RANKS,
    EventType,
    TimelineEvent,
    events_of,
    happens_alike,
    references,
)
from tests.marks import demands, each_case
from tests.observations.claims import (
    COMPLETE,
    DECISION,
    FEATURE_UNIT,
    RELEASE,
    UPDATE,
    VALIDATION,
    a_claim,
    a_deletion,
    resolved,
)

ENTITY = EntityId("ent_31ed4722e1f7ffa6ea9a9ed8")


def a_sibling(entity_type: EntityType, *payloads: dict[str, Any]) -> Entity:
    """Return an entity of which these were claimed, a minute apart."""
    return resolved(
        *(
            a_claim(number, entity_type=entity_type, **each)
            for number, each in enumerate(payloads, 1)
        )
    )


@demands("S3-090", "S3-090b", "S3-090c")
def test_a_session_starts_reaches_checkpoints_and_ends() -> None:
    claim = a_claim(**COMPLETE)

    events = events_of(resolved(claim))

    assert [(event.id, event.timestamp, event.description) for event in events] == [
        ("tle_e7ed093ab338bab70ae0835e", "2025-12-31T11:00:00.000Z", "Session abc123 started"),
        ("tle_9b54bdb56286bef34e866588", "2025-12-31T11:15:00.000Z", "Checkpoint: spec_complete"),
        (events[2].id, "2025-12-31T11:30:00.000Z", "Checkpoint: tests_passing"),
        ("tle_4f30490bd2f7ba7e8756009b", "2025-12-31T12:00:00.000Z", "Session abc123 ended"),
    ]
    assert events[1] == TimelineEvent(
        id="tle_9b54bdb56286bef34e866588",
        timestamp="2025-12-31T11:15:00.000Z",
        event_type=EventType.CHECKPOINT_REACHED,
        description="Checkpoint: spec_complete",
        entity_id=ENTITY,
        entity_type=EntityType.AGENT_SESSION,
        session_id="abc123",
        source_field="checkpoints",
        provenance=(claim.id,),
        details={"name": "spec_complete", "has_state": True},
    )


def test_an_event_shows_only_what_applies() -> None:
    (event,) = msgspec.json.decode(msgspec.json.encode(events_of(resolved(a_claim()))))

    assert list(event) == [
        "id",
        "timestamp",
        "event_type",
        "description",
        "entity_id",
        "entity_type",
        "session_id",
        "source_field",
        "provenance",
    ]


def test_ids_stay_when_more_becomes_known() -> None:
    before = events_of(resolved(a_claim(1, **COMPLETE)))
    after = events_of(resolved(a_claim(1, **COMPLETE), a_claim(2, **UPDATE)))

    assert [
        event.id for event in after if event.details != {"name": "committed", "has_state": False}
    ] == [event.id for event in before]
    assert len(after) == len(before) + 1


@each_case(
    "change",
    [
        {},
        {"actions": [{"type": "commit", "result": "failure"}]},
        {"duration": 7, "outcomes": [{"type": "release", "id": "v0.2.3"}]},
        {"started_at": "2025-12-31T10:00:00Z"},
        {"ended_at": "2025-12-31T13:00:00Z"},
        {"ended_at": None},
        {"checkpoints": [{"name": "pushed", "timestamp": "2025-12-31T11:50:00Z"}]},
        {"checkpoints": [{"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z", "n": 1}]},
    ],
)
def test_states_with_other_events_are_told_apart_without_making_them(change: Any) -> None:
    first = a_claim(1, **COMPLETE)
    before, after = resolved(first), resolved(first, a_claim(2, **change))

    assert happens_alike(before, after) == (events_of(before) == events_of(after))
    assert not happens_alike(before, resolved(first, a_deletion(2)))


def test_nothing_happened_to_what_is_deleted() -> None:
    assert events_of(resolved(a_claim(1, **COMPLETE), a_deletion(2))) == ()


def test_moments_that_are_equal_start_go_on_and_end() -> None:
    when = "2025-12-31T11:00:00Z"
    checkpoints = [{"name": name, "timestamp": when} for name in ("b", "a")]
    entity = resolved(a_claim(checkpoints=checkpoints, ended_at=when))

    events = events_of(entity)

    assert [event.event_type for event in events] == [
        "SessionStarted",
        "CheckpointReached",
        "CheckpointReached",
        "SessionEnded",
    ]
    assert events[1].id < events[2].id
    assert set(RANKS) == set(EventType)
    assert RANKS[EventType.SESSION_ENDED] < RANKS[EventType.DECISION_MADE]


@demands("S3-120e")
def test_a_session_is_told_under_every_entity_its_outcomes_name() -> None:
    outcomes = [
        {"type": "made", "id": "FU-061"},
        {"type": "seen", "id": "FU-061"},
        {"type": "shipped", "id": "v0.2.3"},
        {"type": "nothing"},
    ]
    entity = resolved(a_claim(outcomes=outcomes))

    assert references(entity) == ("FU-061", "v0.2.3")


@each_case(
    ("entity_type", "payload", "named"),
    [
        (EntityType.FEATURE_UNIT, FEATURE_UNIT, ()),
        (EntityType.RELEASE, RELEASE, ("FU-061", "FU-062")),
        (EntityType.AGENT_DECISION, DECISION, ()),
        (
            EntityType.AGENT_DECISION,
            {
                **DECISION,
                "context": {"release": "v1.0.0", "session_id": "abc123", "feature_unit": 5, "x": 1},
            },
            ("abc123", "v1.0.0"),
        ),
        (EntityType.VALIDATION_RESULT, VALIDATION, ("FU-061",)),
        (EntityType.VALIDATION_RESULT, {**VALIDATION, "target": None}, ()),
    ],
)
def test_an_entity_is_told_under_what_it_names(
    entity_type: EntityType, payload: dict[str, Any], named: tuple[str, ...]
) -> None:
    assert references(a_sibling(entity_type, payload)) == named


def test_a_decision_is_made_when_it_says() -> None:
    (event,) = events_of(a_sibling(EntityType.AGENT_DECISION, dict(DECISION)))

    assert (event.event_type, event.timestamp, event.description, event.source_field) == (
        "DecisionMade",
        "2025-12-31T11:20:00.000Z",
        "Decision: Use SQLite by default",
        "timestamp",
    )
    assert event.session_id is None


def test_a_validation_is_recorded_when_it_says() -> None:
    (event,) = events_of(a_sibling(EntityType.VALIDATION_RESULT, dict(VALIDATION)))

    assert (event.event_type, event.timestamp, event.description) == (
        "ValidationRecorded",
        "2025-12-31T11:30:00.000Z",
        "Validation: test passed",
    )
    assert event.details == {"validation_type": "test", "status": "passed"}


def test_a_status_changes_with_each_observation_that_changes_it() -> None:
    steps = ["planning", "planning", "in_progress", "planning"]
    payloads = [{**FEATURE_UNIT, "status": each} for each in steps]

    events = events_of(a_sibling(EntityType.FEATURE_UNIT, *payloads))

    assert [(event.description, event.timestamp[14:16]) for event in events] == [
        ("Status of FU-061: planning", "05"),
        ("Status of FU-061: in_progress", "07"),
        ("Status of FU-061: planning", "08"),
    ]
    assert events[1].details == {"status": "in_progress", "previous": "planning"}
    assert len({event.id for event in events}) == 3


def test_a_status_that_weighs_too_little_changes_nothing() -> None:
    unit = EntityType.FEATURE_UNIT
    submitted = a_claim(1, entity_type=unit, **FEATURE_UNIT)
    imported = a_claim(
        2, entity_type=unit, kind=ObservationKind.IMPORT, **{**FEATURE_UNIT, "status": "deployed"}
    )

    entity = resolved(submitted, imported)

    assert entity.snapshot["status"] == "planning"
    assert len(events_of(entity)) == 1


def test_all_fields_of_the_others_are_single_values() -> None:
    entity = a_sibling(
        EntityType.RELEASE,
        {**RELEASE, "target_ship_date": "2026-02-01"},
        {**RELEASE, "feature_units": ["FU-9"], "target_ship_date": None, "mood": "good"},
    )

    assert entity.snapshot == {**RELEASE, "feature_units": ["FU-9"]}
    assert entity.provenance_items == {}
    assert set(entity.provenance) == set(entity.snapshot)


def test_every_type_has_events() -> None:
    assert set(_EVENTS) == set(EntityType)


@each_case(
    ("start", "end", "names"),
    [
        (None, None, 4),
        ("2025-12-01", "2026-01-31", 4),
        ("2025-12-31", "2025-12-31", 4),
        (None, "2025-12-30", 0),
        ("2025-12-31T11:15:00Z", "2025-12-31T11:30:00Z", 2),
        ("2025-12-31T11:15:00.001Z", "2025-12-31T11:29:59.999Z", 0),
        ("2026-01-01", None, 0),
    ],
)
def test_a_stretch_of_time_includes_both_ends(
    start: str | None, end: str | None, names: int
) -> None:
    entity = resolved(a_claim(**COMPLETE))

    assert len(events_of(entity, window=parse_window(start, end))) == names


@each_case(
    ("start", "end", "field", "expected"),
    [
        ("soon", None, "start_date", "format: iso_8601"),
        (None, 5, "end_date", "type: string"),
        ("2025-12-31", "2025-12-30", "end_date", "gte: start_date"),
    ],
)
def test_what_is_no_stretch_of_time_is_refused(
    start: Any, end: Any, field: str, expected: str
) -> None:
    with pytest.raises(Invalid) as refused:
        parse_window(start, end)

    assert (refused.value.details["field"], refused.value.details["expected"]) == (field, expected)


def test_as_of_a_day_is_to_its_end_and_as_of_a_time_to_its_millisecond() -> None:
    found = parse_as_of("2025-12-31", "2025-12-31T12:00:00.5+01:00")

    assert found == AsOf(
        at=datetime(2025, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        at_ingested=datetime(2025, 12, 31, 11, 0, 0, 500_999, tzinfo=UTC),
    )
    assert parse_as_of() == EVERYTHING
    with pytest.raises(Invalid) as refused:
        parse_as_of("24:00", 5)
    assert [each["field"] for each in refused.value.details["issues"]] == ["at", "at_ingested"]
