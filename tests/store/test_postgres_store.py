"""The store on Postgres: groups, races between processes, lost connections, and what is refused."""

import asyncio
import json
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agents import Agent
from holdfast.domain.commits import VersionConflictError
from holdfast.domain.errors import Code, Conflict, HoldfastError, Unavailable
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.search.documents import ADD, MATCHING
from holdfast.store.postgres import connect
from holdfast.store.postgres import writer as postgre_writer
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.store import ChangeListener, PostgresStore
from holdfast.store.sqlite.change_watch import StoreDoorbell
from tests.builders import SESSION_ID, a_head, a_session, an_agent, an_id
from tests.commits import a_commit, append_rows, appending
from tests.postgres import Databases, running
from tests.raw_rows import raw_rows
from tests.stand_ins import PATIENCE, SettableClock
from tests.store.wire_cutter import Cut, wire_to

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OTHER = SessionId(an_id(77))


@pytest.fixture
async def head(stores: tuple[PostgresStore, PostgresStore]) -> SessionState:
    """Add the session of the builders."""
    return await stores[0].write(_added)


async def _added(tx: Tx) -> SessionState:
    await tx.agents.add(an_agent())
    return await tx.sessions.add(a_session(), a_head(), b"digest")


async def _numbers(store: PostgresStore, head: SessionState) -> list[int]:
    async def read(tx: Tx) -> list[int]:
        now = await tx.sessions.state_by_key(head.key)
        assert now is not None
        return [frame.sequence for frame in await tx.events.after(now, 0, limit=10_000)]

    return await store.read(read)


async def test_two_processes_give_out_every_number_once(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    given = await asyncio.gather(
        *[each.write(appending(head)) for each in stores for _ in range(30)]
    )

    assert sorted(given) == list(range(1, 61)) == await _numbers(stores[0], head)


async def test_what_arrives_together_is_told_of_in_few_words(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    heard: list[int] = []
    rung = asyncio.Event()
    stores[1].tell(lambda key: (heard.append(key), rung.set())[1])
    # Heard at all only once somebody listens there.
    async with asyncio.timeout(PATIENCE):
        while not rung.is_set():
            await stores[0].write(appending(head))
            await asyncio.sleep(0.01)
    before = len(heard)

    state = await stores[0].read(lambda tx: tx.sessions.state_by_key(head.key))
    assert state is not None
    commits = [a_commit(state)]
    while len(commits) < 50:
        commits.append(a_commit(commits[-1].state))
    await asyncio.gather(*map(stores[0].commit, commits))
    rung.clear()
    await stores[0].write(appending(head))

    async with asyncio.timeout(PATIENCE):
        await rung.wait()
    assert set(heard) == {head.key}
    assert len(heard) - before < 25


async def test_a_bell_rings_for_what_another_process_writes(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    async with StoreDoorbell(stores[1].version) as doorbell, asyncio.timeout(PATIENCE):
        stores[1].tell(doorbell.ring)
        for _ in range(3):
            bell = doorbell.listen(head.key)
            await stores[0].write(appending(head))
            await bell.rung()


async def test_who_is_refused_takes_nobody_along(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    async def refused(tx: Tx) -> None:
        await appending(head)(tx)
        raise Conflict(Code.SESSION_CLOSED, "Not now.")

    work = [appending(head), refused, appending(head), refused, appending(head)]

    done = await asyncio.gather(*map(stores[0].write, work), return_exceptions=True)

    assert sorted(each for each in done if isinstance(each, int)) == [1, 2, 3]
    assert [type(each) for each in done].count(Conflict) == 2
    assert await _numbers(stores[0], head) == [1, 2, 3]


async def test_of_two_who_add_the_same_the_second_finds_it(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    def added(number: int) -> Any:
        async def work(tx: Tx) -> Agent:
            agent = an_agent(id=an_id(number))
            found = await tx.agents.by_slug(agent.owner, agent.slug)
            if found is None:
                await tx.agents.add(agent)
            return found or agent

        return work

    agents = await asyncio.gather(
        *[stores[number % 2].write(added(100 + number)) for number in range(8)]
    )

    assert len({agent.id for agent in agents}) == 1


async def test_what_breaks_a_rule_again_and_again_is_told_as_a_fault(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    async def twice(tx: Tx) -> None:
        same = a_session(id=OTHER), a_head(session_id=OTHER), b"digest"
        await tx.sessions.add(*same)
        await tx.sessions.add(*same)

    done = await asyncio.gather(
        stores[0].write(twice), stores[0].write(appending(head)), return_exceptions=True
    )

    assert isinstance(done[0], HoldfastError)
    assert (done[0].code, done[1]) == (Code.INTERNAL, 1)


async def test_a_commit_on_an_older_epoch_is_not_written(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    await stores[0].write(lambda tx: append_rows(tx, head, state={"epoch": 2}))

    with pytest.raises(VersionConflictError):
        await stores[1].write(lambda tx: tx.append(a_commit(head)))

    assert await _numbers(stores[1], head) == []


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("together", [1, 5])
async def test_a_commit_whose_answer_is_lost_is_made_once(
    databases: Databases, url: str, how: Cut, together: int
) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            head = await store.write(_added)
            wire.cut = how

            given = await asyncio.gather(*[store.write(appending(head)) for _ in range(together)])

            assert (sorted(given), wire.cuts) == (list(range(1, together + 1)), 1)
            assert await _numbers(store, head) == sorted(given)
            await store.close()


async def test_a_connection_that_is_ended_is_replaced(
    databases: Databases, stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    ending = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = 'usual' AND application_name = 'holdfast'"
    )
    for number in range(1, 4):
        assert await stores[0].write(appending(head)) == number
        assert await _numbers(stores[1], head) == list(range(1, number + 1))
        await asyncio.to_thread(databases.run, "usual", [ending])


async def test_a_read_changes_nothing_and_sees_one_instant(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    async def read(tx: Tx) -> tuple[int, int]:
        before = await tx.sessions.state_by_key(head.key)
        await stores[1].write(appending(head))
        after = await tx.sessions.state_by_key(head.key)
        assert before is not None
        assert after is not None
        return before.events, after.events

    assert await stores[0].read(read) == (0, 0)
    with pytest.raises(HoldfastError):
        await stores[0].read(appending(head))
    assert await _numbers(stores[0], head) == [1]


async def test_a_closed_store_says_so(url: str) -> None:
    store = await PostgresStore.open(url)
    await store.write(_added)
    await store.close()
    await store.close()

    for ask in (store.read, store.write):
        with pytest.raises(Unavailable) as caught:
            await ask(lambda tx: tx.models.all())
        assert caught.value.code is Code.STORE_CLOSED


async def test_leases_are_counted_in_the_time_of_the_database(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    early, late = SettableClock(), SettableClock()
    late.advance(days=3)

    told = [(await store.clock(clock)) for store, clock in zip(stores, (early, late), strict=True)]

    assert abs(told[0].lease_clock_ms() - told[1].lease_clock_ms()) < 5_000
    before = told[0].lease_clock_ms()
    early.advance(seconds=7)
    assert told[0].lease_clock_ms() - before == 7_000
    assert told[0].now() == early.now()


async def test_a_database_is_checked_row_by_row(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState, databases: Databases
) -> None:
    await stores[0].write(appending(head))
    assert await stores[0].check() == []

    damage: Sequence[str] = ["UPDATE events SET turn = 9"]
    await asyncio.to_thread(databases.run, "usual", damage)

    assert await stores[0].check() == [f"event 1 of session {SESSION_ID} is damaged."]


async def test_a_document_of_too_many_words_is_looked_at_in_every_search(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    words = " ".join(f"word{number:07}" for number in range(100_000))
    asked = {"expression": '("word0000001") NOT ("other")', "low": 0, "high": 9, "limit": 9}

    async def work(tx: Any) -> list[Any]:
        documents = [(1, words), (2, "other word0000001"), (3, "word0000001 more")]
        await tx.search._db.execute(ADD, {"documents": json.dumps(documents)})
        found: list[Any] = await tx.search._db.fetch(MATCHING, asked)
        return found

    assert await stores[0].write(work) == [(3,), (1,)]


@pytest.mark.torture
async def test_a_server_that_dies_under_writers_loses_and_doubles_nothing() -> None:
    with running() as server:
        store = await PostgresStore.open(server.url("postgres"))
        head = await store.write(_added)
        given: list[int] = []
        goals = {50: asyncio.Event(), 150: asyncio.Event()}

        async def write_on() -> None:
            while len(given) < 300:
                given.append(await store.write(appending(head)))
                if len(given) in goals:
                    goals[len(given)].set()

        async with asyncio.timeout(PATIENCE * 3), asyncio.TaskGroup() as writers:
            for _ in range(5):
                writers.create_task(write_on())
            for reached in goals.values():
                await reached.wait()
                await asyncio.to_thread(server.stop, signal.SIGKILL)
                await asyncio.to_thread(server.start)

        assert sorted(given) == list(range(1, len(given) + 1))
        assert await _numbers(store, head) == sorted(given)
        await store.close()


async def test_another_schema_of_a_database_is_another_store(databases: Databases) -> None:
    url = databases.fresh()
    databases.run(url.partition("@/")[2].partition("?")[0], ["CREATE SCHEMA ours"])
    for address in (url, f"{url}&search_path=ours"):
        store = await PostgresStore.open(address)
        assert (await store.write(_added)).key == 1
        await store.close()


async def test_who_waits_for_a_row_keeps_others_waiting_only_for_a_moment(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState, url: str
) -> None:
    other = await stores[0].write(
        lambda tx: tx.sessions.add(a_session(id=OTHER), a_head(session_id=OTHER), b"digest")
    )

    async def refused(tx: Tx) -> None:
        await appending(other)(tx)
        raise Conflict(Code.SESSION_CLOSED, "Not now.")

    with raw_rows(url) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (head.key,))
        waits = asyncio.ensure_future(stores[0].write(appending(head)))
        # With somebody who is refused, and without.
        done = await asyncio.gather(
            *map(stores[0].write, (refused, appending(other))), return_exceptions=True
        )
        later = await stores[0].write(appending(other))
        assert not waits.done()
        rows.execute("COMMIT")

    assert (await waits, done[1], later) == (1, 1, 2)
    assert isinstance(done[0], Conflict)


async def test_who_waits_for_a_row_too_long_isappending(
    stores: tuple[PostgresStore, PostgresStore],
    head: SessionState,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgre_writer, "ROW_LOCK_SECONDS", 0.0)
    with raw_rows(url) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (head.key,))
        with pytest.raises(Unavailable) as caught:
            await stores[0].write(appending(head))
        rows.execute("COMMIT")

    assert caught.value.code is Code.STORE_BUSY
    assert await stores[0].write(appending(head)) == 1


async def test_a_commit_of_which_nobody_can_be_asked_is_told_as_unknown(
    databases: Databases, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connect, postgre_writer):
        monkeypatch.setattr(module, "RECONNECT_TIMEOUT", 0.5)
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            head = await store.write(_added)
            wire.cut, wire.is_final = Cut.AFTER, True

            with pytest.raises(Unavailable) as unknown:
                await store.write(appending(head))
            with pytest.raises(Unavailable) as unreachable:
                await store.write(appending(head))
            await store.close()
    again = await PostgresStore.open(url)
    numbers = await _numbers(again, head)
    await again.close()

    assert (unknown.value.code, numbers) == (Code.STORE_UNREACHABLE, [1])
    assert "Repeat the request with the same id" in unknown.value.message
    assert "nothing was changed" in unreachable.value.message


async def test_a_read_that_is_given_up_or_refused_is_followed_by_others(
    stores: tuple[PostgresStore, PostgresStore], head: SessionState
) -> None:
    async def slow(tx: Any) -> None:
        await tx.sessions._db.fetch("SELECT pg_sleep(60)")

    async def broken(tx: Any) -> None:
        await tx.sessions._db.fetch("SELECT nothing")

    given_up = asyncio.ensure_future(stores[0].read(slow))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    with pytest.raises(HoldfastError) as caught:
        await stores[0].read(broken)

    assert caught.value.code is Code.INTERNAL
    assert await _numbers(stores[0], head) == []


async def test_of_many_sessions_it_is_told_that_it_may_be_any(
    stores: tuple[PostgresStore, PostgresStore], databases: Databases
) -> None:
    news = ChangeListener(Link(databases.server.url("usual")))
    channel, told = news.notification(set(range(301)))
    before = await stores[0].version()

    assert (channel, told.partition(":")[2]) == ("holdfast", "*")
    assert news.notification({2, 1})[1].endswith(":1,2")
    async with asyncio.timeout(PATIENCE):
        while await stores[0].version() == before:
            databases.run("usual", [f"SELECT pg_notify('{channel}', '{told}')"])
            await asyncio.sleep(0)
