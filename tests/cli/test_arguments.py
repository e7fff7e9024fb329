"""Words on the line that are not text: refused by every command before it does anything."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.help_pages import commands
from tests.cli.processes import COMMAND, PATIENCE, environment
from tests.marks import each_case

# What Python makes of a byte that is not UTF-8.
BAD = "a\udcffb"


def lines() -> Iterator[tuple[str, ...]]:
    """Yield every command with each of its values in turn not being text, the others left out."""
    for path, command in commands():
        if hasattr(command, "commands") and path:
            continue
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        for number, _ in enumerate(arguments):
            yield (*path, *("x" for _ in range(number)), BAD)
        for option in command.params:
            takes_value = option.param_type_name == "option" and not option.is_flag
            if takes_value and not getattr(option, "count", False):
                required = ["x" for each in arguments if each.required]
                yield (*path, *required, option.opts[0], BAD)


@each_case("line", list(lines()), ids=lambda line: " ".join(line[:-1]))
def test_a_word_that_is_not_text_is_refused_by_every_command(
    cli_without_home: Cli, home: Path, line: tuple[str, ...]
) -> None:
    ran = cli_without_home(*line, "--json")

    assert (ran.code, ran.out) == (2, "")
    assert ran.error == {
        "error": "invalid_text",
        "message": f"Argument {len(line)} of the command is not UTF-8 text; correct it, or rename "
        "the file.",
        "details": {"word": len(line)},
    }
    assert not home.exists()


@pytest.mark.parametrize("line", [["backup"], ["restore"], ["chat", "hi", "--repo"]])
def test_a_file_whose_name_is_not_text_is_refused_in_one_line(
    home: Path, tmp_path: Path, line: list[str]
) -> None:
    file = os.fsencode(tmp_path) + b"/a\xff"
    Path(os.fsdecode(file)).touch()

    done = subprocess.run(
        [COMMAND, *line, file],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(home),
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"holdfast: Argument {len(line) + 1} of the command is not UTF-8 text; correct it, or "
        "rename the file.\n"
    )


@pytest.fixture
def looped(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run the command in a folder with a link to itself."""
    cli("chat", "hi")
    monkeypatch.chdir(home)
    Path("loop").symlink_to("loop")
    return cli


@each_case(
    "line",
    [["backup"], ["backup", "--force"], ["restore"], ["repos", "add"]]
    + [["chat", "hi", flag] for flag in ("--repo", "--cwd", "--model")]
    + [["sessions", "list", "--config"]],
)
@each_case("path", ["x" * 300, "~nobody-of-that-name/x", "/a/" * 2_000, "loop"])
def test_a_path_that_leads_nowhere_is_no_fault_of_ours(
    looped: Cli, line: list[str], path: str
) -> None:
    ran = looped(*line, path, "--json")

    assert (ran.code in {2, 3, 4}, ran.out) == (True, "")


def test_a_home_that_is_not_text_is_refused(tmp_path: Path) -> None:
    bad = environment(tmp_path) | {"HOLDFAST_HOME": os.fsdecode(os.fsencode(tmp_path) + b"/\xff")}

    done = subprocess.run(
        [COMMAND, "chat", "hi"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=bad,
    )

    assert (done.returncode, done.stderr) == (2, "holdfast: HOLDFAST_HOME must be UTF-8 text.\n")
    assert list(tmp_path.iterdir()) == []
