"""R07: the Nth sync fails; nothing is acknowledged before the store was reopened and verified."""

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Unavailable, open_holdfast
from holdfast.app import Environment
from tests.marks import proves
from tests.torture.attempts import read_attempts
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.disks import Disk, NthFault, no_fault
from tests.torture.powered import EarlierBoot, Positioned, faults_of_images
from tests.torture.spies import DeafStore

pytestmark = pytest.mark.slow

PERSISTENT = 3
TOLD = {"ok", "store_poisoned"}


@proves("R07")
def test_after_a_failed_sync_nothing_is_acknowledged_that_could_be_lost(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    syncs = sized(quick=3, test=10, torture=40, release=400)
    refused = 0
    wrong: list[str] = []

    for nth in range(1, syncs + 1):
        folder = tmp_path / str(nth)
        folder.mkdir()
        disk = Disk()
        record = asyncio.run(written_with_a_failed_sync(folder, luck, disk, nth))
        refused += sum(each.outcome != "ok" for each in read_attempts([folder / "a.jsonl"]))
        wrong += [f"sync {nth}: {each}" for each in early_answers(disk, record)]
        wrong += [f"sync {nth}: {each}" for each in strange_answers(folder)]
        last = len(disk.log)
        cuts = [last, luck.randrange(last // 2, last), last]
        wrong += faults_of_images(folder, record, disk, cuts, luck)[1]

    tell(f"{syncs} failed syncs, {refused} requests told the truth, 0 acknowledged and lost")
    assert wrong == []
    assert refused > 0


@proves("R07")
def test_the_row_finds_a_store_that_does_not_listen(tmp_path: Path, luck: random.Random) -> None:
    deaf = partial(DeafStore, heard=Unavailable)
    lost = 0
    for nth in range(3, 8):
        folder = tmp_path / str(nth)
        folder.mkdir()
        disk = Disk()
        record = asyncio.run(written_with_a_failed_sync(folder, luck, disk, nth, deaf))
        cuts = [len(disk.log)] * 3
        lost += faults_of_images(folder, record, disk, cuts, luck)[0]

    assert lost > 0


async def written_with_a_failed_sync(
    folder: Path, luck: random.Random, disk: Disk, nth: int, wrap: Any = lambda store: store
) -> Positioned:
    """Talk until a sync fails, repeat what failed with the same key, and talk on."""
    record = Positioned(folder / "a.jsonl", disk)
    outside = Environment(vfs=disk.vfs, wrap=wrap, machine=EarlierBoot())
    async with open_holdfast(config=settings(folder / "home"), outside=outside) as house:
        client = Client(house, record)
        session = new_id(luck)
        await client.open(session)
        fault = disk.fault = NthFault("sync", nth, apsw.IOError, for_good=not nth % PERSISTENT)
        rounds_after = 2
        while rounds_after:
            await asyncio.gather(*(_insist(client, session, luck, disk) for _ in range(3)))
            rounds_after -= fault.has_struck
        disk.fault = no_fault
        await _insist(client, session, luck, disk)
    record.close()
    return record


async def _insist(client: Client, session: str, luck: random.Random, disk: Disk) -> None:
    """Send, and send again with the same key until it is acknowledged; a disk heals in time."""
    key = new_id(luck, "short")
    for tries in range(8):
        if await client.send(session, key) is not None:
            return
        if tries == 4:
            disk.fault = no_fault
    raise AssertionError(f"message {key} was refused again and again")


def strange_answers(folder: Path) -> list[str]:
    """Return every outcome that neither says done nor tells what to do."""
    return sorted(
        {str(each.outcome) for each in read_attempts([folder / "a.jsonl"])} - {*TOLD, "None"}
    )


def early_answers(disk: Disk, record: Positioned) -> list[str]:
    """Return what was asked after a failed sync and acknowledged before all was synced anew.

    An answer to what was asked before may be under way already; the images judge those.
    """
    early = []
    for place, operation in enumerate(disk.log):
        if operation.kind != "failed sync":
            continue
        sound = _verified_after(disk, place)
        early += [
            f"answer {number} at {at}: the sync at {place} had failed, sound again at {sound}"
            for number, at in record.answered.items()
            if place < record.begun[number] and at <= sound and number in record.acknowledged
        ]
    return early


def _verified_after(disk: Disk, place: int) -> int:
    """Return where the whole log was moved into the database file, synced and cut to nothing."""
    synced = False
    for number, operation in enumerate(disk.log[place + 1 :], start=place + 1):
        if operation.kind.startswith("failed"):
            synced = False
        if (operation.kind, operation.file) == ("sync", "db"):
            synced = True
        if synced and (operation.kind, operation.file) in {("truncate", "wal"), ("delete", "wal")}:
            return number
    return len(disk.log)
