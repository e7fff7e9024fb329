"""Warnings: what is odd about an observation that is written all the same."""

from datetime import UTC, datetime
from typing import Any

from holdfast.domain.time import milliseconds
from holdfast.observations.claims import (
    accept_payload,
    change_warnings,
    session_warnings,
)
from holdfast.observations.issues import WarningCode
from holdfast.observations.model import EntityType
from tests.marks import demands, each_case
from tests.observations.claims import (
    COMPLETE,
    DECISION,
    FEATURE_UNIT,
    RELEASE,
    SESSION,
    a_payload,
)

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
END = "2025-12-31T12:00:00Z"


def told(**changes: Any) -> list[tuple[str, str]]:
    """Return code and field of every warning about a payload."""
    return [
        (each.code, each.field) for each in accept_payload(SESSION, a_payload(**changes)).warnings
    ]


@demands("S3-003")
def test_another_result_than_the_three_is_a_warning() -> None:
    results = ["success", "failure", "warning", "passed", "Success"]

    found = told(actions=[{"type": "a", "result": each} for each in results])

    assert found == [
        ("NONSTANDARD_RESULT", "actions[3].result"),
        ("NONSTANDARD_RESULT", "actions[4].result"),
    ]


@demands("S3-031")
@each_case(
    ("duration", "is_odd"),
    [(3600, False), (3601, False), (3599, False), (3601.001, True), (3598, True), (10**400, True)],
)
def test_a_duration_that_is_not_that_of_the_times_is_a_warning(duration: Any, is_odd: bool) -> None:
    assert told(ended_at=END, duration=duration) == [("DURATION_MISMATCH", "duration")] * is_odd


@demands("S3-032")
def test_a_checkpoint_outside_the_session_is_a_warning() -> None:
    times = ["10:59:59", "11:00:00", "12:00:00", "12:00:01"]
    checkpoints = [{"name": each, "timestamp": f"2025-12-31T{each}Z"} for each in times]

    assert told(ended_at=END, checkpoints=checkpoints) == [
        ("CHECKPOINT_OUT_OF_RANGE", "checkpoints[0].timestamp"),
        ("CHECKPOINT_OUT_OF_RANGE", "checkpoints[3].timestamp"),
    ]
    assert told(checkpoints=checkpoints) == [
        ("CHECKPOINT_OUT_OF_RANGE", "checkpoints[0].timestamp")
    ]


def test_a_time_without_offset_is_a_warning_wherever_it_stands() -> None:
    found = told(
        started_at="2025-12-31T11:00",
        ended_at="2026-01-01",
        actions=[{"type": "a", "result": "success", "timestamp": "2025-12-31T11:30"}],
        checkpoints=[
            {"name": "a", "timestamp": "2025-12-31T11:30Z"},
            {"name": "b", "timestamp": "2025-12-31T11:30"},
        ],
    )

    assert found == [
        ("TIMESTAMP_ASSUMED_UTC", "actions[0].timestamp"),
        ("TIMESTAMP_ASSUMED_UTC", "checkpoints[1].timestamp"),
        ("TIMESTAMP_ASSUMED_UTC", "started_at"),
        ("TIMESTAMP_ASSUMED_UTC", "ended_at"),
    ]


def test_null_clears_or_is_taken_as_not_sent() -> None:
    assert told(checkpoints=None, outcomes=None, duration=None, ended_at=None) == [
        ("NULL_IGNORED", "checkpoints"),
        ("NULL_IGNORED", "outcomes"),
        ("NULL_CLEARED_FIELD", "duration"),
        ("NULL_CLEARED_FIELD", "ended_at"),
    ]


def test_an_unknown_field_is_a_warning_and_one_inside_an_element_is_none() -> None:
    found = told(zeta=1, alpha=2, actions=[{"type": "a", "result": "success", "cost": 1}])

    assert found == [("UNKNOWN_FIELD", "alpha"), ("UNKNOWN_FIELD", "zeta")]


def test_warnings_of_one_item_stand_by_their_codes() -> None:
    found = told(
        ended_at=END,
        checkpoints=[{"name": "a", "timestamp": "2025-12-31"}],
        actions=[{"type": "a", "result": "odd", "timestamp": "2025-12-31"}],
        duration=None,
    )

    assert found == [
        ("NONSTANDARD_RESULT", "actions[0].result"),
        ("TIMESTAMP_ASSUMED_UTC", "actions[0].timestamp"),
        ("CHECKPOINT_OUT_OF_RANGE", "checkpoints[0].timestamp"),
        ("TIMESTAMP_ASSUMED_UTC", "checkpoints[0].timestamp"),
        ("NULL_CLEARED_FIELD", "duration"),
    ]


def test_a_merged_session_may_contradict_itself() -> None:
    merged = {**COMPLETE, "ended_at": "2025-12-31T10:00:00Z"}

    assert [each.code for each in session_warnings(merged)] == [
        WarningCode.CHECKPOINT_OUT_OF_RANGE,
        WarningCode.CHECKPOINT_OUT_OF_RANGE,
        WarningCode.DURATION_MISMATCH,
        WarningCode.ENDED_BEFORE_STARTED,
    ]
    assert session_warnings(COMPLETE) == ()
    assert session_warnings({}) == ()


@each_case(
    ("entity_type", "before", "now_told", "codes"),
    [
        (EntityType.FEATURE_UNIT, {"status": "deployed"}, FEATURE_UNIT, ["STATUS_REGRESSION"]),
        (EntityType.FEATURE_UNIT, {"status": "completed"}, FEATURE_UNIT, []),
        (EntityType.FEATURE_UNIT, {}, FEATURE_UNIT, []),
        (EntityType.RELEASE, {"status": "deployed"}, RELEASE, []),
        (EntityType.RELEASE, {}, {**RELEASE, "target_ship_date": "2026-01-01"}, ["DATE_IN_PAST"]),
        (EntityType.RELEASE, {}, {**RELEASE, "target_ship_date": "2026-01-02"}, []),
        (EntityType.RELEASE, {}, {**RELEASE, "target_ship_date": None}, []),
        (EntityType.AGENT_DECISION, {}, DECISION, []),
        (
            EntityType.AGENT_DECISION,
            {},
            {**DECISION, "timestamp": "2026-01-02T12:00:00.001Z"},
            ["DATE_IN_FUTURE"],
        ),
        (EntityType.VALIDATION_RESULT, {}, {"timestamp": "2027-01-01"}, []),
    ],
)
def test_what_is_odd_today_is_a_warning(
    entity_type: EntityType, before: dict[str, Any], now_told: dict[str, Any], codes: list[str]
) -> None:
    found = change_warnings(entity_type, before, now_told, now_ms=milliseconds(NOW))

    assert [each.code for each in found] == codes
