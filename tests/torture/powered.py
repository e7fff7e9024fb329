"""Writing on a recording disk, and what its crash images hold: shared by the rows of the disk."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast import HoldfastError
from holdfast.domain.leases import Holder
from tests.torture.attempts import OK, Attempt, Record, read_attempts
from tests.torture.audit import judge
from tests.torture.clients.house import Client, new_id
from tests.torture.disks import Disk
from tests.torture.images import images, write_image
from tests.torture.recovery import recovered


class Positioned(Record):
    """A record that also knows how far the disk was when each answer came."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path, synced=False)
        self._disk = disk
        self.begun: dict[int, int] = {}
        self.answered: dict[int, int] = {}
        self.acknowledged: set[int] = set()

    def attempt(self, verb: str, session: str, key: str, body: str = "") -> int:
        """Write down what is about to be asked, and how far the disk is."""
        number = super().attempt(verb, session, key, body)
        self.begun[number] = len(self._disk.log)
        return number

    def answer(self, number: int, outcome: str, **answer: Any) -> None:
        """Write down what came back, and how far the disk is."""
        self.answered[number] = len(self._disk.log)
        if outcome == OK:
            self.acknowledged.add(number)
        super().answer(number, outcome, **answer)

    def known_at(self, attempts: Sequence[Attempt], cut: int) -> list[Attempt]:
        """Return the attempts as they stood at a cut: what was answered later is not yet."""
        never = len(self._disk.log) + 1
        return [
            each
            if self.answered.get(each.number, never) <= cut
            else replace(each, outcome=None, answer={})
            for each in attempts
            if self.begun[each.number] <= cut
        ]


class EarlierBoot:
    """This process as it was before the power failed: nobody can find it alive afterwards."""

    def holder(self) -> Holder:
        """Return a holder of another boot."""
        return Holder(boot="before-the-cut", space="x", pid=1, started=1, nonce="x")

    def is_gone(self, holder: Holder) -> bool:
        """Tell nothing: there is only one process on a recording disk."""
        return False


def faults_of_images(
    folder: Path, record: Positioned, disk: Disk, cuts: Sequence[int], luck: random.Random
) -> tuple[int, list[str]]:
    """Recover an image for each cut; return how much was lost, and everything that is wrong."""
    attempts = read_attempts([folder / "a.jsonl"])
    lost = 0
    faults: list[str] = []
    for number, (cut, files) in enumerate(images(disk.log, cuts, luck)):
        home = folder / f"image{number}"
        home.mkdir()
        shutil.copy(folder / "home" / "key", home / "key")
        write_image(home, files)
        try:
            asyncio.run(recovered(home))
        except HoldfastError as error:
            # Nothing that was acknowledged can be had from a store that does not open.
            lost += 1
            faults.append(f"cut at {cut}: {error.message}")
            continue
        result = judge(home, record.known_at(attempts, cut))
        lost += result.counts["LOST"]
        if not result.is_clean:
            faults.append(f"cut at {cut}: {result}")
        shutil.rmtree(home)
    return lost, faults


async def one_life(client: Client, luck: random.Random) -> None:
    """Talk in a session, with a fork, a closing and a deletion in between."""
    session, fork = new_id(luck), new_id(luck)
    await client.open(session)
    for number in range(12):
        await client.send(session, new_id(luck, luck.choice(["short", "long"])))
        await asyncio.sleep(luck.uniform(0, 0.02))
        if number == 6:
            await client.fork(session, fork)
            await client.send(fork, new_id(luck, "short"))
            await client.act("close", fork)
    await client.act("delete", fork)
    await client.act("interrupt", session)
