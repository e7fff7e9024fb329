"""How timelines and entities are asked for."""

from typing import Annotated

from msgspec import Meta, Struct

from holdfast.http.v1.history_forms import Moment, Some
from holdfast.http.v1.scalars import Cursor
from holdfast.observations.model import EntityType
from holdfast.observations.queries import PAGE, Direction, EntityOrder
from holdfast.observations.timeline import EventType


class EventsOfQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose events, and which; both dates are part of it, a day to its end."""

    entity_id: Annotated[
        str,
        Meta(
            min_length=1,
            # An outcome's id may be longer; who has such a one asks over MCP.
            max_length=8192,
            description="An entity's id, or what it is known by, or what outcomes name it by.",
        ),
    ]
    start_date: Moment | None = None
    end_date: Moment | None = None
    event_types: tuple[EventType, ...] = ()
    limit: Some = PAGE
    cursor: Cursor | None = None


class EntitiesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entities, in which order."""

    entity_type: EntityType
    filters: (
        Annotated[
            str,
            Meta(
                max_length=8192,
                description="A JSON object: paths into the snapshot, each with a value, with "
                "`contains`, or with `gte` and `lte`.",
            ),
        ]
        | None
    ) = None
    order_by: EntityOrder = EntityOrder.LAST_OBSERVATION_AT
    order: Direction = Direction.DESC
    limit: Some = PAGE
    cursor: Cursor | None = None
