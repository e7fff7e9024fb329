"""What Tab offers in a conversation."""

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from holdfast.cli.chat.repl import ChatCompleter
from holdfast.cli.chat.slash_commands import REGISTRY
from tests.marks import each_case


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder with names of all kinds."""
    for name in ("notes.txt", "two words.txt", ".hidden", "src/main.py", "bad\x1b[5m.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@each_case(
    ("typed", "offered"),
    [
        ("/e", ["/exit", "/end", "/export"]),
        ("/MO", ["/mode"]),
        ("/mode a", ["ask", "auto"]),
        ("/status x", []),
        ("/nothing x", []),
        ("look at @", ["@notes.txt", "@src/", '@"two words.txt"']),
        ("look at @.", ["@.hidden"]),
        ("@src/m", ["@src/main.py"]),
        ('@"two', ['@"two words.txt"']),
        ("@nowhere/", []),
        ("a@n", []),
        ("plain words ", []),
        ("", []),
    ],
)
def test_commands_and_files_are_offered(desk: Path, typed: str, offered: list[str]) -> None:
    found = ChatCompleter(REGISTRY, str(desk)).get_completions(Document(typed), CompleteEvent())

    assert [each.text for each in found] == offered
