"""Drafts: what is played on remembered rows, written by one statement, and never told too early."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.errors import Code, Conflict, Internal, Unavailable
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Head
from holdfast.ports import Tx
from holdfast.storage import postgres_lane, postgres_link
from holdfast.storage.jobs import Job, Kind
from holdfast.storage.postgres import PostgresStore
from holdfast.storage.postgres_connection import PostgresConnection
from holdfast.storage.postgres_drafts import Draft
from holdfast.storage.postgres_news import CHANNEL
from tests.builders import a_head, a_session, an_agent, an_event, an_id
from tests.postgres import Databases
from tests.raw_rows import raw_rows
from tests.storage.test_postgres_store import _numbers, _told
from tests.storage.wire_cutter import Cut, wire_to

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def stores(databases: Databases) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Open a database twice, as two processes would."""
    url = databases.empty()
    async with AsyncExitStack() as stack:
        opened = [await PostgresStore.open(url) for _ in range(2)]
        for store in opened:
            stack.push_async_callback(store.close)
        yield opened[0], opened[1]


async def _opened(store: PostgresStore, count: int = 1) -> list[Head]:
    """Add sessions."""

    async def work(tx: Tx) -> list[Head]:
        await tx.agents.add(an_agent())
        ids = [SessionId(an_id(1_000 + number)) for number in range(count)]
        return [
            await tx.sessions.add(a_session(id=each), a_head(session_id=each), b"digest")
            for each in ids
        ]

    return await store.write(work)


def _asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is asked from now on over connections that may write."""
    asked: list[str] = []
    ask = PostgresConnection._asked

    async def noted(connection: PostgresConnection, how: Any, sql: str, values: Any = ()) -> Any:
        if connection._may_write:
            asked.append(sql.strip().splitlines()[0])
        return await ask(connection, how, sql, values)

    monkeypatch.setattr(PostgresConnection, "_asked", noted)
    return asked


async def test_work_on_many_sessions_asks_for_little_and_the_second_time_for_less(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 20)
    asked = _asked(monkeypatch)

    first = await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])
    after_first = len(asked)
    second = await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])

    assert (first, second) == ([1] * 20, [2] * 20)
    assert asked[:after_first] == [
        "BEGIN; SET LOCAL lock_timeout = '100ms'",
        "-- Where a notebook stands, whoever owns it.",
        "-- All that waits, and the number of this commit in the row of its process.",
        "COMMIT",
    ]
    assert asked[after_first:] == [
        "-- All that waits, if notebooks stand where they should and nobody has given it up."
    ]


async def test_a_crowd_is_written_in_parts_and_every_number_given_once(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    heads = await _opened(stores[0], 50)

    async def tell_on(head: Head) -> list[int]:
        return [await stores[0].write(_told(head)) for _ in range(5)]

    given = await asyncio.gather(*map(tell_on, heads), *map(tell_on, heads))

    for number, head in enumerate(heads):
        assert sorted(given[number] + given[number + 50]) == list(range(1, 11))
        assert await _numbers(stores[0], head) == list(range(1, 11))


async def test_what_another_process_wrote_meanwhile_is_not_written_over(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])

    given = [await store.write(_told(head)) for store in (*stores, *stores, *reversed(stores))]

    assert given == list(range(1, 7)) == await _numbers(stores[0], head)


async def test_nobody_is_refused_because_of_what_is_only_remembered(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))
    await stores[1].write(_told(head))

    async def choosy(tx: Tx) -> int:
        now = await tx.sessions.head_by_key(head.key)
        assert now is not None
        if now.events == 1:
            raise Conflict(Code.SESSION_CLOSED, "Not now.")
        await tx.sessions.save(replace(now, requests=7))
        return now.events

    assert await stores[0].write(choosy) == 2


async def test_a_head_that_is_only_looked_at_is_looked_up(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))
    await stores[1].write(_told(head))

    now = await stores[0].write(lambda tx: tx.sessions.head_by_key(head.key))

    assert now is not None
    assert now.events == 2


async def test_a_remembered_head_of_an_older_epoch_is_not_written(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))

    def saved(epoch: int) -> Any:
        async def work(tx: Tx) -> None:
            now = await tx.sessions.head_by_key(head.key)
            assert now is not None
            await tx.sessions.save(replace(now, epoch=epoch))

        return work

    done = await asyncio.gather(*map(stores[0].write, (saved(2), saved(1))), return_exceptions=True)

    assert done[0] is None
    assert isinstance(done[1], Conflict)
    assert done[1].code is Code.LEASE_LOST


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("together", [1, 5])
async def test_a_draft_whose_answer_is_lost_is_written_once(
    databases: Databases, how: Cut, together: int
) -> None:
    databases.empty()
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            (head,) = await _opened(store)
            await store.write(_told(head))
            await store.write(_told(head))
            wire.cut, wire.sign = how, CHANNEL.encode()

            given = await asyncio.gather(*[store.write(_told(head)) for _ in range(together)])

            assert (given, wire.cuts) == (list(range(3, together + 3)), 1)
            assert await _numbers(store, head) == list(range(1, together + 3))
            await store.close()


async def test_a_draft_that_comes_late_finds_that_it_was_given_up(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))
    lane = stores[0]._writer._lane
    draft = Draft(lane.known)
    assert draft.is_played(Job(_told(head), Kind.ORDINARY))
    sql, values = draft.statement(*lane._fate.draft(), CHANNEL, "nobody:1")
    connection = await lane._connected()

    made = await lane._fate.is_made(connection)
    is_written = await connection.value(sql, *values)
    again = await stores[0].write(_told(head))

    assert (made, is_written, again) == (False, False, 2)
    assert await _numbers(stores[1], head) == [1, 2]


async def test_a_draft_is_asked_about_again_while_postgres_is_at_it(
    databases: Databases, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))
    lane = stores[0]._writer._lane
    lane._fate.draft()
    connection = await lane._connected()

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM writers FOR UPDATE")
        during = await lane._fate.is_made(connection)
        rows.execute("COMMIT")
    after = await lane._fate.is_made(connection)

    assert (during, after) == (None, False)


async def test_a_draft_of_which_nobody_can_be_asked_is_told_as_unknown(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (postgres_link, postgres_lane):
        monkeypatch.setattr(module, "PATIENCE", 0.5)
    url = databases.empty()
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            (head,) = await _opened(store)
            await store.write(_told(head))
            await store.write(_told(head))
            wire.cut, wire.sign, wire.is_final = Cut.AFTER, CHANNEL.encode(), True

            with pytest.raises(Unavailable) as unknown:
                await store.write(_told(head))
            await store.close()
    again = await PostgresStore.open(url)
    numbers = await _numbers(again, head)
    await again.close()

    assert "Repeat the request with the same id" in unknown.value.message
    assert numbers == [1, 2, 3]


async def test_a_fault_of_ours_in_a_draft_keeps_nobody_waiting(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    (head,) = await _opened(stores[0])
    await stores[0].write(_told(head))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "_take", broken)
        in_playing = await stores[0].write(_told(head))
    with monkeypatch.context() as patch:
        patch.setattr(Draft, "statement", broken)
        with pytest.raises(Internal):
            await stores[0].write(_told(head))
    afterwards = await stores[0].write(_told(head))

    assert (in_playing, afterwards) == (2, 3)


async def test_who_waits_for_a_row_keeps_others_waiting_only_for_a_moment(
    databases: Databases, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    heads = await _opened(stores[0], 2)
    await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (heads[0].key,))
        waits, other = [asyncio.ensure_future(stores[0].write(_told(head))) for head in heads]
        assert await other == 2
        assert not waits.done()
        rows.execute("COMMIT")

    assert await waits == 2


async def test_who_breaks_a_rule_in_a_draft_takes_nobody_along(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    heads = await _opened(stores[0], 2)

    async def twice(tx: Tx) -> None:
        now = await tx.sessions.head_by_key(heads[0].key)
        assert now is not None
        await tx.events.append(now.key, [an_event(sequence=1)])
        await tx.sessions.save(now)

    async def too_large(tx: Tx) -> None:
        now = await tx.sessions.head_by_key(heads[0].key)
        assert now is not None
        await tx.sessions.save(replace(now, requests=1 << 63))

    for number, wrong in ((2, twice), (4, too_large)):
        await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])
        done = await asyncio.gather(
            *map(stores[0].write, (wrong, _told(heads[1]))), return_exceptions=True
        )
        assert isinstance(done[0], Internal)
        assert done[1] == number
