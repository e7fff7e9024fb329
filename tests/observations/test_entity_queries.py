"""Listings of entities: what they are ordered by, and which of them are meant."""

from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.domain.time import instant_of, milliseconds
from holdfast.observations.model import EntityType
from holdfast.observations.queries import EntityOrder, matches, order_value, require_filters
from tests.marks import demands, each_case
from tests.observations.claims import COMPLETE, a_claim, a_deletion, resolved

SNAPSHOT = {
    "status": "planning",
    "count": 5,
    "done": True,
    "feature_units": ["FU-1", "FU-2"],
    "context": {"release": "v1.0.0", "deep": {"n": 1}},
    "created_at": "2025-12-31T11:00:00+01:00",
    "nothing": None,
}


def test_an_entity_is_ordered_by_instants_numbers_and_names() -> None:
    claim = a_claim(**COMPLETE)
    entity = resolved(claim)

    assert {order: order_value(entity, order) for order in EntityOrder} == {
        EntityOrder.STARTED_AT: instant_of("2025-12-31T11:00:00Z"),
        EntityOrder.ENDED_AT: instant_of("2025-12-31T12:00:00Z"),
        EntityOrder.DURATION: 3600,
        EntityOrder.LAST_OBSERVATION_AT: milliseconds(claim.observed_at),
        EntityOrder.SESSION_ID: "abc123",
    }


def test_what_is_missing_is_ordered_by_nothing() -> None:
    gone = resolved(a_claim(), a_deletion(2))

    assert {order_value(gone, order) for order in EntityOrder} == {None}
    assert order_value(resolved(a_claim()), EntityOrder.ENDED_AT) is None


@each_case(
    ("filters", "is_meant"),
    [
        ({}, True),
        ({"status": "planning"}, True),
        ({"status": "planning", "count": 6}, False),
        ({"count": 5}, True),
        ({"done": 1}, False),
        ({"done": True}, True),
        ({"feature_units": ["FU-1", "FU-2"]}, True),
        ({"context.release": "v1.0.0"}, True),
        ({"context.deep.n": 1}, True),
        ({"context.deep.n.m": 1}, False),
        ({"missing": None}, False),
        ({"nothing": None}, True),
        ({"feature_units": {"contains": "FU-2"}}, True),
        ({"feature_units": {"contains": "FU"}}, False),
        ({"status": {"contains": "plan"}}, True),
        ({"status": {"contains": 5}}, False),
        ({"count": {"contains": 5}}, False),
        ({"count": {"gte": 5, "lte": 5}}, True),
        ({"count": {"gte": 5.5}}, False),
        ({"count": {"lte": 4}}, False),
        ({"count": {"lte": "5"}}, False),
        ({"done": {"gte": 0}}, False),
        ({"count": {"gte": None}}, False),
        ({"status": {"gte": "a", "lte": "z"}}, True),
        ({"status": {"gte": "q"}}, False),
        ({"created_at": {"gte": "2025-12-31T10:00:00Z", "lte": "2025-12-31"}}, True),
        ({"created_at": {"gte": "2025-12-31T10:00:00.001Z"}}, False),
        ({"created_at": {"lte": "2025-12-30"}}, False),
    ],
)
def test_filters_are_met_by_equality_parts_and_ranges(
    filters: dict[str, Any], is_meant: bool
) -> None:
    assert matches(SNAPSHOT, filters) is is_meant


SESSION = {
    "session_id": "abc123",
    "actions": [
        {"type": "run_tests", "result": "failure", "details": {"tests": [{"name": "a"}, "b"]}},
        {"type": "commit", "result": "success", "took": 5},
    ],
    "checkpoints": [],
}


@demands("S3-002k")
@each_case(
    ("filters", "is_meant"),
    [
        ({"actions.result": "failure"}, True),
        ({"actions.result": "unknown"}, False),
        ({"actions.type": {"contains": "tests"}}, True),
        ({"actions.took": {"gte": 5}}, True),
        ({"actions.took": {"gte": 6}}, False),
        ({"actions.details.tests.name": "a"}, True),
        ({"actions.details.tests": {"contains": "b"}}, True),
        ({"checkpoints.name": "spec_complete"}, False),
        ({"checkpoints": []}, True),
        ({"duration": None}, False),
    ],
)
def test_a_path_through_a_list_leads_to_every_item(filters: dict[str, Any], is_meant: bool) -> None:
    assert matches(SESSION, require_filters(EntityType.AGENT_SESSION, filters)) is is_meant


def test_no_filters_are_no_wish() -> None:
    assert require_filters(EntityType.RELEASE, None) == {}


@each_case(
    ("entity_type", "path", "message"),
    [
        (
            EntityType.VALIDATION_RESULT,
            "outcome",
            "filters.outcome is not a field of validation_result; its fields are "
            "validation_type, status, details, target, timestamp.",
        ),
        (
            EntityType.AGENT_SESSION,
            "session_id.length",
            "filters.session_id.length must end at session_id, which has no fields of its own.",
        ),
        (
            EntityType.FEATURE_UNIT,
            "dependencies.id",
            "filters.dependencies.id must end at dependencies, which has no fields of its own.",
        ),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_with_the_fields_there_are(
    entity_type: EntityType, path: str, message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        require_filters(entity_type, {path: 1})

    assert (refused.value.details["field"], refused.value.message) == (f"filters.{path}", message)


@each_case(
    ("filters", "field"),
    [
        ([], "filters"),
        ({"status": {}}, "filters.status"),
        ({"status": {"contains": 1, "gte": 2}}, "filters.status"),
        ({"status": {"like": 1}}, "filters.status"),
        ({"status": float("nan")}, "filters.status"),
        ({"status": {"gte": 10**1_000}}, "filters.status.gte"),
    ],
)
def test_other_wishes_are_refused(filters: Any, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_filters(EntityType.FEATURE_UNIT, filters)

    assert refused.value.details["field"] == field
