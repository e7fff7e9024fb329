"""Entity types, the payload of each type, observations and merged entities."""

import hashlib
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from holdfast.domain.canonical_json import canonical_text, digest
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.time import Moment, moment
from holdfast.observations.issues import SchemaWarning

SCHEMA_VERSION: Final = "v1"
STRING_LONGEST: Final = 65_536
NAME_LONGEST: Final = 512
SOURCE_LONGEST: Final = 200
REASON_LONGEST: Final = 512
# Not blank.
FILLED: Final = r"\S"
# Neither outer white space nor control characters (Unicode category Cc, a closed set).
EXACT: Final = r"\A(?!\s)[^\x00-\x1f\x7f-\x9f]*(?<!\s)\Z"


def _whole(expression: str) -> Meta:
    return Meta(pattern=rf"\A{expression}\Z")


Text = Annotated[str, Meta(max_length=STRING_LONGEST)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST, pattern=FILLED)]
SessionKeyText = Annotated[str, Meta(min_length=5, max_length=512, pattern=EXACT)]
IdempotencyKey = Annotated[str, Meta(min_length=1, max_length=200)]
Reason = Annotated[str, Meta(max_length=REASON_LONGEST)]
Prose = Annotated[str, Meta(min_length=10, max_length=STRING_LONGEST)]
Positive = Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)]
Object = dict[str, Any]
UnitId = Annotated[str, _whole("FU-[0-9]+")]


class EntityType(StrEnum):
    """The types of entities that can be observed."""

    AGENT_SESSION = "agent_session"
    FEATURE_UNIT = "feature_unit"
    RELEASE = "release"
    AGENT_DECISION = "agent_decision"
    VALIDATION_RESULT = "validation_result"


# Types accepted by `submit_entity`; sessions are submitted through `submit`.
SIBLINGS: Final = tuple(each for each in EntityType if each is not EntityType.AGENT_SESSION)


# A payload may have further members. Null clears an optional member.
class ActionFields(Struct, frozen=True, kw_only=True):
    """An action of a session."""

    type: Annotated[Name, Meta(description="The type of action: an open vocabulary.")]
    result: Annotated[Name, Meta(description="The result: success, failure or warning.")]
    details: Annotated[Object | None, Meta(description="Further details.")] = None
    timestamp: Annotated[
        Moment | None, Meta(description="When; distinguishes repeated actions.")
    ] = None


class CheckpointFields(Struct, frozen=True, kw_only=True):
    """A checkpoint of a session."""

    name: Annotated[Name, Meta(description="The name of the checkpoint.")]
    timestamp: Annotated[Moment, Meta(description="When it was reached.")]
    state: Annotated[Object | None, Meta(description="The state needed to continue from here.")] = (
        None
    )


class OutcomeFields(Struct, frozen=True, kw_only=True):
    """An outcome of a session."""

    type: Annotated[Name, Meta(description="The type of outcome: an open vocabulary.")]
    id: Annotated[Text | None, Meta(description="The entity it is about; it need not exist.")] = (
        None
    )
    details: Annotated[Object | None, Meta(description="Further details.")] = None


Actions = Annotated[list[ActionFields], Meta(min_length=1, max_length=10_000)]
Checkpoints = Annotated[list[CheckpointFields], Meta(max_length=1_000)]
Outcomes = Annotated[list[OutcomeFields], Meta(max_length=1_000)]


class SessionFields(Struct, frozen=True, kw_only=True):
    """A payload about a session."""

    session_id: Annotated[SessionKeyText, Meta(description="The session's id, matched literally.")]
    actions: Annotated[
        Actions, Meta(description="The actions, in order; to record a start, send one action.")
    ]
    checkpoints: Annotated[
        Checkpoints | None, Meta(description="The checkpoints; identified by name and time.")
    ] = None
    outcomes: Annotated[
        Outcomes | None, Meta(description="The outcomes, and the entities they are about.")
    ] = None
    duration: Annotated[Positive | None, Meta(description="The duration in seconds.")] = None
    started_at: Annotated[Moment, Meta(description="When the session started.")]
    ended_at: Annotated[
        Moment | None, Meta(description="When the session ended; not before its start.")
    ] = None


class UnitFields(Struct, frozen=True, kw_only=True):
    """A payload about a feature unit."""

    id: Annotated[UnitId, Meta(description="The id of the feature unit, for example FU-061.")]
    description: Annotated[Prose, Meta(description="A description of the feature unit.")]
    status: Annotated[
        Literal["planning", "in_progress", "completed", "deployed", "deferred", "cancelled"],
        Meta(description="The status of the feature unit."),
    ]
    dependencies: Annotated[
        list[UnitId] | None, Meta(description="Feature units that it depends on, not itself.")
    ] = None
    risk_level: Annotated[
        Literal["low", "medium", "high"] | None, Meta(description="The risk level.")
    ] = None
    created_at: Annotated[Moment, Meta(description="When it was created.")]
    updated_at: Annotated[Moment, Meta(description="When it was last changed.")]


class ReleaseFields(Struct, frozen=True, kw_only=True):
    """A payload about a release."""

    id: Annotated[
        Annotated[str, _whole(r"v[0-9]+\.[0-9]+\.[0-9]+")],
        Meta(description="The version, for example v0.2.3."),
    ]
    version: Annotated[Name, Meta(description="The name of the release.")]
    feature_units: Annotated[
        list[UnitId],
        Meta(
            description="The content of the release, without duplicates.",
            extra_json_schema={"uniqueItems": True},
        ),
    ]
    status: Annotated[
        Literal["planning", "in_progress", "ready_for_deployment", "deployed", "cancelled"],
        Meta(description="The status of the release."),
    ]
    acceptance_criteria: Annotated[
        list[Any], Meta(min_length=1, description="The conditions for shipping.")
    ]
    target_ship_date: Annotated[Moment | None, Meta(description="The planned shipping date.")] = (
        None
    )
    created_at: Annotated[Moment, Meta(description="When it was created.")]
    updated_at: Annotated[Moment, Meta(description="When it was last changed.")]


class DecisionFields(Struct, frozen=True, kw_only=True):
    """A payload about a decision."""

    decision: Annotated[Name, Meta(description="The decision.")]
    rationale: Annotated[Prose, Meta(description="Why.")]
    context: Annotated[
        Object | None,
        Meta(description="The context of the decision: session_id, feature_unit, release."),
    ] = None
    decision_type: Annotated[
        Literal["technical", "architectural", "process", "strategic"] | None,
        Meta(description="The kind of decision."),
    ] = None
    timestamp: Annotated[Moment, Meta(description="When it was decided.")]
    agent_id: Annotated[Text | None, Meta(description="Who decided.")] = None


class ValidationFields(Struct, frozen=True, kw_only=True):
    """A payload about the result of a validation."""

    validation_type: Annotated[
        Literal["lint", "test", "security", "compliance", "acceptance_criteria", "custom"],
        Meta(description="The subject of the validation."),
    ]
    status: Annotated[
        Literal["passed", "failed", "warning", "skipped"],
        Meta(description="The result of the validation."),
    ]
    details: Annotated[Any, Meta(description="Further details.")] = None
    target: Annotated[Text | None, Meta(description="The entity that was checked.")] = None
    timestamp: Annotated[Moment, Meta(description="When it was checked.")]


PAYLOADS: Final[Mapping[EntityType, type[Struct]]] = {
    EntityType.AGENT_SESSION: SessionFields,
    EntityType.FEATURE_UNIT: UnitFields,
    EntityType.RELEASE: ReleaseFields,
    EntityType.AGENT_DECISION: DecisionFields,
    EntityType.VALIDATION_RESULT: ValidationFields,
}
# The members that identify an entity.
KEYS: Final[Mapping[EntityType, tuple[str, ...]]] = {
    EntityType.AGENT_SESSION: ("session_id",),
    EntityType.FEATURE_UNIT: ("id",),
    EntityType.RELEASE: ("id",),
    EntityType.AGENT_DECISION: ("decision", "timestamp"),
    EntityType.VALIDATION_RESULT: ("validation_type", "target", "timestamp"),
}


class ObservationKind(StrEnum):
    """The kind of observation."""

    SUBMIT = "submit"
    IMPORT = "import"
    CORRECTION = "correction"
    DELETION = "deletion"
    RESTORATION = "restoration"


IMPORTED: Final = 50
ORDINARY: Final = 100
CORRECTED: Final = 1_000
PRIORITIES: Final[Mapping[ObservationKind, int]] = {
    ObservationKind.SUBMIT: ORDINARY,
    ObservationKind.IMPORT: IMPORTED,
    ObservationKind.CORRECTION: CORRECTED,
    ObservationKind.DELETION: CORRECTED,
    ObservationKind.RESTORATION: CORRECTED,
}
# The member of a deletion or restoration.
DELETED: Final = "_deleted"
_ENTITY_ID: Final = re.compile(r"ent_[0-9a-f]{24}")


class Subject(Struct, frozen=True, gc=False):
    """The observed entity: its owner, type and key."""

    owner: Owner
    entity_type: EntityType
    key: str

    @property
    def entity_id(self) -> EntityId:
        """Return the id, a hash of owner, type and key."""
        return _entity_id(self)


# Cached, because listings compute the ids of the same sessions repeatedly.
@lru_cache(maxsize=1 << 15)
def _entity_id(subject: Subject) -> EntityId:
    return EntityId(f"ent_{digest([subject.owner, subject.entity_type, subject.key])[:24]}")


def is_entity_id(text: str) -> bool:
    """Return whether a text has the format of an entity id."""
    return _ENTITY_ID.fullmatch(text) is not None


class Observation(Struct, frozen=True, kw_only=True):
    """One claim; `ordinal` numbers the claims about its entity from 1.

    The wire formats call the subject's key `session_key`.
    """

    id: ObservationId
    subject: Subject
    entity_id: EntityId
    ordinal: int
    fields: dict[str, Any]
    content_hash: str
    kind: ObservationKind
    source: str = ""
    observed_ms: int
    created_ms: int
    idempotency_key: str | None = None

    @property
    def observed_at(self) -> datetime:
        """Return when it was observed."""
        return moment(self.observed_ms)

    @property
    def created_at(self) -> datetime:
        """Return when it was written."""
        return moment(self.created_ms)

    @property
    def priority(self) -> int:
        """Return the merge priority, which depends only on the kind."""
        return PRIORITIES[self.kind]

    @property
    def place(self) -> tuple[int, int]:
        """Return the sort key in time order."""
        return self.observed_ms, self.ordinal


def observation_id(subject: Subject, ordinal: int, content_hash: str) -> ObservationId:
    """Return the observation id, a hash of subject, ordinal and content."""
    named = f'{_beginning(subject)},{ordinal},"{content_hash}"]'
    return ObservationId(f"obs_{hashlib.sha256(named.encode()).hexdigest()[:32]}")


# Cached, because the claims about one entity are read together.
@lru_cache(maxsize=256)
def _beginning(subject: Subject) -> str:
    """Return the canonical JSON prefix shared by the ids of all claims about a subject."""
    return canonical_text([subject.owner, subject.entity_type, subject.key])[:-1]


class StatusChange(Struct, frozen=True, kw_only=True):
    """A change of an entity's status, and the observation that caused it."""

    status: str
    previous: str | None
    at: datetime
    reference: str


class Entity(Struct, frozen=True, kw_only=True, gc=False):
    """The merged state of an entity; the snapshot is empty if it is deleted or not yet known.

    `provenance` names for each snapshot field the claims it was merged from, in time order.
    `provenance_items` does the same for each list element. Later snapshots share parts of this
    one, so callers must not modify it.
    """

    entity_id: EntityId
    entity_type: EntityType
    key: str
    schema_version: str = SCHEMA_VERSION
    snapshot: dict[str, Any] = {}
    provenance: dict[str, tuple[str, ...]] = {}
    provenance_items: dict[str, tuple[tuple[str, ...], ...]] = {}
    observation_count: int = 0
    last_observation_at: datetime | None = None
    hosted: bool = False
    deleted: bool = False
    warnings: tuple[SchemaWarning, ...] = ()
    status_changes: tuple[StatusChange, ...] = ()


def entity_not_found() -> NotFound:
    """Return the same error for a missing, foreign or deleted entity."""
    return NotFound(Code.ENTITY_NOT_FOUND, "There is no history of that session or entity.")
