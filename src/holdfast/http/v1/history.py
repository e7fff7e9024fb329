"""Routes of observed history, and of the full-text search over messages and observations."""

import re
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, RouteRequest, Routes, cacheable
from holdfast.http.v1.idempotency import IDEMPOTENCY_KEY
from holdfast.observations.as_of import parse_window
from holdfast.observations.claims import BYTES_MOST
from holdfast.observations.issues import Issue, rejection
from holdfast.observations.queries import (
    CheckpointState,
    Correction,
    EntityQuery,
    HistoryQuery,
    SubmitResult,
    TimelineQuery,
)
from holdfast.observations.validation import decode_payload_strictly, find_issues
from holdfast.parsing.strict_json import has_more_values
from holdfast.wire.errors import as_query_errors, invalid_body, invalid_query
from holdfast.wire.observations import (
    CheckpointQuery,
    CorrectionPost,
    EntitiesQuery,
    EntityList,
    EntityPost,
    EntityTimelineQuery,
    HistoryForm,
    HistoryPageQuery,
    ObservationList,
    ObservationsQuery,
    PastStateQuery,
    RemovalForm,
    RemovalQuery,
    RestorationPost,
    SubmissionPost,
    TimelineList,
    entity_list,
    history_form,
    observation_list,
    removal_form,
    timeline_list,
)
from holdfast.wire.search import HitList, SearchForm, hit_form, query_of

FIELD: Final = "idempotency_key"
SOURCE_LONGEST: Final = 200
# Printable ASCII, which every proxy passes on unchanged.
_HEADER: Final = re.compile(r"[!-~]{1,200}")
Payload = dict[str, Any]

routes: Final = Routes()
search_routes: Final = Routes()


def parse_payload(raw: bytes) -> Any:
    """Return the parsed body; duplicate keys are preserved, so that validation can refuse them."""
    # A body with more values than the byte limit cannot fit, so it is refused before parsing.
    if has_more_values(raw, BYTES_MOST):
        message = f"The payload has more than {BYTES_MOST} bytes"
        raise rejection((Issue(path=(), expected=f"max_bytes: {BYTES_MOST}", message=message),))
    return decode_payload_strictly(raw)


def argument_parser(needs: tuple[str, ...], takes: tuple[str, ...]) -> Callable[[bytes], Payload]:
    """Return a parser for a body with these members: all required ones and no unknown ones."""
    known = (*needs, *takes, FIELD)
    members = dict.fromkeys(known, (Any, False))

    def read(raw: bytes) -> Payload:
        found = parse_payload(raw)
        issues = find_issues(members, found)
        if not issues:
            # An explicit null counts as present; the service decides whether it is allowed.
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


def take_key(request: RouteRequest[Any, Any]) -> Any:
    """Remove the idempotency key from the body, or take it from `Idempotency-Key`."""
    body = request.body
    return agreed_key(request, body.pop(FIELD, None) if isinstance(body, dict) else None)


def agreed_key(request: RouteRequest[Any, Any], body_key: Any) -> Any:
    """Return the key of the body or of the header; if both are present they must be equal."""
    header = request.headers.get(IDEMPOTENCY_KEY)
    if header is not None and _HEADER.fullmatch(header) is None:
        expected, message = f"pattern: {_HEADER.pattern}", "Idempotency-Key must be printable ASCII"
        raise rejection((Issue(path=(FIELD,), value=header, expected=expected, message=message),))
    if body_key is not None and header is not None and body_key != header:
        invalid = invalid_query if request.body is None else invalid_body
        raise invalid(FIELD, "it must be equal to Idempotency-Key")
    return header if body_key is None else body_key


def source_of(request: RouteRequest[Any, Any]) -> str:
    """Return the source of an observation: the client's name for itself."""
    name = request.headers.get("user-agent", "")
    return "".join(filter(str.isprintable, name))[:SOURCE_LONGEST]


def _unknown(name: str, value: Any, known: tuple[str, ...]) -> Issue:
    names = ", ".join(known)
    message = f"{name} must be one of: {names}"
    return Issue(path=(name,), value=value, expected=f"one of: {names}", message=message)


HISTORY: Final = "/v1/history"
SESSION: Final = f"{HISTORY}/{{session_key}}"
WRITE_ERRORS: Final = (Code.IDEMPOTENCY_MISMATCH, Code.RATE_LIMITED, Code.SCHEMA_VALIDATION_FAILED)
SUBMITTED: Final = {201: ("location",), 200: ("idempotency-replayed", "location")}


@routes.post(
    HISTORY,
    "history.submit",
    {201: SubmitResult, 200: SubmitResult},
    body=SubmissionPost,
    parse_body=parse_payload,
    response_headers=SUBMITTED,
    errors=WRITE_ERRORS,
    example={
        "session_id": "abc123",
        "actions": [{"type": "create_feature_unit", "result": "success"}],
        "started_at": "2025-12-31T11:00:00Z",
    },
)
async def submit(request: RouteRequest[NoQuery, Any]) -> Response:
    """Submit an observation of a session.

    The observation is on disk when the response is sent, and every later read includes it. A
    repeat of the last observation, or of the same key, is not stored again. Additional keys are
    stored.
    """
    key = take_key(request)
    done = await request.holdfast.observations.submit(
        request.owner, request.body, idempotency_key=key, source=source_of(request)
    )
    return submitted_response(done, _session_path(request.body["session_id"]))


@routes.get(
    HISTORY,
    "history.query",
    EntityList,
    is_large=True,
    errors=(Code.INVALID_CURSOR, Code.INVALID_INPUT, Code.SCHEMA_VALIDATION_FAILED),
)
async def query(request: RouteRequest[HistoryPageQuery, None]) -> Response:
    """List sessions: observed ones, and those that Holdfast hosts."""
    wanted = msgspec.convert(request.query, HistoryQuery, from_attributes=True)
    page = await request.holdfast.observations.query(
        request.owner, wanted, cursor=request.query.cursor
    )
    return Response(content=entity_list(page))


@routes.get(
    SESSION,
    "history.show",
    **cacheable(HistoryForm),
    is_large=True,
    errors=(Code.SCHEMA_VALIDATION_FAILED,),
)
async def show(request: RouteRequest[PastStateQuery, None]) -> Response:
    """Return the history of a session, now or at a past time, with its newest observations."""
    found = await request.holdfast.observations.show(
        request.owner,
        _session_key(request),
        at=request.query.at,
        at_ingested=request.query.at_ingested,
    )
    return Response(content=history_form(found), has_etag=True)


@routes.add("DELETE", SESSION, "history.delete", RemovalForm, errors=WRITE_ERRORS)
async def delete(request: RouteRequest[RemovalQuery, None]) -> Response:
    """Hide the history of a session; it can be restored."""
    done = await request.holdfast.observations.delete(
        request.owner,
        _session_key(request),
        reason=request.query.reason,
        idempotency_key=agreed_key(request, request.query.idempotency_key),
        source=source_of(request),
    )
    return Response(content=removal_form(done))


@routes.post(
    f"{SESSION}/restore",
    "history.restore",
    RemovalForm,
    body=RestorationPost,
    body_may_be_missing=True,
    parse_body=argument_parser((), ("reason",)),
    errors=WRITE_ERRORS,
)
async def restore(request: RouteRequest[NoQuery, Payload]) -> Response:
    """Restore the hidden history of a session."""
    key = take_key(request)
    done = await request.holdfast.observations.restore(
        request.owner,
        _session_key(request),
        reason=request.body.get("reason"),
        idempotency_key=key,
        source=source_of(request),
    )
    return Response(content=removal_form(done))


@routes.post(
    f"{SESSION}/correct",
    "history.correct",
    {201: SubmitResult, 200: SubmitResult},
    body=CorrectionPost,
    parse_body=argument_parser(("field", "value"), ("reason",)),
    response_headers=SUBMITTED,
    errors=WRITE_ERRORS,
    example={"field": "ended_at", "value": "2025-12-31T12:00:00Z"},
)
async def correct(request: RouteRequest[NoQuery, Payload]) -> Response:
    """Correct one field of a session's history; the correction takes precedence over other
    observations.
    """
    key = take_key(request)
    correction = Correction(session_id=_session_key(request), **request.body)
    done = await request.holdfast.observations.correct(
        request.owner, correction, idempotency_key=key, source=source_of(request)
    )
    return submitted_response(done, _session_path(_session_key(request)))


@routes.get(
    f"{SESSION}/checkpoints/{{checkpoint}}",
    "history.checkpoint",
    **cacheable(CheckpointState),
    is_large=True,
    errors=(Code.CHECKPOINT_NOT_FOUND, Code.SCHEMA_VALIDATION_FAILED),
)
async def read_checkpoint(request: RouteRequest[CheckpointQuery, None]) -> Response:
    """Return the state stored at a checkpoint; of several with one name, the latest."""
    found = await request.holdfast.observations.checkpoint(
        request.owner,
        _session_key(request),
        request.path["checkpoint"],
        timestamp=request.query.timestamp,
        at=request.query.at,
    )
    return Response(content=found, has_etag=True)


@routes.get(
    f"{SESSION}/observations",
    "history.observations",
    ObservationList,
    is_large=True,
    errors=(Code.INVALID_CURSOR, Code.SCHEMA_VALIDATION_FAILED),
)
async def list_observations(request: RouteRequest[ObservationsQuery, None]) -> Response:
    """List the observations of a session, newest first."""
    query = request.query
    _require_dates(query)
    page = await request.holdfast.observations.list_observations(
        request.owner,
        _session_key(request),
        start_date=query.since,
        end_date=query.until,
        limit=query.limit,
        cursor=query.cursor,
    )
    return Response(content=observation_list(page))


def submitted_response(done: SubmitResult, location: str) -> Response:
    """Return the response to a submission: 201, or 200 for a repeat."""
    repeated = {"idempotency-replayed": "true"} if done.deduplicated else {}
    status = 200 if done.deduplicated else 201
    return Response(status=status, content=done, headers={"location": location, **repeated})


def _session_key(request: RouteRequest[Any, Any]) -> str:
    return request.path["session_key"]


def _session_path(session_id: str) -> str:
    return f"{HISTORY}/{quote(session_id, safe='')}"


@routes.get(
    "/v1/timeline",
    "history.timeline",
    TimelineList,
    is_large=True,
    errors=(Code.INVALID_CURSOR, Code.SCHEMA_VALIDATION_FAILED),
)
async def read_timeline(request: RouteRequest[EntityTimelineQuery, None]) -> Response:
    """Return the events of an entity and of entities that refer to it, by time."""
    query = request.query
    _require_dates(query)
    wanted = TimelineQuery(
        start_date=_either("from", query.since, "start_date", query.start_date),
        end_date=_either("to", query.until, "end_date", query.end_date),
        event_types=query.event_types,
        limit=query.limit,
    )
    entity_id = _either("session_id", query.session_id, "entity_id", query.entity_id)
    if entity_id is None:
        raise invalid_query("entity_id", "it or session_id is required")
    page = await request.holdfast.observations.timeline(
        request.owner, entity_id, wanted, cursor=query.cursor
    )
    return Response(content=timeline_list(page))


def _either(name: str, value: str | None, other: str, other_value: str | None) -> str | None:
    """Return the value of a parameter that has two names."""
    if value is not None and other_value is not None:
        raise invalid_query(name, f"it cannot be combined with {other}")
    return other_value if value is None else value


def _require_dates(query: EntityTimelineQuery | EntitiesQuery | ObservationsQuery) -> None:
    """Refuse invalid dates by the names that they have here."""
    parse_window(query.since, query.until, names=("from", "to"))


@routes.post(
    "/v1/entities",
    "history.submit_entity",
    {201: SubmitResult, 200: SubmitResult},
    body=EntityPost,
    parse_body=argument_parser(("entity_type", "fields"), ()),
    response_headers=SUBMITTED,
    errors=WRITE_ERRORS,
    example={
        "entity_type": "agent_decision",
        "fields": {
            "decision": "Use SQLite by default",
            "rationale": "Nothing has to be installed.",
            "timestamp": "2025-12-31T11:20:00Z",
        },
    },
)
async def submit_entity(request: RouteRequest[NoQuery, Payload]) -> Response:
    """Submit an observation of a feature unit, a release, a decision or a validation."""
    key, body = take_key(request), request.body
    done = await request.holdfast.observations.submit_entity(
        request.owner,
        body["entity_type"],
        body["fields"],
        idempotency_key=key,
        source=source_of(request),
    )
    return submitted_response(done, f"/v1/timeline?entity_id={quote(done.entity_id)}")


@routes.get(
    "/v1/entities",
    "history.entities",
    EntityList,
    is_large=True,
    errors=(Code.INVALID_CURSOR, Code.SCHEMA_VALIDATION_FAILED),
)
async def query_entities(request: RouteRequest[EntitiesQuery, None]) -> Response:
    """List entities of a type, filtered by their snapshots."""
    query = request.query
    _require_dates(query)
    wanted = EntityQuery(
        entity_type=query.entity_type,
        filters=_filters(query.filters),
        session_id=query.session_id,
        start_date=query.since,
        end_date=query.until,
        order_by=query.order_by,
        order=query.order,
        limit=query.limit,
    )
    page = await request.holdfast.observations.entities(request.owner, wanted, cursor=query.cursor)
    return Response(content=entity_list(page))


def _filters(text: str | None) -> Any:
    try:
        return None if text is None else decode_payload_strictly(text.encode())
    except Invalid:
        raise invalid_query("filters", "it must be a JSON object") from None


@search_routes.get("/v1/search", "search", HitList, errors=(Code.AGENT_NOT_FOUND,))
async def search(request: RouteRequest[SearchForm, None]) -> Response:
    """Search messages, tools, titles and observations, newest session first."""
    with as_query_errors():
        page = await request.holdfast.search.find(
            request.owner, query_of(request.query), cursor=request.query.cursor
        )
    return Response(content=HitList(tuple(map(hit_form, page.items)), page.next_cursor))
