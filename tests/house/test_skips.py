"""Holds that a skip is never silent: one helper skips, and every run that skipped says so."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.marks import TESTS, each_case, skip_row, sources

FORBIDDEN = {"skip", "skipif", "skipIf", "skipUnless", "SkipTest", "xfail", "importorskip"}

SUITE = """
from tests.marks import demands, proves, skip_row

def test_runs(): pass

@proves("R03")
def test_needs_a_loop_device(): skip_row("R03", "a loop device")

@proves("R06")
def test_needs_a_full_disk(): skip_row("R06", "user namespaces")
"""

DEMANDED = """
@demands("S1-012")
def test_is_demanded(): skip_row("R01", "a second machine")
"""


@pytest.mark.slow
def test_no_test_skips_but_through_the_one_helper() -> None:
    found = [f"{path}:{line}" for path, tree in sources(words=FORBIDDEN) for line in skips(tree)]

    assert found == []


@each_case(
    "source",
    [
        "import pytest\npytest.skip('no')",
        "import pytest as p\np.importorskip('x')",
        "import pytest\n@pytest.mark.skipif(True, reason='no')\ndef test(): pass",
        "from pytest import mark\npytestmark = mark.xfail",
        "from pytest import skip",
        "import unittest\nraise unittest.SkipTest",
    ],
)
def test_every_other_way_to_skip_is_found(source: str) -> None:
    assert list(skips(ast.parse(source))) != []


@pytest.mark.slow
def test_a_run_that_skipped_ends_incomplete(tmp_path: Path) -> None:
    run = run_suite(tmp_path, SUITE, ("-p", "no:xdist"))

    assert run.returncode == 0
    assert "SKIPPED R03 (D1): needs a loop device" in run.stdout
    assert "SKIPPED R06 (D11): needs user namespaces" in run.stdout
    assert "INCOMPLETE: 2 skipped (" in run.stdout
    assert "R03 → D1" in run.stdout
    assert "R06 → D11" in run.stdout


@pytest.mark.slow
def test_a_run_in_several_processes_that_skipped_a_demand_fails(tmp_path: Path) -> None:
    run = run_suite(tmp_path, SUITE + DEMANDED, ("-n", "1"))

    assert run.returncode == 1
    assert "INCOMPLETE: 3 skipped (" in run.stdout
    assert "UNMET S1-012: test_suite.py::test_is_demanded was skipped" in run.stdout


def test_a_row_that_does_not_exist_cannot_be_skipped() -> None:
    with pytest.raises(LookupError, match="There is no row R99"):
        skip_row("R99", "luck")


def skips(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each use of a testing library's own ways to skip."""
    libraries = {"pytest", "unittest", "mark"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            libraries |= {name.asname for name in node.names if name.asname and _is_library(name)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="pytest" | "unittest"):
                if FORBIDDEN & {name.name for name in node.names}:
                    yield node.lineno
            case ast.Attribute(attr=attr) if attr in FORBIDDEN:
                if _last_name(node.value) in libraries:
                    yield node.lineno


def _is_library(name: ast.alias) -> bool:
    return name.name in ("pytest", "unittest")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def run_suite(folder: Path, suite: str, how: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a suite of its own in a folder of its own, with our plugin."""
    (folder / "test_suite.py").write_text(suite, "utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.plugin", "--strict-markers"]
    command += ["-p", "no:schemathesis"]
    return subprocess.run(
        [*command, *how, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
