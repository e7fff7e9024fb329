"""Agents as files at the terminal: imported, imported again, and printed as files."""

import asyncio
from pathlib import Path

import pytest

from holdfast import open_holdfast
from tests.cli.conftest import Cli
from tests.marks import each_case

FILE = """\
id: reviewer
model: holdfast
provider: offline
system_prompt: Review.
tools:
  - read_file
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
        "Created agent reviewer; chat with it: `holdfast chat --agent reviewer`.\n"
    )
    assert imported.err == ""
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
    assert changed["tools"] == ["find_text"]


def test_an_agent_is_printed_as_the_file_it_came_from(cli: Cli, file: Path) -> None:
    cli("agents", "import", str(file))

    printed = cli("agents", "export", "reviewer")
    for_programs = cli("agents", "export", "reviewer", "--json")

    assert printed.out == (
        "id: reviewer\nmodel: holdfast\nname: reviewer\n"
        "provider: offline\nrecovery: stop\nsystem_prompt: Review.\ntools:\n  - read_file\n"
    )
    assert for_programs.document["id"] == "reviewer"


@each_case(
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


@pytest.mark.parametrize("slug", ["plain", "holdfast", "reviewer", "careful"])
def test_an_agent_is_the_same_after_its_own_file_was_imported(
    cli: Cli, home: Path, file: Path, tmp_path: Path, slug: str
) -> None:
    cli("agents", "create", "--name", "Plain", "--system-prompt", "Be plain.", "--tag", "mine")
    cli("agents", "import", str(file))
    asyncio.run(make_careful(home))
    before = cli("agents", "show", slug, "--json").document

    exported = cli("agents", "export", slug)
    again = tmp_path / "again.agent.yaml"
    again.write_text(exported.out)
    imported = cli("agents", "import", str(again), "--json")

    assert (exported.code, imported.code) == (0, 0)
    assert imported.document == before
    is_open = before["default_model_id"] is None
    assert ("has no model of its own" in exported.err) is is_open


async def make_careful(home: Path) -> None:
    """Make an agent that says more about its tools and its reach than a file can."""
    async with open_holdfast(home) as house:
        fields = {
            "name": "Careful",
            "system_prompt": "x",
            "tools": ["read_file", {"name": "write_file", "approval": "deny"}],
            "grant": {"fs": "project", "commands": ["ls"]},
        }
        await house.agents.create(house.owner, fields)


def test_a_file_that_names_another_model_than_the_default_is_followed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("agents", "create", "--name", "Plain", "--system-prompt", "x")
    exported = cli("agents", "export", "plain").out
    file = tmp_path / "plain.agent.yaml"
    file.write_text(exported)
    (tmp_path / "other.yaml").write_text("[{text: other}]")
    monkeypatch.setenv("HOLDFAST_MODEL", f"scripted:{tmp_path}/other.yaml")

    kept = cli("agents", "import", str(file), "--json").document
    opened = cli("agents", "edit", "plain", "--model", "", "--json").document

    assert kept["default_model_id"] is not None
    assert opened["default_model_id"] is None
    assert cli("chat", "--agent", "plain", "hi").out == "other\n"


def test_an_agent_without_a_prompt_has_no_file_until_it_has_one(cli: Cli) -> None:
    cli("agents", "create", "--name", "Empty")

    refused = cli("agents", "export", "empty", "--json")
    cli("agents", "edit", "empty", "--system-prompt", "Be brief.")

    assert (refused.code, refused.out, refused.error["error"]) == (2, "", "agent_invalid")
    assert "`holdfast agents edit empty --system-prompt TEXT`" in refused.error["message"]
    assert cli("agents", "export", "empty").code == 0


@pytest.mark.parametrize("how", ["create", "import"])
def test_what_an_agent_of_ones_own_may_reach_is_what_the_configuration_says(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_CHAT_ALLOWED_COMMANDS", "echo hello")
    file = tmp_path / "runner.agent.yaml"
    file.write_text(FILE.replace("reviewer", "runner").replace("read_file", "run_command"))
    made = {
        "create": ("agents", "create", "--name", "Runner", "--tools", "run_command"),
        "import": ("agents", "import", str(file)),
    }

    assert cli(*made[how]).code == 0
    ran = cli("chat", "--agent", "runner", "--yes-to", "run_command", "run echo hello")
    shown = cli("agents", "show", "runner")

    assert (ran.code, ran.out) == (0, "It ended with 0.\n\nhello\n")
    assert "the default of [chat] in holdfast.toml" in shown.out
