"""Rows of events: where each stands on a timeline, and what is told of it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.timelines import EventType, TimelineEvent
from holdfast.domain.timestamps import instant_of
from holdfast.ports.observations import EventPlace
from holdfast.storage.database import Row, checksum, corrupt, encode

# By their numbers, because there are many rows.
TYPES: Final = {each: number for number, each in enumerate(EventType)}
_PREFIX: Final = "tle_"
# The same as it is kept.
Place = tuple[int, int, bytes]
_decode: Final = msgspec.json.Decoder(TimelineEvent).decode


class EventRow(Struct, frozen=True):
    """An event as it is kept."""

    place: Place
    type: int
    checksum: int
    body: bytes

    def columns(self, key: int) -> dict[str, Any]:
        """Return the columns of its row."""
        ms, rank, id_ = self.place
        return {
            "key": key,
            "ms": ms,
            "rank": rank,
            "id": id_,
            "type": self.type,
            "checksum": self.checksum,
            "body": self.body,
        }


class EventChange(Struct, frozen=True):
    """How the events of an entity become others: where some stood, and the types of those now.

    `rows` are those that have to be written.
    """

    stood: Collection[Place]
    stands: Mapping[Place, int]
    rows: Sequence[EventRow]

    @property
    def gone(self) -> set[Place]:
        """Return where nothing stands any more."""
        return set(self.stood) - self.stands.keys()


def change_from(before: Sequence[TimelineEvent], after: Sequence[TimelineEvent]) -> EventChange:
    """Return how events become others, for whoever knows both."""
    stood = {kept_place(event.place): event for event in before}
    stands = {kept_place(event.place): event for event in after}
    rows = [_row(place, event) for place, event in stands.items() if stood.get(place) != event]
    types = {place: TYPES[event.event_type] for place, event in stands.items()}
    return EventChange(stood.keys(), types, rows)


def change_against(sums: Mapping[Place, int | None], after: Sequence[TimelineEvent]) -> EventChange:
    """Return how events become others, for whoever knows the sums of those before."""
    rows = [_row(kept_place(event.place), event) for event in after]
    changed = [row for row in rows if sums.get(row.place) != row.checksum]
    return EventChange(sums.keys(), {row.place: row.type for row in rows}, changed)


def _row(place: Place, event: TimelineEvent) -> EventRow:
    kind, body = TYPES[event.event_type], encode(event)
    return EventRow(place, kind, _sum(place, kind, body), body)


def event_of(row: Row, what: str) -> TimelineEvent:
    """Return the event of a row, or refuse a damaged one."""
    *_, stored, body = row
    # Nothing stands there where one table promises what another does not hold.
    if body is None or event_sum(row, body) != stored:
        raise corrupt(what)
    return _decode(body)


def event_sum(row: Row, body: bytes) -> int:
    """Return the sum of what is told where a row stands."""
    ms, rank, id_, kind = row[:4]
    return _sum((ms, rank, id_), kind, body)


def kept_place(place: EventPlace) -> Place:
    """Return where an event stands, as it is kept."""
    timestamp, rank, event_id = place
    return instant_of(timestamp), rank, bytes.fromhex(event_id.removeprefix(_PREFIX))


def _sum(place: Place, kind: int, body: bytes) -> int:
    return checksum(encode((place, kind)), body)
