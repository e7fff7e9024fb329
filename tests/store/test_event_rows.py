"""The news in the store: passed on as they were encoded, in order, within bounds."""

from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    Event,
    MessageAppended,
    Payload,
    SessionCompacted,
    StepDelta,
    StepEnded,
    StepStarted,
    TurnEnded,
    TurnStarted,
    encode_payload,
    encode_stored,
)
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Role
from holdfast.domain.sessions import SessionState, StopReason
from holdfast.ports.store import Tx
from holdfast.ports.system import Frame
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import (
    AT,
    MODEL_ID,
    a_head,
    a_message,
    a_session,
    a_transcript,
    an_event,
    an_id,
)
from tests.commits import append_rows, new_messages
from tests.domain.strategies import INSTANTS, values_of
from tests.houses import raw
from tests.marks import demands
from tests.stand_ins import asked, streamed

pytestmark = pytest.mark.anyio

NUMBERS = count(1)
USAGE = Usage(input=1, output=2, cache_read=3, cache_write=4, reasoning=5)
# With each of the fields that are stored as one byte.
FULL = (
    StepStarted(message_id=MessageId(an_id(8)), model_id=MODEL_ID, step=2, model="a:\x01", bound=7),
    StepEnded(step=2, usage=USAGE, microcents=9, priced=True),
    TurnEnded(stop_reason=StopReason.STOP, usage=USAGE, microcents=9, priced=False),
)
STORED = st.one_of(
    *(values_of(kind) for kind in Payload.__args__ if kind is not MessageAppended)  # type: ignore[attr-defined]
)


async def _append(store: SqliteStore, head: SessionState, *events: Event) -> None:
    await store.write(lambda tx: append_rows(tx, head, events=events))


async def _after(
    store: SqliteStore, head: SessionState, cursor: int, limit: int = 100
) -> list[Frame]:
    return await store.read(lambda tx: tx.events.after(head, cursor, limit=limit))


def _frames(*events: Event) -> list[Frame]:
    return [Frame(event.sequence, _envelope(event)) for event in events]


def _envelope(event: Event) -> bytes:
    # What says nothing is not stored.
    kept = encode_stored(event.payload)
    return msgspec.json.encode(event).replace(encode_payload(event.payload), kept)


@demands("S2-121d")
@given(payload=STORED, turn=st.none() | st.integers(1, 99), at=INSTANTS)
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_an_envelope_is_what_encoding_the_event_would_give(
    store: SqliteStore, head: SessionState, payload: Payload, turn: int | None, at: datetime
) -> None:
    event = an_event(payload, turn=turn, sequence=next(NUMBERS), at=at)

    await _append(store, head, event)

    [frame] = await _after(store, head, event.sequence - 1)
    assert frame == Frame(event.sequence, _envelope(event))
    assert msgspec.json.decode(frame.envelope, type=Event) == event


@demands("S2-120k")
async def test_news_come_after_their_cursor_in_order(
    store: SqliteStore, head: SessionState
) -> None:
    events = [an_event(sequence=number, turn=1) for number in (1, 2, 5)]
    await _append(store, head, *events)

    assert await _after(store, head, 0) == _frames(*events)
    assert await _after(store, head, 1) == _frames(*events[1:])
    assert await _after(store, head, 0, limit=2) == _frames(*events[:2])
    assert await _after(store, head, 5) == []


async def test_a_view_shows_the_whole_log_as_it_is_told(
    store: SqliteStore, head: SessionState, home: Path
) -> None:
    [row] = a_transcript(a_message(model_id=MODEL_ID))
    folded = SessionCompacted(message_id=row.id, kept=1, dropped_through=1)
    told: list[Payload] = [TurnStarted(), asked(), streamed("hé"), StepEnded(step=1), folded, *FULL]
    events = [an_event(each, sequence=number) for number, each in enumerate(told, start=1)]
    last = len(events) + 1

    async def work(tx: Tx) -> None:
        await append_rows(tx, head, events=events, messages=new_messages([row], [last]))

    await store.write(work)

    frames = await _after(store, replace(head, messages=1, events=last), 0)
    with raw(home) as connection:
        # The view shows the rows that the session counts.
        connection.execute("UPDATE sessions SET messages = 1")
        shown = connection.execute("SELECT sequence, payload FROM session_events ORDER BY 1").get
        model = connection.execute("SELECT model_id FROM session_messages").get
    bodies = [msgspec.json.decode(frame.envelope, type=Enveloped).payload for frame in frames]
    assert shown == [(number, bytes(body).decode()) for number, body in enumerate(bodies, 1)]
    assert model == MODEL_ID


class Enveloped(msgspec.Struct):
    """An envelope, and what is in it as it came."""

    payload: msgspec.Raw


async def test_a_row_is_its_own_news_at_the_place_it_was_written(
    store: SqliteStore, head: SessionState
) -> None:
    """Rows have the events 2, 3 and 6; the others are stored as news."""
    rows = a_transcript(a_message("a"), a_message("b", role=Role.ASSISTANT), a_message("c", turn=0))
    numbers = (2, 3, 6)
    stored = [an_event(TurnStarted(), sequence=number, turn=1) for number in (1, 4, 5, 7)]

    async def work(tx: Tx) -> None:
        await append_rows(tx, head, events=stored, messages=new_messages(rows, numbers))

    await store.write(work)
    moved = replace(head, messages=3, events=7)
    news = [
        an_event(
            MessageAppended(message_id=row.id, role=row.role, sequence=row.sequence),
            sequence=number,
            turn=row.turn or None,
            at=row.created_at,
        )
        for row, number in zip(rows, numbers, strict=True)
    ]
    everything = _frames(*sorted([*stored, *news], key=lambda event: event.sequence))
    for cursor in range(8):
        assert await _after(store, moved, cursor) == everything[cursor:]
        assert await _after(store, moved, cursor, limit=2) == everything[cursor : cursor + 2]


async def test_a_page_of_news_has_a_mebibyte_at_most_but_one_at_least(
    store: SqliteStore, head: SessionState
) -> None:
    large = [an_event(streamed("x" * 400_000), sequence=number) for number in (1, 2, 3, 4)]
    larger = an_event(streamed("x" * (2 << 20)), sequence=5)
    await _append(store, head, *large, larger)

    pages = [
        [frame.sequence for frame in await _after(store, head, cursor)] for cursor in (0, 2, 4)
    ]
    assert pages == [[1, 2], [3, 4], [5]]


async def test_news_of_some_kinds_can_be_read_from_a_number_on(
    store: SqliteStore, head: SessionState
) -> None:
    events = [
        an_event(asked(), sequence=1, turn=1),
        an_event(streamed("x"), sequence=2, turn=1),
        an_event(StepEnded(step=1), sequence=3, turn=1),
        an_event(asked(2), sequence=4, turn=1),
    ]
    await _append(store, head, *events)

    async def since(sequence: int, *kinds: type) -> list[Event]:
        names = [str(kind.__struct_config__.tag) for kind in kinds]  # type: ignore[attr-defined]
        return await store.read(lambda tx: tx.events.since(head, sequence, names))

    assert await since(1, StepStarted, StepEnded) == [events[0], events[2], events[3]]
    assert await since(2, StepStarted) == [events[3]]
    assert await since(1, StepDelta) == [events[1]]
    assert await since(5, StepStarted) == []


async def test_only_old_deltas_of_turns_that_ended_are_pruned(
    store: SqliteStore, head: SessionState
) -> None:
    late = AT + timedelta(hours=1)
    events = [
        an_event(streamed("old"), sequence=1, turn=1),
        an_event(TurnStarted(), sequence=2, turn=1),
        an_event(streamed("young"), sequence=3, turn=1, at=late),
        an_event(streamed("open"), sequence=4, turn=2),
        an_event(streamed("old"), sequence=5, turn=1),
    ]
    await _append(store, head, *events)
    await store.write(lambda tx: append_rows(tx, head, state={"turn": 2, "settled": 1}))

    async def prune(limit: int) -> int:
        return await store.write(lambda tx: tx.events.prune(late, limit=limit))

    assert [await prune(1), await prune(9), await prune(9)] == [1, 1, 0]
    assert await _after(store, head, 0) == _frames(*events[1:4])


@pytest.mark.parametrize("number", [1 << 32, (1 << 32) + 1, 1 << 40, -1, -(1 << 32)])
async def test_no_number_leads_into_another_session(
    store: SqliteStore, head: SessionState, number: int
) -> None:
    sessions = [head, *await _add_sessions(store)]
    for each in sessions:
        event = an_event(session_id=each.session_id, sequence=1, turn=1)
        await _append(store, each, event)
    middle = replace(sessions[1], events=1)

    found = await store.read(lambda tx: tx.events.at(middle, number))
    after = await _after(store, middle, number)

    assert found is None
    assert len(after) == (number < 0)


async def _add_sessions(store: SqliteStore) -> list[SessionState]:
    async def add(tx: Tx) -> list[SessionState]:
        ids = [SessionId(an_id(number)) for number in (91, 92)]
        return [
            await tx.sessions.add(a_session(id=each), a_head(session_id=each), b"") for each in ids
        ]

    return await store.write(add)
