"""The one in the middle passes everything on, and its record is told apart by cases."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.interop.stage import TEE
from tests.interop.wires import split

PROGRAM = "import sys\nfor line in sys.stdin: print('heard', line, end='')\nsys.exit(3)\n"


def test_what_is_passed_on_is_written_down_and_the_exit_is_the_programs_own(
    tmp_path: Path,
) -> None:
    record = tmp_path / "wire.txt"
    done = subprocess.run(
        [sys.executable, str(TEE), str(record), "--", sys.executable, "-u", "-c", PROGRAM],
        input="ä one\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stdout) == (3, "heard ä one\n")
    lines = record.read_text().splitlines()
    assert [line for line in lines if line.startswith("client ä")] == ["client ä one"]
    assert [line for line in lines if line.startswith("agent ")] == ["agent heard ä one"]


def test_without_a_program_it_says_so() -> None:
    done = subprocess.run([sys.executable, str(TEE), "wire.txt"], timeout=30, check=False)

    assert done.returncode == 2


def said(method: str, text: str = "", who: str = "client") -> dict[str, Any]:
    """Return a line of a record."""
    params = {"prompt": [{"type": "text", "text": "record"}, {"type": "text", "text": text}]}
    return {"who": who, "line": {"method": method, "params": params}}


def test_a_record_is_split_by_what_was_said() -> None:
    lines = [
        said("initialize"),
        said("initialize"),
        said("session/prompt", "hello there"),
        said("session/update", who="agent"),
        said("session/prompt", "use tool: rm -r probe"),
        said("session/prompt", "use tool: rm -r probe"),
        said("session/prompt", "something else"),
        said("initialize"),
        said("session/prompt", "hello after the restart"),
        *(said("initialize") for _ in range(3)),
    ]

    found = {case: len(rows) for case, rows in split(lines).items()}

    assert found == {
        "check": 1,
        "greeting": 1,
        "turn": 2,
        "allowed": 1,
        "refused": 1,
        "more": 1,
        "second-greeting": 1,
        "restart": 1,
        "third-greeting": 1,
        "list": 2,
    }
