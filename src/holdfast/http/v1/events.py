"""Events as JSON: a page of what the stream tells, for those who cannot follow one."""

from collections.abc import Callable, Collection
from typing import Final

from holdfast.domain.events import NAMES, Event, Gap, name_of
from holdfast.domain.queries import Count, Page, decode_count, encode_count
from holdfast.http.answers import Answer
from holdfast.http.table import Asked
from holdfast.http.v1.events_forms import (
    EventList,
    EventsQuery,
    GapForm,
    HouseEventList,
    Words,
)
from holdfast.http.v1.listings import comma_list
from holdfast.http.v1.paths import BY_ITSELF, session_of
from holdfast.http.v1.refusals import invalid_query, query_judged
from holdfast.http.v1.words import Deltas, EventForm, event_forms

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
