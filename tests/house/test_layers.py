"""Imports point down, and each package from outside is imported in one of ours."""

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.house.source import ROOT, Module, module, modules, nodes
from tests.marks import demands

ANYWHERE = "anywhere"

# Each package from outside by the name it is imported with, and the one part of ours that may.
HOMES = {
    "agents": "integrations",
    "apsw": "store",
    "asyncpg": "store",
    "claude_agent_sdk": "integrations",
    "genai_prices": "llm",
    "httpcore2": "tools",
    "httpx2": "tools",
    "jsonschema": "services",
    "keyring": "keychain",
    "langchain_core": "integrations",
    "langgraph": "integrations",
    "mcp": "tools",
    "msgspec": ANYWHERE,
    "platformdirs": "config",
    "prompt_toolkit": "cli",
    "pydantic_ai": "llm",
    "re2": "parsing",
    "rich": "cli",
    "ruamel": "parsing",
    "starlette": "http",
    "typer": "cli",
    "uvicorn": "http",
    "uvloop": "cli",
}
# Packages with a second home: the other side of a protocol, the other client (decision 0015), and
# the agents of a package whose models we use.
OTHER_SIDE = {"httpx2": "client", "mcp": "mcp", "pydantic_ai": "integrations"}
# What a package is installed as, where that is not the name it is imported with.
INSTALLED_AS = {
    "agents": "openai-agents",
    "apsw": "apsw-sqlite3mc",
    "claude_agent_sdk": "claude-agent-sdk",
    "genai_prices": "genai-prices",
    "langchain_core": "langchain-core",
    "prompt_toolkit": "prompt-toolkit",
    "pydantic_ai": "pydantic-ai-slim",
    "re2": "google-re2",
    "ruamel": "ruamel.yaml",
}
# Installed for uvicorn to find, and a part of a package whose name the other one has.
NEVER_IMPORTED = {"httptools": "http", "langgraph-checkpoint": "integrations"}
# Extras that bring nothing to run on: tools, and all the others together.
NOT_RUN_ON = {"build", "dev", "models"}


@demands("S0-145", "S2-131")
def test_the_contracts_of_import_linter_hold() -> None:
    command = Path(sysconfig.get_path("scripts")) / "lint-imports"

    run = subprocess.run(
        [sys.executable, str(command), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


@demands("S0-145")
def test_each_package_from_outside_is_imported_in_its_one_home() -> None:
    assert [fault for one in modules() for fault in strays(one)] == []


def test_a_package_in_the_wrong_home_is_found() -> None:
    text = (
        "import json\nimport msgspec\ndef f():\n    from apsw import Error\nimport requests.api\n"
    )

    assert strays(module("services/turns.py", text)) == [
        "services/turns.py:4 imports apsw, whose home is store",
        "services/turns.py:5 imports requests, which has no home",
    ]
    assert strays(module("store/sqlite/connection.py", "import apsw\n")) == []


def test_every_dependency_has_a_home_and_every_home_a_dependency() -> None:
    homes = {INSTALLED_AS.get(name, name) for name in HOMES} | set(NEVER_IMPORTED)

    assert dependencies() == homes


def test_no_home_is_kept_for_a_package_that_nobody_imports() -> None:
    imported = {name for one in modules() for name, _ in outside_imports(one.tree)}

    assert set(HOMES) - imported == set()


def test_the_architecture_page_names_each_dependency_with_its_home() -> None:
    named = {INSTALLED_AS.get(name, name): home for name, home in HOMES.items()}

    assert published() == named | NEVER_IMPORTED


def strays(one: Module) -> list[str]:
    """Return each import of a package from outside that does not belong where it stands."""
    found = []
    for name, line in sorted(outside_imports(one.tree), key=lambda found: found[1]):
        home = HOMES.get(name)
        if home is None:
            found.append(f"{one.name}:{line} imports {name}, which has no home")
        elif home not in (ANYWHERE, one.home) and OTHER_SIDE.get(name) != one.home:
            found.append(f"{one.name}:{line} imports {name}, whose home is {home}")
    return found


def outside_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the package and the line of each import that is neither ours nor Python's."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "holdfast"]
        else:
            continue
        for name in names:
            package = name.partition(".")[0]
            if package != "holdfast" and package not in sys.stdlib_module_names:
                yield package, node.lineno


def dependencies() -> set[str]:
    """Return the names of the run-time dependencies, those of extras too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    listed = [project["dependencies"], *(extras[name] for name in set(extras) - NOT_RUN_ON)]
    return {re.split(r"[<>=~!; \[]", each)[0] for group in listed for each in group}


def published() -> dict[str, str]:
    """Return the dependencies and their homes as the architecture page lists them."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = page.partition("## Dependencies")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| `?([a-z]+)", section, re.MULTILINE)
    return dict(rows)
