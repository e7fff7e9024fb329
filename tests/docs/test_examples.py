"""Holds that every example runs as it stands, in a home of its own, and prints what it promises."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, is_as_shown
from tests.docs.shell import environment

EXAMPLES = ROOT / "examples"

PRINTED = {
    "ask.py": "(3.5*4)/2 = 7\n…\n[stop, free, kept as session …]",
    "client.py": (
        "  1  session.opened\n  2  message.appended\n  3  turn.started\n  4  step.started\n"
        "     (the server was killed)\n…\n…  turn.ended\n"
        "Nothing was lost, and nothing came twice.\nassistant: hold fast\n…"
    ),
    "follow.py": (
        "  1  session.opened\n  2  message.appended\n  3  turn.started\n  4  step.started\n…\n"
        "…  turn.ended"
    ),
    "own_tool.py": (
        "[price: ok, 4200]\n[Refund 4200 cents? yes]\n[asking the bank]\n"
        "[refund: ok, refunded 4200 of order 17]\n[price: error, There is no order 18.]\n"
        "Order 17 is refunded; there is no order 18."
    ),
    "resume.py": (
        "The process was killed in the middle of the turn.\n"
        "  1  session.opened\n  2  message.appended\n  3  turn.started\n  4  step.started\n"
        "  5  step.failed\n  6  step.started\n…\n…  turn.ended\n"
        "user: Are you there?\nassistant: I am still here."
    ),
    "tools.py": (
        "> list .\n[list_directory: ok]\nboats/\ntides.txt\n(1 more are protected.)\n\n"
        "> search for low tide in .\n[find_text: ok]\n…\n"
        "> read .env\n[read_file: denied]\n"
        "I could not do that: denied (protected_path): .env is protected from agents.\n\n"
        "> write plan.txt: Sail at 12:40.\n[write_file asks, yes]\n[write_file: ok]\n"
        "I wrote 15 bytes to plan.txt.\n\n"
        "> write diary.txt: Dear diary.\n[write_file asks, no]\n[write_file: denied]\n…\n"
        "['.env', 'boats', 'plan.txt', 'tides.txt']"
    ),
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    status, output, errors = run_example(name, tmp_path)

    assert (status, errors) == (0, "")
    assert is_as_shown(PRINTED[name], output), output


def run_example(name: str, folder: Path) -> tuple[int, str, str]:
    """Run an example in a process group of its own, so that nothing it starts outlives it."""
    with subprocess.Popen(
        [sys.executable, "-W", "default", str(EXAMPLES / name)],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors
