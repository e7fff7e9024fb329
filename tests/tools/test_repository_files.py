"""Files that a program has us handle, by the rules of our own tools."""

import os
from pathlib import Path

import pytest

from holdfast.domain.tools import ToolClass
from holdfast.ports.tools import FileProblem, PlannedWrite
from holdfast.process.launcher import Launcher
from holdfast.tools.files.access import FileAccess, FileSettings
from holdfast.tools.files.openat import probe_kernel
from holdfast.tools.git.status import GitStatus, parse_status
from holdfast.tools.process_context import ProcessSettings
from holdfast.tools.repository_files import LocalRepositoryFiles
from tests.marks import each_case

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> LocalRepositoryFiles:
    """Have files of an installation whose home is protected."""
    settings = FileSettings(protected=(str(tmp_path / "home"),))
    status = GitStatus(ProcessSettings(environment=os.environ), Launcher())
    return LocalRepositoryFiles(FileAccess(settings, probe_kernel()), status)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a repository's folder."""
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    return tmp_path / "tree"


async def test_what_has_changed_since_it_was_planned_is_not_written(
    files: LocalRepositoryFiles, tree: Path
) -> None:
    file = tree / "a.txt"
    planned = await files.plan(str(tree), str(file), "new")
    file.write_text("theirs")

    with pytest.raises(FileProblem) as caught:
        await files.write(str(tree), planned, "new")
    assert (caught.value.kind, file.read_text()) == ("failed", "theirs")


async def test_a_folder_inside_is_named_by_its_real_path(
    files: LocalRepositoryFiles, tree: Path
) -> None:
    (tree / "link").symlink_to("deep")

    assert await files.folder(str(tree), f"{tree}/link") == f"{tree}/deep"
    with pytest.raises(FileProblem) as caught:
        await files.folder(str(tree), str(tree.parent))
    assert caught.value.kind == "outside"


@each_case(
    ("paths", "expected"),
    [
        (("a.txt",), ToolClass.WRITE),
        (("a.txt", "deep/b.txt"), ToolClass.WRITE),
        (("a.txt", "Makefile"), ToolClass.SENSITIVE_WRITE),
        (("a.txt", "../b.txt"), ToolClass.SENSITIVE_WRITE),
        (("package.json",), ToolClass.SENSITIVE_WRITE),
    ],
)
async def test_the_most_delicate_file_decides(
    files: LocalRepositoryFiles, tree: Path, paths: tuple[str, ...], expected: ToolClass
) -> None:
    whole = tuple(f"{tree}/{path}" for path in paths)

    assert await files.class_of(str(tree), whole) is expected


@each_case(
    ("path", "content", "kind"),
    [("x" * 3, "x" * (8 * 2**20 + 1), "too_large"), ("a/" * 70 + "b", "x", "failed")],
)
async def test_what_is_too_much_is_refused(
    files: LocalRepositoryFiles, tree: Path, path: str, content: str, kind: str
) -> None:
    with pytest.raises(FileProblem) as caught:
        await files.plan(str(tree), f"{tree}/{path}", content)
    assert caught.value.kind == kind


async def test_a_planned_write_tells_what_it_changes_and_what_is_beside_it(
    files: LocalRepositoryFiles, tree: Path
) -> None:
    (tree / "a.txt").write_text("old\n")

    planned = await files.plan(str(tree), f"{tree}/a.txt", "new\n")
    assert (planned.tool_class, planned.memory) == (ToolClass.WRITE, f"write:{tree}")
    assert planned.question == f"{tree}/a.txt (change)\n@@ -1 +1 @@\n-old\n+new"
    assert (await files.plan(str(tree), f"{tree}/Makefile", "all:")).memory is None


async def _tried(files: LocalRepositoryFiles, tree: Path, planned: PlannedWrite) -> list[str]:
    """Do all that can be done with files, and return how each of it was refused."""
    path, troubles = planned.path, []
    for work in (
        files.read(str(tree), path),
        files.plan(str(tree), path, "x"),
        files.write(str(tree), planned, "x"),
        files.folder(str(tree), str(tree)),
    ):
        with pytest.raises(FileProblem) as caught:
            await work
        troubles.append(caught.value.kind)
    return troubles


@pytest.mark.parametrize("swapped", ["place/tree", "place"])
@pytest.mark.parametrize("is_seen_late", [False, True])
async def test_a_repository_that_leads_elsewhere_is_outside(
    files: LocalRepositoryFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    swapped: str,
    is_seen_late: bool,
) -> None:
    tree, outside = tmp_path / "place" / "tree", tmp_path / "outside"
    for folder in (tree, outside / "tree"):
        folder.mkdir(parents=True)
    planned = await files.plan(str(tree), f"{tree}/a.txt", "x")
    (tmp_path / swapped).rename(tmp_path / "moved")
    (tmp_path / swapped).symlink_to(outside if swapped == "place" else outside / "tree")
    for folder in (outside, outside / "tree"):
        (folder / "a.txt").write_text("secret")
    if is_seen_late:
        # As if it were swapped after it was looked at.
        monkeypatch.setattr(os.path, "realpath", lambda path: path)

    found = await _tried(files, tree, planned)
    assert await files.class_of(str(tree), (planned.path,)) is ToolClass.SENSITIVE_WRITE
    assert await files.status(str(tree)) is None
    is_walked = is_seen_late and swapped == "place/tree"
    assert found == ["missing" if is_walked else "outside"] * 4


async def test_what_is_no_repository_has_no_status(files: LocalRepositoryFiles, tree: Path) -> None:
    assert await files.status(str(tree)) is None


def test_entries_of_every_kind_have_their_paths() -> None:
    entries = [
        "1 .M N... 100644 100644 100644 aaa bbb a b.txt",
        "2 R. N... 100644 100644 100644 aaa bbb R100 new.txt",
        "old.txt",
        "u UU N... 100644 100644 100644 100644 aaa bbb ccc both.txt",
        "? ünew file",
        "# branch.oid x",
    ]

    assert dict(parse_status(entries)) == {
        "a b.txt": "1 .M N... 100644 100644 100644 aaa bbb",
        "new.txt": "2 R. N... 100644 100644 100644 aaa bbb R100 old.txt",
        "both.txt": "u UU N... 100644 100644 100644 100644 aaa bbb ccc",
        "ünew file": "?",
    }
