"""Imprints: git is asked again whenever it could say something else, and otherwise not."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from holdfast.process.launcher import Launcher
from holdfast.tools.git import status as git_status
from holdfast.tools.git.repository import Repository
from holdfast.tools.git.status import GitStatus, fingerprint
from holdfast.tools.process_context import ProcessSettings
from tests.marks import each_case

pytestmark = pytest.mark.anyio

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b.test")


def git(tree: Path, *words: str) -> None:
    """Run git in a repository."""
    subprocess.run(["git", "-C", str(tree), *AUTHOR, *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with a commit, and let no time have to pass between changes."""
    monkeypatch.setattr(git_status, "_TICK", -(1 << 60))
    monkeypatch.setattr(git_status, "_COARSE", -(1 << 60))
    folder = tmp_path / "tree"
    (folder / "deep").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "deep" / "a.txt").write_text("one")
    (folder / ".gitignore").write_text("built/\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def imprint_of(tree: Path, ignored: frozenset[str] = frozenset()) -> bytes | None:
    """Return the imprint of a repository."""
    found = Repository(top=str(tree), git_dir=f"{tree}/.git", common_dir=f"{tree}/.git")
    return fingerprint(found, ignored, Event())


class CountingLauncher(Launcher):
    """Counts the processes."""

    started = 0

    async def run(self, *given: Any, **how: Any) -> Any:
        """Count, and start."""
        self.started += 1
        return await super().run(*given, **how)


def _rewrite(tree: Path) -> None:
    file = tree / "deep" / "a.txt"
    before = file.stat()
    file.write_text("two")
    # Of the same size, and with the time of before: somebody who does not want to be seen.
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "another content": _rewrite,
    "a new file": lambda tree: (tree / "deep" / "b.txt").touch(),
    "a file that is gone": lambda tree: (tree / "deep" / "a.txt").unlink(),
    "a link in its place": lambda tree: (tree / "link").symlink_to("/"),
    "another mode": lambda tree: (tree / "deep" / "a.txt").chmod(0o755),
    "another name": lambda tree: (tree / "deep").rename(tree / "deeper"),
    "an entry of the index": lambda tree: git(tree, "rm", "--cached", "--quiet", "deep/a.txt"),
    "a commit": lambda tree: git(tree, "commit", "--quiet", "--allow-empty", "-m", "x"),
    "another branch": lambda tree: git(tree, "checkout", "--quiet", "-b", "side"),
    "what is excluded": lambda tree: (tree / ".git/info/exclude").write_text("*.txt\n"),
    "a setting": lambda tree: git(tree, "config", "core.fileMode", "false"),
}


@each_case("change", CHANGES)
def test_whatever_git_could_tell_changes_the_imprint(
    tree: Path, tmp_path: Path, change: str
) -> None:
    copy = shutil.copytree(tree, tmp_path / change, symlinks=True)
    before = imprint_of(copy)
    assert before is not None
    assert imprint_of(copy) == before

    CHANGES[change](copy)

    assert imprint_of(copy) not in (None, before)


def test_what_is_passed_over_does_not_change_it(tree: Path) -> None:
    (tree / "built").mkdir()
    (tree / ".git" / "objects" / "junk").touch()
    ignored = frozenset({"built/"})
    before = imprint_of(tree, ignored)

    (tree / "built" / "new").touch()
    (tree / ".git" / "objects" / "more").touch()

    assert imprint_of(tree, ignored) == before


def test_a_file_that_has_changed_a_moment_ago_proves_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_status, "_TICK", 60_000_000_000)
    assert imprint_of(tree) is None


def test_too_many_files_and_folders_that_cannot_be_read_prove_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert imprint_of(tree / "nowhere") is None
    monkeypatch.setattr(git_status, "FILES_MOST", 2)
    assert imprint_of(tree) is None


async def test_git_is_asked_once_as_long_as_nothing_happens(tree: Path) -> None:
    launcher = CountingLauncher()
    status = GitStatus(ProcessSettings(environment=os.environ), launcher)
    (tree / "new.txt").touch()

    first = await status.entries(str(tree))
    asked = launcher.started
    again = [await status.entries(str(tree)) for _ in range(3)]

    assert first == {"new.txt": "?"}
    assert again == [first] * 3
    assert launcher.started == asked > 0

    _rewrite(tree)
    changed = await status.entries(str(tree))

    assert changed.keys() == {"new.txt", "deep/a.txt"}
    assert launcher.started > asked


async def test_folders_that_git_passes_over_are_looked_at_no_more(tree: Path) -> None:
    launcher = CountingLauncher()
    status = GitStatus(ProcessSettings(environment=os.environ), launcher)
    (tree / "built").mkdir()
    (tree / "built" / "out").touch()

    # The first tells which ones they are, the second is remembered.
    found = [await status.entries(str(tree)) for _ in range(2)]
    asked = launcher.started
    (tree / "built" / "more").touch()
    found.append(await status.entries(str(tree)))

    assert found == [{}, {}, {}]
    assert launcher.started == asked


async def test_only_some_repositories_are_remembered(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.git.status._REMEMBERED_MOST", 1)
    launcher = CountingLauncher()
    status = GitStatus(ProcessSettings(environment=os.environ), launcher)
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")

    await status.entries(str(tree))
    await status.entries(str(other))
    asked = launcher.started
    await status.entries(str(other))
    assert launcher.started == asked
    await status.entries(str(tree))
    assert launcher.started > asked
