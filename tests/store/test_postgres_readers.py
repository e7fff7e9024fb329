"""Readers of a store on Postgres: a snapshot for each who asks, and none left open for long."""

import asyncio

import pytest

from holdfast.domain.errors import Code, HoldfastError
from holdfast.ports.store import Tx
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.store import PostgresStore
from tests.builders import an_agent
from tests.postgres import Databases
from tests.stand_ins import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPEN = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = 'usual' AND application_name = 'holdfast' AND state LIKE 'idle in transaction%'
"""


@pytest.mark.torture
async def test_a_snapshot_that_nobody_follows_is_ended_soon(databases: Databases) -> None:
    store = await PostgresStore.open(databases.empty())

    await asyncio.gather(*[store.read(lambda tx: tx.models.all()) for _ in range(20)])

    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(databases.run, "usual", [OPEN]) != [[(0,)]]:
            pass
    await store.close()


async def test_every_read_sees_what_was_written_before_it(databases: Databases) -> None:
    store = await PostgresStore.open(databases.empty())
    agent = an_agent()

    async def found(tx: Tx) -> bool:
        return await tx.agents.by_slug(agent.owner, agent.slug) is not None

    before = await store.read(found)
    await store.write(lambda tx: tx.agents.add(agent))
    after = await store.read(found)
    await store.close()

    assert (before, after) == (False, True)


async def test_a_reader_that_failed_reads_again(databases: Databases) -> None:
    store = await PostgresStore.open(databases.empty())

    async def refused(tx: Tx) -> None:
        await tx.models.all()
        raise HoldfastError(Code.INTERNAL, "Not now.")

    with pytest.raises(HoldfastError):
        await store.read(refused)

    assert await store.read(lambda tx: tx.models.all()) == []
    await store.close()


async def test_whoever_is_stopped_while_a_snapshot_ends_leaves_none_open(
    databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await PostgresStore.open(databases.empty())
    ending = asyncio.Event()
    command = PostgresConnection.command
    used: list[PostgresConnection] = []

    async def stalled(connection: PostgresConnection, sql: str) -> None:
        if sql == "ROLLBACK":
            used.append(connection)
            ending.set()
            await asyncio.Event().wait()
        await command(connection, sql)

    async def refused(tx: Tx) -> None:
        await tx.models.all()
        raise HoldfastError(Code.INTERNAL, "Not now.")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConnection, "command", stalled)
        reading = asyncio.ensure_future(store.read(refused))
        await ending.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    assert [connection.raw.is_closed() for connection in used] == [True]
    assert await store.read(lambda tx: tx.models.all()) == []
    await store.close()
