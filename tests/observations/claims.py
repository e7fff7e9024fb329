"""Builders of observations: payloads, and claims made of them with a time and a number."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.domain.errors import Invalid
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.time import milliseconds
from holdfast.observations.claims import (
    Claim,
    ValidPayload,
    accept_correction,
    accept_deletion,
    accept_payload,
    build_observation,
)
from holdfast.observations.merge import resolve
from holdfast.observations.model import Entity, EntityType, Observation, ObservationKind, Subject

AT: Final = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
SESSION: Final = EntityType.AGENT_SESSION
SUBJECT: Final = Subject(LOCAL_OWNER, SESSION, "abc123")

MINIMAL: Final[Mapping[str, Any]] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "started_at": "2025-12-31T11:00:00Z",
}
COMPLETE: Final[Mapping[str, Any]] = {
    "session_id": "abc123",
    "actions": [
        {
            "type": "create_feature_unit",
            "result": "success",
            "details": {"feature_unit_id": "FU-061"},
            "timestamp": "2025-12-31T11:15:00Z",
        },
        {
            "type": "run_tests",
            "result": "passed",
            "details": {"test_count": 42, "pass_count": 42},
            "timestamp": "2025-12-31T11:30:00Z",
        },
        {
            "type": "commit",
            "result": "success",
            "details": {"commit_sha": "abc123def"},
            "timestamp": "2025-12-31T11:45:00Z",
        },
    ],
    "checkpoints": [
        {
            "name": "spec_complete",
            "state": {"feature_unit_id": "FU-061", "status": "planning"},
            "timestamp": "2025-12-31T11:15:00Z",
        },
        {
            "name": "tests_passing",
            "state": {"feature_unit_id": "FU-061", "status": "in_progress"},
            "timestamp": "2025-12-31T11:30:00Z",
        },
    ],
    "outcomes": [
        {
            "type": "feature_unit_created",
            "id": "FU-061",
            "details": {"description": "Add sources table"},
        }
    ],
    "duration": 3600,
    "started_at": "2025-12-31T11:00:00Z",
    "ended_at": "2025-12-31T12:00:00Z",
}
UPDATE: Final[Mapping[str, Any]] = {
    "session_id": "abc123",
    "actions": [
        {"type": "create_feature_unit", "result": "success"},
        {"type": "run_tests", "result": "passed"},
    ],
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z"},
        {"name": "tests_passing", "timestamp": "2025-12-31T11:30:00Z"},
        {"name": "committed", "timestamp": "2025-12-31T11:45:00Z"},
    ],
    "started_at": "2025-12-31T11:00:00Z",
}
# The update of the usage examples: all actions, one checkpoint left out.
SECOND_UPDATE: Final[Mapping[str, Any]] = {
    "session_id": "abc123",
    "actions": [
        {"type": "create_feature_unit", "result": "success"},
        {"type": "run_tests", "result": "passed"},
        {"type": "commit", "result": "success"},
    ],
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00.000Z"},
        {"name": "committed", "timestamp": "2025-12-31T11:45:00.000Z"},
    ],
    "started_at": "2025-12-31T11:00:00.000Z",
}

FEATURE_UNIT: Final[Mapping[str, Any]] = {
    "id": "FU-061",
    "description": "Add sources table",
    "status": "planning",
    "created_at": "2025-12-01T00:00:00Z",
    "updated_at": "2025-12-02T00:00:00Z",
}
RELEASE: Final[Mapping[str, Any]] = {
    "id": "v0.2.3",
    "version": "0.2.3",
    "feature_units": ["FU-061", "FU-062"],
    "status": "planning",
    "acceptance_criteria": ["All tests pass"],
    "created_at": "2025-12-01T00:00:00Z",
    "updated_at": "2025-12-01T00:00:00Z",
}
DECISION: Final[Mapping[str, Any]] = {
    "decision": "Use SQLite by default",
    "rationale": "One file, no server.",
    "timestamp": "2025-12-31T12:20:00+01:00",
}
VALIDATION: Final[Mapping[str, Any]] = {
    "validation_type": "test",
    "status": "passed",
    "target": "FU-061",
    "timestamp": "2025-12-31T11:30:00Z",
}


def a_payload(**changes: Any) -> dict[str, Any]:
    """Return the minimal payload with other fields."""
    return {**MINIMAL, **changes}


def issues_of(payload: Any, entity_type: EntityType = SESSION) -> list[tuple[str, str]]:
    """Return the place and the rule of every issue for which a payload is refused."""
    try:
        accept_payload(entity_type, payload)
    except Invalid as error:
        return [(each["field"], each["expected"]) for each in error.details["issues"]]
    return []


def a_claim(
    ordinal: int = 1,
    *,
    kind: ObservationKind = ObservationKind.SUBMIT,
    minute: int | None = None,
    entity_type: EntityType = SESSION,
    **changes: Any,
) -> Observation:
    """Return the so-manieth observation, made so many minutes after the first could be.

    Changes are of the minimal payload of a session, and all there is of another entity.
    """
    payload = a_payload(**changes) if entity_type is SESSION else changes
    return entered(accept_payload(entity_type, payload), ordinal, kind=kind, minute=minute)


def a_correction(ordinal: int, field: str, value: Any, *, minute: int | None = None) -> Observation:
    """Return the correction of one field."""
    told = accept_correction("abc123", field, value)
    return entered(told, ordinal, kind=ObservationKind.CORRECTION, minute=minute)


def a_deletion(ordinal: int, *, is_deleted: bool = True) -> Observation:
    """Return that a history is deleted, or restored."""
    kind = ObservationKind.DELETION if is_deleted else ObservationKind.RESTORATION
    return entered(accept_deletion("abc123", is_deleted=is_deleted), ordinal, kind=kind)


def imported(payload: Any, key: str, observed_at: datetime, *, source: str = "a") -> Claim:
    """Return a session's payload as an importer writes it."""
    return Claim(
        payload=accept_payload(EntityType.AGENT_SESSION, payload),
        kind=ObservationKind.IMPORT,
        source=source,
        idempotency_key=key,
        observed_at=observed_at,
    )


def entered(
    told: ValidPayload,
    ordinal: int,
    *,
    kind: ObservationKind = ObservationKind.SUBMIT,
    minute: int | None = None,
) -> Observation:
    """Return what was accepted as an observation of its minute, which is its number's if unsaid."""
    at = AT + timedelta(minutes=ordinal if minute is None else minute)
    return build_observation(
        told.subject_of(LOCAL_OWNER),
        Claim(payload=told, kind=kind, observed_at=at),
        ordinal=ordinal,
        created_ms=milliseconds(AT + timedelta(minutes=ordinal)),
    )


def resolved(*observations: Observation, **changes: Any) -> Entity:
    """Return what is known of the subject of all these."""
    return resolve(observations[0].subject, observations, **changes)
