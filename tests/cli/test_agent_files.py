"""Agents as files at the terminal: imported, imported again, and printed as files."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

FILE = """\
id: reviewer
model: holdfast
provider: offline
system_prompt: Review.
tools:
  - read_file
output_schema: {type: object}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write an agent's file."""
    file = tmp_path / "reviewer.agent.yaml"
    file.write_text(FILE)
    return file


def test_a_file_becomes_an_agent_that_answers(cli: Cli, file: Path) -> None:
    imported = cli("agents", "import", str(file))
    answered = cli("chat", "What is 2+3?", "--agent", "reviewer", "--json")

    assert imported.code == 0
    assert imported.out == (
        "Agent reviewer is there; `holdfast chat --agent reviewer` talks to it.\n"
    )
    assert imported.err == (
        "field_not_applied: output_schema is kept with the agent, and changes nothing yet.\n"
    )
    assert answered.code == 0


def test_a_script_is_found_beside_the_file_that_names_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('[{"text": "as written"}]')
    file = tmp_path / "a.agent.yaml"
    file.write_text("id: a\nmodel: script.json\nprovider: scripted\nsystem_prompt: x\n")

    imported = cli("agents", "import", str(file))
    answered = cli("chat", "hello", "--agent", "a")

    assert (imported.code, answered.code) == (0, 0)
    assert "as written" in answered.out


def test_a_file_that_is_imported_again_makes_its_agent_what_it_says(cli: Cli, file: Path) -> None:
    cli("agents", "import", str(file))
    cli("agents", "edit", "reviewer", "--tag", "mine", "--description", "Old.")
    file.write_text(FILE.replace("Review.", "Review twice.").replace("- read_file", "- find_text"))

    again = cli("agents", "import", str(file), "--json")

    assert again.code == 0
    changed = again.document
    assert (changed["system_prompt"], changed["description"], changed["tags"]) == (
        "Review twice.",
        None,
        ["mine"],
    )
    assert [tool["name"] for tool in changed["tools"]] == ["find_text"]


def test_an_agent_is_printed_as_the_file_it_came_from(cli: Cli, file: Path) -> None:
    cli("agents", "import", str(file))

    printed = cli("agents", "export", "reviewer")
    for_programs = cli("agents", "export", "reviewer", "--json")

    assert printed.out == (
        "id: reviewer\nmodel: holdfast\nname: reviewer\noutput_schema:\n  type: object\n"
        "provider: offline\nrecovery: stop\nsystem_prompt: Review.\ntools:\n  - read_file\n"
    )
    assert for_programs.document["id"] == "reviewer"


@pytest.mark.parametrize(
    ("content", "error", "details"),
    [
        ("id: [", "agent_syntax", {"line": 1, "column": 6}),
        (f"{FILE}color: red\n", "agent_invalid", {"fields": ["color"]}),
        (
            f"{FILE}description: ghp_abcdefghij0123456789\n",
            "secret_in_file",
            {"fields": ["description"]},
        ),
        (
            FILE.replace("Review.", "'{{secrets.x}}'"),
            "secret_interpolation",
            {"field": "system_prompt"},
        ),
    ],
)
def test_a_file_that_is_not_right_is_refused_as_it_is(
    cli: Cli, file: Path, content: str, error: str, details: dict[str, object]
) -> None:
    file.write_text(content)

    ran = cli("agents", "import", str(file), "--json")

    assert (ran.code, ran.error["error"]) == (2, error)
    assert ran.error["details"] == {"file": str(file), **details}
    assert "ghp_" not in ran.err


def test_a_file_that_is_not_there_is_told(cli: Cli, tmp_path: Path) -> None:
    ran = cli("agents", "import", str(tmp_path / "missing.yaml"), "--json")

    assert (ran.code, ran.error["error"]) == (4, "agent_not_found")


def test_a_key_of_the_environment_is_no_part_of_a_file(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "plainly-a-key")
    file.write_text(FILE.replace("Review.", "The key is plainly-a-key."))

    ran = cli("agents", "import", str(file), "--json")

    assert (ran.error["error"], "plainly-a-key" in ran.err) == ("secret_in_file", False)
