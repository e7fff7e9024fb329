"""The door of the command: what it answers itself, and what it costs."""

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.errors import EXIT_CODES
from holdfast.cli.main import main
from holdfast.domain.errors import Unavailable


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--version"], "holdfast 0.1.0\n"),
        (["chat", "--version"], "holdfast 0.1.0\n"),
        (["--version", "--json"], '{"version":"0.1.0"}\n'),
    ],
)
def test_the_version_is_told_wherever_it_is_asked_for(
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])

    assert main() == 0
    assert capsys.readouterr().out == told.replace("0.1.0", holdfast.__version__)


def test_behind_two_dashes_nothing_is_a_flag(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["holdfast", "sessions", "show", "--", "--version"])

    assert main() == 4
    assert capsys.readouterr().out == ""


def test_what_was_loaded_is_not_looked_through_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr("gc.freeze", lambda: frozen.append(capsys.readouterr().out))
    monkeypatch.setattr(sys, "argv", ["holdfast", "repos", "--help"])

    assert main() == 0
    assert [told.split()[:2] for told in frozen] == [["Usage:", "holdfast"]]


def test_telling_the_version_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['holdfast', '--version']\n"
        "from holdfast.cli.main import main; main()\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"typer", "rich", "msgspec", "asyncio", "apsw", "prompt_toolkit"} == set()


def test_showing_help_loads_neither_a_store_nor_a_server() -> None:
    code = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli.main import main; main()\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert loaded & {"apsw", "prompt_toolkit", "uvicorn", "starlette", "ruamel"} == set()


def test_who_may_be_asked_and_is_not_loads_no_prompt() -> None:
    code = (
        "import sys, holdfast.cli.chat.session\n"
        "holdfast.cli.chat.session.AnswerPrompt()\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & {"rich", "prompt_toolkit"} == set()


def test_the_command_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == f"holdfast {holdfast.__version__}\n"


def test_without_memory_even_for_an_error_the_command_says_so_and_ends_with_seven(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def starved(_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("holdfast.cli.app.run", starved)
    monkeypatch.setattr(sys, "argv", ["holdfast", "sessions", "list"])

    assert main() == EXIT_CODES[Unavailable] == 7
    assert capfd.readouterr().err == (
        "holdfast: There was not enough memory; free some and try again.\n"
    )
