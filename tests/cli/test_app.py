"""The table of commands: its modules bring them, and their help begins with its summaries."""

import json
import subprocess
import sys

from holdfast.cli.app import COMMANDS, load_command

LOADED = """
import json, sys
from holdfast.cli.app import run
run(sys.argv[1:])
print(json.dumps(sorted(name for name in sys.modules if ".cli.commands." in name)), file=sys.stderr)
"""


def test_a_command_has_the_summary_of_the_table() -> None:
    summaries = {name: str(load_command(name).help).partition("\n")[0] for name in COMMANDS}

    assert summaries == {name: summary for name, (_, summary) in COMMANDS.items()}


def test_only_the_module_of_the_command_is_imported() -> None:
    lines = {
        ("--help",): [],
        ("chatt",): [],
        ("--json", "sessions", "list", "--help"): ["sessions"],
        ("chat", "--help"): ["chat"],
        ("migrate", "--help"): ["store"],
    }

    for words, modules in lines.items():
        done = subprocess.run(
            [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stderr.splitlines()[-1])
        assert found == [f"holdfast.cli.commands.{each}" for each in modules], words
