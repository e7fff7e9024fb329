"""The four types of entities beside sessions: what they must say, and what they are known by."""

from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.observations import model
from holdfast.observations.claims import accept_payload, require_sibling
from holdfast.observations.model import SIBLINGS, EntityType
from holdfast.observations.validation import members_of
from tests.marks import each_case
from tests.observations.claims import DECISION, FEATURE_UNIT, RELEASE, VALIDATION, issues_of

UNIT, SHIP = EntityType.FEATURE_UNIT, EntityType.RELEASE
CHOICE, CHECK = EntityType.AGENT_DECISION, EntityType.VALIDATION_RESULT
PAYLOADS = {UNIT: FEATURE_UNIT, SHIP: RELEASE, CHOICE: DECISION, CHECK: VALIDATION}
FULL = {
    UNIT: {"dependencies": ["FU-1"], "risk_level": "low"},
    SHIP: {"target_ship_date": "2026-02-01T00:00:00Z"},
    CHOICE: {"context": {"session_id": "abc123"}, "decision_type": "technical", "agent_id": "a"},
    CHECK: {"details": [1, {"a": 2}]},
}


def test_every_type_has_a_payload_and_a_key_of_its_members() -> None:
    assert set(model.PAYLOADS) == set(model.KEYS) == set(EntityType)
    assert all(
        set(model.KEYS[each]) <= set(members_of(model.PAYLOADS[each])) for each in EntityType
    )


@each_case("entity_type", SIBLINGS)
def test_a_right_payload_is_accepted(entity_type: EntityType) -> None:
    payload = {**PAYLOADS[entity_type], **FULL[entity_type]}

    told = accept_payload(entity_type, payload)

    assert (told.fields, told.warnings) == (payload, ())


@each_case(
    ("entity_type", "changes", "field", "expected"),
    [
        (UNIT, {"id": "FU-"}, "id", "pattern: FU-[0-9]+"),
        (UNIT, {"id": "FU-1\n"}, "id", "pattern: FU-[0-9]+"),
        (UNIT, {"id": None}, "id", "required"),
        (UNIT, {"description": "too short"}, "description", "min_length: 10"),
        (
            UNIT,
            {"status": "done"},
            "status",
            "one of: planning, in_progress, completed, deployed, deferred, cancelled",
        ),
        (UNIT, {"dependencies": "FU-1"}, "dependencies", "type: array"),
        (UNIT, {"dependencies": ["FU-1", 2]}, "dependencies[1]", "type: string"),
        (UNIT, {"dependencies": ["x"]}, "dependencies[0]", "pattern: FU-[0-9]+"),
        (UNIT, {"dependencies": ["FU-061"]}, "dependencies[0]", "pattern: not its own id"),
        (UNIT, {"risk_level": "huge"}, "risk_level", "one of: low, medium, high"),
        (UNIT, {"created_at": None}, "created_at", "required"),
        (UNIT, {"updated_at": "2025-11-30"}, "updated_at", "gte: created_at"),
        (SHIP, {"id": "0.2.3"}, "id", r"pattern: v[0-9]+\.[0-9]+\.[0-9]+"),
        (SHIP, {"id": "v0x2x3"}, "id", r"pattern: v[0-9]+\.[0-9]+\.[0-9]+"),
        (SHIP, {"version": ""}, "version", "min_length: 1"),
        (SHIP, {"feature_units": ["FU-1", "FU-2", "FU-1"]}, "feature_units[2]", "unique_keys"),
        (SHIP, {"feature_units": [5]}, "feature_units[0]", "type: string"),
        (SHIP, {"feature_units": None}, "feature_units", "required"),
        (SHIP, {"acceptance_criteria": []}, "acceptance_criteria", "min_length: 1"),
        (SHIP, {"target_ship_date": "soon"}, "target_ship_date", "format: iso_8601"),
        (CHOICE, {"decision": " "}, "decision", "min_length: 1"),
        (CHOICE, {"rationale": "because"}, "rationale", "min_length: 10"),
        (CHOICE, {"context": "x"}, "context", "type: object"),
        (
            CHOICE,
            {"decision_type": "other"},
            "decision_type",
            "one of: technical, architectural, process, strategic",
        ),
        (CHOICE, {"agent_id": 5}, "agent_id", "type: string"),
        (CHECK, {"status": "ok"}, "status", "one of: passed, failed, warning, skipped"),
        (CHECK, {"target": 5}, "target", "type: string"),
        (CHECK, {"timestamp": None}, "timestamp", "required"),
        (CHECK, {"_x": 1}, "_x", "not_reserved"),
    ],
)
def test_a_violated_rule_is_one_issue(
    entity_type: EntityType, changes: dict[str, Any], field: str, expected: str
) -> None:
    payload = {**PAYLOADS[entity_type], **changes}

    assert issues_of(payload, entity_type) == [(field, expected)]


def test_messages_name_lists_in_words() -> None:
    with pytest.raises(Invalid) as refused:
        accept_payload(SHIP, {**RELEASE, "acceptance_criteria": []})

    assert refused.value.details["message"] == (
        "Acceptance criteria array must have at least 1 item"
    )


@each_case(
    ("entity_type", "changes", "key"),
    [
        (UNIT, {}, "FU-061"),
        (SHIP, {}, "v0.2.3"),
        (CHOICE, {}, '["Use SQLite by default","2025-12-31T11:20:00.000Z"]'),
        (CHECK, {}, '["test","FU-061","2025-12-31T11:30:00.000Z"]'),
        (CHECK, {"target": None}, '["test","","2025-12-31T11:30:00.000Z"]'),
    ],
)
def test_an_entity_is_known_by_its_key(
    entity_type: EntityType, changes: dict[str, Any], key: str
) -> None:
    assert accept_payload(entity_type, {**PAYLOADS[entity_type], **changes}).key == key


@each_case("entity_type", SIBLINGS)
def test_the_four_are_submitted_as_entities(entity_type: EntityType) -> None:
    assert require_sibling(str(entity_type)) is entity_type


@each_case("wish", ["agent_session", "person", None, [], 5])
def test_nothing_else_is_submitted_as_an_entity(wish: Any) -> None:
    with pytest.raises(Invalid) as refused:
        require_sibling(wish)

    assert refused.value.details["expected"] == (
        "one of: feature_unit, release, agent_decision, validation_result"
    )
