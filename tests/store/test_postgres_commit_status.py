"""Commits that a crash of the server takes away, whose numbers others are given afterwards."""

import asyncio
import signal
import tempfile
from pathlib import Path

import pytest

from holdfast.store.postgres import connect, writer
from holdfast.store.postgres.store import PostgresStore
from tests.commits import appending
from tests.postgres import Databases, Server, running
from tests.stand_ins import PATIENCE
from tests.store.test_postgres_store import _added, _numbers
from tests.store.wire_cutter import Cut, wire_to

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.torture]

# Nothing of a transaction is on the disk before its commit is.
UNHURRIED = {"wal_writer_delay": "10s", "autovacuum": "off"}


def _crash(server: Server, *, takes_names: bool) -> None:
    server.stop(signal.SIGKILL)
    server.start(UNHURRIED)
    if takes_names:
        databases = Databases(server)
        databases.run("postgres", ["INSERT INTO others VALUES (1)"] * 20)
        databases.close()


@pytest.mark.parametrize("takes_names", [False, True])
async def test_a_commit_that_a_crash_took_away_is_made_again(
    monkeypatch: pytest.MonkeyPatch, takes_names: bool
) -> None:
    for module in (connect, writer):
        monkeypatch.setattr(module, "RECONNECT_TIMEOUT", PATIENCE)
    with running() as server, tempfile.TemporaryDirectory(prefix="holdfast-wire-") as folder:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start, UNHURRIED)
        async with wire_to(server.folder, Path(folder)) as wire:
            store = await PostgresStore.open(f"postgresql://holdfast@/postgres?host={folder}")
            await store.read(lambda tx: tx.models.all())
            databases = Databases(server)
            databases.run("postgres", ["CREATE TABLE others (number BIGINT)"])
            databases.close()
            head = await store.write(_added)
            wire.cut, wire.is_final = Cut.BEFORE, True

            writing = asyncio.ensure_future(store.write(appending(head)))
            await wire.has_cut.wait()
            await asyncio.to_thread(_crash, server, takes_names=takes_names)
            wire.is_final = False

            async with asyncio.timeout(PATIENCE):
                assert await writing == 1
            assert await _numbers(store, head) == [1]
            await store.close()
