"""The log is the stream: from any cursor, every number once, in order, delivered or covered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, Internal, Invalid, NotFound
from holdfast.domain.events import (
    MISSING,
    Event,
    Gap,
    MessageAppended,
    StepDelta,
    StepStarted,
    TurnEnded,
)
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session, StopReason
from tests.builders import an_id
from tests.houses import (
    House,
    counted,
    counting_house,
    current,
    news_until,
    open_house,
    payloads,
    played,
    raw,
)
from tests.marks import demands
from tests.stand_ins import (
    PATIENCE,
    GatedRuntime,
    SettableClock,
    an_answer,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose first turn streams."""
    async with counting_house(home, outside) as house:
        yield house


@pytest.fixture
async def session(house: House) -> Session:
    """Play that turn."""
    return await counted(house)


async def _all(house: Holdfast, session_id: SessionId, after: int = 0) -> list[Event | Gap]:
    return list((await house.events.list(house.owner, session_id, after=after)).items)


@demands("S0-301", "S2-060", "S2-060d")
async def test_numbers_are_dense_and_times_grow(house: House, session: Session) -> None:
    news = await _all(house, session.id)

    assert [event.sequence for event in news] == list(range(1, session.last_event + 1))
    times = [event.at for event in news]
    assert times == sorted(set(times))
    assert payloads(news)[-1] == TurnEnded(stop_reason=StopReason.STOP)
    assert [event.turn for event in news] == [None] + [1] * (session.last_event - 1)


async def test_the_name_of_a_model_is_told_without_what_looks_like_a_secret(
    home: Path, outside: Environment
) -> None:
    start = replace(asked(), model="maker:ghp_abcdefghij0123456789")
    async with open_house(home, GatedRuntime([(start,), an_answer("x")]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        told = payloads(await news_until(house, session.id, StepStarted))[-1]

    assert told == replace(start, model="maker:[masked]")


@demands("S0-301")
async def test_following_from_any_cursor_gives_what_is_after_it(
    house: House, session: Session
) -> None:
    everything = await _all(house, session.id)

    for after in range(session.last_event):
        assert await _all(house, session.id, after) == everything[after:]
        assert await news_until(house, session.id, TurnEnded, after=after) == everything[after:]
    assert await _all(house, session.id, session.last_event) == []


async def test_pages_follow_on_from_each_other(house: House, session: Session) -> None:
    everything = await _all(house, session.id)

    seen: list[Event | Gap] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = await house.events.list(house.owner, session.id, after=int(cursor), limit=4)
        seen += page.items
        cursor = page.next_cursor

    assert seen == everything


async def test_a_reader_at_the_end_hears_what_comes(house: House, session: Session) -> None:
    waiting = asyncio.create_task(
        news_until(house, session.id, MessageAppended, after=session.last_event)
    )
    await asyncio.sleep(0)

    message = await house.send(session.id, "more")

    (event,) = await waiting
    assert event.payload.message_id == message.id
    assert event.sequence == session.last_event + 1


async def test_a_reader_hears_what_another_house_writes(house: House, session: Session) -> None:
    async with open_holdfast(house.config.home, scope=RunScope.NONE) as other:
        waiting = asyncio.create_task(
            news_until(other, session.id, MessageAppended, after=session.last_event)
        )
        await asyncio.sleep(0)

        message = await house.send(session.id, "more")

        assert (await waiting)[0].payload.message_id == message.id


@demands("S0-301")
async def test_pruned_numbers_are_covered_by_a_gap(
    house: House, session: Session, clock: SettableClock
) -> None:
    everything = await _all(house, session.id)
    clock.advance(hours=25)
    assert await house.maintenance.prune() == 5
    assert await house.maintenance.prune() == 0

    gap = Gap(from_sequence=5, to_sequence=9)
    left = everything[:4], everything[9:]
    assert await _all(house, session.id) == [*left[0], gap, *left[1]]
    assert await news_until(house, session.id, TurnEnded) == [*left[0], gap, *left[1]]
    for after in (4, 6, 8):
        short = Gap(from_sequence=after + 1, to_sequence=9)
        assert await _all(house, session.id, after) == [short, *left[1]]
    assert await _all(house, session.id, 9) == left[1]


async def test_a_page_may_end_before_a_gap_and_the_next_begins_with_it(
    house: House, session: Session, clock: SettableClock
) -> None:
    clock.advance(hours=25)
    await house.maintenance.prune()

    page = await house.events.list(house.owner, session.id, limit=4)
    rest = await house.events.list(house.owner, session.id, after=4, limit=1)

    assert (page.next_cursor, len(page.items)) == ("4", 4)
    assert rest.items[0] == Gap(from_sequence=5, to_sequence=9)
    assert rest.next_cursor == "10"


@demands("S2-001", "S2-001b", "S2-001d", "S2-001e", "S2-050b", "S2-001f", "S2-001g", "S2-001h")
async def test_without_any_stored_event_all_conversation_is_there(
    house: House, session: Session
) -> None:
    rows = await house.read(session.id)
    with raw(house.config.home) as connection:
        connection.execute("DELETE FROM events")
        connection.execute("DELETE FROM deltas")

    assert await house.read(session.id) == rows
    assert await current(house, session) == session
    gaps = [item for item in await _all(house, session.id) if isinstance(item, Gap)]
    assert {gap.reason for gap in gaps} == {MISSING}
    assert [gap.resync for gap in gaps] == ["messages"] * len(gaps)


@pytest.mark.parametrize("after", [13, 99])
async def test_a_cursor_from_the_future_is_never_met_with_silence(
    house: House, session: Session, after: int
) -> None:
    for read in (_all, _first):
        with pytest.raises(Conflict) as caught:
            await read(house, session.id, after)
        assert caught.value.code is Code.CURSOR_AHEAD
        assert caught.value.details == {"head": 12}


async def test_a_cursor_below_zero_is_refused(house: House, session: Session) -> None:
    for read in (_all, _first):
        with pytest.raises(Invalid) as caught:
            await read(house, session.id, -1)
        assert caught.value.code is Code.INVALID_CURSOR


async def test_the_news_of_an_unknown_session_are_not_found(house: House) -> None:
    for read in (_all, _first):
        with pytest.raises(NotFound) as caught:
            await read(house, SessionId(an_id(20)))
        assert caught.value.code is Code.SESSION_NOT_FOUND


@pytest.mark.parametrize("limit", [0, 10_001])
async def test_a_page_has_one_to_ten_thousand_events(
    house: House, session: Session, limit: int
) -> None:
    with pytest.raises(Invalid) as caught:
        await house.events.list(house.owner, session.id, limit=limit)

    assert caught.value.code is Code.INVALID_LIMIT


async def _first(house: Holdfast, session_id: SessionId, after: int = 0) -> Event | Gap:
    async with (
        asyncio.timeout(PATIENCE),
        aclosing(house.follow(session_id, after=after)) as news,
    ):
        return await anext(news)


async def test_a_reader_learns_that_its_session_was_deleted(house: House, session: Session) -> None:
    async with aclosing(house.follow(session.id, after=session.last_event - 1)) as news:
        assert isinstance(await anext(news), Event)
        waiting = asyncio.ensure_future(anext(news))
        await asyncio.sleep(0)

        await house.sessions.delete(house.owner, session.id)

        with pytest.raises(NotFound) as caught:
            async with asyncio.timeout(PATIENCE):
                await waiting
        assert caught.value.code is Code.SESSION_NOT_FOUND


@pytest.mark.usefixtures("plain")
async def test_a_damaged_event_is_never_shown_and_hides_no_neighbour(
    house: House, session: Session
) -> None:
    everything = await _all(house, session.id)
    with raw(house.config.home) as connection:
        connection.execute("UPDATE deltas SET turn = 9 WHERE sequence = 6")

    with pytest.raises(Internal) as caught:
        await _all(house, session.id)

    assert caught.value.code is Code.CORRUPT_ROW
    assert caught.value.details == {"row": f"event 6 of session {session.id}"}
    before = await house.events.list(house.owner, session.id, limit=5)
    assert [*before.items, *await _all(house, session.id, 6)] == everything[:5] + everything[6:]


async def test_a_page_has_a_mebibyte_at_most_and_one_event_at_least(
    home: Path, outside: Environment
) -> None:
    large = "x" * 600_000
    play = [(asked(),), *((streamed(large),) for _ in range(3)), (streamed(large * 2),)]
    runtime = GatedRuntime([*play, an_answer("done")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "much")
        await played(house, session.id)

        pages = []
        cursor: str | None = "0"
        while cursor is not None:
            page = await house.events.list(house.owner, session.id, after=int(cursor))
            pages.append([event.sequence for event in page.items if isinstance(event, Event)])
            cursor = page.next_cursor

    assert pages == [[1, 2, 3, 4, 5], [6], [7], [8], [9, 10, 11]]


@pytest.mark.parametrize("size", [1, 60, 200, 1_000])
async def test_pages_that_are_cut_by_their_size_lead_on_without_a_hole(
    house: House, session: Session, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    whole = await _all(house, session.id)
    monkeypatch.setattr("holdfast.store.events.PAGE_BYTES", size)
    monkeypatch.setattr("holdfast.services.event_stream.PAGE_BYTES", size)
    found: list[Event | Gap] = []
    named: list[Event | Gap] = []

    for items, types in ((found, None), (named, {"step.delta", "turn.ended"})):
        cursor: str | None = "0"
        while cursor is not None:
            page = await house.events.list(
                house.owner, session.id, after=int(cursor), limit=4, types=types
            )
            items.extend(page.items)
            cursor = page.next_cursor

    assert found == whole
    assert [each.sequence for each in named if isinstance(each, Event)] == [
        each.sequence
        for each in whole
        if isinstance(each, Event) and isinstance(each.payload, StepDelta | TurnEnded)
    ]
