"""Agents by reference: files of the home, files of a repository after consent, and stored ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.marks import demands

Describe = Callable[..., Path]


def text_of(slug: str, prompt: str = "Review.", more: str = "") -> str:
    """Return an agent's file."""
    return f"id: {slug}\nmodel: holdfast\nprovider: offline\nsystem_prompt: {prompt}\n{more}"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder that somebody else has filled."""
    folder = tmp_path / "work"
    (folder / ".holdfast" / "agents").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def written(folder: Path, slug: str, *rest: str) -> Path:
    """Put a file of an agent where files of agents are looked for."""
    file = folder / "agents" / f"{slug}.agent.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text_of(slug, *rest))
    return file


def asked(cli: Cli, ref: str) -> str:
    """Talk to an agent and return the prompt that the session has frozen."""
    ran = cli("chat", "hello", "--agent", ref, "--json")
    assert ran.code == 0, ran.err
    assert ran.lines[0]["type"] == "session:started"
    slug = ran.lines[0]["agentRef"]
    shown = cli("agents", "show", slug, "--json").document
    return f"{slug}: {shown['system_prompt']}"


@demands("S0-440")
def test_an_agent_of_the_home_answers_by_its_name_and_is_what_its_file_says_now(
    cli: Cli, home: Path, work: Path
) -> None:
    file = written(home, "reviewer")
    assert asked(cli, "reviewer") == "reviewer: Review."

    file.write_text(text_of("reviewer", "Review again."))

    assert asked(cli, "reviewer") == "reviewer: Review again."


def test_an_agent_of_a_repository_needs_consent_to_the_very_file(cli: Cli, work: Path) -> None:
    file = written(work / ".holdfast", "reviewer")

    refused = cli("chat", "hello", "--agent", "reviewer", "--json")
    assert (refused.code, refused.out, refused.error["error"]) == (3, "", "consent_required")
    assert f"holdfast agents import {file}" in refused.error["message"]
    assert cli("agents", "list", "--json").document["data"] == []

    assert cli("agents", "import", str(file)).code == 0
    assert asked(cli, "reviewer") == "reviewer: Review."

    file.write_text(text_of("reviewer", "Obey."))
    assert cli("chat", "hello", "--agent", "reviewer", "--json").code == 3


def test_an_agent_of_a_repository_never_answers_under_the_name_of_yours(
    cli: Cli, work: Path
) -> None:
    cli("agents", "create", "--name", "Reviewer", "--system-prompt", "Mine.")
    written(work / ".holdfast", "reviewer")
    written(work / ".holdfast", "holdfast")

    for name in ("reviewer", "holdfast"):
        assert cli("chat", "hello", "--agent", name, "--json").code == 3
    assert cli("chat", "hello", "--json").code == 0
    id_ = cli("agents", "show", "reviewer", "--json").document["id"]
    assert asked(cli, id_) == "reviewer: Mine."


def test_a_path_is_agreed_to_by_being_written_and_changes_no_other(cli: Cli, work: Path) -> None:
    cli("agents", "create", "--name", "Reviewer", "--system-prompt", "Mine.")
    file = written(work, "reviewer")

    first = asked(cli, "./agents/reviewer.agent.yaml")
    again = asked(cli, str(file))

    assert first == again
    assert first.startswith("reviewer-")
    assert first.endswith(": Review.")
    assert asked(cli, "reviewer") == "reviewer: Mine."


def test_a_path_is_relative_to_the_current_folder_and_not_to_cwd(
    cli: Cli, work: Path, tmp_path: Path
) -> None:
    written(work, "reviewer")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    written(elsewhere, "reviewer", "Mine.")

    ran = cli(
        "chat", "hi", "--agent", "agents/reviewer.agent.yaml", "--cwd", str(elsewhere), "--json"
    )

    session = ran.lines[0]["sessionId"]
    shown = cli("sessions", "show", session, "--json").document
    agent = cli("agents", "show", shown["agent_id"], "--json").document
    assert (agent["system_prompt"], shown["context"]["working_dir"]) == ("Review.", str(elsewhere))


def test_a_path_of_a_new_name_takes_that_name(cli: Cli, work: Path) -> None:
    written(work, "reviewer")

    assert asked(cli, "agents/reviewer.agent.yaml") == "reviewer: Review."


@pytest.mark.parametrize("prompt", ["", "sk-abcdefghij0123456789"])
def test_an_agent_without_a_file_form_is_never_the_same(cli: Cli, work: Path, prompt: str) -> None:
    cli("agents", "create", "--name", "Reviewer", "--system-prompt", prompt)
    written(work, "reviewer")

    assert asked(cli, "agents/reviewer.agent.yaml").startswith("reviewer-")


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ("ghost", (4, "agent_not_found")),
        ("./ghost.agent.yaml", (4, "agent_not_found")),
        ("odd", (2, "agent_invalid")),
        ("broken", (2, "agent_syntax")),
        ("leaky", (2, "secret_in_file")),
        ("..", (4, "agent_not_found")),
    ],
)
def test_what_means_no_agent_is_refused(
    cli: Cli, home: Path, work: Path, ref: str, told: tuple[int, str]
) -> None:
    agents = home / "agents"
    agents.mkdir(parents=True)
    (agents / "odd.agent.yaml").write_text(text_of("other"))
    (agents / "broken.agent.yaml").write_text("id: [")
    (agents / "leaky.agent.yaml").write_text(text_of("leaky", "sk-abcdefghij0123456789"))

    ran = cli("chat", "hello", "--agent", ref, "--json")

    assert (ran.out, (ran.code, ran.error["error"])) == ("", told)
    assert cli("sessions", "list", "--json").document["data"] == []
