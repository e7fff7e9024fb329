"""A program that uses a desk step by step, says so before and after, and dies at a touch."""

import json
import os
import random
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from holdfast import Holdfast, RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.ports.store import Tx
from tests.torture.clients.house import settings
from tests.torture.desk_model import AGENT, Desks, done, found, next_step
from tests.torture.disks import Disk, Operation

STEPS_MOST = 400


async def main(home: str, record: str, seed: int, dies_at: int, fault: str = "") -> None:
    """Do steps until the chosen touch of the disk, counted from the first step on."""
    now, _ = await found(Path(home))
    disk = Disk(recording=False)
    outside = Environment(vfs=disk.vfs)
    config = settings(Path(home))
    async with open_holdfast(config=config, scope=RunScope.NONE, outside=outside) as house:
        await house.agents.get(house.owner, "holdfast")
        disk.fault = _dying(dies_at)
        with _opened(record) as file:
            await _live(house, file, random.Random(seed), now, fault)


async def _live(house: Holdfast, file: TextIO, luck: random.Random, now: Desks, fault: str) -> None:
    for _ in range(STEPS_MOST):
        step = next_step(luck, now)
        _say(file, {"step": asdict(step)})
        if fault == "halves" and step.verb == "archive":
            await _by_halves(house)
        else:
            await done(house, step)
        now = now.after(step)
        _say(file, {"done": True})


async def _by_halves(house: Holdfast) -> None:
    """Archive as nobody should: copy first, and take away in a second transaction."""
    from holdfast.zones.binding import stamp_of
    from holdfast.zones.files import copy_zone, free_archive

    desk = await house.zones.show(house.owner, AGENT)
    id_ = desk.zone.split(":")[1]
    stamp = stamp_of(house.zones.stamping)

    async def copy(tx: Tx) -> None:
        zone, _ = await free_archive(tx, house.owner, id_, stamp.at)
        await copy_zone(tx, house.owner, desk.zone, zone, stamp=stamp)

    async def take_away(tx: Tx) -> None:
        await tx.zones.remove_all(house.owner, desk.zone)

    await house.store.write(copy)
    await house.store.write(take_away)


def _opened(record: str) -> TextIO:
    return Path(record).open("a")


def _dying(dies_at: int) -> Any:
    left = dies_at

    def count(operation: Operation) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def _say(file: TextIO, told: dict[str, Any]) -> None:
    file.write(json.dumps(told) + "\n")
    # Into the system's hands: a killed process takes nothing of it along.
    file.flush()
