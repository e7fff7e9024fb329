"""A process that makes calls as a model would, with a list and with nobody who says no.

Another process watches what it executes. Prints how each call came out.
"""

import json
from pathlib import Path

from holdfast.ports.tools import CallOutcome
from tests.tools.process_fixture import Workbench
from tests.torture.bypasses import GLOBS, LISTED


async def main(folder: str, calls: list[list[str]], answer: str) -> None:
    """Plan every call, run what may run, and write down each outcome."""
    bench = Workbench(Path(folder))
    bench.environment["PATH"] = f"{folder}/programs:/usr/bin:/bin"
    bench.allow(*LISTED, globs=GLOBS)
    outcomes = []
    for command, *args in calls:
        done = await bench.call("run_command", command=command, args=args)
        outcomes.append(outcome(done))
    _write(Path(answer), outcomes)


def _write(answer: Path, outcomes: list[str]) -> None:
    answer.write_text(json.dumps(outcomes), "utf-8")


def outcome(done: CallOutcome) -> str:
    """Return the status of a call and why."""
    return f"{done.status}/{done.error.code}" if done.error else str(done.status)
