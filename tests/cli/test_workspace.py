"""Where a conversation takes place."""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.workspace import git_ref, working_dir
from holdfast.domain.errors import Invalid


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a Git work tree with one commit on the branch `main`."""
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path


def test_the_folder_of_the_process_is_taken_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")

    assert working_dir(None) == str((tmp_path / "real").resolve())
    assert working_dir(tmp_path / "link") == str((tmp_path / "real").resolve())


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_wish_must_be_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Invalid, match="is not a folder"):
        working_dir(tmp_path / name)


def test_a_process_whose_folder_is_gone_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = Path.cwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        assert working_dir(None) is None
    finally:
        os.chdir(before)


def test_a_branch_is_told_with_its_commit(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    (tree / "below").mkdir()

    assert git_ref(str(tree)) == f"main@{commit[:12]}"
    assert git_ref(str(tree / "below")) == f"main@{commit[:12]}"


def test_a_detached_commit_stands_alone(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "-q", "--detach")

    assert git_ref(str(tree)) == commit[:12]


def test_outside_a_work_tree_there_is_nothing(tmp_path: Path) -> None:
    assert git_ref(str(tmp_path)) is None


def test_a_branch_without_a_commit_is_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")

    assert git_ref(str(tmp_path)) is None


def test_inside_the_git_folder_there_is_no_work_tree(tree: Path) -> None:
    assert git_ref(str(tree / ".git")) is None


def test_without_git_nothing_is_detected(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    assert git_ref(str(tree)) is None


def test_a_git_that_hangs_is_left(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tree / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("holdfast.cli.workspace.GIT_SECONDS", 0.05)

    assert git_ref(str(tree)) is None


def git(folder: Path, *arguments: str) -> str:
    """Run Git as somebody, with no configuration of this machine."""
    done = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
    )
    return done.stdout.strip()
