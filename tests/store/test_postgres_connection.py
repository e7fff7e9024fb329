"""Connections to Postgres: what is kept of them in the log, and how one is noticed that is dead."""

import logging
import socket
from typing import Any

import pytest

from holdfast.domain.errors import Code, HoldfastError
from holdfast.store.postgres.connection import keep_alive
from holdfast.store.postgres.store import PostgresStore
from tests.builders import an_agent
from tests.postgres import Databases

SECRET = "opensesame"


def test_a_machine_that_is_gone_without_a_word_is_noticed() -> None:
    with socket.socket(socket.AF_INET) as far, socket.socket(socket.AF_UNIX) as near:
        keep_alive(far)
        keep_alive(near)

        assert far.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        silence = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        tries = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert silence + tries * far.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 20


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("value", [2**63, f"{SECRET}\ud800", SECRET])
async def test_what_was_to_be_kept_is_in_no_log_when_it_is_refused(
    databases: Databases, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    async def broken(tx: Any) -> None:
        sql = "SELECT 1 WHERE CAST(:value AS BIGINT) = 1"
        await tx.sessions._db.fetch(sql if isinstance(value, int) else _CASTING, {"value": value})

    store = await PostgresStore.open(databases.empty())
    for ask in (store.read, store.write):
        with caplog.at_level(logging.WARNING), pytest.raises(HoldfastError) as caught:
            await ask(broken)
        assert caught.value.code is Code.INTERNAL
    await store.close()

    assert "a statement was refused" in caplog.text
    assert not any(str(value) in record.getMessage() for record in caplog.records)
    assert SECRET not in str([record.getMessage() for record in caplog.records])


_CASTING = "SELECT CAST(CAST(:value AS TEXT) AS BIGINT)"


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_processes_noted_that_are_long_gone_is_swept_away(databases: Databases) -> None:
    url = databases.empty()
    old = "INSERT INTO writers VALUES ('gone', 1, now() - INTERVAL '2 hours'), ('here', 1, now())"
    databases.run("usual", [old])

    store = await PostgresStore.open(url)
    await store.write(lambda tx: tx.agents.add(an_agent()))
    await store.close()

    ((*noted,),) = databases.run("usual", ["SELECT name, number FROM writers"])
    assert ("here", 1) in noted
    assert len([name for name, _ in noted if name not in {"here", "gone"}]) == 1
    assert "gone" not in dict(noted)
