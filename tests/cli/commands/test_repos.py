"""`holdfast repos …`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make something that looks like a Git work tree."""
    folder = tmp_path / "tree"
    (folder / ".git").mkdir(parents=True)
    return folder


def test_a_repository_is_registered_once(
    cli: Cli, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tree.parent)

    added = cli("repos", "add", "tree", "--json").document
    again = cli("repos", "add", str(tree), "--name", "other", "--json").document
    plain = cli("repos", "add", str(tree))

    assert (added["name"], added["path"]) == ("tree", str(tree))
    assert again == added
    assert plain.out == f"Registered repository tree as {added['id']}.\n"


def test_repositories_are_listed_page_by_page(cli: Cli, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name / ".git").mkdir(parents=True)
        cli("repos", "add", str(tmp_path / name))

    first = cli("repos", "list", "--limit", "2", "--json").document
    second = cli("repos", "list", "--limit", "2", "--cursor", first["next_cursor"], "--json")
    plain = cli("repos", "list")

    assert [each["name"] for each in first["data"]] == ["a", "b"]
    assert [each["name"] for each in second.document["data"]] == ["c"]
    assert second.document["next_cursor"] is None
    assert [line.split("\t")[1] for line in plain.out.splitlines()] == ["NAME", "a", "b", "c"]
    assert cli("repos", "list", "--cursor", "nothing").code == 2
    assert cli("repos", "list", "--limit", "0").code == 2


def test_no_repositories_is_no_error(cli: Cli) -> None:
    ran = cli("repos", "list")

    assert (ran.code, ran.out) == (0, "")
    assert "holdfast repos add" in ran.err


def test_a_repository_is_forgotten_unless_a_session_needs_it(cli: Cli, tree: Path) -> None:
    repo = cli("repos", "add", str(tree), "--json").document["id"]
    session = cli("chat", "hello", "--repo", str(tree), "--json").lines[0]

    refused = cli("repos", "remove", repo, "--json")
    cli("sessions", "delete", session["sessionId"])
    removed = cli("repos", "remove", repo, "--json")

    assert session["context"]["workingDir"] == str(tree)
    assert (refused.code, refused.error["error"]) == (5, "repo_in_use")
    assert removed.document == {"removed": repo}
    assert cli("repos", "remove", repo).code == 4


def test_what_is_no_work_tree_is_refused(cli: Cli, tmp_path: Path) -> None:
    ran = cli("repos", "add", str(tmp_path), "--json")

    assert (ran.code, ran.error["error"]) == (2, "repo_invalid")


def test_with_a_root_only_what_lies_inside_is_admitted(
    cli: Cli, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKSPACE_ROOT", str(tmp_path / "elsewhere"))

    ran = cli("repos", "add", str(tree), "--json")

    assert (ran.code, ran.error["error"]) == (3, "repo_outside_root")
    assert "AGENT_WORKSPACE_ROOT" in ran.error["message"]
    assert str(tmp_path / "elsewhere") in ran.error["message"]
