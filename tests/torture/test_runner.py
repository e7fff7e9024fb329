"""Holds the runner: a line for each row, and a status that a skip cannot hide behind."""

import os
import re
import subprocess
import sys

import pytest

from tests.torture.crew import PATIENCE, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.torture
def test_a_row_that_holds_has_a_line_and_the_run_ends_well() -> None:
    run = torture("--rows", "R53")

    assert run.returncode == 0, run.stdout
    assert re.search(r"^R53 D15 +PASS +nfs4 refused; .+ \(\d+ s\)$", run.stdout, re.MULTILINE)


def test_a_row_that_cannot_run_is_no_success() -> None:
    run = torture("--rows", "R06", PATH="/nowhere")

    assert run.returncode == 3, run.stdout
    assert re.search(r"^R06 D11 +SKIPPED +R06 \(D11\): needs ", run.stdout, re.MULTILINE)
    assert "INCOMPLETE: 1 skipped (R06 → D11)" in run.stdout


@pytest.mark.torture
def test_a_skip_can_be_allowed_by_name_and_is_still_told() -> None:
    run = torture("--rows", "R06", PATH="/nowhere", ALLOW_SKIP="R06")

    assert run.returncode == 0, run.stdout
    assert "INCOMPLETE: 1 skipped (R06 → D11)" in run.stdout


@pytest.mark.torture
def test_a_skip_of_another_row_is_not_allowed_with_it() -> None:
    assert torture("--rows", "R06", PATH="/nowhere", ALLOW_SKIP="R03").returncode == 3


def test_a_row_that_nobody_proves_is_no_success() -> None:
    run = torture("--rows", "R53,R99")

    assert (run.returncode, run.stdout) == (1, "No test proves R99 yet.\n")


def torture(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the runner on small sizes."""
    return subprocess.run(
        [sys.executable, "-m", "tests.torture", "--level", "test", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": "-p no:cacheprovider"} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
