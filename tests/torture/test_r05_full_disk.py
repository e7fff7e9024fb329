"""R05: the Nth write finds the disk full: it is done, or it is refused and nothing changed."""

import asyncio
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import HoldfastError, StorageFull, open_holdfast
from holdfast.app import Environment
from holdfast.ports.store import Store
from tests.marks import proves
from tests.torture.attempts import Record
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.disks import Disk, NthFault, no_fault
from tests.torture.notebooks import read_books
from tests.torture.recovery import quiet, recovered, until, waiting
from tests.torture.spies import DeafStore, RegrettingStore

pytestmark = pytest.mark.slow

SESSION, PARENT, DOOMED, NEW, FORK, WORDS = (new_id(random.Random(n)) for n in range(6))
BACK_IN = 5.0
NEVER = 1_000_000
Wrap = Callable[[Store], Any]

OPERATIONS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "send": lambda client: client.send(SESSION, WORDS),
    "fork": lambda client: client.fork(PARENT, FORK),
    "delete": lambda client: client.act("delete", DOOMED),
    "open": lambda client: client.open(NEW),
    "close": lambda client: client.act("close", SESSION),
}


# What a control does to the store, which write fails, and what must then be found.
BROKEN: dict[str, tuple[Wrap, int, str]] = {
    "it acknowledges": (partial(DeafStore, heard=StorageFull), 1, f"LOST: message {WORDS}"),
    "it writes what it refuses": (RegrettingStore, NEVER, "refused, and yet something changed"),
}


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a few sessions in which something was said."""
    folder = tmp_path_factory.mktemp("stocked")
    asyncio.run(_stock(folder))
    return folder


async def _stock(folder: Path) -> None:
    record = Record(folder / "stock.jsonl")
    async with open_holdfast(config=settings(folder / "home")) as house:
        client = Client(house, record)
        for number, session in enumerate((SESSION, PARENT, DOOMED)):
            await client.open(session)
            await client.send(session, new_id(random.Random(10 + number), "long"))
    await recovered(folder / "home")
    record.close()


@proves("R05")
def test_a_full_disk_leaves_everything_done_or_nothing_changed(
    stocked: Path, tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    most = sized(quick=2, test=10, torture=20, release=1_000)
    names = list(OPERATIONS)[: sized(test=3, torture=5, release=5)]
    refused = done = 0
    slowest = 0.0
    wrong: list[str] = []

    for name in names:
        for nth in places(stocked, tmp_path, name, most):
            folder = shutil.copytree(stocked, tmp_path / f"{name}-{nth}")
            trial = asyncio.run(on_a_full_disk(folder, name, nth))
            wrong += trial.wrong
            refused += trial.refused
            done += not trial.refused
            slowest = max(slowest, trial.back_in)

    tell(f"{', '.join(names)}: {refused} times refused and unchanged, {done} times done")
    assert wrong == []
    assert slowest <= sized.within(BACK_IN)
    assert refused > len(names)


@proves("R05")
@pytest.mark.parametrize("name", BROKEN)
def test_the_row_finds_a_store_that_lies_about_a_full_disk(
    stocked: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(stocked, tmp_path / "broken")
    wrap, nth, found = BROKEN[name]

    trial = asyncio.run(on_a_full_disk(folder, "send", nth, wrap))

    assert found in str(trial.wrong)


@proves("R05")
def test_a_turn_that_finds_the_disk_full_goes_on_when_there_is_space(
    stocked: Path, tmp_path: Path, sized: Sized, tell: Tell
) -> None:
    most = sized(test=10, torture=20, release=1_000)
    slowest = 0.0

    for nth in range(1, 6 * most, 6):
        folder = shutil.copytree(stocked, tmp_path / str(nth))
        slowest = max(slowest, asyncio.run(a_turn_on_a_full_disk(folder, nth)))

    tell(f"{most} turns cut off, all ended {slowest:.1f} s after there was space at most")
    assert slowest <= sized.within(BACK_IN)


def places(stocked: Path, folder: Path, name: str, most: int) -> list[int]:
    """Return which writes of an operation to fail: all of them, or so many from first to last."""
    dry = shutil.copytree(stocked, folder / f"{name}-dry")
    count = asyncio.run(on_a_full_disk(dry, name, NEVER)).writes
    return sorted({1 + (count - 1) * number // max(1, most - 1) for number in range(most)})


@dataclass(frozen=True)
class Trial:
    """What came of one operation on a full disk."""

    writes: int
    refused: bool
    back_in: float
    wrong: list[str]


async def on_a_full_disk(
    folder: Path, name: str, nth: int, wrap: Wrap = lambda store: store
) -> Trial:
    """Do one thing while the disk is full, once or for good, and again when it is not."""
    disk = Disk(recording=False)
    home = folder / "home"
    record = Record(folder / "a.jsonl")
    wrong: list[str] = []
    outside = Environment(vfs=disk.vfs, wrap=wrap)
    async with open_holdfast(config=settings(home), outside=outside) as house:
        await house.agents.get(house.owner, "holdfast")
        client = Client(house, record)
        before = read_books(home)
        fault = disk.fault = NthFault("write", nth, apsw.FullError, for_good=bool(nth % 2))
        refusal = await _refusal(client, name)
        disk.fault = no_fault
        if refusal is not None:
            if not isinstance(refusal, StorageFull):
                wrong.append(f"refused with {refusal!r}")
            if before != read_books(home):
                wrong.append("refused, and yet something changed")
        begun = time.monotonic()
        if refusal is not None and await _refusal(client, name) is not None:
            wrong.append("refused once more when there was space")
        back_in = time.monotonic() - begun
    await recovered(home)
    record.close()
    result = audit(home, records=[folder / "stock.jsonl", folder / "a.jsonl"])
    if not result.is_clean:
        wrong.append(str(result))
    told = [f"{name} {nth}: {each}" for each in wrong]
    return Trial(fault.seen, refusal is not None, back_in, told)


async def _refusal(client: Client, name: str) -> HoldfastError | None:
    """Do it and return the error it was refused with."""
    refusals: list[HoldfastError] = []
    client.refused = refusals.append
    await OPERATIONS[name](client)
    client.refused = None
    return refusals[0] if refusals else None


async def a_turn_on_a_full_disk(folder: Path, nth: int) -> float:
    """Let a turn find the disk full; return how long after there is space it has ended."""
    disk = Disk(recording=False)
    home = folder / "home"
    record = Record(folder / "a.jsonl")
    async with open_holdfast(config=settings(home), outside=Environment(vfs=disk.vfs)) as house:
        client = Client(house, record)
        await client.send(SESSION, new_id(random.Random(nth), "long"))
        fault = disk.fault = NthFault("write", nth, apsw.FullError, for_good=True)
        await until(lambda: fault.has_struck or not waiting(home))
        disk.fault = no_fault
        begun = time.monotonic()
        await quiet(home)
        passed = time.monotonic() - begun
    record.close()
    result = audit(home, records=[folder / "stock.jsonl", folder / "a.jsonl"])
    assert result.is_clean, f"turn {nth}: {result}"
    return passed
