"""R08: files or memory run out at the Nth call; it is refused cleanly, and nothing hangs after."""

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, Unavailable, open_holdfast
from holdfast.domain.errors import Code
from holdfast.domain.models import Model, model_of
from holdfast.execution.system import SystemMachine
from holdfast.ports.store import Tx
from tests.marks import proves
from tests.torture.attempts import read_lines
from tests.torture.audit import audit
from tests.torture.clients.house import settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, STARVED, Crew
from tests.torture.recovery import recovered

pytestmark = pytest.mark.slow

FILES = [0, 2, 5, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 25]
KIBIBYTES = [0, 2_000, 20_000, 200, 500, 1_000, 4_000, 6_000, 8_000, 10_000, 12_000, 15_000, 18_000]
KIBIBYTES += [25_000, 30_000, 40_000, 60_000, 80_000, 100_000, 150_000]
SPARE = {"files": FILES, "memory": KIBIBYTES}
# Python, and libraries below us, give up when they cannot have a few bytes: a crash like others.
DEATHS = {-signal.SIGABRT, -signal.SIGSEGV, STARVED}


@proves("R08")
@pytest.mark.parametrize("kind", ["files", "memory"])
def test_what_runs_out_is_refused_and_comes_back(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, kind: str
) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []

    for spare in SPARE[kind][: sized(quick=1, test=3, torture=20, release=150)]:
        folder = tmp_path / str(spare)
        folder.mkdir()
        told = starved(crew, folder, kind, spare)
        ends.update(each.partition(" in ")[0] for each in told["starving"])
        wrong += [f"{spare} to spare: {each}" for each in unclean(told)]
        asyncio.run(recovered(folder / "home"))
        result = audit(folder / "home", records=[folder / "a.jsonl"], mark=crew.mark)
        if not result.is_clean:
            wrong.append(f"{spare} to spare: {result}")

    tell(f"{kind}: {dict(ends)}")
    assert wrong == []
    assert set(ends) != {"done"}, "nothing ever ran out"


@proves("R08")
def test_memory_is_refused_at_the_nth_request(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, seed: int
) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    home, record = tmp_path / "home", tmp_path / "a.jsonl"
    number, last = seed, seed + sized(test=20, torture=200, release=2_000)

    while number < last:
        process = crew.start("failing", home=home, record=record, first=number, last=last)
        status = process.wait(timeout=5 * PATIENCE)
        told, begun = rounds_of(record, number)
        ends.update(each.partition(" in ")[0] for line in told for each in line["starving"])
        wrong += [f"--seed {line['number']}: {each}" for line in told for each in unclean(line)]
        if status in DEATHS:
            ends["killed"] += 1
        elif status:
            wrong.append(f"--seed {begun}: ended with {status}\n{crew.log_of(process)[-2000:]}")
        number = begun + 1

    asyncio.run(recovered(home))
    result = audit(home, records=[record], mark=crew.mark)
    tell(f"requests: {dict(ends)}")
    assert wrong == []
    assert result.is_clean, str(result)
    assert set(ends) != {"done"}, "nothing was ever refused"


def rounds_of(record: Path, first: int) -> tuple[list[dict[str, Any]], int]:
    """Return what a client told of its rounds from a number on, and the last one it began."""
    lines = list(read_lines([record]))
    begun = [line["begun"] for line in lines if "begun" in line]
    return [line for line in lines if line.get("number", -1) >= first], max(begun, default=first)


@proves("R08")
@pytest.mark.parametrize(("fault", "found"), [("frank", "raised in "), ("sulking", "later: ")])
def test_the_row_finds_a_store_that_does_not_stand_starvation(
    tmp_path: Path, crew: Crew, fault: str, found: str
) -> None:
    told = starved(crew, tmp_path, "files", 0, fault=fault)

    assert [each for each in unclean(told) if found in each] != []


@proves("R08")
def test_whoever_has_no_memory_is_refused_alone(tmp_path: Path) -> None:
    refused, kept = asyncio.run(_starved_beside(tmp_path / "home"))

    assert refused == [Code.OUT_OF_MEMORY] * 2
    assert kept == [model_of("offline:beside")]


async def _starved_beside(home: Path) -> tuple[list[Code], list[Model]]:
    """Have one of two that write at once, and one that reads, run out of memory."""

    async def look(tx: Tx) -> None:
        await tx.models.all()
        raise MemoryError

    async def starve(tx: Tx) -> None:
        await tx.models.add(model_of("offline:starved"))
        await look(tx)

    async with open_holdfast(config=settings(home), scope=RunScope.NONE) as house:
        ends = await asyncio.gather(
            house.store.write(starve),
            house.store.write(lambda tx: tx.models.add(model_of("offline:beside"))),
            house.store.read(look),
            return_exceptions=True,
        )
        refused = [each.code for each in ends if isinstance(each, Unavailable)]
        return refused, await house.store.read(lambda tx: tx.models.all())


@proves("R08")
def test_a_process_that_can_open_no_file_declares_nobody_dead() -> None:
    machine = SystemMachine()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))

    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        judged = machine.is_gone(machine.holder())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert highest > 0
    assert not judged


def starved(
    crew: Crew, folder: Path, kind: str, spare: int, *, fault: str = ""
) -> dict[str, list[str]]:
    """Run a server that starves for a while; return how its work ended, then and later."""
    process = crew.start(
        "starved",
        home=folder / "home",
        record=folder / "a.jsonl",
        famine=(kind, spare),
        seed=random.Random(spare).randrange(1 << 32),
        fault=fault,
    )
    status = process.wait(timeout=5 * PATIENCE)
    lines = list(read_lines([folder / "a.jsonl"]))
    told: dict[str, list[str]] = {
        name: line[name] for line in lines for name in ("starving", "sated") if name in line
    }
    said = crew.log_of(process)
    if status in DEATHS:
        return {"starving": ["killed"], "sated": []}
    if status != 0 or len(told) < 2:
        return {"starving": [f"ended with {status}\n{said[-2000:]}"], "sated": []}
    return told


def unclean(told: dict[str, list[str]]) -> list[str]:
    """Return every end that a caller cannot understand, and all that did not work afterwards.

    A lack of memory that Python meets outside of the store and of the house's own verbs, in the
    client or in a service that was asked past them, is Python's own refusal.
    """
    strange = [each for each in told["starving"] if not is_clean(each)]
    return strange + [f"later: {each}" for each in told["sated"] if each != "done"]


def is_clean(end: str) -> bool:
    """Tell whether a caller can understand how its work ended."""
    if end.startswith("raised "):
        ours = any(f" in {place}: " in end for place in ("the store", "the house"))
        # Python takes a path for none when it has no memory to ask it for its text.
        return (end.endswith(": MemoryError()") and not ours) or end.endswith("not PosixPath')")
    return end in {"done", "killed"} or (end.startswith("refused: ") and end != "refused: internal")
