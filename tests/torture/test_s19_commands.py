"""S19: what the list of commands does not hold does not run, however it is spelled."""

import json
import os
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.ports.tools import CallOutcome
from tests.marks import proves, skip_row
from tests.tools.process_fixture import Workbench
from tests.torture.bypasses import ALONE, CHAINS, GLOBS, LISTED, WRAPPERS, Call, bypasses, joined
from tests.torture.clients.commands import outcome
from tests.torture.conftest import Sized, Tell
from tests.torture.tracing import executions, has_tracer, python

# Read before the tests take the environment away.
CORPORA = os.environ.get("HOLDFAST_CORPORA")
REFUSALS = {"denied/command_not_allowed", "error/invalid_arguments"}

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@proves("S19")
async def test_every_call_that_is_not_on_the_list_is_refused(tmp_path: Path, tell: Tell) -> None:
    bench = Workbench(tmp_path)
    bench.allow(*LISTED, globs=GLOBS)
    calls = [*bypasses(), *published()]
    outcomes: Counter[str] = Counter()

    for command, *args in calls:
        planned = await bench.plan("run_command", command=command, args=args)
        outcomes[outcome(planned) if isinstance(planned, CallOutcome) else "planned"] += 1

    tell(f"{len(calls)} calls decided: {dict(outcomes)}; {absence()}")
    assert len(ALONE) + len(CHAINS) + len(WRAPPERS) >= 250
    assert len(calls) >= 780
    assert set(outcomes) <= REFUSALS


@proves("S19")
def test_control_a_list_of_beginnings_would_let_many_through(tell: Tell) -> None:
    passed = sum(map(joined, bypasses()))

    tell(f"control: joined text lets {passed} of {len(bypasses())} through")
    assert passed > 100


@proves("S19")
def test_nothing_is_executed_but_what_is_listed(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    if not has_tracer():
        skip_row("S19", "strace")
    tried = luck.sample([*bypasses(), *published()], sized(test=60, torture=780))
    bench = tmp_path / "bench"
    expected = furnished(bench)
    calls = [*tried, *LISTED]
    luck.shuffle(calls)
    answer = tmp_path / "answer.json"
    options = json.dumps({"folder": str(bench), "calls": calls, "answer": str(answer)})

    seen = executions(
        python("-m", "tests.torture.clients", "commands", options), tmp_path / "trace"
    )

    outcomes = dict(zip(calls, json.loads(answer.read_text("utf-8")), strict=True))
    foreign = [path for path in seen if path not in expected]
    tell(f"{len(tried)} calls traced, {len(seen)} executions, {len(foreign)} unapproved")
    assert {outcomes[call] for call in tried} <= REFUSALS
    assert {call: outcomes[call] for call in LISTED} == dict.fromkeys(LISTED, "ok")
    assert foreign == []
    # The witness has eyes: what was listed was seen.
    assert expected - set(seen) == set()
    assert not list(bench.rglob("canary"))


@proves("S19")
def test_control_a_shell_is_seen(tmp_path: Path, tell: Tell) -> None:
    if not has_tracer():
        skip_row("S19", "strace")

    seen = executions(("sh", "-c", "echo done; id"), tmp_path / "trace")

    tell(f"control: a shell's {len(seen)} executions are seen")
    assert os.path.realpath(shutil.which("id") or "") in seen


def furnished(folder: Path) -> set[str]:
    """Put a program of our own behind each listed name, and return all that may be executed."""
    programs = {folder / "programs" / name for name, *_ in LISTED if "/" not in name}
    programs |= {folder / "work" / name for name, *_ in LISTED if "/" in name}
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n:\n")
        program.chmod(0o755)
    return {str(each.resolve()) for each in programs} | {os.path.realpath(sys.executable)}


def published() -> list[Call]:
    """Return the lines of the public lists as calls, where they are at hand."""
    if CORPORA is None:
        return []
    lists = sorted(Path(CORPORA).glob("**/[Cc]ommand*njection*/**/*.txt"))
    lines = (line for file in lists for line in file.read_text("utf-8", "replace").splitlines())
    return [("echo", f"done{line}") for line in lines if line.strip()]


def absence() -> str:
    """Say which public set was there."""
    found = len(published())
    return f"{found} published" if found else "the published set is not at hand"
