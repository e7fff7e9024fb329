"""Drafts whose answer is lost: written once, or not at all, and never told as what they are not."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.sessions import SessionState
from holdfast.store.postgres import connect
from holdfast.store.postgres import lane as postgre_lane
from holdfast.store.postgres.drafts import Draft
from holdfast.store.postgres.lane import Lane
from holdfast.store.postgres.ledger import _EPOCH
from holdfast.store.postgres.listen import CHANNEL
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.sqlite.jobs import Job, Kind
from tests.postgres import Databases
from tests.raw_rows import raw_rows
from tests.store.test_postgres_drafts import _opened
from tests.store.test_postgres_store import _numbers, _told
from tests.store.wire_cutter import Cut, WireCutter, wire_to

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.torture]

# Nobody can note anything any more, as on a full disk.
REFUSING = [
    """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'no'; END $$
""",
    """
CREATE TRIGGER refuse BEFORE UPDATE ON writers
   FOR EACH STATEMENT EXECUTE FUNCTION refuse()
""",
]


@asynccontextmanager
async def _over_a_wire(
    databases: Databases,
) -> AsyncIterator[tuple[PostgresStore, SessionState, WireCutter]]:
    """Open a store over a wire that can be cut, with a session that is remembered."""
    databases.empty()
    with tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        async with wire_to(databases.server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/usual?host={folder}")
            (head,) = await _opened(store)
            for _ in range(2):
                await store.write(_told(head))
            yield store, head, wire
            await store.close()


async def _drafted(store: PostgresStore) -> tuple[SessionState, Lane, Draft]:
    """Return a draft that nobody has written yet, and where it would be."""
    (head,) = await _opened(store)
    await store.write(_told(head))
    lane = store._writer._lane
    draft = Draft(lane.known)
    assert draft.is_played(Job(_told(head), Kind.ORDINARY))
    return head, lane, draft


@pytest.mark.parametrize("how", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("together", [1, 5])
async def test_a_draft_whose_answer_is_lost_is_written_once(
    databases: Databases, how: Cut, together: int
) -> None:
    async with _over_a_wire(databases) as (store, head, wire):
        wire.cut, wire.sign = how, CHANNEL.encode()

        given = await asyncio.gather(*[store.write(_told(head)) for _ in range(together)])

        assert (given, wire.cuts) == (list(range(3, together + 3)), 1)
        assert await _numbers(store, head) == list(range(1, together + 3))


async def test_a_draft_that_comes_late_finds_that_it_was_given_up(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    head, lane, draft = await _drafted(stores[0])
    sql, values = draft.statement(*lane._fate.draft(), CHANNEL, "nobody:1")
    connection = await lane._connected()

    made = await lane._fate.is_made(connection)
    is_written = await connection.value(sql, *values)
    again = await stores[0].write(_told(head))

    assert (made, is_written, again) == (False, False, 2)
    assert await _numbers(stores[1], head) == [1, 2]


async def test_of_a_draft_that_saves_too_little_nothing_is_written(
    stores: tuple[PostgresStore, PostgresStore],
) -> None:
    head, lane, draft = await _drafted(stores[0])
    (saved,) = draft._ledger.sessions.values()
    draft._ledger.sessions[head.key] = [*saved[:_EPOCH], -1, *saved[_EPOCH + 1 :]]

    is_written = await lane.is_written(draft)

    assert not is_written
    assert await _numbers(stores[1], head) == [1]


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
    for module in (connect, postgre_lane):
        monkeypatch.setattr(module, "PATIENCE", 0.5)
    async with _over_a_wire(databases) as (store, head, wire):
        wire.cut, wire.sign, wire.is_final = Cut.AFTER, CHANNEL.encode(), True

        with pytest.raises(Unavailable) as unknown:
            await store.write(_told(head))
    again = await PostgresStore.open(databases.server.url("usual"))
    numbers = await _numbers(again, head)
    await again.close()

    assert "Repeat the request with the same id" in unknown.value.message
    assert numbers == [1, 2, 3]


async def test_a_draft_of_which_postgres_will_not_tell_is_told_as_unknown(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgre_lane, "PATIENCE", 0.5)
    async with _over_a_wire(databases) as (store, head, wire):
        wire.cut, wire.sign, wire.is_final = Cut.AFTER, CHANNEL.encode(), True

        writing = asyncio.ensure_future(store.write(_told(head)))
        await wire.has_cut.wait()
        await asyncio.to_thread(_written_meanwhile, databases, head)
        await asyncio.to_thread(databases.run, "usual", REFUSING)
        wire.is_final = False
        with pytest.raises(Unavailable) as unknown:
            await writing
        await asyncio.to_thread(databases.run, "usual", ["DROP FUNCTION refuse CASCADE"])
        afterwards = await store.write(_told(head))
        numbers = await _numbers(store, head)

    assert "Repeat the request with the same id" in unknown.value.message
    assert (afterwards, numbers) == (4, [1, 2, 3, 4])


def _written_meanwhile(databases: Databases, head: SessionState) -> None:
    """Wait until Postgres has written what it was cut off from telling."""
    asked = f"SELECT count(*) FROM events WHERE session_key = {head.key}"
    while databases.run("usual", [asked]) != [[(3,)]]:
        pass


async def test_a_draft_that_was_refused_for_certain_is_no_riddle(
    databases: Databases, stores: tuple[PostgresStore, PostgresStore]
) -> None:
    (head,) = await _opened(stores[0])
    for _ in range(2):
        await stores[0].write(_told(head))
    connection = await stores[0]._writer._lane._connected()
    await connection.raw.execute("SET default_transaction_read_only = on")
    only_read = "ALTER DATABASE usual SET default_transaction_read_only = on"
    databases.run("postgres", [only_read])
    try:
        with pytest.raises(Unavailable) as refused:
            await stores[0].write(_told(head))
    finally:
        databases.run("postgres", ["ALTER DATABASE usual RESET default_transaction_read_only"])

    assert refused.value.code is Code.STORE_UNSAFE
    assert await stores[0].write(_told(head)) == 3
