"""`GET …/events`: the stream, or a page of it as JSON; and where a reader wants to begin."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import name_of
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.answers import Answer, Stream, encoded
from holdfast.http.feeds import Wish
from holdfast.http.sse import HEADERS, event_frames
from holdfast.http.table import Asked, Route
from holdfast.http.v1.events import events_page, forms_of, is_named, wanted_names
from holdfast.http.v1.events_forms import EventList, EventsQuery, HouseEventList, Words
from holdfast.http.v1.paths import BY_ITSELF, of_session, session_of
from holdfast.http.v1.refusals import invalid_query
from holdfast.http.v1.statuses import status_word
from holdfast.http.v1.words import Deltas, EventForm, event_forms
from holdfast.services.event_stream import BufferedEvent

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_OF_PAGES: Final = ("after", "limit", "cursor")


async def events(asked: Asked[EventsQuery, None]) -> Answer | Stream:
    """Follow the session, or read a page of its events."""
    _require_cursor(asked.headers.get("last-event-id") or "0")
    if _wants_json(asked):
        return await events_page(asked)
    for name in _OF_PAGES:
        if getattr(asked.query, name) is not None:
            raise invalid_query(name, "it is for a page of JSON; a stream begins behind since")
    session_id = await session_of(asked)
    caller = asked.required_caller
    after = await _start(asked, caller, session_id)
    # Judged before the stream begins: an error is an answer of its own, never a frame.
    head = await asked.house.events.require(caller.owner, session_id, after=after)
    feed = asked.streams.feed(
        caller,
        Wish(
            session_id=session_id,
            after=after,
            head=head,
            frame=_frames_of(asked.query),
            standing=status_word,
            resync=f"{BY_ITSELF.format(session_id=session_id)}/messages",
            until_settled=asked.query.until is not None,
        ),
    )
    return Stream(play=feed.play, headers=HEADERS)


def _frames_of(query: EventsQuery) -> Callable[[BufferedEvent], bytes]:
    if query.types:
        return _only(query)
    if query.words is Words.HOUSE:
        return house_frame
    return _SHARED_FRAMES[query.deltas]


def _only(query: EventsQuery) -> Callable[[BufferedEvent], bytes]:
    """Return the frames of events with the wanted words; what others have is told as a gap."""
    names, forms = wanted_names(query), forms_of(query)

    def frame(news: BufferedEvent) -> bytes:
        if not is_named(news.event, names):
            return b""
        if query.words is Words.HOUSE:
            return house_frame(news)
        return _framed(news.sequence, forms(news.event))

    return frame


def house_frame(news: BufferedEvent) -> bytes:
    """Return the frame of an event in the house's own words."""
    return news.form(Words.HOUSE, _whole)


def _whole(news: BufferedEvent) -> bytes:
    # Not as it is stored: that leaves out what is nought, and not every reader knows its noughts.
    return event_frames(news.sequence, [(name_of(news.event.payload), encoded(news.event))])


def shared_frame(news: BufferedEvent, deltas: Deltas) -> bytes:
    """Return the frames of an event; made once for all readers that want the same words."""
    return news.form(deltas, _MAKERS[deltas])


def _told(news: BufferedEvent, deltas: Deltas) -> bytes:
    return _framed(news.sequence, event_forms(news.event, deltas))


def _framed(sequence: int, forms: Iterable[EventForm]) -> bytes:
    return event_frames(sequence, [(form.event_type, encoded(form)) for form in forms])


_MAKERS: Final = {deltas: partial(_told, deltas=deltas) for deltas in Deltas}
# The same function for the same words: by it readers know that they share what they send.
_SHARED_FRAMES: Final = {deltas: partial(shared_frame, deltas=deltas) for deltas in Deltas}


async def _start(asked: Asked[EventsQuery, None], caller: Caller, session_id: SessionId) -> int:
    """Return the number after which the reader begins."""
    # The header wins, because a browser repeats the URL when it comes back.
    given = asked.headers.get("last-event-id") or asked.query.since or "0"
    if _NUMBER.fullmatch(given):
        return int(given)
    if given == "now":
        return (await asked.house.sessions.get(caller.owner, session_id)).last_event
    if is_uuid(given):
        return await asked.house.events.sequence_of(caller.owner, session_id, given)
    raise _no_cursor()


def _require_cursor(given: str) -> None:
    if not (_NUMBER.fullmatch(given) or given == "now" or is_uuid(given)):
        raise _no_cursor()


def _no_cursor() -> Invalid:
    return Invalid(
        Code.INVALID_QUERY,
        "A cursor is the number of an event, its id, or `now`.",
        {"parameter": "since", "rule": "number, event id or now"},
    )


def _wants_json(asked: Asked[EventsQuery, None]) -> bool:
    if asked.query.format is not None:
        return asked.query.format == "json"
    accepted = asked.headers.get("accept", "*/*").lower()
    return "application/json" in accepted and "text/event-stream" not in accepted


ROUTES: Final = of_session(
    Route(
        method="GET",
        path="/events",
        name="events",
        summary="Follow the session's events, or read a page of them as JSON.",
        act=events,
        needs=Scope.READ,
        query=EventsQuery,
        gives={200: (EventList, HouseEventList)},
        is_stream=True,
        refuses=(Code.SESSION_NOT_FOUND, Code.EVENT_NOT_FOUND, Code.CURSOR_AHEAD),
        description=(
            "With `Accept: text/event-stream` a server-sent event stream that begins after "
            "`Last-Event-ID`, else after `since`, and goes on until the reader leaves; with "
            "`Accept: application/json` one page of the same events. With `words=house` events "
            "are told as they are stored, in words that may change with any version."
        ),
    )
)
