"""Drafts: what is played on remembered rows, written by one statement, and never told too early."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.errors import Code, Conflict, Internal
from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.drafts import Draft
from holdfast.store.postgres.store import PostgresStore
from tests.builders import a_head, a_session, an_agent, an_event, an_id
from tests.postgres import Databases
from tests.raw_rows import raw_rows
from tests.store.test_postgres_store import _numbers, _told

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.torture]

# How what is asked begins.
TOGETHER = "BEGIN; SET LOCAL lock_timeout = '100ms'"
ALONE = "BEGIN; SET LOCAL lock_timeout = '250ms'"
HEADS = "-- The state of a session of any owner."
WRITE = "-- All that waits."
NOTE = "-- All that waits, and the number of this commit in the row of its process."
DRAFT = "-- All that waits, if notebooks stand where they should and nobody has given it up."

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


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


def _asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return what is asked from now on over connections that may write, and of how many MiB."""
    asked: list[tuple[str, int]] = []
    ask = PostgresConnection._asked

    async def noted(connection: PostgresConnection, how: Any, sql: str, values: Any = ()) -> Any:
        if connection._may_write:
            told = [each for value in values for each in _each(value) if isinstance(each, bytes)]
            asked.append((sql.strip().splitlines()[0], sum(map(len, told)) >> 20))
        return await ask(connection, how, sql, values)

    monkeypatch.setattr(PostgresConnection, "_asked", noted)
    return asked


def _each(value: Any) -> Any:
    return value if isinstance(value, tuple) else (value,)


def _streamed(head: SessionState, size: int) -> Any:
    """Return work that writes a piece of news of so many MiB."""

    async def work(tx: Tx) -> int:
        now = await tx.sessions.head_by_key(head.key)
        assert now is not None
        text = "x" * (size << 20)
        delta = StepDelta(step=1, channel=Channel.TEXT, offset=0, text=text)
        await tx.events.append(head.key, [an_event(delta, sequence=now.events + 1)])
        await tx.sessions.save(replace(now, events=now.events + 1))
        return now.events + 1

    return work


async def test_work_on_many_sessions_asks_for_little_and_the_second_time_for_less(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 20)
    asked = _asked(monkeypatch)

    first = await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])
    after_first = len(asked)
    second = await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])

    assert (first, second) == ([1] * 20, [2] * 20)
    assert asked[:after_first] == [(TOGETHER, 0), (HEADS, 0), (NOTE, 0), ("COMMIT", 0)]
    assert asked[after_first:] == [(DRAFT, 0)]


async def test_no_more_than_some_bytes_wait_for_one_another(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 5)
    asked = _asked(monkeypatch)

    async def streamed() -> list[int]:
        works = [_streamed(*each) for each in zip(heads, (3, 3, 3, 20, 3), strict=True)]
        return await asyncio.gather(*map(stores[0].write, works))

    given = await streamed()
    in_transaction, asked[:] = asked[:], []
    given += await streamed()

    assert given == [1] * 5 + [2] * 5
    written = [(WRITE, 9), (WRITE, 20), (NOTE, 3)]
    assert in_transaction == [(TOGETHER, 0), (HEADS, 0), *written, ("COMMIT", 0)]
    assert asked == [(DRAFT, 6), (DRAFT, 3), (DRAFT, 20), (DRAFT, 3)]


async def test_only_what_others_have_moved_is_looked_up_again(
    stores: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = await _opened(stores[0], 3)

    async def held(tx: Tx) -> None:
        now = await tx.sessions.head_by_key(heads[0].key)
        assert now is not None
        await tx.sessions.save(replace(now, holder="me", until=1))

    await stores[0].write(held)
    await asyncio.gather(*[stores[0].write(_told(head)) for head in heads])
    kept = await stores[0].write(lambda tx: tx.sessions.extend("me", 2))
    await stores[0].write(lambda tx: tx.sessions.detach(heads[1].key))
    asked = _asked(monkeypatch)
    given = [await stores[0].write(_told(head)) for head in heads]

    assert (kept, given) == ({heads[0].key}, [2, 2, 2])
    looked_up = [(ALONE, 0), (HEADS, 0), (NOTE, 0), ("COMMIT", 0)]
    assert asked == [*looked_up, *looked_up, (DRAFT, 0)]


async def test_a_crowd_is_written_in_parts_and_every_number_given_once(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    heads = await _opened(stores[0], 50)

    async def tell_on(head: SessionState) -> list[int]:
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


async def test_a_save_that_is_behind_is_not_hidden_by_a_later_one(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    (head,) = await _opened(stores[0])

    def told(by: int) -> Any:
        async def work(tx: Tx) -> None:
            now = await tx.sessions.head_by_key(head.key)
            assert now is not None
            await tx.events.append(head.key, [an_event(sequence=now.events + 1)])
            await tx.sessions.save(replace(now, events=now.events + 1, epoch=now.epoch + by))

        return work

    await stores[0].write(told(1))
    # Written elsewhere, so that nothing can be played on what is remembered.
    await stores[1].write(told(1))
    done = await asyncio.gather(*map(stores[0].write, (told(-1), told(1))), return_exceptions=True)

    assert (type(done[0]), done[1]) == (Conflict, None)
    now = await stores[1].read(lambda tx: tx.sessions.head_by_key(head.key))
    assert now is not None
    assert (now.epoch, now.events) == (3, 3)


async def test_a_refusal_that_somebody_caught_is_one_all_the_same(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    heads = await _opened(stores[0], 3)

    async def taken(tx: Tx) -> None:
        await tx.sessions.save(replace(heads[0], epoch=5))

    async def stale(tx: Tx) -> None:
        await tx.sessions.head_by_key(heads[0].key)
        await tx.events.append(heads[0].key, [an_event(sequence=1)])
        await tx.sessions.save(replace(heads[0], epoch=3, events=1))

    async def caught(tx: Tx) -> str:
        try:
            await tx.sessions.head_by_key(heads[1].key)
            await tx.events.after(heads[1], 0, limit=1)
        except Conflict:
            return "caught"
        return "looked"

    async def both(tx: Tx) -> str:
        with suppress(Conflict):
            await stale(tx)
        return await caught(tx)

    await stores[0].write(taken)
    done = [
        await asyncio.gather(*map(stores[0].write, works), return_exceptions=True)
        for works in ((stale, caught), (both,), (both, _told(heads[2])))
    ]

    assert [each for each in done[0] + done[1] + done[2] if not isinstance(each, Conflict)] == [
        "looked",
        1,
    ]
    assert await _numbers(stores[1], heads[0]) == []


@pytest.mark.parametrize("is_draft", [True, False])
async def test_who_writes_while_all_is_cancelled_is_written(
    databases: Databases, stores: tuple[PostgresStore, PostgresStore], is_draft: bool
) -> None:
    heads = await _opened(stores[0], 2)
    for head in heads:
        await stores[0].write(_told(head))
    writer = stores[0]._writer
    if not is_draft:
        writer._lane.known.clear()

    with raw_rows(databases.server.url("usual")) as rows:
        rows.execute("BEGIN")
        rows.execute("SELECT 1 FROM sessions WHERE key = ? FOR UPDATE", (heads[0].key,))
        before = asyncio.all_tasks()
        stopped = asyncio.ensure_future(stores[0].write(_told(heads[0])))
        while await asyncio.to_thread(databases.run, "usual", [WAITS]) == [[(0,)]]:
            pass
        # As a loop does it that is about to end.
        for task in asyncio.all_tasks() - before:
            task.cancel()
        given = await stores[0].write(_told(heads[1]))
        rows.execute("COMMIT")

    assert (stopped.cancelled(), given) == (True, 2)
    assert await stores[0].write(_told(heads[0])) == 2


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
