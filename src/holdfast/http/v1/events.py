"""Events as JSON: a page of what the stream tells, for those who cannot follow one."""

from typing import Final

from holdfast.domain.events import NAMES, Event, Gap
from holdfast.domain.queries import Page
from holdfast.http.answers import Answer
from holdfast.http.table import Asked
from holdfast.http.v1.events_forms import EventList, EventsQuery, HouseEventList, Words
from holdfast.http.v1.listings import comma_list
from holdfast.http.v1.paths import session_of
from holdfast.http.v1.refusals import query_judged
from holdfast.http.v1.words import Deltas, event_forms

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


async def events_page(asked: Asked[EventsQuery, None]) -> Answer:
    """Return a page of events; what was pruned is told in the house's own words only."""
    session_id = await session_of(asked)
    query = asked.query
    words = frozenset(comma_list(query.types))
    names = frozenset(name for word in words for name in _names_of(word))
    # Words that nothing is called by match nothing; no names at all would match everything.
    if words and not names:
        await asked.house.sessions.get(asked.owner, session_id)
        return Answer(content=EventList((), None))
    with query_judged():
        page = await asked.house.events.list(
            asked.owner, session_id, after=query.after, limit=query.limit, types=names
        )
    if query.words is Words.HOUSE:
        return Answer(content=_house_page(page))
    forms = (
        form
        for item in page.items
        if not isinstance(item, Gap)
        for form in event_forms(item, Deltas.BOTH if words else query.deltas)
        if not words or form.event_type in words
    )
    return Answer(content=EventList(tuple(forms), page.next_cursor))


def _house_page(page: Page[Event | Gap]) -> HouseEventList:
    found = tuple(item for item in page.items if isinstance(item, Event))
    gaps = tuple(item for item in page.items if isinstance(item, Gap))
    return HouseEventList(found, gaps, page.next_cursor)


def _names_of(word: str) -> tuple[str, ...]:
    return HOUSE_NAMES.get(word) or ((word,) if word in NAMES else ())
