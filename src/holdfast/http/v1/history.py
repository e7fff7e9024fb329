"""Routes of observed history: submissions, queries, corrections, timelines and entities."""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.http.v1.idempotency import KEY
from holdfast.observations.claims import BYTES_MOST
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.model import ANYTHING, FieldShape, Shape
from holdfast.observations.queries import (
    CheckpointState,
    Correction,
    EntityQuery,
    HistoryQuery,
    SubmitResult,
    TimelineQuery,
)
from holdfast.observations.validation import decode_payload_strictly, faults
from holdfast.parsing.strict_json import has_more_values
from holdfast.services.history_forms import (
    EntityList,
    HistoryForm,
    ObservationList,
    RemovalForm,
    TimelineForm,
    entity_list,
    history_form,
    observation_list,
    removal_form,
    timeline_form,
)
from holdfast.wire.errors import invalid_body, invalid_query
from holdfast.wire.observations import (
    CheckpointQuery,
    ClaimsQuery,
    CorrectionPost,
    EntitiesQuery,
    EntityPost,
    EventsOfQuery,
    HistoryList,
    HistoryPageQuery,
    PastQuery,
    RemovalQuery,
    RestorationPost,
    SubmissionPost,
    history_list,
)

FIELD: Final = "idempotency_key"
SOURCE_LONGEST: Final = 200
# What every proxy passes on as it is.
_HEADER: Final = re.compile(r"[!-~]{1,200}")
Payload = dict[str, Any]


def payload(raw: bytes) -> Any:
    """Return what a body spells; doubled keys and the like are still there to be refused."""
    # Whatever is kept of it, it could not be kept in so many bytes; so it is not even read.
    if has_more_values(raw, BYTES_MOST):
        message = f"The payload has more than {BYTES_MOST} bytes"
        raise rejection((Issue(path=(), expected=f"max_bytes: {BYTES_MOST}", message=message),))
    return decode_payload_strictly(raw)


def arguments(needs: tuple[str, ...], takes: tuple[str, ...]) -> Callable[[bytes], Payload]:
    """Return what reads a body with these members, all it needs and no others."""
    known = (*needs, *takes, FIELD)
    shape = Shape(members=tuple(FieldShape(name, ANYTHING, "") for name in known))

    def read(raw: bytes) -> Payload:
        found = payload(raw)
        issues = faults(shape, found)
        if not issues:
            # What is null was sent; whoever takes it says whether it may be.
            issues = [
                Issue(path=(name,), expected="required", message=f"{name} is required")
                for name in needs
                if name not in found
            ]
            issues += [_unknown(name, found[name], known) for name in found if name not in known]
        if issues:
            raise rejection(issues)
        return dict(found)

    return read


def key_of(asked: Asked[Any, Any]) -> Any:
    """Take the key of a request out of its body, or from `Idempotency-Key`."""
    body = asked.body
    return chosen_key(asked, body.pop(FIELD, None) if isinstance(body, dict) else None)


def chosen_key(asked: Asked[Any, Any], given: Any) -> Any:
    """Return the key that was given, or that of the header; two must be one."""
    header = asked.headers.get(KEY)
    if header is not None and _HEADER.fullmatch(header) is None:
        expected, message = f"pattern: {_HEADER.pattern}", "Idempotency-Key must be printable ASCII"
        raise rejection((Issue(path=(FIELD,), value=header, expected=expected, message=message),))
    if given is not None and header is not None and given != header:
        told = invalid_query if asked.body is None else invalid_body
        raise told(FIELD, "it must be equal to Idempotency-Key")
    return header if given is None else given


def source_of(asked: Asked[Any, Any]) -> str:
    """Return through whom something is observed: what the client calls itself."""
    name = asked.headers.get("user-agent", "")
    return "".join(filter(str.isprintable, name))[:SOURCE_LONGEST]


def _unknown(name: str, value: Any, known: tuple[str, ...]) -> Issue:
    told = ", ".join(known)
    message = f"{name} is none of {told}"
    return Issue(path=(name,), value=value, expected=f"one of: {told}", message=message)


HISTORY: Final = "/v1/history"
SESSION: Final = f"{HISTORY}/{{session_key}}"
WRITING: Final = (Code.IDEMPOTENCY_MISMATCH, Code.RATE_LIMITED, Code.SCHEMA_VALIDATION_FAILED)
SUBMITTED: Final = {201: ("location",), 200: ("idempotency-replayed", "location")}


async def submit(asked: Asked[NoQuery, Any]) -> Answer:
    """Take a claim about a session."""
    key = key_of(asked)
    done = await asked.house.observations.submit(
        asked.owner, asked.body, idempotency_key=key, source=source_of(asked)
    )
    return submitted(done, _place(asked.body["session_id"]))


async def query(asked: Asked[HistoryPageQuery, None]) -> Answer:
    """List sessions."""
    wanted = msgspec.convert(asked.query, HistoryQuery, from_attributes=True)
    page = await asked.house.observations.query(asked.owner, wanted, cursor=asked.query.cursor)
    return Answer(content=history_list(page))


async def show(asked: Asked[PastQuery, None]) -> Answer:
    """Return what is known of a session."""
    found = await asked.house.observations.show(
        asked.owner, _key(asked), at=asked.query.at, at_ingested=asked.query.at_ingested
    )
    return Answer(content=history_form(found), has_etag=True)


async def list_observations(asked: Asked[ClaimsQuery, None]) -> Answer:
    """Return the claims about a session."""
    page = await asked.house.observations.list_observations(
        asked.owner, _key(asked), limit=asked.query.limit, cursor=asked.query.cursor
    )
    return Answer(content=observation_list(page))


async def read_checkpoint(asked: Asked[CheckpointQuery, None]) -> Answer:
    """Return what was kept at a checkpoint."""
    found = await asked.house.observations.checkpoint(
        asked.owner,
        _key(asked),
        asked.path["checkpoint"],
        timestamp=asked.query.timestamp,
        at=asked.query.at,
    )
    return Answer(content=found, has_etag=True)


async def correct(asked: Asked[NoQuery, Payload]) -> Answer:
    """Put one field of a session's history right."""
    key = key_of(asked)
    correction = Correction(session_id=_key(asked), **asked.body)
    done = await asked.house.observations.correct(
        asked.owner, correction, idempotency_key=key, source=source_of(asked)
    )
    return submitted(done, _place(_key(asked)))


async def delete(asked: Asked[RemovalQuery, None]) -> Answer:
    """Hide the history of a session."""
    done = await asked.house.observations.delete(
        asked.owner,
        _key(asked),
        reason=asked.query.reason,
        idempotency_key=chosen_key(asked, asked.query.idempotency_key),
        source=source_of(asked),
    )
    return Answer(content=removal_form(done))


async def restore(asked: Asked[NoQuery, Payload]) -> Answer:
    """Show the history of a session again."""
    key = key_of(asked)
    done = await asked.house.observations.restore(
        asked.owner,
        _key(asked),
        reason=asked.body.get("reason"),
        idempotency_key=key,
        source=source_of(asked),
    )
    return Answer(content=removal_form(done))


def submitted(done: SubmitResult, location: str) -> Answer:
    """Return what became of a claim: 201, or 200 for one that was made before."""
    repeated = {"idempotency-replayed": "true"} if done.deduplicated else {}
    status = 200 if done.deduplicated else 201
    return Answer(status=status, content=done, headers={"location": location, **repeated})


def _key(asked: Asked[Any, Any]) -> str:
    return asked.path["session_key"]


def _place(session_id: str) -> str:
    return f"{HISTORY}/{quote(session_id, safe='')}"


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path=HISTORY,
        name="history.submit",
        summary="Write down what happened in a session.",
        description=(
            "It is on disk when it is answered, and every later reading sees it. What was said "
            "last, or under the same key, is not written again. Keys beyond these are kept."
        ),
        act=submit,
        needs=Scope.WRITE,
        body=SubmissionPost,
        reads=payload,
        gives={201: SubmitResult, 200: SubmitResult},
        tells=SUBMITTED,
        refuses=WRITING,
        examples={
            "body": {
                "session_id": "abc123",
                "actions": [{"type": "create_feature_unit", "result": "success"}],
                "started_at": "2025-12-31T11:00:00Z",
            }
        },
    ),
    Route(
        method="GET",
        path=HISTORY,
        name="history.query",
        summary="List sessions: those that were told of, and those that are hosted here.",
        act=query,
        needs=Scope.READ,
        query=HistoryPageQuery,
        gives={200: HistoryList},
        refuses=(Code.INVALID_CURSOR, Code.INVALID_INPUT, Code.SCHEMA_VALIDATION_FAILED),
    ),
    Route(
        method="GET",
        path=SESSION,
        name="history.show",
        summary="Return what is known of a session, or was at a moment, with its newest claims.",
        act=show,
        needs=Scope.READ,
        query=PastQuery,
        gives={200: HistoryForm, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(Code.ENTITY_NOT_FOUND, Code.SCHEMA_VALIDATION_FAILED),
    ),
    Route(
        method="DELETE",
        path=SESSION,
        name="history.delete",
        summary="Hide the history of a session; it can be restored.",
        act=delete,
        needs=Scope.WRITE,
        query=RemovalQuery,
        gives={200: RemovalForm},
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
    ),
    Route(
        method="POST",
        path=f"{SESSION}/restore",
        name="history.restore",
        summary="Show the history of a session again.",
        act=restore,
        needs=Scope.WRITE,
        body=RestorationPost,
        body_may_be_missing=True,
        reads=arguments((), ("reason",)),
        gives={200: RemovalForm},
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
    ),
    Route(
        method="POST",
        path=f"{SESSION}/correct",
        name="history.correct",
        summary="Put one field of a session's history right; it outweighs what others say.",
        act=correct,
        needs=Scope.WRITE,
        body=CorrectionPost,
        reads=arguments(("field", "value"), ("reason",)),
        gives={201: SubmitResult, 200: SubmitResult},
        tells=SUBMITTED,
        refuses=(Code.ENTITY_NOT_FOUND, *WRITING),
        examples={"body": {"field": "ended_at", "value": "2025-12-31T12:00:00Z"}},
    ),
    Route(
        method="GET",
        path=f"{SESSION}/checkpoints/{{checkpoint}}",
        name="history.checkpoint",
        summary="Return what was kept at a checkpoint; of several of a name, the latest.",
        act=read_checkpoint,
        needs=Scope.READ,
        query=CheckpointQuery,
        gives={200: CheckpointState, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(
            Code.CHECKPOINT_NOT_FOUND,
            Code.ENTITY_NOT_FOUND,
            Code.SCHEMA_VALIDATION_FAILED,
        ),
    ),
    Route(
        method="GET",
        path=f"{SESSION}/observations",
        name="history.observations",
        summary="List every claim about a session as it was made, newest first.",
        act=list_observations,
        needs=Scope.READ,
        query=ClaimsQuery,
        gives={200: ObservationList},
        refuses=(Code.ENTITY_NOT_FOUND, Code.INVALID_CURSOR),
    ),
)


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


TIMELINE_ROUTES: Final[tuple[Route, ...]] = (
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
