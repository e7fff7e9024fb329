"""Observations: how they and their entities are named, and what their kind weighs."""

from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.domain.ids import Owner
from holdfast.observations.claims import (
    accept_payload,
    require_idempotency_key,
)
from holdfast.observations.model import (
    EntityType,
    Subject,
    is_entity_id,
    observation_id,
)
from tests.marks import each_case
from tests.observations.claims import MINIMAL, SESSION, SUBJECT, a_claim


@each_case(
    ("owner", "entity_type", "key", "entity_id"),
    [
        ("local", "agent_session", "abc123", "ent_31ed4722e1f7ffa6ea9a9ed8"),
        ("local", "agent_session", "ABC123", "ent_ce6547ae0b6362c10436e6c6"),
        ("local", "agent_session", "def456", "ent_1f7c156c23191b5dfe2483d1"),
        ("user-1", "agent_session", "abc123", "ent_97d155d1a00daa37b1e8f315"),
        ("local", "agent_session", "s\u00e9ance-1", "ent_8025c3ca518031050b992d08"),
        ("local", "agent_session", 'a"b\\c', "ent_1534a90b174239e7fd09f29e"),
        ("local", "feature_unit", "FU-061", "ent_0d066099de6edd63f03ad189"),
        ("local", "release", "v0.2.3", "ent_f614becf7d93782145f9b4c4"),
        (
            "local",
            "agent_decision",
            '["Use SQLite by default","2025-12-31T11:20:00.000Z"]',
            "ent_f40e96b591389422f2855c55",
        ),
        (
            "local",
            "validation_result",
            '["test","FU-061","2025-12-31T11:30:00.000Z"]',
            "ent_64741975d01d13e9874f1f95",
        ),
    ],
)
def test_an_entity_has_the_id_of_its_owner_type_and_key(
    owner: str, entity_type: str, key: str, entity_id: str
) -> None:
    subject = Subject(Owner(owner), EntityType(entity_type), key)

    assert subject.entity_id == entity_id
    assert is_entity_id(entity_id)


@pytest.mark.parametrize(
    ("ordinal", "id_"),
    [(1, "obs_4f6122a30d2ef3d0db94b0a3c8b1430a"), (2, "obs_fab593d84ef432abffa847fd253b5338")],
)
def test_an_observation_has_the_id_of_its_number_and_content(ordinal: int, id_: str) -> None:
    told = accept_payload(SESSION, dict(MINIMAL))

    assert observation_id(SUBJECT, ordinal, told.content_hash) == id_
    assert a_claim(ordinal).id == id_


@each_case(
    ("key", "expected"),
    [
        ("", "min_length: 1"),
        ("x" * 201, "max_length: 200"),
        (5, "type: string"),
        (None, "required"),
    ],
)
def test_an_idempotency_key_has_one_to_two_hundred_characters(key: Any, expected: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_idempotency_key(key)

    assert refused.value.details["expected"] == expected
    assert require_idempotency_key("x" * 200) == "x" * 200
