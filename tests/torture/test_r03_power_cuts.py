"""R03: the power fails under load; what was acknowledged before is there afterwards."""

import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from tests.marks import proves
from tests.torture.audit import Audit, audit
from tests.torture.clients.house import Client, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.disks import Disk, recorded_anchor
from tests.torture.loads import Loads
from tests.torture.loops import loop_disk, missing_means
from tests.torture.powered import EarlierBoot, Positioned, faults_of_images, one_life
from tests.torture.recovery import recovered
from tests.torture.spies import careless

pytestmark = pytest.mark.slow

CLIENTS = 3


@proves("R03")
def test_every_image_of_a_power_cut_holds_what_was_acknowledged(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    # Beside true cuts; where there are none, the images stand for them.
    cuts = sized(test=8, torture=150, release=2_000)
    if missing_means():
        cuts = sized(quick=15, test=200, torture=400, release=4_000)

    lost, acknowledged, faults = cut_and_recover(tmp_path, luck, cuts=cuts)

    tell(f"{cuts} crash images (recording VFS), {acknowledged} acknowledged, {lost} lost")
    assert faults == []


@proves("R03")
def test_the_images_find_a_store_that_does_not_sync_each_commit(
    tmp_path: Path, luck: random.Random
) -> None:
    lost, _, _ = cut_and_recover(tmp_path, luck, cuts=8, wrap=careless)

    assert lost > 0


@proves("R03")
def test_a_true_power_cut_loses_nothing_acknowledged(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if missing_means():
        tell(f"no true cuts: needs {missing_means()}; the images are the form without root")
        return
    cuts = sized(test=10, torture=50, release=1_000)

    result = cut_spree(tmp_path, crew, luck, cuts=cuts)

    tell(f"{cuts} power cuts (ext4), {result.acknowledged} acknowledged, 0 lost")
    assert result.is_clean, result
    assert result.acknowledged > cuts


@proves("R03")
def test_a_power_cut_right_after_the_first_words_leaves_the_new_home_and_its_key(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if missing_means():
        return
    homes = sized(test=3, torture=20, release=200)

    results = cut_new_homes(tmp_path, crew, luck, homes=homes)

    tell(f"{homes} homes cut off right after they were made")
    assert [str(result) for result in results if not result.is_clean] == []
    assert all(result.acknowledged for result in results)


@proves("R03")
def test_the_cuts_find_a_store_that_does_not_sync_each_commit(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    if missing_means():
        return

    assert cut_spree(tmp_path, crew, luck, cuts=5, fault="careless").counts["LOST"] > 0


def cut_spree(
    folder: Path, crew: Crew, luck: random.Random, *, cuts: int, fault: str = ""
) -> Audit:
    """Fail the power of a disk again and again, each time under the load of several clients."""
    with loop_disk(folder) as disk:
        home = disk.mount / "home"
        loads = Loads(crew, folder, luck, home=home, fault=fault)
        for _ in range(cuts):
            loads.start(*range(CLIENTS))
            # Something was acknowledged that can be lost; from then on any moment will do.
            loads.wait_for_a_yes(*range(CLIENTS), verb="send")
            time.sleep(luck.uniform(0, 0.5))
            # A sync under way at the cut may still report success to a program that lives on,
            # but no program outlives its power: they are stopped first.
            crew.freeze(*loads.running.values())
            disk.cut()
            loads.kill(*range(CLIENTS))
            disk.restart()
        asyncio.run(recovered(home))
        return audit(
            home, records=folder.glob("*.jsonl"), streams=folder.glob("*.stream"), mark=crew.mark
        )


def cut_new_homes(folder: Path, crew: Crew, luck: random.Random, *, homes: int) -> list[Audit]:
    """Fail the power as soon as a home that was not there before has said its first yes."""
    results = []
    with loop_disk(folder) as disk:
        for number in range(homes):
            home = disk.mount / str(number) / "home"
            home.parent.mkdir()
            loads = Loads(crew, folder, luck, home=home)
            loads.start(number)
            loads.wait_for_a_yes(number)
            crew.freeze(*loads.running.values())
            disk.cut()
            loads.kill(number)
            disk.restart()
            asyncio.run(recovered(home))
            results.append(audit(home, records=[folder / f"c{number}.jsonl"]))
            # Each holds some space back for itself, and the disk is small.
            shutil.rmtree(home)
    return results


def cut_and_recover(
    folder: Path, luck: random.Random, *, cuts: int, wrap: Any = lambda store: store
) -> tuple[int, int, list[str]]:
    """Write under load, then recover images of random instants; count what each one lacks."""
    disk = Disk()
    record = asyncio.run(written_under_load(folder, luck, disk, wrap))
    first = min(record.answered.values())
    places = [luck.randrange(first, len(disk.log) + 1) for _ in range(cuts)]
    lost, faults = faults_of_images(folder, record, disk, places, luck)
    return lost, len(record.answered), faults


async def written_under_load(
    folder: Path, luck: random.Random, disk: Disk, wrap: Any
) -> Positioned:
    """Live several lives at once on a recording disk."""
    record = Positioned(folder / "a.jsonl", disk)
    outside = Environment(vfs=disk.vfs, wrap=wrap, machine=EarlierBoot())
    with recorded_anchor(disk):
        async with open_holdfast(config=settings(folder / "home"), outside=outside) as house:
            client = Client(house, record)
            await asyncio.gather(*(one_life(client, luck) for _ in range(8)))
    record.close()
    return record
