"""Numbers that are watched and not gated: a jump is a question in review.

python -m tests.house.watched
"""

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.docs.blocks import blocks, pages
from tests.house.source import ROOT, SOURCE, Function, modules

STATEMENT = re.compile(r"^-- .+\n(?:SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.MULTILINE)


def watched() -> dict[str, Any]:
    """Return each number by its name."""
    from holdfast.domain.errors import Code
    from holdfast.domain.events import NAMES

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "verbs per port": verbs(),
        "event types": len(NAMES),
        "error codes": len(Code),
        "SQL statements": sum(len(STATEMENT.findall(each.text)) for each in modules()),
        "run-time dependencies": len(project["dependencies"]),
        "tests ÷ source": round(lines_below(ROOT / "tests") / lines_below(SOURCE), 2),
        "blocks shown and not run": sum(
            each.kind == "text" for page in pages() for each in blocks(page.name, page.read_text())
        ),
    }


def verbs() -> Mapping[str, int]:
    """Return how many verbs each protocol of `ports/` has."""
    return {
        each.name: sum(isinstance(item, Function) for item in each.body)
        for module in modules()
        if module.home == "ports"
        for each in module.tree.body
        if isinstance(each, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id == "Protocol" for base in each.bases)
    }


def lines_below(folder: Path) -> int:
    """Return the lines of all Python files below a folder."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py"))


if __name__ == "__main__":
    for name, value in watched().items():
        print(f"{name}: {value}")
