"""`GET …/events`: the event stream, or a page of it as JSON, and the start position of a reader."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import NAMES, Event, Gap, name_of
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.queries import Count, Page, decode_count, encode_count
from holdfast.domain.tokens import Caller
from holdfast.http.bodies import read_in_slot
from holdfast.http.responses import Response, StreamResponse, encode_json
from holdfast.http.routing import (
    SESSION_PATH,
    RouteRequest,
    Routes,
    requested_session,
)
from holdfast.http.sse import SSE_HEADERS, StreamRequest, event_frames
from holdfast.ports.system import Frame
from holdfast.wire.errors import as_query_errors, invalid_query
from holdfast.wire.events import (
    Deltas,
    EventForm,
    EventList,
    EventsQuery,
    GapForm,
    StoredEventList,
    Words,
    event_forms,
)
from holdfast.wire.scalars import split_commas
from holdfast.wire.sessions import status_word

LIMIT: Final = 100
# Internal event names behind an API event type; all other types have the same name in both.
EVENT_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "message.created": ("message.appended",),
    "message.delta": ("step.delta",),
    "session.completed": ("session.closed", "turn.ended"),
    "session.failed": ("session.closed", "turn.ended"),
    "session.started": ("turn.started",),
    "step.error": ("step.failed",),
    "step.generated": ("step.ended",),
    "step.generating": ("step.delta",),
    "tool.approval_answered": ("approval.answered",),
    "tool.approval_requested": ("approval.requested",),
    "tool.completed": ("tool.ended",),
    "tool.refused": ("tool.ended",),
    "tool.settled": ("call.settled",),
}
_STREAM_PARAMETERS: Final = ("since", "until")

routes: Final = Routes()


async def events_page(request: RouteRequest[EventsQuery, None]) -> Response:
    """Return a page of events, and the gaps in their sequence numbers."""
    query = request.query
    for name in _STREAM_PARAMETERS:
        if getattr(query, name) is not None:
            raise invalid_query(
                name, "it applies to the stream only; a page starts after `after` or `cursor`"
            )
    session_id = await requested_session(request)
    # The start position is not part of the filters: the cursor contains it.
    filters = ("events", request.owner, session_id, query.types, query.deltas, query.words)
    names = wanted_types(query)
    limit = query.limit or LIMIT
    with as_query_errors():
        position = decode_count(query.cursor, filters) or (query.after or 0, "")
        page = await request.holdfast.events.list(
            request.owner, session_id, after=position[0], limit=limit, types=names
        )
    behind = None if page.next_cursor is None else (int(page.next_cursor), "")
    if query.words is Words.INTERNAL:
        return Response(content=_stored_events_page(page, encode_count(behind, filters)))
    wanted = form_builder(query)
    forms_found = [form for item in page.items if isinstance(item, Event) for form in wanted(item)]
    forms_found, behind = _limit_page(_skip_sent(forms_found, position), limit, behind)
    last = behind[0] if behind else None
    resync = f"{SESSION_PATH.format(session_id=session_id)}/messages"
    gaps = (
        GapForm(gap.from_sequence, gap.to_sequence, gap.reason, resync)
        for gap in page.items
        if isinstance(gap, Gap) and (last is None or gap.to_sequence <= last)
    )
    return Response(
        content=EventList(tuple(forms_found), tuple(gaps), encode_count(behind, filters))
    )


def wanted_types(query: EventsQuery) -> Collection[str] | None:
    """Return the internal names of the wanted event types; None for all."""
    words = split_commas(query.types)
    return frozenset(name for word in words for name in _types_of(word)) if words else None


def form_builder(query: EventsQuery) -> Callable[[Event], tuple[EventForm, ...]]:
    """Return how an event is formatted for this query: as one API event, as two, or as none."""
    words = frozenset(split_commas(query.types))
    if not words:
        return lambda event: event_forms(event, query.deltas)
    # An explicit list of types also decides which of the two delta types is sent.
    return lambda event: tuple(
        form for form in event_forms(event, Deltas.BOTH) if form.event_type in words
    )


def has_type(event: Event, names: Collection[str] | None) -> bool:
    """Return whether an event has one of the wanted internal names."""
    return names is None or name_of(event.payload) in names


def _skip_sent(forms_found: list[EventForm], position: Count) -> list[EventForm]:
    """Return the forms not sent yet: the first of two may have been on the page before."""
    number, word = position
    is_cut = bool(word) and bool(forms_found) and forms_found[0].sequence == number + 1
    return forms_found[1:] if is_cut and forms_found[0].event_type == word else forms_found


def _limit_page(
    forms_found: list[EventForm], limit: int, behind: Count | None
) -> tuple[list[EventForm], Count | None]:
    """Return at most `limit` forms, and the position to continue after."""
    if len(forms_found) <= limit:
        return forms_found, behind
    last, after = forms_found[limit - 1], forms_found[limit]
    if last.sequence == after.sequence:
        return forms_found[:limit], (last.sequence - 1, last.event_type)
    return forms_found[:limit], (last.sequence, "")


def _stored_events_page(page: Page[Event | Gap], next_cursor: str | None) -> StoredEventList:
    found = tuple(item for item in page.items if isinstance(item, Event))
    gaps = tuple(item for item in page.items if isinstance(item, Gap))
    return StoredEventList(found, gaps, next_cursor)


def _types_of(word: str) -> tuple[str, ...]:
    return EVENT_TYPES.get(word) or ((word,) if word in NAMES else ())


_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_PAGE_PARAMETERS: Final = ("after", "limit", "cursor")


@routes.get(
    "{session}/events",
    "events",
    {200: (EventList, StoredEventList)},
    is_stream=True,
    errors=(Code.EVENT_NOT_FOUND, Code.CURSOR_AHEAD),
)
async def events(request: RouteRequest[EventsQuery, None]) -> Response | StreamResponse:
    """Follow the session's events, or read a page of them as JSON.

    With `Accept: text/event-stream`, a server-sent event stream. It starts after
    `Last-Event-ID`, otherwise after `since`, and continues until the client disconnects. With
    `Accept: application/json`, one page of the same events. With `words=house`, events are sent in
    their stored form, with internal names that may change with any version.
    """
    _require_cursor(request.headers.get("last-event-id") or "0")
    if _wants_json(request):
        return await read_in_slot(request, events_page)
    for name in _PAGE_PARAMETERS:
        if getattr(request.query, name) is not None:
            raise invalid_query(
                name, "it applies to a JSON page only; a stream starts after `since`"
            )
    session_id = await requested_session(request)
    caller = request.required_caller
    after = await _start(request, caller, session_id)
    # Validated before the stream begins: an error is an ordinary response, never a frame.
    head = await request.holdfast.events.require(caller.owner, session_id, after=after)
    stream = request.streams.stream(
        caller,
        StreamRequest(
            session_id=session_id,
            after=after,
            head=head,
            format_event=_frame_builder(request.query),
            status_word=status_word,
            resync=f"{SESSION_PATH.format(session_id=session_id)}/messages",
            until_settled=request.query.until is not None,
        ),
    )
    return StreamResponse(run=stream.run, headers=SSE_HEADERS)


def _frame_builder(query: EventsQuery) -> Callable[[Frame], bytes]:
    if query.types:
        return _filtered_frames(query)
    if query.words is Words.INTERNAL:
        return stored_event_frame
    return _SHARED_FRAMES[query.deltas]


def _filtered_frames(query: EventsQuery) -> Callable[[Frame], bytes]:
    """Return the frames of the wanted event types; filtered ones are sent as a gap."""
    names, forms = wanted_types(query), form_builder(query)

    def frame(item: Frame) -> bytes:
        if not has_type(item.event, names):
            return b""
        if query.words is Words.INTERNAL:
            return stored_event_frame(item)
        return _frame_forms(item.sequence, forms(item.event))

    return frame


def stored_event_frame(item: Frame) -> bytes:
    """Return the frame of an event in the internal format."""
    return item.form(Words.INTERNAL, _encode_stored_event)


def _encode_stored_event(item: Frame) -> bytes:
    # Not the stored encoding: it omits zero values, and not every reader knows the defaults.
    return event_frames(item.sequence, [(name_of(item.event.payload), encode_json(item.event))])


def shared_frame(item: Frame, deltas: Deltas) -> bytes:
    """Return the frames of an event; formatted once for all readers with the same options."""
    return item.form(deltas, _MAKERS[deltas])


def _encode_frames(item: Frame, deltas: Deltas) -> bytes:
    return _frame_forms(item.sequence, event_forms(item.event, deltas))


def _frame_forms(sequence: int, forms: Iterable[EventForm]) -> bytes:
    return event_frames(sequence, [(form.event_type, encode_json(form)) for form in forms])


_MAKERS: Final = {deltas: partial(_encode_frames, deltas=deltas) for deltas in Deltas}
# One function object per option: readers with the same function share their frames.
_SHARED_FRAMES: Final = {deltas: partial(shared_frame, deltas=deltas) for deltas in Deltas}


async def _start(
    request: RouteRequest[EventsQuery, None], caller: Caller, session_id: SessionId
) -> int:
    """Return the sequence number after which the reader starts."""
    # The header wins, because a browser reconnects with the original URL.
    given = request.headers.get("last-event-id") or request.query.since or "0"
    if _NUMBER.fullmatch(given):
        return int(given)
    if given == "now":
        return (await request.holdfast.sessions.get(caller.owner, session_id)).last_event
    if is_uuid(given):
        return await request.holdfast.events.sequence_of(caller.owner, session_id, given)
    raise _invalid_cursor()


def _require_cursor(cursor: str) -> None:
    if not (_NUMBER.fullmatch(cursor) or cursor == "now" or is_uuid(cursor)):
        raise _invalid_cursor()


def _invalid_cursor() -> Invalid:
    return Invalid(
        Code.INVALID_QUERY,
        "Send the sequence number of an event, its id, or `now`.",
        {"parameter": "since", "rule": "number, event id or now"},
    )


def _wants_json(request: RouteRequest[EventsQuery, None]) -> bool:
    if request.query.format is not None:
        return request.query.format == "json"
    accepted = request.headers.get("accept", "*/*").lower()
    return "application/json" in accepted and "text/event-stream" not in accepted
