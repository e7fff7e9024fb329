"""Commits on Postgres: written in groups, one loser at a time, and never reported wrongly."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.approvals import Approval, Question
from holdfast.domain.commits import SessionCommit, VersionConflictError
from holdfast.domain.errors import Code, HoldfastError, Internal, Invalid, Unavailable
from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionState
from holdfast.domain.tools import ToolClass
from holdfast.ports.store import Tx
from holdfast.search import index
from holdfast.search.documents import WIDTH
from holdfast.store.postgres import connect, writer
from holdfast.store.postgres.commit import build_commit_rows, group_statement
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import LostError
from holdfast.store.postgres.store import CHANNEL, PostgresStore
from holdfast.store.postgres.writer import PostgresWriter
from tests.builders import (
    APPROVAL_ID,
    AT,
    a_call,
    a_head,
    a_message,
    a_session,
    a_transcript,
    an_agent,
    an_id,
)
from tests.commits import a_commit, appending, new_messages
from tests.postgres import Databases
from tests.raw_rows import raw_rows
from tests.stand_ins import PATIENCE
from tests.store.test_postgres_store import _numbers
from tests.store.wire_cutter import Cut, WireCutter, wire_to

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.torture]

Stores = tuple[PostgresStore, PostgresStore]
GROUP = "-- Lock the sessions that still have the expected version."
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
# Nobody can note anything any more, as on a full disk.
REFUSING = [
    """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'no'; END $$
""",
    """
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON writers
   FOR EACH STATEMENT EXECUTE FUNCTION refuse()
""",
]


async def _opened(store: PostgresStore, count: int = 1) -> list[SessionState]:
    """Add sessions."""

    async def work(tx: Tx) -> list[SessionState]:
        await tx.agents.add(an_agent())
        ids = [SessionId(an_id(1_000 + number)) for number in range(count)]
        return [
            await tx.sessions.add(a_session(id=each), a_head(session_id=each), b"digest")
            for each in ids
        ]

    return await store.write(work)


async def _state(store: PostgresStore, head: SessionState) -> SessionState:
    found = await store.read(lambda tx: tx.sessions.state_by_key(head.key))
    assert found is not None
    return found


async def _results(*futures: Any) -> list[Any]:
    return await asyncio.gather(*futures, return_exceptions=True)


def _statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return how each statement begins that is sent from now on, except those of reads."""
    sent: list[str] = []
    ask = PostgresConnection._translate_loss

    async def noted(connection: PostgresConnection, how: Any, sql: str, values: Any = ()) -> Any:
        if connection.for_update:
            sent.append(sql.strip().splitlines()[0])
        return await ask(connection, how, sql, values)

    monkeypatch.setattr(PostgresConnection, "_translate_loss", noted)
    return sent


async def test_waiting_commits_are_one_statement(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 20)
    sent = _statements(monkeypatch)

    await asyncio.gather(*[stores[0].commit(a_commit(head)) for head in heads])

    assert sent == [GROUP]
    assert [await _numbers(stores[1], head) for head in heads] == [[1]] * 20


@pytest.mark.parametrize("plain", ["", "null", "a, {b}", "ü\u2028\x7f 'x'"])
@pytest.mark.parametrize("odd", ["plain", 'a "b"', "C:\\new", "two\nlines\t\x01"])
async def test_text_in_a_group_is_stored_as_it_is(stores: Stores, plain: str, odd: str) -> None:
    heads = await _opened(stores[0], 6)
    titles = [None, plain, odd, "last", None, "null"]
    commits = [a_commit(head, title=title) for head, title in zip(heads, titles, strict=True)]

    await asyncio.gather(*map(stores[0].commit, commits))

    assert [await _state(stores[1], head) for head in heads] == [each.state for each in commits]


async def test_many_commits_are_written_in_parts(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BYTES_MOST", 8 << 10)
    heads = await _opened(stores[0], 50)
    sent = _statements(monkeypatch)
    large = StepDelta(step=1, channel=Channel.TEXT, offset=0, text="x" * (3 << 10))

    await asyncio.gather(*[stores[0].commit(a_commit(head, large)) for head in heads])

    assert sent == [GROUP] * 25
    assert [await _numbers(stores[1], head) for head in heads] == [[1]] * 50


async def test_only_the_loser_of_a_group_fails(stores: Stores) -> None:
    heads = await _opened(stores[0], 3)
    await stores[1].commit(a_commit(heads[1]))

    done = await _results(*[stores[0].commit(a_commit(head)) for head in heads])

    assert [type(each) for each in done] == [type(None), VersionConflictError, type(None)]
    assert [await _numbers(stores[1], head) for head in heads] == [[1]] * 3


async def test_only_a_commit_with_a_repeated_id_fails(stores: Stores) -> None:
    heads = await _opened(stores[0], 3)
    first, again = [
        new_messages(a_transcript(a_message(text, id=an_id(9))), [number])
        for number, text in ((1, "one"), (2, "two"))
    ]
    added = SessionCommit(
        before=heads[1], state=replace(heads[1], messages=1, events=1), messages=first
    )
    await stores[0].commit(added)
    second = replace(again[0], message=replace(again[0].message, sequence=2))
    repeated = SessionCommit(
        before=added.state, state=replace(added.state, messages=2, events=2), messages=(second,)
    )

    done = await _results(
        stores[0].commit(a_commit(heads[0])),
        stores[0].commit(repeated),
        stores[0].commit(a_commit(heads[2])),
    )

    assert [type(each) for each in done] == [type(None), VersionConflictError, type(None)]
    assert await _state(stores[1], heads[1]) == added.state


async def test_commits_of_a_session_that_build_on_each_other_are_applied_in_order(
    stores: Stores,
) -> None:
    heads = await _opened(stores[0], 2)
    commits = {head.key: [a_commit(head)] for head in heads}
    for several in commits.values():
        for _ in range(9):
            several.append(a_commit(several[-1].state))

    done = await _results(
        *[stores[0].commit(each) for pair in zip(*commits.values(), strict=True) for each in pair]
    )

    assert done == [None] * 20
    for head in heads:
        assert await _numbers(stores[1], head) == list(range(1, 11))
        assert await _state(stores[1], head) == commits[head.key][-1].state


async def test_what_changes_twice_in_a_group_is_stored_as_it_was_last(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    call = a_call(session_id=head.session_id)
    later = replace(call, arguments={"path": "b.txt"})
    question = Question(
        id=APPROVAL_ID,
        tool="look",
        tool_class=ToolClass.PROCESS,
        question="May I?",
        digest="0" * 64,
    )
    approval = Approval(session_id=head.session_id, question=question, asked_at=AT)
    first = replace(a_commit(head), calls=(call,), approvals=(approval,))
    second = replace(a_commit(first.state), calls=(later,), approvals=(approval,))

    await asyncio.gather(stores[0].commit(first), stores[0].commit(second))

    assert await stores[1].read(lambda tx: tx.calls.of_turn(head, 1)) == [later]
    assert await stores[1].read(lambda tx: tx.approvals.waiting(head)) == [approval]


async def test_those_that_build_on_a_loser_fail_with_it(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    await stores[1].commit(a_commit(head))
    first = a_commit(head)

    done = await _results(stores[0].commit(first), stores[0].commit(a_commit(first.state)))

    assert [type(each) for each in done] == [VersionConflictError] * 2
    assert await _numbers(stores[1], head) == [1]


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"requests": 1 << 63}, Internal), ({"title": "a\x00b"}, Invalid)],
)
async def test_what_cannot_be_stored_takes_nobody_along(
    stores: Stores, changes: dict[str, Any], error: type[HoldfastError]
) -> None:
    heads = await _opened(stores[0], 2)

    async def commit(head: SessionState, **changes: Any) -> None:
        await stores[0].commit(a_commit(head, **changes))

    done = await _results(commit(heads[0], **changes), commit(heads[1]))

    assert (type(done[0]), done[1]) == (error, None)


async def test_a_lease_is_not_shortened_by_a_commit(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    taken = a_commit(head, holder="me", until=5, epoch=1)
    await stores[0].commit(taken)
    await stores[0].write(lambda tx: tx.sessions.extend("me", 99))

    await stores[0].commit(a_commit(taken.state))
    held = await _state(stores[1], head)
    await stores[0].commit(a_commit(held, holder=None, until=0))

    assert (held.until, (await _state(stores[1], head)).until) == (99, 0)


async def test_a_changed_title_is_noted_for_the_index(stores: Stores, databases: Databases) -> None:
    heads = await _opened(stores[0], 2)

    await stores[0].commit(a_commit(heads[0], title="new"))
    await stores[0].commit(a_commit(heads[1]))

    ((*noted,),) = databases.run("usual", ["SELECT key, first, last FROM search_tail"])
    assert noted == [(heads[0].key, 0, 0)]


@pytest.mark.parametrize("calls", [1, 2], ids=["before the first look", "before the lock"])
async def test_a_message_that_comes_while_the_index_catches_up_is_not_left_out(
    stores: Stores, databases: Databases, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    (head,) = await _opened(stores[0])
    first, second = new_messages(a_transcript(a_message("one"), a_message("two")))
    state = replace(head, messages=1, events=1)
    await stores[0].commit(SessionCommit(before=head, state=state, messages=(first,)))
    later = replace(state, messages=2, events=2)
    newest = index._newest

    async def come_late(*given: Any) -> Any:
        nonlocal calls
        calls -= 1
        if calls == 0:
            await stores[1].commit(SessionCommit(before=state, state=later, messages=(second,)))
        return await newest(*given)

    with monkeypatch.context() as patch:
        patch.setattr(index, "_newest", come_late)
        await stores[0].write(lambda tx: tx.search.catch_up(9))
    tail = "SELECT key, first, last FROM search_tail"
    between = databases.run("usual", [tail])
    await stores[0].write(lambda tx: tx.search.catch_up(9))

    assert (between, databases.run("usual", [tail])) == ([[(head.key, 2, None)]], [[]])


async def test_a_session_that_is_removed_while_the_index_catches_up_leaves_no_words(
    stores: Stores, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 2)
    written = []
    for number, head in enumerate(heads):
        # Ids are unique in a store.
        row = a_message("canary", id=an_id(50 + number))
        state = replace(head, messages=1, events=1)
        added = new_messages(a_transcript(row))
        await stores[0].commit(SessionCommit(before=head, state=state, messages=added))
        written.append(state)
    later = new_messages(a_transcript(a_message("two", id=an_id(60)), first=2))
    newest = index._newest
    removing: list[asyncio.Task[None]] = []

    async def remove(tx: Tx) -> None:
        found = await tx.sessions.state_by_key(heads[0].key)
        assert found is not None
        await tx.sessions.remove(found, AT)

    async def come_between(*given: Any) -> Any:
        if not removing:
            # One of the sessions is being written, so none of them is locked.
            state = replace(written[1], messages=2, events=2)
            await stores[1].commit(SessionCommit(before=written[1], state=state, messages=later))
            removing.append(asyncio.ensure_future(stores[1].write(remove)))
            while await asyncio.to_thread(databases.run, "usual", [WAITS]) == [[(0,)]]:
                pass
        return await newest(*given)

    monkeypatch.setattr(index, "_newest", come_between)
    async with asyncio.timeout(PATIENCE):
        await stores[0].write(lambda tx: tx.search.catch_up(9))
        await removing[0]
        while await stores[0].write(lambda tx: tx.search.remove_documents(9)):
            pass

    kept = f"SELECT DISTINCT document >> {WIDTH} FROM search_index"
    assert databases.run("usual", [kept]) == [[(heads[1].key,)]]


async def test_a_commit_rings_in_the_other_process(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    rung = asyncio.Event()
    stores[1].tell(lambda key: rung.set() if key == head.key else None)

    state = head
    async with asyncio.timeout(PATIENCE):
        # Heard at all only once somebody listens there.
        while not rung.is_set():
            commit = a_commit(state)
            await stores[0].commit(commit)
            state = commit.state
            await asyncio.sleep(0.01)


async def test_a_holder_that_streams_and_others_that_append_do_not_starve(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    streamed = 0

    async def stream() -> None:
        nonlocal streamed
        state = head
        while streamed < 60:
            commit = a_commit(state)
            try:
                await stores[0].commit(commit)
            except VersionConflictError:
                state = await _state(stores[0], head)
            else:
                state, streamed = commit.state, streamed + 1

    async def append() -> list[int]:
        return [await stores[1].write(appending(head)) for _ in range(40)]

    async with asyncio.timeout(PATIENCE):
        _, given, more = await asyncio.gather(stream(), append(), append())

    assert len({*given, *more}) == 80
    assert await _numbers(stores[0], head) == list(range(1, 141))


async def test_a_crowd_is_written_in_parts_and_every_number_given_once(stores: Stores) -> None:
    heads = await _opened(stores[0], 50)

    async def append_on(head: SessionState) -> list[int]:
        return [await stores[0].write(appending(head)) for _ in range(5)]

    given = await asyncio.gather(*map(append_on, heads), *map(append_on, heads))

    for number, head in enumerate(heads):
        assert sorted(given[number] + given[number + 50]) == list(range(1, 11))
        assert await _numbers(stores[0], head) == list(range(1, 11))


async def test_what_another_process_wrote_meanwhile_is_not_written_over(stores: Stores) -> None:
    (head,) = await _opened(stores[0])

    given = [await store.write(appending(head)) for store in (*stores, *stores, *reversed(stores))]

    assert given == list(range(1, 7)) == await _numbers(stores[0], head)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_who_writes_while_all_is_cancelled_is_written(
    databases: Databases, stores: Stores, is_commit: bool
) -> None:
    heads = await _opened(stores[0], 2)
    for head in heads:
        await stores[0].write(appending(head))
    state, other = [await _state(stores[0], head) for head in heads]

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (heads[0].key,))
        before = asyncio.all_tasks()
        if is_commit:
            stopped = stores[0].commit(a_commit(state))
        else:
            stopped = asyncio.ensure_future(
                stores[0].write(lambda tx: tx.sessions.state_by_key(heads[0].key))
            )
        while await asyncio.to_thread(databases.run, "usual", [WAITS]) == [[(0,)]]:
            pass
        # As a loop does it that is about to end.
        for task in asyncio.all_tasks() - before:
            task.cancel()
        if is_commit:
            await stores[0].commit(a_commit(other))
        else:
            await stores[0].write(appending(heads[1]))
        rows.execute("COMMIT")

    assert stopped.cancelled()
    assert await _numbers(stores[0], heads[1]) == [1, 2]
    assert await stores[0].write(appending(heads[0])) == 2


async def test_a_fault_of_ours_keeps_nobody_waiting(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    (head,) = await _opened(stores[0])

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(writer, "group_statement", broken)
        with pytest.raises(Internal):
            await stores[0].commit(a_commit(head))

    assert await stores[0].write(appending(head)) == 1


async def test_who_waits_for_a_row_keeps_others_waiting_only_for_a_moment(
    databases: Databases, stores: Stores
) -> None:
    heads = await _opened(stores[0], 2)

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (heads[0].key,))
        commits = [a_commit(head) for head in heads]
        waits, other = map(stores[0].commit, commits)
        later = stores[0].commit(a_commit(commits[0].state))
        await other
        await stores[0].commit(a_commit(commits[1].state))
        assert not waits.done()
        rows.execute("COMMIT")

    await asyncio.gather(waits, later)
    assert [await _numbers(stores[1], head) for head in heads] == [[1, 2]] * 2


async def test_who_waits_for_a_row_too_long_is_told(
    databases: Databases, stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "ROW_LOCK_SECONDS", 0.0)
    (head,) = await _opened(stores[0])

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (head.key,))
        with pytest.raises(Unavailable) as caught:
            await stores[0].commit(a_commit(head))
        rows.execute("COMMIT")

    assert caught.value.code is Code.STORE_BUSY
    await stores[0].commit(a_commit(head))


async def test_a_closed_store_takes_no_commit(databases: Databases) -> None:
    store = await PostgresStore.open(databases.empty())
    (head,) = await _opened(store)
    last = store.commit(a_commit(head))
    await store.close()

    await last
    with pytest.raises(Unavailable) as caught:
        await store.commit(a_commit(head))
    assert caught.value.code is Code.STORE_CLOSED


@asynccontextmanager
async def _over_a_wire(
    databases: Databases, count: int = 1
) -> AsyncIterator[tuple[PostgresStore, list[SessionState], WireCutter]]:
    """Open a store over a wire that can be cut, with sessions that have an event each."""
    databases.empty()
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            commits = [a_commit(head) for head in await _opened(store, count)]
            await asyncio.gather(*map(store.commit, commits))
            yield store, [commit.state for commit in commits], wire
            await store.close()


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("count", [1, 5])
async def test_a_group_whose_answer_is_lost_is_written_once(
    databases: Databases, how: Cut, count: int
) -> None:
    async with _over_a_wire(databases, count) as (store, states, wire):
        wire.cut, wire.sign = how, CHANNEL.encode()

        await asyncio.gather(*[store.commit(a_commit(state)) for state in states])

        assert wire.cuts == 1
        assert [await _numbers(store, state) for state in states] == [[1, 2]] * count


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER])
async def test_the_loser_of_a_group_whose_answer_is_lost_is_told(
    databases: Databases, how: Cut
) -> None:
    async with _over_a_wire(databases, 2) as (store, states, wire):
        beside = await PostgresStore.open(databases.server.url("usual"))
        await beside.commit(a_commit(states[0]))
        await beside.close()
        wire.cut, wire.sign = how, CHANNEL.encode()

        done = await _results(*[store.commit(a_commit(state)) for state in states])

        assert (type(done[0]), done[1], wire.cuts) == (VersionConflictError, None, 1)
        assert [await _numbers(store, state) for state in states] == [[1, 2]] * 2


async def test_a_group_that_arrives_late_finds_that_it_was_given_up(stores: Stores) -> None:
    (head,) = await _opened(stores[0])
    lost = stores[0]._writer._group
    connection = await lost.connection()
    note = (*lost.begin(), CHANNEL, "nobody:1")
    sql, values = group_statement([build_commit_rows(a_commit(head))], *note, skip=False)

    is_applied = await lost.is_applied()
    again = await lost.is_applied()
    *_, is_written, _ = await connection.row(sql, *values)
    await stores[0].commit(a_commit(head))

    assert (is_applied, again, is_written) == (False, False, False)
    assert await _numbers(stores[1], head) == [1]


async def test_the_status_is_asked_again_while_postgres_is_at_it(
    databases: Databases, stores: Stores
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].commit(a_commit(head))
    lost = stores[0]._writer._group
    lost.begin()

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM writers FOR UPDATE")
        asked = asyncio.ensure_future(lost.was_applied(LostError()))
        done, _ = await asyncio.wait({asked}, timeout=0.5)
        rows.execute("COMMIT")

    assert (done, await asked) == (set(), False)


async def test_a_group_of_which_nobody_can_be_asked_is_told_as_unknown(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connect, writer):
        monkeypatch.setattr(module, "RECONNECT_TIMEOUT", 0.5)
    async with _over_a_wire(databases) as (store, (state,), wire):
        wire.cut, wire.sign, wire.is_final = Cut.AFTER, CHANNEL.encode(), True

        with pytest.raises(Unavailable) as unknown:
            await store.commit(a_commit(state))
    again = await PostgresStore.open(databases.server.url("usual"))
    numbers = await _numbers(again, state)
    await again.close()

    assert "Repeat the request with the same id" in unknown.value.message
    assert numbers == [1, 2]


async def test_a_group_of_which_postgres_will_not_tell_is_told_as_unknown(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RECONNECT_TIMEOUT", 0.5)
    async with _over_a_wire(databases) as (store, (state,), wire):
        wire.cut, wire.sign, wire.is_final = Cut.AFTER, CHANNEL.encode(), True

        writing = store.commit(a_commit(state))
        await wire.has_cut.wait()
        await asyncio.to_thread(_written_meanwhile, databases, state)
        await asyncio.to_thread(databases.run, "usual", REFUSING)
        wire.is_final = False
        with pytest.raises(Unavailable) as unknown:
            await writing
        await asyncio.to_thread(databases.run, "usual", ["DROP FUNCTION refuse CASCADE"])
        afterwards = await store.write(appending(state))
        numbers = await _numbers(store, state)

    assert "Repeat the request with the same id" in unknown.value.message
    assert (afterwards, numbers) == (3, [1, 2, 3])


def _written_meanwhile(databases: Databases, head: SessionState) -> None:
    """Wait until Postgres has written what it was cut off from telling."""
    asked = f"SELECT count(*) FROM events WHERE session_key = {head.key}"
    while databases.run("usual", [asked]) != [[(2,)]]:
        pass


async def test_a_group_that_was_refused_for_certain_is_no_riddle(
    databases: Databases, stores: Stores
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].commit(a_commit(head))
    state = await _state(stores[0], head)
    group: PostgresWriter = stores[0]._writer
    connection = await group._group.connection()
    await connection.raw.execute("SET default_transaction_read_only = on")
    only_read = "ALTER DATABASE usual SET default_transaction_read_only = on"
    databases.run("postgres", [only_read])
    try:
        with pytest.raises(Unavailable) as refused:
            await stores[0].commit(a_commit(state))
    finally:
        databases.run("postgres", ["ALTER DATABASE usual RESET default_transaction_read_only"])

    assert refused.value.code is Code.STORE_UNSAFE
    await stores[0].commit(a_commit(state))
    assert await _numbers(stores[1], head) == [1, 2]
