"""Entity types of observations, the schema of each type's payload, and entity snapshots."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from msgspec import Struct

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import EntityId
from holdfast.observations.issues import SchemaWarning

STRING_LONGEST: Final = 65_536
NAME_LONGEST: Final = 512


class TextShape(Struct, frozen=True, kw_only=True):
    """A string with a length range; `is_exact` forbids outer whitespace and control characters."""

    shortest: int = 0
    longest: int = STRING_LONGEST
    is_exact: bool = False
    # Must not be empty after trimming.
    is_filled: bool = False


class PatternShape(Struct, frozen=True):
    """A string that a regular expression matches completely."""

    expression: str


class ChoiceShape(Struct, frozen=True):
    """One of a fixed set of strings."""

    words: tuple[str, ...]


class NumberShape(Struct, frozen=True):
    """A finite number greater than zero."""


class InstantShape(Struct, frozen=True):
    """An ISO 8601 date or timestamp."""


class ObjectShape(Struct, frozen=True):
    """A JSON object with any members."""


class AnyShape(Struct, frozen=True):
    """Any JSON value."""


class ListShape(Struct, frozen=True, kw_only=True):
    """A list with a length range; `is_distinct` forbids duplicate items."""

    item: "Kind"
    shortest: int = 0
    longest: int | None = None
    is_distinct: bool = False


class FieldShape(Struct, frozen=True):
    """A named member of an object.

    Null clears an optional member; with `is_ignored_as_null` it means the member was not sent.
    """

    name: str
    kind: "Kind"
    description: str
    is_required: bool = False
    is_ignored_as_null: bool = False


class Shape(Struct, frozen=True, kw_only=True):
    """An object with known members in display order; unknown members are allowed.

    `key` names the members that identify the entity. `ordered` holds pairs of times of which the
    second must not be earlier. `apart` holds pairs of a list member and a member whose value the
    list must not contain.
    """

    members: tuple[FieldShape, ...]
    key: tuple[str, ...] = ()
    ordered: tuple[tuple[str, str], ...] = ()
    apart: tuple[tuple[str, str], ...] = ()

    def rank(self, name: str) -> int:
        """Return the position of a member; unknown members sort last."""
        for number, member in enumerate(self.members):
            if member.name == name:
                return number
        return len(self.members)

    def member(self, name: str) -> FieldShape | None:
        """Return the member with this name, or None if the shape does not define it."""
        for member in self.members:
            if member.name == name:
                return member
        return None


Kind: TypeAlias = (
    TextShape
    | PatternShape
    | ChoiceShape
    | NumberShape
    | InstantShape
    | ObjectShape
    | AnyShape
    | ListShape
    | Shape
)
ANYTHING: Final = AnyShape()
INSTANT: Final = InstantShape()
NAME: Final = TextShape(shortest=1, longest=NAME_LONGEST, is_filled=True)
OBJECT: Final = ObjectShape()
POSITIVE: Final = NumberShape()
TEXT: Final = TextShape()
SCHEMA_VERSION: Final = "v1"


class EntityType(StrEnum):
    """The types of entities that can be observed."""

    AGENT_SESSION = "agent_session"
    FEATURE_UNIT = "feature_unit"
    RELEASE = "release"
    AGENT_DECISION = "agent_decision"
    VALIDATION_RESULT = "validation_result"


# Types accepted by `submit_entity`; sessions are submitted through `submit`.
SIBLINGS: Final = tuple(each for each in EntityType if each is not EntityType.AGENT_SESSION)
ACTION: Final = Shape(
    members=(
        FieldShape("type", NAME, "The type of action: an open vocabulary.", is_required=True),
        FieldShape("result", NAME, "The result: success, failure or warning.", is_required=True),
        FieldShape("details", OBJECT, "Further details."),
        FieldShape("timestamp", INSTANT, "When; distinguishes repeated actions."),
    )
)
CHECKPOINT: Final = Shape(
    members=(
        FieldShape("name", NAME, "The name of the checkpoint.", is_required=True),
        FieldShape("timestamp", INSTANT, "When it was reached.", is_required=True),
        FieldShape("state", OBJECT, "The state needed to continue from here."),
    )
)
OUTCOME: Final = Shape(
    members=(
        FieldShape("type", NAME, "The type of outcome: an open vocabulary.", is_required=True),
        FieldShape("id", TEXT, "The entity it is about; it need not exist."),
        FieldShape("details", OBJECT, "Further details."),
    )
)
_SESSION: Final = Shape(
    members=(
        FieldShape(
            "session_id",
            TextShape(shortest=5, longest=512, is_exact=True),
            "The session's id, matched literally.",
            is_required=True,
        ),
        FieldShape(
            "actions",
            ListShape(item=ACTION, shortest=1, longest=10_000),
            "The actions, in order; to record a start, send one action.",
            is_required=True,
        ),
        FieldShape(
            "checkpoints",
            ListShape(item=CHECKPOINT, longest=1_000),
            "The checkpoints; identified by name and time.",
            is_ignored_as_null=True,
        ),
        FieldShape(
            "outcomes",
            ListShape(item=OUTCOME, longest=1_000),
            "The outcomes, and the entities they are about.",
            is_ignored_as_null=True,
        ),
        FieldShape("duration", POSITIVE, "The duration in seconds."),
        FieldShape("started_at", INSTANT, "When the session started.", is_required=True),
        FieldShape("ended_at", INSTANT, "When the session ended; not before its start."),
    ),
    key=("session_id",),
    ordered=(("started_at", "ended_at"),),
)
_UNIT_ID: Final = PatternShape("FU-[0-9]+")
_TIMES: Final = (
    FieldShape("created_at", INSTANT, "When it was created.", is_required=True),
    FieldShape("updated_at", INSTANT, "When it was last changed.", is_required=True),
)
_FEATURE_UNIT: Final = Shape(
    members=(
        FieldShape(
            "id", _UNIT_ID, "The id of the feature unit, for example FU-061.", is_required=True
        ),
        FieldShape(
            "description",
            TextShape(shortest=10),
            "A description of the feature unit.",
            is_required=True,
        ),
        FieldShape(
            "status",
            ChoiceShape(
                ("planning", "in_progress", "completed", "deployed", "deferred", "cancelled")
            ),
            "The status of the feature unit.",
            is_required=True,
        ),
        FieldShape(
            "dependencies",
            ListShape(item=_UNIT_ID),
            "Feature units that it depends on, not itself.",
        ),
        FieldShape("risk_level", ChoiceShape(("low", "medium", "high")), "The risk level."),
        *_TIMES,
    ),
    key=("id",),
    ordered=(("created_at", "updated_at"),),
    apart=(("dependencies", "id"),),
)
_RELEASE: Final = Shape(
    members=(
        FieldShape(
            "id",
            PatternShape(r"v[0-9]+\.[0-9]+\.[0-9]+"),
            "The version, for example v0.2.3.",
            is_required=True,
        ),
        FieldShape("version", NAME, "The name of the release.", is_required=True),
        FieldShape(
            "feature_units",
            ListShape(item=_UNIT_ID, is_distinct=True),
            "The content of the release, without duplicates.",
            is_required=True,
        ),
        FieldShape(
            "status",
            ChoiceShape(
                ("planning", "in_progress", "ready_for_deployment", "deployed", "cancelled")
            ),
            "The status of the release.",
            is_required=True,
        ),
        FieldShape(
            "acceptance_criteria",
            ListShape(item=ANYTHING, shortest=1),
            "The conditions for shipping.",
            is_required=True,
        ),
        FieldShape("target_ship_date", INSTANT, "The planned shipping date."),
        *_TIMES,
    ),
    key=("id",),
)
_DECISION: Final = Shape(
    members=(
        FieldShape("decision", NAME, "The decision.", is_required=True),
        FieldShape("rationale", TextShape(shortest=10), "Why.", is_required=True),
        FieldShape(
            "context", OBJECT, "The context of the decision: session_id, feature_unit, release."
        ),
        FieldShape(
            "decision_type",
            ChoiceShape(("technical", "architectural", "process", "strategic")),
            "The kind of decision.",
        ),
        FieldShape("timestamp", INSTANT, "When it was decided.", is_required=True),
        FieldShape("agent_id", TEXT, "Who decided."),
    ),
    key=("decision", "timestamp"),
)
_VALIDATION: Final = Shape(
    members=(
        FieldShape(
            "validation_type",
            ChoiceShape(
                ("lint", "test", "security", "compliance", "acceptance_criteria", "custom")
            ),
            "The subject of the validation.",
            is_required=True,
        ),
        FieldShape(
            "status",
            ChoiceShape(("passed", "failed", "warning", "skipped")),
            "The result of the validation.",
            is_required=True,
        ),
        FieldShape("details", ANYTHING, "Further details."),
        FieldShape("target", TEXT, "The entity that was checked."),
        FieldShape("timestamp", INSTANT, "When it was checked.", is_required=True),
    ),
    key=("validation_type", "target", "timestamp"),
)
SHAPES: Final[Mapping[EntityType, Shape]] = {
    EntityType.AGENT_SESSION: _SESSION,
    EntityType.FEATURE_UNIT: _FEATURE_UNIT,
    EntityType.RELEASE: _RELEASE,
    EntityType.AGENT_DECISION: _DECISION,
    EntityType.VALIDATION_RESULT: _VALIDATION,
}


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
