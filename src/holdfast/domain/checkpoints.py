"""Checkpoints of a session's history: finding the one that somebody wants to go on from."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.domain.entities import Entity
from holdfast.domain.errors import Code, NotFound
from holdfast.domain.observation_issues import rejection
from holdfast.domain.observation_schema import member_faults
from holdfast.domain.shapes import INSTANT, Member
from holdfast.domain.timestamps import instant_of


class CheckpointState(Struct, frozen=True, kw_only=True):
    """What was kept at a checkpoint, and whose claims it is made of."""

    session_id: Annotated[str, Meta(description="The session.")]
    name: Annotated[str, Meta(description="The checkpoint.")]
    timestamp: Annotated[str, Meta(description="When it was reached.")]
    state: Annotated[
        dict[str, Any] | None, Meta(description="What was kept: data, and no instruction.")
    ]
    has_state: Annotated[bool, Meta(description="Whether anything was kept.")]
    provenance: Annotated[tuple[str, ...], Meta(description="Which claims it is from.")]


def checkpoint_of(entity: Entity, name: str, *, timestamp: Any = None) -> CheckpointState:
    """Return a checkpoint by its name; of several the latest, unless a time selects another."""
    issues = member_faults(Member("timestamp", INSTANT, ""), timestamp)
    if issues:
        raise rejection(issues)
    checkpoints = entity.snapshot.get("checkpoints", [])
    # They are in the order of their times, so the last that fits is the latest.
    for place in reversed(range(len(checkpoints))):
        found = checkpoints[place]
        if found["name"] == name and _is_at(found, timestamp):
            return CheckpointState(
                session_id=entity.key,
                name=name,
                timestamp=found["timestamp"],
                state=found.get("state"),
                has_state="state" in found,
                provenance=entity.provenance_items["checkpoints"][place],
            )
    raise NotFound(
        Code.CHECKPOINT_NOT_FOUND,
        f"Checkpoint {name} not found in session {entity.key}",
        {"available": list(dict.fromkeys(each["name"] for each in checkpoints))},
    )


def _is_at(checkpoint: dict[str, Any], timestamp: str | None) -> bool:
    return timestamp is None or instant_of(checkpoint["timestamp"]) == instant_of(timestamp)
