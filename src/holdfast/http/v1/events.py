"""`GET …/events`: the event stream, or a page of it as JSON, and where a reader starts."""

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import NAMES, Event, Gap, name_of
from holdfast.domain.ids import SessionId, is_uuid
from holdfast.domain.queries import Count, Page, decode_count, encode_count
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.responses import Answer, Stream, encoded
from holdfast.http.routing import BY_ITSELF, Asked, Route, of_session, session_of
from holdfast.http.sse import HEADERS, Wish, event_frames
from holdfast.services.event_stream import BufferedEvent
from holdfast.wire.errors import invalid_query, query_judged
from holdfast.wire.events import (
    Deltas,
    EventForm,
    EventList,
    EventsQuery,
    GapForm,
    HouseEventList,
    Words,
    event_forms,
)
from holdfast.wire.scalars import comma_list
from holdfast.wire.sessions import status_word

LIMIT: Final = 100
# Under which of the house's names a word may stand; every other word is the house's own.
HOUSE_NAMES: Final[dict[str, tuple[str, ...]]] = {
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
    "tool.settled": ("call.settled",),
}
_OF_STREAMS: Final = ("since", "until")


async def events_page(asked: Asked[EventsQuery, None]) -> Answer:
    """Return a page of events, and the numbers between them that will not come."""
    query = asked.query
    for name in _OF_STREAMS:
        if getattr(query, name) is not None:
            raise invalid_query(name, "it is for the stream; a page begins behind after or cursor")
    session_id = await session_of(asked)
    # Not where the first page began: a cursor goes on by itself.
    filters = ("events", asked.owner, session_id, query.types, query.deltas, query.words)
    names = wanted_names(query)
    limit = query.limit or LIMIT
    with query_judged():
        place = decode_count(query.cursor, filters) or (query.after or 0, "")
        page = await asked.house.events.list(
            asked.owner, session_id, after=place[0], limit=limit, types=names
        )
    behind = None if page.next_cursor is None else (int(page.next_cursor), "")
    if query.words is Words.HOUSE:
        return Answer(content=_house_page(page, encode_count(behind, filters)))
    wanted = forms_of(query)
    told = [form for item in page.items if isinstance(item, Event) for form in wanted(item)]
    told, behind = _cut(_behind(told, place), limit, behind)
    last = behind[0] if behind else None
    resync = f"{BY_ITSELF.format(session_id=session_id)}/messages"
    gaps = (
        GapForm(gap.from_sequence, gap.to_sequence, gap.reason, resync)
        for gap in page.items
        if isinstance(gap, Gap) and (last is None or gap.to_sequence <= last)
    )
    return Answer(content=EventList(tuple(told), tuple(gaps), encode_count(behind, filters)))


def wanted_names(query: EventsQuery) -> Collection[str] | None:
    """Return the house's names of what is wanted; nothing if that is everything."""
    words = comma_list(query.types)
    return frozenset(name for word in words for name in _names_of(word)) if words else None


def forms_of(query: EventsQuery) -> Callable[[Event], tuple[EventForm, ...]]:
    """Return how an event is told to somebody with this wish: in one word, in two, or in none."""
    words = frozenset(comma_list(query.types))
    if not words:
        return lambda event: event_forms(event, query.deltas)
    # Whoever names the words has said which of the two for a piece of text are wanted.
    return lambda event: tuple(
        form for form in event_forms(event, Deltas.BOTH) if form.event_type in words
    )


def is_named(event: Event, names: Collection[str] | None) -> bool:
    """Tell whether an event has one of the house's names that are wanted."""
    return names is None or name_of(event.payload) in names


def _behind(told: list[EventForm], place: Count) -> list[EventForm]:
    """Return what was not told yet: of an event in two words the first may have been."""
    number, word = place
    is_cut = bool(word) and bool(told) and told[0].sequence == number + 1
    return told[1:] if is_cut and told[0].event_type == word else told


def _cut(
    told: list[EventForm], limit: int, behind: Count | None
) -> tuple[list[EventForm], Count | None]:
    """Return no more than the limit, and what to go on behind."""
    if len(told) <= limit:
        return told, behind
    last, after = told[limit - 1], told[limit]
    if last.sequence == after.sequence:
        return told[:limit], (last.sequence - 1, last.event_type)
    return told[:limit], (last.sequence, "")


def _house_page(page: Page[Event | Gap], next_cursor: str | None) -> HouseEventList:
    found = tuple(item for item in page.items if isinstance(item, Event))
    gaps = tuple(item for item in page.items if isinstance(item, Gap))
    return HouseEventList(found, gaps, next_cursor)


def _names_of(word: str) -> tuple[str, ...]:
    return HOUSE_NAMES.get(word) or ((word,) if word in NAMES else ())


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
