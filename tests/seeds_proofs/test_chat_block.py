"""The `[chat]` block is read in one place, and whoever acts on it is given plain values."""

import ast
from pathlib import Path

import holdfast
from tests.marks import demands

ROOT = Path(holdfast.__file__).parent
BELOW = ("domain", "ports", "services", "engine", "llm", "tools", "storage", "execution")


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@demands("S0-483")
def test_nothing_below_the_configuration_reads_it() -> None:
    files = [file for folder in BELOW for file in (ROOT / folder).rglob("*.py")]

    readers = [
        file for file in files if any(each.startswith("holdfast.config") for each in imported(file))
    ]

    assert len(files) > 100
    assert readers == []
