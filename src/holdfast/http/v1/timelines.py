"""Timelines, and the entities that sessions work on: what happened to what, and when."""

from typing import Any, Final
from urllib.parse import quote

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.history import SUBMITTED, WRITING, submitted
from holdfast.http.v1.history_bodies import EntityPost
from holdfast.http.v1.payloads import Payload, arguments, key_of, source_of
from holdfast.http.v1.refusals import invalid_query
from holdfast.http.v1.timelines_forms import EntitiesQuery, EventsOfQuery
from holdfast.observations.queries import EntityQuery, SubmitResult, TimelineQuery
from holdfast.observations.validation import decode_payload_strictly
from holdfast.services.history_forms import EntityList, TimelineForm, entity_list, timeline_form


async def read_timeline(asked: Asked[EventsOfQuery, None]) -> Answer:
    """Return what happened to an entity."""
    query = asked.query
    wanted = TimelineQuery(
        start_date=query.start_date,
        end_date=query.end_date,
        event_types=query.event_types,
        limit=query.limit,
    )
    page = await asked.house.observations.timeline(
        asked.owner, query.entity_id, wanted, cursor=query.cursor
    )
    return Answer(content=timeline_form(page))


async def submit_entity(asked: Asked[NoQuery, Payload]) -> Answer:
    """Take a claim about an entity that is no session."""
    key, body = key_of(asked), asked.body
    done = await asked.house.observations.submit_entity(
        asked.owner,
        body["entity_type"],
        body["fields"],
        idempotency_key=key,
        source=source_of(asked),
    )
    return submitted(done, f"/v1/timeline?entity_id={quote(done.entity_id)}")


async def query_entities(asked: Asked[EntitiesQuery, None]) -> Answer:
    """List entities of a type."""
    query = asked.query
    wanted = EntityQuery(
        entity_type=query.entity_type,
        filters=_filters(query.filters),
        order_by=query.order_by,
        order=query.order,
        limit=query.limit,
    )
    page = await asked.house.observations.entities(asked.owner, wanted, cursor=query.cursor)
    return Answer(content=entity_list(page))


def _filters(text: str | None) -> Any:
    try:
        return None if text is None else decode_payload_strictly(text.encode())
    except Invalid:
        raise invalid_query("filters", "it must be a JSON object") from None


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/timeline",
        name="history.timeline",
        summary="Return what happened to an entity, and to whoever names it, in the order of time.",
        act=read_timeline,
        needs=Scope.READ,
        query=EventsOfQuery,
        gives={200: TimelineForm},
        refuses=(Code.INVALID_CURSOR, Code.SCHEMA_VALIDATION_FAILED),
    ),
    Route(
        method="POST",
        path="/v1/entities",
        name="history.submit_entity",
        summary="Write down what is known of a feature unit, a release, a decision or a check.",
        act=submit_entity,
        needs=Scope.WRITE,
        body=EntityPost,
        reads=arguments(("entity_type", "fields"), ()),
        gives={201: SubmitResult, 200: SubmitResult},
        tells=SUBMITTED,
        refuses=WRITING,
        examples={
            "body": {
                "entity_type": "agent_decision",
                "fields": {
                    "decision": "Use SQLite by default",
                    "rationale": "Nothing has to be installed.",
                    "timestamp": "2025-12-31T11:20:00Z",
                },
            }
        },
    ),
    Route(
        method="GET",
        path="/v1/entities",
        name="history.entities",
        summary="List entities of a type by what is known of them.",
        act=query_entities,
        needs=Scope.READ,
        query=EntitiesQuery,
        gives={200: EntityList},
        refuses=(Code.INVALID_CURSOR, Code.SCHEMA_VALIDATION_FAILED),
    ),
)
