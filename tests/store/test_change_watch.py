"""The doorbell rings at once for this process, soon for others, and sleeps when nobody listens."""

import asyncio
import gc
import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.ids import SessionKey
from holdfast.domain.models import model_of
from holdfast.ports.system import Frame, Notification
from holdfast.store.sqlite.change_watch import INTERVAL, StoreDoorbell
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import a_head
from tests.stand_ins import PATIENCE
from tests.store.conftest import KEY

pytestmark = pytest.mark.anyio

HERE, THERE = SessionKey(1), SessionKey(2)
TOLD = Notification(a_head(), [Frame(1, b"{}")])


class Version:
    """A number that the test changes, and how often it was asked for."""

    def __init__(self) -> None:
        self.number = 1
        self.asked = 0
        self.is_failing = False
        self.looked = asyncio.Event()

    async def __call__(self) -> int:
        self.asked += 1
        self.looked.set()
        self.looked = asyncio.Event()
        if self.is_failing:
            raise Unavailable(Code.STORE_BUSY, "busy")
        return self.number

    async def again(self) -> None:
        """Wait until the next look has begun."""
        async with asyncio.timeout(PATIENCE):
            await self.looked.wait()


async def _is_rung(bell: object) -> bool:
    """Tell whether the bell has been rung by now."""
    try:
        async with asyncio.timeout(0):
            await bell.rung()  # type: ignore[attr-defined]
    except TimeoutError:
        return False
    return True


async def test_our_own_ring_is_heard_at_once() -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        bell = doorbell.listen(HERE)
        waiting = asyncio.create_task(bell.rung())
        await asyncio.sleep(0)
        doorbell.ring(HERE)
        await asyncio.wait_for(waiting, INTERVAL / 2)


async def test_a_ring_between_listening_and_waiting_is_not_lost() -> None:
    async with StoreDoorbell(Version()) as doorbell:
        bell = doorbell.listen(HERE)
        doorbell.ring(HERE)

        assert await _is_rung(bell)
        assert await _is_rung(bell)


async def test_a_follower_gets_what_was_written_at_each_ring_until_it_leaves() -> None:
    got: list[Notification | None] = []
    async with StoreDoorbell(Version()) as doorbell:
        doorbell.follow(HERE, lambda tell: got.append(tell and tell()))
        doorbell.ring(HERE, lambda: TOLD)
        doorbell.ring(HERE)
        doorbell.ring(HERE, lambda: TOLD)
        doorbell.follow(HERE, None)
        doorbell.ring(HERE, lambda: TOLD)

    assert got == [TOLD, None, TOLD]
    assert doorbell.rings == 4


async def test_a_follower_learns_that_another_process_has_written() -> None:
    version = Version()
    rung = asyncio.Event()
    async with StoreDoorbell(version) as doorbell:
        doorbell.follow(HERE, lambda tell: rung.set() if tell is None else None)
        async with asyncio.timeout(PATIENCE):
            # At first nothing is known of the store.
            await rung.wait()
            rung.clear()

            version.number += 1

            await rung.wait()


async def test_a_ring_before_listening_is_none_of_ours() -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        early = doorbell.listen(HERE)
        doorbell.ring(HERE)
        late = doorbell.listen(HERE)

        assert (await _is_rung(early), await _is_rung(late)) == (True, False)


async def test_a_ring_at_another_door_is_not_heard() -> None:
    async with StoreDoorbell(Version()) as doorbell:
        bell = doorbell.listen(HERE)
        doorbell.ring(THERE)

        assert not await _is_rung(bell)


async def test_all_who_listen_hear_the_same_ring() -> None:
    async with StoreDoorbell(Version()) as doorbell:
        bells = [doorbell.listen(HERE) for _ in range(10)]
        doorbell.ring(HERE)

        assert all([await _is_rung(bell) for bell in bells])


async def test_a_change_by_another_process_rings_at_every_door() -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        first = doorbell.listen(HERE)
        async with asyncio.timeout(PATIENCE):
            await first.rung()
        bells = [doorbell.listen(HERE), doorbell.listen(THERE)]

        version.number += 1

        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(bell.rung() for bell in bells))


async def test_without_a_change_nothing_rings() -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        first = doorbell.listen(HERE)
        async with asyncio.timeout(PATIENCE):
            await first.rung()
        bell = doorbell.listen(HERE)

        for _ in range(3):
            await version.again()

        assert not await _is_rung(bell)


async def test_nobody_looks_while_nobody_listens() -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        await asyncio.sleep(2 * INTERVAL)
        assert version.asked == 0

        bell = doorbell.listen(HERE)
        await version.again()
        del bell
        gc.collect()
        asked = version.asked
        await asyncio.sleep(4 * INTERVAL)
        assert version.asked <= asked + 1

        doorbell.listen(HERE)
        await version.again()


async def test_a_look_that_fails_rings_nowhere_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = Version()
    async with StoreDoorbell(version) as doorbell:
        first = doorbell.listen(HERE)
        async with asyncio.timeout(PATIENCE):
            await first.rung()
        version.is_failing = True
        version.number += 1
        bell = doorbell.listen(HERE)
        with caplog.at_level(logging.WARNING):
            await version.again()
            await version.again()
        assert not await _is_rung(bell)
        assert "the store cannot be watched: busy" in caplog.messages

        version.is_failing = False
        async with asyncio.timeout(PATIENCE):
            await bell.rung()


async def test_a_store_tells_other_connections_changes_from_its_own(file: Path) -> None:
    one, other = SqliteStore(file, KEY), SqliteStore(file, KEY)
    try:
        before = await one.version()
        await one.write(lambda tx: tx.sessions.extend("nobody", 1))
        assert await one.version() == before

        await one.write(lambda tx: tx.models.add(model_of("a:own")))
        assert await one.version() == before
        await other.write(lambda tx: tx.models.add(model_of("a:other")))
        assert await one.version() != before
    finally:
        await one.close()
        await other.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from holdfast.domain.models import model_of
from holdfast.store.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]), bytes(range(32)))
    print("ready", flush=True)
    sys.stdin.readline()
    await store.write(lambda tx: tx.models.add(model_of("a:b")))
    print("written", flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_another_process_is_heard_within_a_tenth_of_a_second_or_so(
    store: SqliteStore, file: Path
) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITER,
        str(file),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    async with asyncio.timeout(PATIENCE), StoreDoorbell(store.version) as doorbell:
        await writer.stdout.readline()
        first = doorbell.listen(HERE)
        await first.rung()
        bell = doorbell.listen(HERE)

        writer.stdin.write(b"\n")
        await writer.stdin.drain()
        await writer.stdout.readline()
        told = time.monotonic()
        await bell.rung()

        # The bound is generous, because a busy machine may pause both of us.
        assert time.monotonic() - told < 1
    await writer.wait()
