"""Sessions in memory: bounded, in step with what is queued, never believed against the store."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope
from holdfast.app import Environment
from holdfast.domain.commits import SessionCommit
from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.errors import Code, Conflict, HoldfastError, StorageFull
from holdfast.domain.ids import CallId, MessageId, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Role, Text, ToolCall
from holdfast.domain.queries import MessageQuery
from holdfast.domain.sessions import Session, SessionState, StopReason
from holdfast.ports.store import Store
from holdfast.services import live_session
from holdfast.services.journal import SessionWriter
from holdfast.services.live_session import LiveSession, LiveSessions
from holdfast.services.turns import end
from tests.builders import a_head, an_id
from tests.houses import House, open_house
from tests.stand_ins import GatedRuntime

pytestmark = pytest.mark.anyio


class Doubtful:
    """A store whose commits wait while the test says so, and fail once if it says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = asyncio.Event()
        self.open.set()
        self.failure: HoldfastError | None = None
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, work: Any) -> Any:
        self.reads += 1
        return await self._store.read(work)

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        if self.open.is_set() and self.failure is None:
            return self._store.commit(commit)
        return asyncio.ensure_future(self._commit(commit))

    async def _commit(self, commit: SessionCommit) -> None:
        await self.open.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        await self._store.commit(commit)


@pytest.fixture
def seams(outside: Environment) -> tuple[Environment, list[Doubtful]]:
    """Wrap the store of each house that is opened."""
    made: list[Doubtful] = []

    def wrap(store: Store) -> Store:
        made.append(Doubtful(store))
        return made[-1]  # type: ignore[return-value]

    return replace(outside, wrap=wrap), made


@pytest.fixture
async def house(home: Path, seams: tuple[Environment, list[Doubtful]]) -> AsyncIterator[House]:
    """Open a home that plays nothing."""
    async with open_house(home, GatedRuntime(), outside=seams[0], scope=RunScope.NONE) as house:
        yield house


@pytest.fixture
def store(house: House, seams: tuple[Environment, list[Doubtful]]) -> Doubtful:
    """Return the store of the house."""
    return seams[1][0]


@pytest.fixture
async def other(house: House, home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open the same home once more, as another process does."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as other:
        yield other


@pytest.fixture
async def session(house: House) -> Session:
    """Write a session with a waiting turn."""
    session = await house.open()
    await house.send(session.id, "one")
    return session


@pytest.fixture
async def lease(house: House, session: Session) -> Lease:
    """Hold the session."""
    lease = await house.leases.acquire((await _head(house, session)).key)
    assert lease is not None
    return lease


async def _head(house: House, session: Session) -> SessionState:
    head = await house.store.read(lambda tx: tx.sessions.state(session.owner, session.id))
    assert head is not None
    return head


async def _texts(house: House, session: Session) -> list[str]:
    page = await house.messages.list(session.owner, session.id)
    return [row.text for row in page.items]


async def test_the_end_of_a_session_is_reported_and_no_other_commit(
    house: House, session: Session
) -> None:
    ended: list[SessionKey] = []
    house.journal.watch_ends(ended.append)

    await house.send(session.id, "two")
    before = list(ended)
    await house.sessions.close(house.owner, session.id)

    assert (before, set(ended)) == ([], {(await _head(house, session)).key})


async def test_the_rows_of_a_session_in_memory_are_read_at_once(
    house: House, session: Session
) -> None:
    key = (await _head(house, session)).key
    unread = house.journal.rows_now(key)
    await house.journal.live_history(key)

    assert list(unread) == []
    assert [row.text for row in house.journal.rows_now(key)] == ["one"]
    assert list(house.journal.rows_now(SessionKey(key + 1))) == []


def _says(text: str, id_: str | None = None) -> MessageDraft:
    named = None if id_ is None else MessageId(id_)
    return MessageDraft(role=Role.ASSISTANT, parts=(Text(text=text),), id=named)


async def _end_turn(house: House, lease: Lease) -> None:
    outcome = Outcome(stop_reason=StopReason.STOP)
    await house.journal.commit(lease, lambda writer: end(writer, outcome))


async def _stored(house: House, session: Session) -> Session:
    found = await house.store.read(lambda tx: tx.sessions.get(session.owner, session.id))
    assert found is not None
    return found[0]


async def _say(house: House, lease: Lease, text: str) -> None:
    await house.journal.commit(lease, lambda writer: writer.add_message(_says(text), 1))


async def test_what_was_written_is_not_read_again(
    house: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    live, history = await house.journal.live_history(lease.key)
    reads = store.reads

    await _say(house, lease, "two")
    again, rows = await house.journal.live_history(lease.key)

    assert again is live
    assert [row.text for row in rows] == ["one", "two"]
    assert rows is history
    assert store.reads == reads
    assert live.state == await _head(house, session)


async def test_a_session_that_has_ended_is_forgotten(house: House, lease: Lease) -> None:
    live = await house.journal.live(lease.key)

    house.journal.forget(lease.key)

    assert await house.journal.live(lease.key) is not live


async def test_a_session_without_rows_has_an_empty_history(house: House) -> None:
    empty = await house.open()

    _, history = await house.journal.live_history((await _head(house, empty)).key)

    assert history == []


async def test_a_history_waits_for_the_rows_that_are_queued(
    house: House, lease: Lease, store: Doubtful
) -> None:
    store.open.clear()
    saying = asyncio.create_task(_say(house, lease, "two"))
    await asyncio.sleep(0)
    reading = asyncio.create_task(house.journal.live_history(lease.key))
    await asyncio.sleep(0.01)
    assert not reading.done()

    store.open.set()

    assert [row.text for row in (await reading)[1]] == ["one", "two"]
    await saying


async def test_a_transaction_that_changes_nothing_leaves_what_is_queued(
    house: House, lease: Lease, store: Doubtful
) -> None:
    live = await house.journal.live(lease.key)
    store.open.clear()
    saying = asyncio.create_task(_say(house, lease, "two"))
    await asyncio.sleep(0)

    async def nothing(_: SessionWriter) -> None:
        return None

    await house.journal.write_by_key(lease.key, nothing)

    assert await house.journal.live(lease.key) is live
    store.open.set()
    await saying
    assert [row.text for row in (await house.journal.live_history(lease.key))[1]] == ["one", "two"]


async def test_a_recorded_call_is_not_for_the_next_turn_to_run(house: House) -> None:
    session = await house.open()
    call = ToolCall(id=CallId("theirs"), name="tool", arguments={})
    await house.messages.record(
        house.owner, session.id, MessageDraft(role=Role.TOOL_CALL, parts=(call,))
    )

    live = house.journal.find_live(house.owner, session.id)

    assert live is not None
    assert live.turn is not None
    assert dict(live.turn.calls) == {}


async def test_a_history_is_read_although_the_commit_it_waits_for_fails(
    house: House, lease: Lease, store: Doubtful
) -> None:
    store.open.clear()
    store.failure = StorageFull(Code.STORAGE_FULL, "full")
    saying = asyncio.create_task(_say(house, lease, "two"))
    await asyncio.sleep(0)
    reading = asyncio.create_task(house.journal.live_history(lease.key))
    await asyncio.sleep(0)

    store.open.set()

    assert [row.text for row in (await reading)[1]] == ["one"]
    with pytest.raises(StorageFull):
        await saying


async def test_a_turn_after_a_conflict_reads_the_message_that_began_it(
    home: Path, outside: Environment
) -> None:
    """The session is in memory without its history, and the message is queued."""
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        key = (await _head(house, session)).key
        await house.journal.live(key)
        assert house.journal.find_live(session.owner, session.id) is not None

        await house.send(session.id, "one")
        await asyncio.wait_for(runtime.ended.wait(), 10)

        assert [row.text for row in runtime.turns[0].history] == ["one"]


async def test_a_conflict_at_the_same_epoch_is_written_on_what_is_stored(
    house: House, other: House, lease: Lease, session: Session
) -> None:
    await house.journal.live_history(lease.key)
    await other.send(session.id, "from elsewhere")

    await _say(house, lease, "two")
    await _say(house, lease, "three")

    assert await _texts(house, session) == ["one", "from elsewhere", "two", "three"]
    live, history = await house.journal.live_history(lease.key)
    assert live.state == await _head(house, session)
    assert len(history) == 4


async def test_a_higher_epoch_ends_the_lease(
    house: House, other: House, lease: Lease, session: Session
) -> None:
    await house.journal.live(lease.key)
    await house.leases.release(lease)
    assert await other.leases.acquire(lease.key) is not None

    with pytest.raises(Conflict) as caught:
        await _say(house, lease, "too late")

    assert caught.value.code is Code.LEASE_LOST
    assert await _texts(house, session) == ["one"]


async def test_a_commit_that_was_fenced_in_the_queue_ends_the_lease(
    house: House, other: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    store.open.clear()
    saying = asyncio.create_task(_say(house, lease, "too late"))
    await asyncio.sleep(0)
    await other.leases.release(lease)
    assert await other.leases.acquire(lease.key) is not None
    store.open.set()

    with pytest.raises(Conflict) as caught:
        await saying

    assert caught.value.code is Code.LEASE_LOST
    assert await _texts(house, session) == ["one"]


async def test_a_cancelled_caller_leaves_its_commit_alone(
    house: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    store.open.clear()
    saying = asyncio.create_task(_say(house, lease, "two"))
    await asyncio.sleep(0)
    saying.cancel()
    await asyncio.wait([saying])
    store.open.set()

    await _say(house, lease, "three")

    assert saying.cancelled()
    assert await _texts(house, session) == ["one", "two", "three"]


async def test_a_failed_commit_drops_the_session_from_memory(
    house: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    live = await house.journal.live(lease.key)
    store.failure = StorageFull(Code.STORAGE_FULL, "full")

    with pytest.raises(StorageFull):
        await _say(house, lease, "two")
    again = await house.journal.live(lease.key)
    await _say(house, lease, "three")

    assert again is not live
    assert await _texts(house, session) == ["one", "three"]


async def test_an_id_that_is_taken_for_good_is_an_error_and_not_a_loop(
    house: House, lease: Lease, session: Session
) -> None:
    (first,) = (await house.messages.list(session.owner, session.id)).items

    async with asyncio.timeout(10):
        with pytest.raises(HoldfastError) as caught:
            await house.journal.commit(
                lease, lambda writer: writer.add_message(_says("again", first.id), 1)
            )

    assert caught.value.code is Code.INTERNAL
    assert await _texts(house, session) == ["one"]


async def test_a_process_without_the_lease_and_its_holder_lose_nothing(
    house: House, other: House, lease: Lease, session: Session
) -> None:
    """One streams through commits, the other appends through transactions, neither starves."""
    count = 60
    done: list[str] = []

    async def stream() -> None:
        for number in range(count):
            await _say(house, lease, f"s{number}")
        done.append("holder")

    async def append() -> None:
        for number in range(count):
            await other.send(session.id, f"a{number}")
        done.append("other")

    async with asyncio.timeout(60):
        await asyncio.gather(stream(), append())

    rows = [
        row.text
        async for batch in (
            await house.messages.scan(session.owner, session.id, MessageQuery(limit=500))
        ).batches()
        for row in batch.rows
    ]
    assert [text for text in rows if text[0] == "a"] == [f"a{each}" for each in range(count)]
    assert [text for text in rows if text[0] == "s"] == [f"s{each}" for each in range(count)]
    assert await house.store.check() == []


def _live(number: int) -> LiveSession:
    session_id = SessionId(an_id(number))
    head = a_head(session_id=session_id, key=SessionKey(number))
    return LiveSession(head)


def test_the_oldest_sessions_are_dropped_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    known, lives = LiveSessions(), [_live(number) for number in range(1, 6)]
    monkeypatch.setattr(live_session, "BYTES_MOST", 3 * lives[0].weight)

    for live in lives:
        known.put(live)
    kept = [known.get(live.state.key) for live in lives]
    known.use(lives[2], lives[2].weight)
    known.put(_live(9))

    assert kept == [None, None, *lives[2:]]
    assert known.get(lives[2].state.key) is lives[2]
    assert known.get(lives[3].state.key) is None
    assert known.find(lives[0].state.owner, lives[0].state.session_id) is None
    for number in (3, 5, 9):
        known.drop(SessionKey(number))
    assert known._bytes == 0


async def test_a_session_with_a_queued_commit_is_not_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, lives = LiveSessions(), [_live(number) for number in range(1, 4)]
    monkeypatch.setattr(live_session, "BYTES_MOST", lives[0].weight)
    queued = lives[0].queued = asyncio.get_running_loop().create_future()

    for live in lives:
        known.put(live)
    assert [known.get(live.state.key) for live in lives] == [lives[0], None, lives[2]]
    queued.set_result(None)
    known.put(lives[1])

    assert [known.get(live.state.key) for live in lives] == [None, lives[1], None]


async def test_the_rows_of_a_history_count(
    house: House, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = await house.journal.live_history(lease.key)
    before = live.weight

    await _say(house, lease, "x" * 10_000)

    assert live.weight > before + 10_000
    assert house.journal._live._bytes == live.weight


async def test_a_session_at_rest_is_not_read_again(
    house: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    await _end_turn(house, lease)
    before = await house.sessions.get(session.owner, session.id)
    await house.messages.record(session.owner, session.id, _says("two"))
    await house.journal.live(lease.key)
    reads = store.reads

    now = await house.sessions.get(session.owner, session.id)

    assert store.reads == reads
    assert now == await _stored(house, session)
    assert now.message_count == before.message_count + 1


async def test_what_another_process_changes_is_read(
    house: House, other: House, lease: Lease, session: Session
) -> None:
    await _end_turn(house, lease)
    for given in ("first", "second"):
        await house.sessions.get(session.owner, session.id)

        await other.sessions.update(session.owner, session.id, {"title": given})

        assert (await house.sessions.get(session.owner, session.id)).title == given


async def test_a_session_is_not_shown_before_its_commit_is_on_disk(
    house: House, lease: Lease, session: Session, store: Doubtful
) -> None:
    await _end_turn(house, lease)
    before = await house.sessions.get(session.owner, session.id)
    store.open.clear()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(house.messages.record(session.owner, session.id, _says("two")))
        await asyncio.sleep(0)

        assert await house.sessions.get(session.owner, session.id) == before

        store.open.set()
    assert (await house.sessions.get(session.owner, session.id)).message_count == 2
