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
    """Where to begin, and in which form; `after`, `limit` and `types` are for JSON only."""

    since: Start | None = None
    deltas: Deltas = Deltas.STEP
    words: Words = Words.V1
    until: Literal["settled"] | None = None
    format: Literal["json", "stream"] | None = None
    after: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    types: str | None = None


class EventList(Struct, frozen=True):
    """A page of events; the cursor is the number to go on after."""

    data: tuple[EventForm, ...]
    next_cursor: str | None


class HouseEventList(Struct, frozen=True):
    """A page of events as they are stored, and the numbers between them that will not come."""

    data: tuple[Event, ...]
    gaps: tuple[Gap, ...]
    next_cursor: str | None
