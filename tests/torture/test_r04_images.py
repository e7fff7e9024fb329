"""R04: crash images are taken every 50 ms while the writer runs, and each is recovered."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from tests.marks import proves
from tests.torture.clients.house import Client, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.disks import Disk, recorded_anchor
from tests.torture.powered import EarlierBoot, Positioned, faults_of_images, one_life
from tests.torture.spies import careless

pytestmark = pytest.mark.slow

EVERY = 0.05


@proves("R04")
def test_every_image_taken_under_way_is_a_prefix_with_all_that_was_acknowledged(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(test=20, torture=100, release=2_000)
    disk = Disk()

    with recorded_anchor(disk):
        record, cuts = asyncio.run(photographed(tmp_path, luck, disk, count))
    lost, faults = faults_of_images(tmp_path, record, disk, cuts, luck)

    tell(f"{count} images (recording VFS), {len(record.answered)} acknowledged, {lost} lost")
    assert faults == []


@proves("R04")
def test_the_images_find_a_store_that_does_not_sync_each_commit(
    tmp_path: Path, luck: random.Random
) -> None:
    disk = Disk()

    record, cuts = asyncio.run(photographed(tmp_path, luck, disk, 20, careless))
    lost, _ = faults_of_images(tmp_path, record, disk, cuts, luck)

    assert lost > 0


async def photographed(
    folder: Path, luck: random.Random, disk: Disk, count: int, wrap: Any = lambda store: store
) -> tuple[Positioned, list[int]]:
    """Write without a pause and note, every now and then, how far the disk is."""
    record = Positioned(folder / "a.jsonl", disk)
    outside = Environment(vfs=disk.vfs, wrap=wrap, machine=EarlierBoot())
    cuts: list[int] = []
    async with open_holdfast(config=settings(folder / "home"), outside=outside) as house:
        client = Client(house, record)
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(_live_on(client, luck, done))
            while len(cuts) < count:
                await asyncio.sleep(EVERY)
                if record.answered:
                    cuts.append(len(disk.log))
            done.set()
    record.close()
    return record, cuts


async def _live_on(client: Client, luck: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        await one_life(client, luck)
