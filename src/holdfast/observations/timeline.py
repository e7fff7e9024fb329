"""Timelines: events of entities, derived from their snapshots."""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.canonical_json import digest
from holdfast.domain.ids import EntityId
from holdfast.domain.time import format_iso8601, instant_of, milliseconds
from holdfast.observations.as_of import ALWAYS, TimeWindow
from holdfast.observations.model import Entity, EntityType


class EventType(StrEnum):
    """The type of a timeline event."""

    SESSION_STARTED = "SessionStarted"
    CHECKPOINT_REACHED = "CheckpointReached"
    SESSION_ENDED = "SessionEnded"
    DECISION_MADE = "DecisionMade"
    VALIDATION_RECORDED = "ValidationRecorded"
    STATUS_CHANGED = "StatusChanged"


_FIRST: Final = (
    EventType.SESSION_STARTED,
    EventType.CHECKPOINT_REACHED,
    EventType.SESSION_ENDED,
)
RANKS: Final[Mapping[EventType, int]] = {
    each: _FIRST.index(each) if each in _FIRST else len(_FIRST) for each in EventType
}


# Position of an event on a timeline: its formatted time, its rank, its id.
EventPlace = tuple[str, int, str]


# Defaults are omitted on the wire.
class TimelineEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event of an entity; `related_to` names other entities that it concerns."""

    id: Annotated[str, Meta(description="The stable id of the event: tle_….")]
    timestamp: Annotated[str, Meta(description="When.")]
    event_type: Annotated[EventType, Meta(description="The type of the event.")]
    description: Annotated[str, Meta(description="A description for people.")]
    entity_id: Annotated[EntityId, Meta(description="The id of the entity: ent_….")]
    entity_type: Annotated[EntityType, Meta(description="The type of the entity.")]
    session_id: Annotated[str | None, Meta(description="The session, if the entity is one.")]
    source_field: Annotated[str, Meta(description="The field that the event is derived from.")]
    provenance: Annotated[tuple[str, ...], Meta(description="The observations that it comes from.")]
    details: Annotated[
        dict[str, Any] | None, Meta(description="Further details; may be omitted.")
    ] = None
    related_to: Annotated[
        tuple[str, ...] | None,
        Meta(description=("The other ids whose timelines include the event; may be omitted.")),
    ] = None

    @property
    def place(self) -> EventPlace:
        """Return the sort key; at equal times a start sorts before a checkpoint, then the end."""
        return self.timestamp, RANKS[self.event_type], self.id


def events_of(
    entity: Entity, *, window: TimeWindow = ALWAYS, types: Collection[EventType] = ()
) -> tuple[TimelineEvent, ...]:
    """Return the events of an entity in order, by default all; none if its snapshot is empty."""
    if not entity.snapshot:
        return ()
    events = sorted(_EVENTS[entity.entity_type](entity), key=lambda event: event.place)
    if window != ALWAYS:
        events = [event for event in events if window.holds(instant_of(event.timestamp))]
    return tuple(event for event in events if event.event_type in types) if types else tuple(events)


def happens_alike(one: Entity, other: Entity) -> bool:
    """Return whether two states of a session have the same events, without building them."""
    is_session = one.entity_type is EntityType.AGENT_SESSION
    return is_session and _session_sources(one) == _session_sources(other)


# Cached, because a new claim leaves most events of an entity unchanged.
@lru_cache(maxsize=8192)
def timeline_event_id(
    entity_id: EntityId, event_type: EventType, discriminator: str, timestamp: str
) -> str:
    """Return the deterministic id of an event."""
    return f"tle_{digest([entity_id, event_type, discriminator, timestamp])[:24]}"


def references(entity: Entity) -> tuple[str, ...]:
    """Return the distinct ids that an entity mentions; its events also appear under them."""
    snapshot = entity.snapshot
    named: list[Any] = []
    match entity.entity_type:
        case EntityType.AGENT_SESSION:
            outcomes = snapshot.get("outcomes")
            named = [each.get("id") for each in outcomes] if outcomes else []
        case EntityType.AGENT_DECISION:
            context = snapshot.get("context", {})
            named = [context.get(name) for name in ("session_id", "feature_unit", "release")]
        case EntityType.VALIDATION_RESULT:
            named = [snapshot.get("target")]
        case EntityType.RELEASE:
            named = list(snapshot.get("feature_units", ()))
    return tuple(dict.fromkeys([each for each in named if isinstance(each, str)])) if named else ()


def _session_events(entity: Entity) -> Iterator[TimelineEvent]:
    snapshot, provenance = entity.snapshot, entity.provenance
    for name, kind, word in (
        ("started_at", EventType.SESSION_STARTED, "started"),
        ("ended_at", EventType.SESSION_ENDED, "ended"),
    ):
        if name in snapshot:
            ms, description = instant_of(snapshot[name]), f"Session {entity.key} {word}"
            yield _event(entity, kind, ms, description, source=name, whose=provenance[name])
    of_each = entity.provenance_items["checkpoints"]
    for checkpoint, whose in zip(snapshot["checkpoints"], of_each, strict=True):
        ms, name = instant_of(checkpoint["timestamp"]), checkpoint["name"]
        yield _event(
            entity,
            EventType.CHECKPOINT_REACHED,
            ms,
            f"Checkpoint: {name}",
            source="checkpoints",
            whose=whose,
            discriminator=name,
            details={"name": name, "has_state": "state" in checkpoint},
        )


def _session_sources(entity: Entity) -> tuple[object, ...]:
    """Return everything that a session's events are derived from."""
    field, whose = entity.snapshot.get, entity.provenance.get
    times = field("started_at"), whose("started_at"), field("ended_at"), whose("ended_at")
    return *times, field("checkpoints"), entity.provenance_items.get("checkpoints")


def _decision_events(entity: Entity) -> Iterator[TimelineEvent]:
    yield _event(
        entity,
        EventType.DECISION_MADE,
        instant_of(entity.snapshot["timestamp"]),
        f"Decision: {entity.snapshot['decision']}",
        source="timestamp",
        whose=entity.provenance["timestamp"],
    )


def _validation_events(entity: Entity) -> Iterator[TimelineEvent]:
    kind, status = entity.snapshot["validation_type"], entity.snapshot["status"]
    yield _event(
        entity,
        EventType.VALIDATION_RECORDED,
        instant_of(entity.snapshot["timestamp"]),
        f"Validation: {kind} {status}",
        source="timestamp",
        whose=entity.provenance["timestamp"],
        details={"validation_type": kind, "status": status},
    )


def _status_events(entity: Entity) -> Iterator[TimelineEvent]:
    for change in entity.status_changes:
        yield _event(
            entity,
            EventType.STATUS_CHANGED,
            milliseconds(change.at),
            f"Status of {entity.key}: {change.status}",
            source="status",
            whose=(change.reference,),
            discriminator=change.status,
            details={"status": change.status, "previous": change.previous},
        )


def _event(
    entity: Entity,
    kind: EventType,
    ms: int,
    description: str,
    *,
    source: str,
    whose: tuple[str, ...],
    discriminator: str = "",
    details: dict[str, Any] | None = None,
) -> TimelineEvent:
    timestamp = format_iso8601(ms)
    return TimelineEvent(
        id=timeline_event_id(entity.entity_id, kind, discriminator, timestamp),
        timestamp=timestamp,
        event_type=kind,
        description=description,
        entity_id=entity.entity_id,
        entity_type=entity.entity_type,
        session_id=entity.key if entity.entity_type is EntityType.AGENT_SESSION else None,
        source_field=source,
        provenance=whose,
        details=details,
    )


_EVENTS: Final = {
    EntityType.AGENT_SESSION: _session_events,
    EntityType.FEATURE_UNIT: _status_events,
    EntityType.RELEASE: _status_events,
    EntityType.AGENT_DECISION: _decision_events,
    EntityType.VALIDATION_RESULT: _validation_events,
}
