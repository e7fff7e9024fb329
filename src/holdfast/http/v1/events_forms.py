"""Events on the wire: which are wanted, and a page of them."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.domain.events import Event, Gap
from holdfast.http.v1.words import Deltas, EventForm


class Words(StrEnum):
    """In whose words events are told: those of `/v1`, or the house's own, as they are stored."""

    V1 = "v1"
    HOUSE = "house"


Start = Annotated[
    str,
    Meta(
        pattern="^(?:[0-9]{1,18}|now|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})?$",
        description="After which event to begin: its number, its id, or `now`.",
    ),
]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin, and in which form; a page and the stream each refuse what is the other's."""

    since: Start | None = None
    deltas: Deltas = Deltas.STEP
    words: Words = Words.V1
    until: Literal["settled"] | None = None
    format: Literal["json", "stream"] | None = None
    after: (
        Annotated[
            int, Meta(ge=0, le=(1 << 63) - 1, description="Of JSON: only events behind this one.")
        ]
        | None
    ) = None
    limit: (
        Annotated[int, Meta(ge=1, le=1000, description="Of JSON: at most so many; else 100.")]
        | None
    ) = None
    cursor: Annotated[str, Meta(description="Of JSON: go on behind an earlier page.")] | None = None
    types: Annotated[str, Meta(description="Only events with one of these words.")] | None = None


class GapForm(Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """Numbers that will not come, and where to read what they told of."""

    first: int
    last: int
    reason: str
    resync: str


class EventList(Struct, frozen=True):
    """A page of events, and the numbers between them that will not come."""

    data: tuple[EventForm, ...]
    gaps: tuple[GapForm, ...]
    next_cursor: str | None


class HouseEventList(Struct, frozen=True):
    """A page of events as they are stored, and the numbers between them that will not come."""

    data: tuple[Event, ...]
    gaps: tuple[Gap, ...]
    next_cursor: str | None
