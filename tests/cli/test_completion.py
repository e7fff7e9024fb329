"""Completion in a shell."""

from pathlib import Path

import pytest

from tests.cli.processes import ran

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("holdfast ses", ["sessions"]), ("holdfast --json chat --mo", ["--model"])],
)
def test_a_shell_is_told_what_may_come_next(home: Path, typed: str, offered: list[str]) -> None:
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    done = ran(home, more=asked | {"COMP_CWORD": str(len(typed.split()) - 1)})

    assert (done.returncode, done.stdout.split()) == (0, offered)
