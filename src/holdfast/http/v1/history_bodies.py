"""What is sent of observed history, as it is described.

Bodies are judged by the rules of observations, which say of every fault where it is and what
would have been right; these types only tell callers beforehand.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.http.v1.history_forms import Key, Reason
from holdfast.observations.model import NAME_LONGEST, STRING_LONGEST

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)]
Told = Annotated[str, Meta(description="A day or a time of ISO 8601; without an offset it is UTC.")]
Text = Annotated[str, Meta(max_length=STRING_LONGEST)]
Details = dict[str, Any]


class ActionPart(Struct, frozen=True, kw_only=True):
    """Something that was done; other keys are kept as well."""

    type: Name
    result: Name
    details: Details | UnsetType | None = UNSET
    timestamp: Told | UnsetType | None = UNSET


class CheckpointPart(Struct, frozen=True, kw_only=True):
    """Something that was reached, and what it takes to go on from there."""

    name: Name
    timestamp: Told
    state: Details | UnsetType | None = UNSET


class OutcomePart(Struct, frozen=True, kw_only=True):
    """What came of it, and which entity it is about."""

    type: Name
    id: Text | UnsetType | None = UNSET
    details: Details | UnsetType | None = UNSET


class SubmissionPost(Struct, frozen=True, kw_only=True):
    """What happened in a session; null clears `duration` and `ended_at`."""

    session_id: Annotated[str, Meta(min_length=5, max_length=512)]
    actions: Annotated[tuple[ActionPart, ...], Meta(min_length=1, max_length=10_000)]
    started_at: Told
    checkpoints: (
        Annotated[tuple[CheckpointPart, ...], Meta(max_length=1_000)] | UnsetType | None
    ) = UNSET
    outcomes: Annotated[tuple[OutcomePart, ...], Meta(max_length=1_000)] | UnsetType | None = UNSET
    duration: Annotated[float, Meta(gt=0)] | UnsetType | None = UNSET
    ended_at: Told | UnsetType | None = UNSET
    idempotency_key: Key | UnsetType | None = UNSET


Correctable = Literal["actions", "checkpoints", "outcomes", "duration", "started_at", "ended_at"]


class CorrectionPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field, and what it should have been."""

    field: Correctable
    value: Any
    reason: Reason | None = None
    idempotency_key: Key | None = None


class RestorationPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, and under which key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


Sibling = Literal["feature_unit", "release", "agent_decision", "validation_result"]


class EntityPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of an entity that is no session, by the schema of its type."""

    entity_type: Sibling
    fields: Details
    idempotency_key: Key | None = None
