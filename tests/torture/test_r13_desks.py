"""R13: desks are archived, restored, deleted, opened and closed by processes that are killed."""

import asyncio
import json
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.desk_model import VERBS, Desks, Step, found

pytestmark = pytest.mark.slow


@proves("R13")
def test_every_file_of_a_desk_is_in_one_place_whenever_its_process_is_killed(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    kills = sized(quick=4, test=10, torture=100, release=1_000)

    cut, steps, astray = lives(tmp_path, crew, luck, kills=kills)

    tell(f"{kills} kills amid {dict(cut)}, {steps} steps, every file in its one place")
    assert astray == []
    assert steps > kills


@proves("R13")
def test_the_killing_finds_a_desk_that_is_archived_by_halves(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    _, _, astray = lives(tmp_path, crew, luck, kills=60, fault="halves", until_found=True)

    assert astray != []


def lives(
    folder: Path,
    crew: Crew,
    luck: random.Random,
    *,
    kills: int,
    fault: str = "",
    until_found: bool = False,
) -> tuple[Counter[str], int, list[str]]:
    """Let processes use one desk, one after another; return what was wrong after their deaths."""
    home = folder / "home"
    now = Desks()
    cut: Counter[str] = Counter()
    steps, astray = 0, list[str]()
    for number in range(kills):
        record = folder / f"{number}.jsonl"
        dies_at = luck.randrange(1, 120)
        status = crew.run(
            "desks",
            home=home,
            record=record,
            seed=luck.randrange(1 << 32),
            dies_at=dies_at,
            fault=fault,
        )
        assert status == -signal.SIGKILL, crew.log_of(crew.processes[-1])
        did, unsure = read(record)
        for step in did:
            now = now.after(step)
        possible = {now} | ({now.after(unsure)} if unsure else set())
        there, faults = asyncio.run(found(home))
        astray += [f"life {number}: {each}" for each in faults]
        if there not in possible:
            astray.append(f"life {number}: {unsure and unsure.verb} left neither before nor after")
        cut[unsure.verb if unsure else "nothing"] += 1
        steps += len(did)
        now = there
        if astray and until_found:
            break
    return cut, steps, astray


def read(record: Path) -> tuple[list[Step], Step | None]:
    """Return the steps that were done, and the one of which nobody knows."""
    did: list[Step] = []
    unsure: Step | None = None
    lines = record.read_text().splitlines() if record.exists() else []
    for line in lines:
        told = json.loads(line)
        if "step" in told:
            unsure = Step(**told["step"])
        elif unsure is not None:
            did.append(unsure)
            unsure = None
    return did, unsure


def test_the_model_knows_every_verb() -> None:
    now = Desks().after(Step("write", "1")).after(Step("archive"))

    assert {now.after(Step(verb, "2")) for verb in VERBS} == {
        Desks(desk=(("output.state.json", "2"),), archives=now.archives),
        Desks(desk=(("output", "2\n"),), archives=now.archives),
        now,
        Desks(desk=now.archives[0], archives=now.archives),
        Desks(),
        Desks(archives=now.archives, is_taken=True),
    }
