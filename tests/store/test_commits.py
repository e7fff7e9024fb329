"""Commits: applied in groups and in order; one that fails takes nothing else with it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.domain.commits import CommitBuilder, SessionCommit, VersionConflictError
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, HoldfastError, StorageFull
from holdfast.domain.events import TurnStarted
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message, Role, Text
from holdfast.domain.models import model_of
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import microseconds
from holdfast.ports.store import Brief, Tx
from holdfast.services.live_session import MessageRange, read_messages
from holdfast.store.sqlite import writer as sqlite_writer
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import AT, a_head, a_session, an_agent, an_id
from tests.store.conftest import KEY
from tests.store.faulty_vfs import DISK, VFS, failing
from tests.store.holding import held

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def healthy_again() -> Iterator[None]:
    """Leave the disk healthy."""
    yield
    DISK.behave()


@pytest.fixture
async def store(file: Path) -> AsyncIterator[SqliteStore]:
    """Open a store on the disk that can fail."""
    store = SqliteStore(file, KEY, vfs=VFS)
    yield store
    DISK.behave()
    await store.close()


@pytest.fixture(params=["thread", "inline"])
def place(
    store: SqliteStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Have every group committed by the thread, or every one on the event loop."""
    is_inline = request.param == "inline"
    monkeypatch.setattr(sqlite_writer, "INLINE_COMMIT_SECONDS", 1e9 if is_inline else 0.0)
    monkeypatch.setattr(sqlite_writer, "INLINE_JOBS_MOST", 1_000)
    return str(request.param)


async def _open(store: SqliteStore, *numbers: int) -> list[SessionState]:
    async def add(tx: Tx) -> list[SessionState]:
        await tx.agents.add(an_agent())
        return [
            await tx.sessions.add(
                a_session(id=SessionId(an_id(100 + number))),
                a_head(session_id=SessionId(an_id(100 + number))),
                b"digest",
            )
            for number in numbers
        ]

    return await store.write(add)


_ids = iter(range(1_000, 1_000_000))


def _builder(state: SessionState) -> CommitBuilder:
    return CommitBuilder(
        state, now=microseconds(AT), new_id=lambda _: an_id(next(_ids)), scrubber=Scrubber()
    )


def _says(state: SessionState, text: str, id_: int | None = None) -> SessionCommit:
    """Return a commit of one message and one event."""
    builder = _builder(state)
    message_id = None if id_ is None else MessageId(an_id(id_))
    builder.add_message(MessageDraft(role=Role.USER, parts=(Text(text=text),), id=message_id), 0)
    builder.add_event(TurnStarted(), 1)
    return builder.commit()


async def _fates(*futures: asyncio.Future[None]) -> list[type[BaseException] | None]:
    ends = await asyncio.gather(*futures, return_exceptions=True)
    return [None if end is None else type(end) for end in ends]


async def _texts(store: SqliteStore, state: SessionState) -> list[str]:
    async def read(tx: Tx) -> list[Message]:
        head = await tx.sessions.state_by_key(state.key)
        assert head is not None
        return list(await read_messages(tx, head, MessageRange(1, head.messages)))

    return [row.text for row in await store.read(read)]


async def _reopened(store: SqliteStore, file: Path) -> SqliteStore:
    await store.close()
    return SqliteStore(file, KEY)


@pytest.mark.usefixtures("place")
async def test_a_commit_of_an_outdated_state_fails_alone(store: SqliteStore, file: Path) -> None:
    one, two, three = await _open(store, 1, 2, 3)
    await store.commit(_says(two, "first"))

    async with held(store):
        futures = [store.commit(_says(each, "second")) for each in (one, two, three)]

    assert await _fates(*futures) == [None, VersionConflictError, None]
    store = await _reopened(store, file)
    told = [await _texts(store, each) for each in (one, two, three)]
    await store.close()
    assert told == [["second"], ["first"], ["second"]]


@pytest.mark.usefixtures("place")
async def test_a_message_id_that_is_taken_fails_its_commit_alone(store: SqliteStore) -> None:
    one, two, three = await _open(store, 1, 2, 3)
    first = _says(one, "first", id_=7)
    await store.commit(first)

    async with held(store):
        futures = [
            store.commit(_says(two, "before")),
            store.commit(_says(first.state, "repeated", id_=7)),
            store.commit(_says(three, "after")),
        ]

    assert await _fates(*futures) == [None, VersionConflictError, None]
    told = [await _texts(store, each) for each in (one, two, three)]
    assert told == [["first"], ["before"], ["after"]]


@pytest.mark.usefixtures("place")
async def test_what_builds_on_a_commit_that_failed_fails_too(store: SqliteStore) -> None:
    (one,) = await _open(store, 1)
    first = _says(one, "first", id_=7)
    await store.commit(first)

    async with held(store):
        repeated = _says(first.state, "repeated", id_=7)
        later = _says(repeated.state, "later")
        futures = [store.commit(repeated), store.commit(later)]

    assert await _fates(*futures) == [VersionConflictError, VersionConflictError]
    assert await _texts(store, one) == ["first"]
    await store.commit(_says(first.state, "again"))
    assert await _texts(store, one) == ["first", "again"]


@pytest.mark.usefixtures("place")
async def test_times_and_counters_that_are_equal_by_chance_are_not_the_same_version(
    store: SqliteStore, file: Path
) -> None:
    """Two processes after their clock was set back: each row is a microsecond after the last."""
    (state,) = await _open(store, 1)
    other = SqliteStore(file, KEY)
    theirs, ours = _says(state, "theirs"), _says(state, "ours")
    assert theirs.state.updated_at == ours.state.updated_at

    await other.commit(theirs)
    futures = [store.commit(ours), store.commit(_says(ours.state, "on ours"))]

    assert await _fates(*futures) == [VersionConflictError, VersionConflictError]
    assert await _texts(store, state) == ["theirs"]
    await other.close()
    assert await store.check() == []


@pytest.mark.usefixtures("place")
async def test_commits_of_a_session_are_applied_in_their_order(store: SqliteStore) -> None:
    (state,) = await _open(store, 1)
    one, futures = state, []
    # More than fit into one group.
    for number in range(sqlite_writer.GROUP_MOST + 44):
        commit = _says(state, f"{number}")
        futures.append(store.commit(commit))
        state = commit.state

    assert set(await _fates(*futures)) == {None}
    assert await _texts(store, one) == [f"{number}" for number in range(len(futures))]


async def test_a_commit_and_work_are_run_in_the_order_they_were_queued(store: SqliteStore) -> None:
    (state,) = await _open(store, 1)
    first = _says(state, "first")

    async def append(tx: Tx) -> SessionCommit:
        head = await tx.sessions.state_by_key(state.key)
        assert head is not None
        commit = _says(head, "second")
        await tx.append(commit)
        return commit

    done = store.commit(first)
    written = asyncio.create_task(store.write(Brief(append)))
    second = await written
    await store.commit(_says(second.state, "third"))

    assert done.done()
    assert await _texts(store, state) == ["first", "second", "third"]


@pytest.mark.usefixtures("place")
async def test_a_failing_commit_fails_all_callers_and_poisons_the_store(
    store: SqliteStore, file: Path
) -> None:
    one, two = await _open(store, 1, 2)
    await store.commit(_says(one, "kept"))
    opened = DISK.asked["open", "history.db"]
    DISK.behave(failing("sync", "-wal", apsw.IOError("broken"), times=1))

    futures = [store.commit(_says(two, "lost")), store.commit(_says(one, "outdated"))]
    ends = await asyncio.gather(*futures, return_exceptions=True)

    codes = [end.code for end in ends if isinstance(end, HoldfastError)]
    assert codes == [Code.STORE_POISONED] * 2
    await store.write(Brief(lambda tx: tx.models.add(model_of("a:b"))))
    assert DISK.asked["open", "history.db"] == opened + 1
    assert await _texts(store, one) == ["kept"]


async def test_after_a_failed_commit_the_rest_of_its_group_is_not_acknowledged(
    store: SqliteStore,
) -> None:
    """One of them cannot share its transaction, so each is committed alone."""
    one, two, three = await _open(store, 1, 2, 3)
    first = _says(one, "first", id_=7)
    await store.commit(first)

    async with held(store):
        DISK.behave(failing("sync", "-wal", apsw.IOError("broken"), times=1))
        opened = DISK.asked["open", "history.db"]
        futures = [
            store.commit(_says(first.state, "repeated", id_=7)),
            store.commit(_says(two, "unsynced")),
            store.commit(_says(three, "behind it")),
        ]
        synced = DISK.asked["sync", "history.db-wal"]

    ends = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(ends[0], VersionConflictError)
    assert [end.code for end in ends[1:] if isinstance(end, HoldfastError)] == [
        Code.STORE_POISONED
    ] * 2
    # The transaction that held the writer had nothing to sync.
    assert DISK.asked["sync", "history.db-wal"] - synced == 1
    assert DISK.asked["open", "history.db"] == opened


async def test_what_is_queued_before_its_caller_is_cancelled_is_applied(store: SqliteStore) -> None:
    (state,) = await _open(store, 1)
    first = _says(state, "first")

    async def caller() -> None:
        await asyncio.shield(store.commit(first))

    async with held(store):
        waiting = asyncio.create_task(caller())
        await asyncio.sleep(0)
        waiting.cancel()
        forgotten = _says(first.state, "second")
        # Even the future itself does not take it back: later commits build on it.
        store.commit(forgotten).cancel()
        last = store.commit(_says(forgotten.state, "third"))

    await last
    assert waiting.cancelled()
    assert await _texts(store, state) == ["first", "second", "third"]


async def test_inline_and_in_the_thread_the_same_is_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed: list[str] = []
    commit = sqlite_writer.Writer._commit

    def noted(self: Any, jobs: Any) -> None:
        committed.append(threading.current_thread().name)
        commit(self, jobs)

    monkeypatch.setattr(sqlite_writer.Writer, "_commit", noted)
    told = []
    for number, quick in enumerate((0.0, 1e9)):
        store = SqliteStore(file.with_name(f"{number}.db"), KEY)
        (state,) = await _open(store, 1)
        monkeypatch.setattr(sqlite_writer, "INLINE_COMMIT_SECONDS", quick)
        committed.clear()
        say = _says(state, "one", id_=3)
        fates = await _fates(store.commit(say), store.commit(_says(state, "outdated", id_=4)))
        head = await store.read(lambda tx, key=state.key: tx.sessions.state_by_key(key))
        told.append((fates, await _texts(store, state), head))
        assert (set(committed) == {"holdfast-writer"}) is (number == 0)
        await store.close()

    assert told[0] == told[1]
    assert told[0][0] == [None, VersionConflictError]


async def test_commits_that_build_on_each_other_end_together(store: SqliteStore) -> None:
    one, two = await _open(store, 1, 2)
    first, other = _says(one, "first"), _says(two, "other")
    second = _says(first.state, "second")

    async with held(store):
        futures = [store.commit(each) for each in (first, other, second)]

    assert await _fates(*futures) == [None, None, None]
    assert await _texts(store, one) == ["first", "second"]
    # Outdated with the commit that it builds on, and not applied to what is stored now.
    async with held(store):
        futures = [store.commit(first), store.commit(_says(first.state, "third"))]
    assert await _fates(*futures) == [VersionConflictError, VersionConflictError]
    assert await _texts(store, one) == ["first", "second"]


async def test_a_taken_id_in_a_later_commit_leaves_the_earlier_one(store: SqliteStore) -> None:
    (one,) = await _open(store, 1)
    first = _says(one, "first", id_=7)
    second = _says(first.state, "second")

    async with held(store):
        futures = [store.commit(first), store.commit(second)]
        futures.append(store.commit(_says(second.state, "third", id_=7)))

    assert await _fates(*futures) == [None, None, VersionConflictError]
    assert await _texts(store, one) == ["first", "second"]


async def test_a_number_that_no_column_holds_fails_its_commit_and_stops_nothing(
    store: SqliteStore,
) -> None:
    one, two = await _open(store, 1, 2)
    large = _says(one, "too much")
    large = replace(large, state=replace(large.state, tokens_in=1 << 70))
    builder = _builder(one)
    builder.turn = None
    builder.add_event(TurnStarted(), 1)
    later = builder.commit()
    # Fails when the session has been changed already.
    later = replace(later, events=(replace(later.events[0], at=1 << 70),))

    async with held(store):
        futures = [store.commit(each) for each in (large, _says(two, "sound"), later)]
    alone = store.commit(later)

    assert await _fates(*futures, alone) == [OverflowError, None, OverflowError, OverflowError]
    assert await _texts(store, two) == ["sound"]
    async with asyncio.timeout(10):
        await store.commit(_says(one, "after"))
    assert await _texts(store, one) == ["after"]


async def test_urgent_work_behind_large_work_is_taken_from_the_reserve(
    store: SqliteStore, file: Path
) -> None:
    """The disk is full before the commit: large work writes to the log in its middle."""
    (state,) = await _open(store, 1)
    reserve = file.with_name("history.db-reserve")

    def full_while_reserved(operation: str, path: Path) -> None:
        if operation == "write" and reserve.exists():
            raise apsw.FullError("full")

    async def large(tx: Tx) -> None:
        store._writer.connection.pragma("cache_size", 10)
        for number in range(400):
            await tx.models.add(model_of(f"a:{number}{'x' * 400}"))

    async with held(store):
        DISK.behave(full_while_reserved)
        refused = asyncio.create_task(store.write(large))
        await asyncio.sleep(0)
        urgent = asyncio.create_task(
            store.write(lambda tx: tx.models.add(model_of("a:urgent")), urgent=True)
        )
        await asyncio.sleep(0)
        behind = store.commit(_says(state, "behind"))

    with pytest.raises(StorageFull):
        await refused
    await urgent
    with pytest.raises(StorageFull):
        await behind
    found = await store.read(lambda tx: tx.models.all())
    assert [model.name for model in found] == ["urgent"]


async def test_a_group_waits_for_another_process_and_is_still_one_commit(
    store: SqliteStore, file: Path
) -> None:
    states = await _open(store, *range(1, 21))
    other = SqliteStore(file, KEY)
    async with held(other):
        # The other process holds the lock, without a change of its own.
        await asyncio.sleep(0)
        synced = DISK.asked["sync", "history.db-wal"]
        futures = [store.commit(_says(each, "waited")) for each in states]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in futures)

    assert set(await _fates(*futures)) == {None}
    assert DISK.asked["sync", "history.db-wal"] - synced <= 2
    await other.close()


async def test_rows_that_sqlite_rolled_back_are_not_acknowledged(store: SqliteStore) -> None:
    """Work that hides an error from the writer, after which SQLite has ended the transaction."""
    (state,) = await _open(store, 1)

    async def hide(tx: Tx) -> None:
        store._writer.connection.query("ROLLBACK")

    async with held(store):
        futures = [store.commit(_says(state, "lost"))]
        hidden = asyncio.create_task(store.write(hide))

    assert None not in await _fates(*futures, hidden)
    assert await _texts(store, state) == []
