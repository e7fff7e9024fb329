"""What observations are about: five types of entities, each with the shape of what is told of it.

Shapes are tables; `observation_schema` judges by them and surfaces describe themselves with them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from holdfast.domain.shapes import (
    ANYTHING,
    INSTANT,
    NAME,
    OBJECT,
    POSITIVE,
    TEXT,
    Choice,
    Listing,
    Member,
    Pattern,
    Shape,
    Text,
)

SCHEMA_VERSION: Final = "v1"


class EntityType(StrEnum):
    """The types of entities that can be observed."""

    AGENT_SESSION = "agent_session"
    FEATURE_UNIT = "feature_unit"
    RELEASE = "release"
    AGENT_DECISION = "agent_decision"
    VALIDATION_RESULT = "validation_result"


# What is submitted as an entity; sessions have a door of their own.
SIBLINGS: Final = tuple(each for each in EntityType if each is not EntityType.AGENT_SESSION)

ACTION: Final = Shape(
    members=(
        Member("type", NAME, "What was done: an open vocabulary.", is_required=True),
        Member("result", NAME, "How it came out: success, failure, warning.", is_required=True),
        Member("details", OBJECT, "Whatever else is known of it."),
        Member("timestamp", INSTANT, "When; repeated actions are told apart by it."),
    )
)
CHECKPOINT: Final = Shape(
    members=(
        Member("name", NAME, "What the checkpoint is called.", is_required=True),
        Member("timestamp", INSTANT, "When it was reached.", is_required=True),
        Member("state", OBJECT, "What somebody needs who goes on from here."),
    )
)
OUTCOME: Final = Shape(
    members=(
        Member("type", NAME, "What came of it: an open vocabulary.", is_required=True),
        Member("id", TEXT, "The entity it is about; it need not exist."),
        Member("details", OBJECT, "Whatever else is known of it."),
    )
)
_SESSION: Final = Shape(
    members=(
        Member(
            "session_id",
            Text(shortest=5, longest=512, is_exact=True),
            "Which session; taken literally.",
            is_required=True,
        ),
        Member(
            "actions",
            Listing(item=ACTION, shortest=1, longest=10_000),
            "What was done, in order; to record a start, one action.",
            is_required=True,
        ),
        Member(
            "checkpoints",
            Listing(item=CHECKPOINT, longest=1_000),
            "What was reached; known by name and time.",
            is_ignored_as_null=True,
        ),
        Member(
            "outcomes",
            Listing(item=OUTCOME, longest=1_000),
            "What came of it, and which entities it is about.",
            is_ignored_as_null=True,
        ),
        Member("duration", POSITIVE, "How long it took, in seconds."),
        Member("started_at", INSTANT, "When it began.", is_required=True),
        Member("ended_at", INSTANT, "When it ended; not before it began."),
    ),
    key=("session_id",),
    ordered=(("started_at", "ended_at"),),
)
_UNIT_ID: Final = Pattern("FU-[0-9]+")
_TIMES: Final = (
    Member("created_at", INSTANT, "When it was created.", is_required=True),
    Member("updated_at", INSTANT, "When it was last changed.", is_required=True),
)
_FEATURE_UNIT: Final = Shape(
    members=(
        Member("id", _UNIT_ID, "Which feature unit, such as FU-061.", is_required=True),
        Member("description", Text(shortest=10), "What it is.", is_required=True),
        Member(
            "status",
            Choice(("planning", "in_progress", "completed", "deployed", "deferred", "cancelled")),
            "How far it has come.",
            is_required=True,
        ),
        Member("dependencies", Listing(item=_UNIT_ID), "What must come before, not itself."),
        Member("risk_level", Choice(("low", "medium", "high")), "How risky it is."),
        *_TIMES,
    ),
    key=("id",),
    ordered=(("created_at", "updated_at"),),
    apart=(("dependencies", "id"),),
)
_RELEASE: Final = Shape(
    members=(
        Member("id", Pattern(r"v[0-9]+\.[0-9]+\.[0-9]+"), "Such as v0.2.3.", is_required=True),
        Member("version", NAME, "What it is called.", is_required=True),
        Member(
            "feature_units",
            Listing(item=_UNIT_ID, is_distinct=True),
            "What is in it, each once.",
            is_required=True,
        ),
        Member(
            "status",
            Choice(("planning", "in_progress", "ready_for_deployment", "deployed", "cancelled")),
            "How far it has come.",
            is_required=True,
        ),
        Member(
            "acceptance_criteria",
            Listing(item=ANYTHING, shortest=1),
            "What must hold before it ships.",
            is_required=True,
        ),
        Member("target_ship_date", INSTANT, "When it is meant to ship."),
        *_TIMES,
    ),
    key=("id",),
)
_DECISION: Final = Shape(
    members=(
        Member("decision", NAME, "What was decided.", is_required=True),
        Member("rationale", Text(shortest=10), "Why.", is_required=True),
        Member("context", OBJECT, "What it is about: session_id, feature_unit, release."),
        Member(
            "decision_type",
            Choice(("technical", "architectural", "process", "strategic")),
            "What kind of decision it is.",
        ),
        Member("timestamp", INSTANT, "When it was decided.", is_required=True),
        Member("agent_id", TEXT, "Who decided."),
    ),
    key=("decision", "timestamp"),
)
_VALIDATION: Final = Shape(
    members=(
        Member(
            "validation_type",
            Choice(("lint", "test", "security", "compliance", "acceptance_criteria", "custom")),
            "What was checked.",
            is_required=True,
        ),
        Member(
            "status",
            Choice(("passed", "failed", "warning", "skipped")),
            "How it came out.",
            is_required=True,
        ),
        Member("details", ANYTHING, "Whatever else is known of it."),
        Member("target", TEXT, "The entity that was checked."),
        Member("timestamp", INSTANT, "When it was checked.", is_required=True),
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
