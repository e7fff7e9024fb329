"""Several processes that open a new home at once: one store, one key, and no lock error."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.queries import SessionQuery
from holdfast.store.sqlite.store import SqliteStore
from tests.stand_ins import PATIENCE

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPENER = """
import asyncio, sys
from pathlib import Path
from holdfast import RunScope, open_holdfast

async def main():
    home, number = Path(sys.argv[1]), sys.argv[2]
    import holdfast.app
    print("ready", flush=True)
    sys.stdin.readline()
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, f"from {number}")
        print(house.key_source, (home / "key").read_text().strip(), flush=True)

asyncio.run(main())
"""


@pytest.mark.torture
async def test_processes_that_open_a_new_home_at_once_share_it(home: Path) -> None:
    count = 4
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            OPENER,
            str(home),
            str(number),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(count)
    ]
    async with asyncio.timeout(PATIENCE):
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        told = await asyncio.gather(*(process.communicate(b"\n") for process in processes))

    assert [
        (process.returncode, err) for process, (_, err) in zip(processes, told, strict=True)
    ] == [(0, b"")] * count
    assert len({out for out, _ in told}) == 1
    assert told[0][0].startswith(b"keyfile ")
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        sessions = (await house.sessions.list(SessionQuery(owner=house.owner))).items
        assert {session.title for session in sessions} == {f"from {n}" for n in range(count)}
        assert isinstance(house.store, SqliteStore)
        assert await house.store.check() == []
