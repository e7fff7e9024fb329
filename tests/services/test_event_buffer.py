"""Readers share one tail of a session; none of them costs more than its mebibyte."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.app import Environment, RunScope
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, HoldfastError, Internal, NotFound, Unavailable
from holdfast.domain.events import Event, Gap, TurnEnded, TurnStarted
from holdfast.domain.ids import EventId, Owner, SessionId
from holdfast.domain.messages import Role, Text
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Frame
from holdfast.services import event_stream
from tests.builders import AT, an_id
from tests.houses import House, news_until, open_house, played, texts
from tests.stand_ins import PATIENCE, Gate, GatedRuntime, an_answer, asked, streamed

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000
SAID = MessageDraft(role=Role.ASSISTANT, parts=(Text(text="hello"),))


class CountedStore:
    """A store that counts how often it is read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reads = 0

    async def read(self, work: Callable[[Tx], Coroutine[Any, Any, Any]]) -> Any:
        self.reads += 1
        return await self._store.read(work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _said(text: str) -> MessageDraft:
    return MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),))


async def _collected(house: House, session_id: SessionId, after: int) -> list[int]:
    news = await news_until(house, session_id, TurnEnded, after=after)
    return [event.sequence for event in news if isinstance(event, Event)]


async def test_a_hundred_readers_read_the_log_once(home: Path, outside: Environment) -> None:
    stores: list[CountedStore] = []

    def counted(store: Store) -> Store:
        stores.append(CountedStore(store))
        return stores[-1]

    gate = Gate()
    play = [gate, *((streamed("x"),) for _ in range(20)), an_answer("done")]
    outside = replace(outside, wrap=counted)
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        before = stores[0].reads
        readers = [asyncio.create_task(_collected(house, session.id, 3)) for _ in range(100)]
        await asyncio.sleep(0)

        gate.open()
        heard = await asyncio.gather(*readers)

    assert heard == [list(range(4, 27))] * 100
    # Neither once for each reader nor for each of the 22 events.
    assert stores[0].reads - before < 10


async def test_what_is_heard_live_is_what_the_log_says(home: Path, outside: Environment) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        live = asyncio.create_task(news_until(house, session.id, TurnEnded))
        await asyncio.sleep(0)
        await house.send(session.id, "hello")

        heard = await live

        assert heard == list((await house.events.list(house.owner, session.id)).items)


async def test_a_reader_knows_whether_all_it_has_heard_is_settled(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate, an_answer("done")]), outside=outside) as house:
        session = await house.open()
        news = house.events.reader(house.owner, session.id, after=session.last_event)
        async with news as reader, asyncio.timeout(PATIENCE):
            settled = [reader.is_settled]
            await house.send(session.id, "hello")
            await gate.reached()
            items = await reader.read()
            settled.append(reader.is_settled)
            gate.open()
            while not reader.is_settled:
                items = await reader.read()

    assert settled == [True, False]
    assert isinstance(items[-1].event.payload, TurnEnded)


async def test_what_another_house_has_begun_is_not_settled(
    home: Path, outside: Environment
) -> None:
    async with (
        open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house,
        open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as other,
    ):
        session = await house.open()
        # So that there is a tail, which has not noticed yet what the other one writes.
        async with house.events.reader(house.owner, session.id) as early:
            await early.read()
            await other.send(session.id, "hello")
            async with house.events.reader(house.owner, session.id) as late:
                await late.read()

                assert not late.is_settled


async def test_words_of_two_houses_are_heard_in_their_order(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        news = house.follow(session.id, after=session.last_event)
        async with (
            open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as other,
            aclosing(news),
            asyncio.timeout(PATIENCE),
        ):
            for writer in (house, other, house, house, other, other, house) * 3:
                await writer.messages.record(writer.owner, session.id, SAID)
            heard = [(await anext(news)).sequence for _ in range(21)]

    assert heard == list(range(2, 23))


async def test_a_reader_from_the_start_and_one_at_the_end_hear_the_same(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    play = [(asked(),), *((streamed(LARGE),) for _ in range(5)), gate, an_answer("done")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        live = asyncio.create_task(_collected(house, session.id, 9))
        await asyncio.sleep(0)
        late = asyncio.create_task(_collected(house, session.id, 0))
        await asyncio.sleep(0)

        gate.open()

        assert (await live, await late) == ([10, 11, 12], list(range(1, 13)))


async def test_a_slow_reader_is_told_where_to_resume_and_loses_nothing(
    home: Path, outside: Environment
) -> None:
    steps = [Gate(), Gate(), Gate()]
    flood = [(streamed(LARGE),) for _ in range(8)]
    play = [steps[0], (asked(),), steps[1], *flood, steps[2], an_answer("done")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await steps[0].reached()

        following = house.events.reader(house.owner, session.id, after=2)
        async with following as slow, asyncio.timeout(PATIENCE):
            assert [news.sequence for news in await slow.read()] == [3]
            waiting = asyncio.ensure_future(slow.read())
            await asyncio.sleep(0)
            steps[0].open()
            assert [news.sequence for news in await waiting] == [4]

            steps[1].open()
            await steps[2].reached()
            # A reader that is there shows that the tail has gone on past the slow one.
            seen = 4
            async with house.events.reader(house.owner, session.id, after=4) as quick:
                while seen < 12:
                    seen = (await quick.read())[-1].sequence

            assert (slow.is_too_slow, slow.cursor) == (True, 4)
            assert not quick.is_too_slow
        steps[2].open()
        assert await _collected(house, session.id, 4) == list(range(5, 16))


async def test_a_slow_reader_that_may_catch_up_is_served_from_the_log(
    home: Path, outside: Environment
) -> None:
    steps = [Gate(), Gate()]
    flood = [(streamed(LARGE),) for _ in range(8)]
    play = [steps[0], *flood, steps[1], an_answer("done")]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await steps[0].reached()

        heard: list[int] = []
        async with aclosing(house.follow(session.id)) as slow, asyncio.timeout(PATIENCE):
            heard += [(await anext(slow)).sequence for _ in range(3)]
            steps[0].open()
            await steps[1].reached()
            steps[1].open()
            await played(house, session.id)
            async for event in slow:
                heard.append(event.sequence)
                if isinstance(event.payload, TurnEnded):
                    break

    assert heard == list(range(1, 15))


async def test_readers_of_different_sessions_do_not_hear_each_other(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        one, other = await house.open(), await house.open()
        readers = [asyncio.create_task(_collected(house, s.id, 0)) for s in (one, other)]

        await house.send(one.id, "hello")
        await played(house, one.id)
        await house.send(other.id, "hello")

        assert await asyncio.gather(*readers) == [[1, 2, 3, 4, 5, 6]] * 2


async def test_a_session_can_be_followed_again_after_its_last_reader_left(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        for turn in range(1, 4):
            await house.send(session.id, "hello")
            assert len(await _collected(house, session.id, (turn - 1) * 5 + 1)) == 5


async def _listening(house: House, session_id: SessionId) -> asyncio.Task[None]:
    """Return a reader that has heard something and waits for more."""
    heard = asyncio.Event()

    async def listen() -> None:
        async with aclosing(house.follow(session_id)) as news:
            async for _ in news:
                heard.set()

    reader = asyncio.create_task(listen())
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    return reader


async def _told(reader: asyncio.Task[None]) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        async with asyncio.timeout(PATIENCE):
            await reader
    return caught.value


async def test_a_reader_that_waits_learns_that_the_house_is_closed(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        reader = await _listening(house, session.id)

    told = await _told(reader)

    assert isinstance(told, Unavailable)
    assert told.code is Code.STORE_CLOSED


async def test_who_begins_to_read_while_the_house_closes_is_told_the_same(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
    news = house.follow(session.id)

    with pytest.raises(Unavailable) as caught:
        await anext(news)

    assert caught.value.code is Code.STORE_CLOSED


class FaultyStore:
    """A store with a fault of its own that shows when news are read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_broken = False

    async def read(self, work: Any) -> Any:
        if self.is_broken and getattr(work, "work", work).__qualname__.startswith("read_page"):
            raise ZeroDivisionError
        return await self._store.read(work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_news_that_cannot_be_read_reach_their_own_readers_only(
    home: Path, outside: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    plain, outside = outside, replace(outside, wrap=FaultyStore)
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        assert isinstance(house.store, FaultyStore)
        session = await house.open()
        reader = await _listening(house, session.id)
        house.store.is_broken = True
        async with open_house(home, GatedRuntime(), outside=plain, scope=RunScope.NONE) as other:
            # Written elsewhere: nobody here knows what it is, so the tail has to look.
            await other.messages.record(other.owner, session.id, SAID)
            told = await _told(reader)
        await house.send(session.id, "hello")
        house.store.is_broken = False
        assert texts(await played(house, session.id))[-1] == ("assistant", "done")
    assert isinstance(told, Internal)
    assert f"following session {session.id} failed" in caplog.messages


async def test_old_news_keep_nothing_that_can_be_made_again() -> None:
    event = Event(
        id=EventId(an_id(2)),
        session_id=SessionId(an_id(1)),
        sequence=1,
        turn=None,
        at=AT,
        payload=TurnStarted(),
    )
    news = Frame(1, msgspec.json.encode(event))
    made: list[int] = []

    def make(each: Frame) -> bytes:
        made.append(each.sequence)
        return b"made"

    forms = [news.form("words", make), news.form("words", make)]
    news.cool()
    forms += [news.form("words", make), news.form("words", make)]

    assert (forms, made) == ([b"made"] * 4, [1, 1, 1])
    assert news.event == event


class BusyStore:
    """A store whose reads take a moment, and that notes how many of them run at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = 0
        self.most = 0

    async def read(self, work: Callable[[Tx], Coroutine[Any, Any, Any]]) -> Any:
        self._reading += 1
        self.most = max(self.most, self._reading)
        try:
            await asyncio.sleep(0.001)
            return await self._store.read(work)
        finally:
            self._reading -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("is_bounded", [True, False])
async def test_so_many_readers_read_the_past_at_a_time(
    home: Path, outside: Environment, monkeypatch: pytest.MonkeyPatch, is_bounded: bool
) -> None:
    most = event_stream.CATCH_UPS
    if not is_bounded:
        monkeypatch.setattr(event_stream, "CATCH_UPS", 1_000)
    away = replace(outside, wrap=BusyStore)
    async with open_house(home, GatedRuntime(), outside=away, scope=RunScope.NONE) as house:
        store = house.store
        assert isinstance(store, BusyStore)
        sessions = [await house.open() for _ in range(20)]
        for session in sessions:
            await house.send(session.id, "hello")
        heads = [await house.events.require(house.owner, each.id, after=1) for each in sessions]
        store.most = 0

        async def come_back(number: int) -> int:
            session, head = sessions[number % 20], heads[number % 20]
            # Half of them are far behind what a tail begins with.
            after = 1 if number < 20 else 0
            reading = house.events.reader(house.owner, session.id, after=after, state=head)
            async with reading as reader:
                while reader.cursor < head.events:
                    await reader.read()
                return reader.cursor

        async with asyncio.timeout(PATIENCE):
            reached = await asyncio.gather(*map(come_back, range(40)))

    assert reached == [head.events for head in heads] * 2
    # The control is the second half: without a bound they all read at once.
    assert (store.most <= most) is is_bounded


async def test_the_next_reader_of_a_session_played_here_reads_nothing_from_the_log(
    home: Path, outside: Environment
) -> None:
    stores: list[CountedStore] = []

    def counted(store: Store) -> Store:
        stores.append(CountedStore(store))
        return stores[-1]

    runtime = GatedRuntime([an_answer("one")], [an_answer("two")])
    async with open_house(home, runtime, outside=replace(outside, wrap=counted)) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        first = await _collected(house, session.id, session.last_event)
        await house.send(session.id, "hello again")
        await played(house, session.id)
        reads = stores[0].reads

        second = await _collected(house, session.id, first[-1])

        assert stores[0].reads == reads
        everything = await _collected(house, session.id, session.last_event)
        assert everything == first
    assert second == list(range(first[-1] + 1, first[-1] + 1 + len(second)))


async def test_a_kept_buffer_misses_nothing_that_another_process_writes(
    home: Path, outside: Environment
) -> None:
    async with (
        open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house,
        open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as other,
    ):
        session = await house.open()
        for text in ("one", "two"):
            await house.messages.record(house.owner, session.id, _said(text))
            await other.messages.record(house.owner, session.id, _said(text))
            news = house.follow(session.id, after=session.last_event, until_settled=True)
            async with asyncio.timeout(PATIENCE), aclosing(news):
                heard = [item async for item in news]

            assert heard == list(
                (await other.events.list(house.owner, session.id, after=session.last_event)).items
            )
        ahead = (await other.sessions.get(house.owner, session.id)).last_event
        await house.events.require(house.owner, session.id, after=ahead)


async def test_a_kept_buffer_serves_neither_strangers_nor_pruned_events(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime([(streamed("answer"),), an_answer("answer")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        heard = await news_until(house, session.id, TurnEnded)

        with pytest.raises(NotFound):
            async with aclosing(house.events.follow(Owner("stranger"), session.id)) as news:
                await anext(news)
        assert await house.maintenance.prune(timedelta(days=-1)) == 1

        again = await news_until(house, session.id, TurnEnded)
        assert [type(item) for item in heard].count(Gap) == 0
        assert [type(item) for item in again].count(Gap) == 1
        await house.sessions.delete(house.owner, session.id)
        with pytest.raises(NotFound):
            await news_until(house, session.id, TurnEnded)
