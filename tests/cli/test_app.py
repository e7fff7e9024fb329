"""Which module brings which commands."""

import typer

from holdfast.cli.app import COMMANDS, build, modules_of
from tests.marks import each_case


@each_case("home", COMMANDS)
def test_a_module_brings_the_commands_that_the_table_names(home: str) -> None:
    app = typer.main.get_command(build([home]))

    assert set(app.list_commands(typer.Context(app))) == set(COMMANDS[home])  # type: ignore[attr-defined]


@each_case(
    ("line", "homes"),
    [
        ("--home there sessions list", ("sessions",)),
        ("migrate status", ("store",)),
        ("chat search", ("chat", "search")),
        ("chatt", tuple(COMMANDS)),
        ("--help", tuple(COMMANDS)),
        ("--json -h chat", tuple(COMMANDS)),
        ("chat --help", ("chat",)),
        ("", tuple(COMMANDS)),
    ],
)
def test_a_line_loads_what_it_names_and_everything_when_it_names_nothing(
    line: str, homes: tuple[str, ...]
) -> None:
    assert modules_of(line.split()) == homes
