"""What a type checker says about tools: both forms of the decorator, right and wrong calls."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import SOURCE

pytestmark = pytest.mark.slow

PROGRAM = """
from holdfast.functions.context import ToolCallContext
from holdfast.functions.tool import Ask, Tool, tool

@tool
def bare(number: int, text: str = "") -> str:
    "Do it."
    return text * number

@tool(effect="pure", approval=lambda arguments: Ask("Really?"), on_error=lambda error: None)
async def given(number: int, *, call: ToolCallContext) -> int:
    "Do it."
    return number

kept: Tool[..., str] = bare
text: str = bare(3, text="x")

async def main(call: ToolCallContext) -> int:
    return await given(3, call=call)
"""
# Only what a tool is made of, because all of Holdfast takes a minute to read.
SETTINGS = """
[mypy]
[mypy-holdfast.*]
follow_imports = skip
[mypy-holdfast.functions.*,holdfast.domain.*]
follow_imports = normal
"""
WRONG = """
bare("3")
bare(3, txt="x")
given(3)
number: int = bare(3)
tool(effect="safe")
tool(bare.function, approval="maybe")
tool(timeout="3")
tool(3)
tool(colour="red")
"""


def checked(folder: Path, source: str) -> list[str]:
    """Return what mypy says about a program, one line for each fault."""
    file = folder / "program.py"
    file.write_text(source)
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]
    told = subprocess.run(
        [*command, "--config-file", "mypy.ini", "--cache-dir", "cache"],
        cwd=folder,
        env={"MYPYPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in told.stdout.splitlines() if "program.py" in line and "error" in line]


def test_right_programs_are_accepted_and_each_wrong_line_is_rejected(tmp_path: Path) -> None:
    faults = checked(tmp_path, PROGRAM + WRONG)

    first = len(PROGRAM.splitlines()) + 2
    assert {int(line.split(":")[1]) for line in faults} == set(
        range(first, first + len(WRONG.strip().splitlines()))
    )
