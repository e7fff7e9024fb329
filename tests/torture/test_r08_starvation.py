"""R08: files or memory run out at the Nth call; it is refused cleanly, and nothing hangs after."""

import asyncio
import os
import random
import resource
import signal
from collections import Counter
from pathlib import Path

import pytest

from holdfast.execution.machine import SystemMachine
from tests.marks import proves
from tests.torture.attempts import read_lines
from tests.torture.audit import audit
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.recovery import recovered

pytestmark = pytest.mark.slow

FILES = [0, 2, 5, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20, 25]
KIBIBYTES = [0, 2_000, 20_000, 200, 500, 1_000, 4_000, 6_000, 8_000, 10_000, 12_000, 15_000, 18_000]
KIBIBYTES += [25_000, 30_000, 40_000, 60_000, 80_000, 100_000, 150_000]
SPARE = {"files": FILES, "memory": KIBIBYTES}


@proves("R08")
@pytest.mark.parametrize("kind", ["files", "memory"])
def test_what_runs_out_is_refused_and_comes_back(
    tmp_path: Path, crew: Crew, sized: Sized, tell: Tell, kind: str
) -> None:
    ends: Counter[str] = Counter()
    wrong: list[str] = []

    for spare in SPARE[kind][: sized(test=3, torture=20, release=150)]:
        folder = tmp_path / str(spare)
        folder.mkdir()
        told = starved(crew, folder, kind, spare)
        ends.update(told["starving"])
        wrong += [f"{spare} to spare: {each}" for each in told["starving"] if is_unclean(each)]
        wrong += [f"{spare} to spare, later: {each}" for each in told["sated"] if each != "done"]
        asyncio.run(recovered(folder / "home"))
        result = audit(folder / "home", records=[folder / "a.jsonl"], mark=crew.mark)
        if not result.is_clean:
            wrong.append(f"{spare} to spare: {result}")

    tell(f"{kind}: {dict(ends)}")
    assert wrong == []
    assert set(ends) != {"done"}, "nothing ever ran out"


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


def starved(crew: Crew, folder: Path, kind: str, spare: int) -> dict[str, list[str]]:
    """Run a server that starves for a while; return how its work ended, then and later."""
    process = crew.start(
        "starved",
        home=folder / "home",
        record=folder / "a.jsonl",
        kind=kind,
        spare=spare,
        seed=random.Random(spare).randrange(1 << 32),
    )
    status = process.wait(timeout=300)
    lines = list(read_lines([folder / "a.jsonl"]))
    told: dict[str, list[str]] = {
        name: line[name] for line in lines for name in ("starving", "sated") if name in line
    }
    if status == -signal.SIGABRT:
        # Python itself gives up when it cannot have a few bytes; that is a crash like any other.
        return {"starving": ["killed"], "sated": []}
    if status != 0 or len(told) < 2:
        return {"starving": [f"ended with {status}\n{crew.log_of(process)[-2000:]}"], "sated": []}
    return told


def is_unclean(end: str) -> bool:
    """Tell whether work neither was done nor was refused in words that a caller understands."""
    is_told = end.startswith("refused: ") and end != "refused: internal"
    return not is_told and end not in {"done", "killed", "raised: MemoryError()"}
