"""Holds what git shows and what it commits, and that a commit is the one that was agreed to."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect, FsTier, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from tests.marks import each_case
from tests.tools.process_fixture import Workbench, codes

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    """Be a repository with one commit."""
    bench = Workbench(tmp_path)
    bench.repository({"a.txt": "one\n", "folder/b.txt": "two\n"})
    return bench


async def show(bench: Workbench, what: str = "status", **more: Any) -> str:
    """Return what git shows."""
    done = await bench.call("git_status", show=what, **more)
    assert done.status is ResultStatus.OK, done
    assert done.result["exit_code"] == 0, done
    return str(done.result["stdout"])


async def commit(bench: Workbench, message: str = "second", *paths: str) -> CallOutcome:
    """Commit, as if somebody agreed."""
    return await bench.call("git_commit", message=message, paths=list(paths))


async def planned(bench: Workbench, message: str = "second", *paths: str) -> PlannedCall:
    """Return the plan of a commit."""
    found = await bench.plan("git_commit", message=message, paths=list(paths))
    assert isinstance(found, PlannedCall), found
    return found


async def test_status_shows_what_changed(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / "new.txt").write_text("new\n")
    (bench.work / "folder/b.txt").unlink()
    bench.git("add", "new.txt")

    told = await show(bench)

    assert told == "## main\n M a.txt\n D folder/b.txt\nA  new.txt\n"


async def test_status_of_one_path(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / "folder/b.txt").write_text("changed\n")

    assert await show(bench, path="folder") == "## main\n M folder/b.txt\n"
    assert await show(bench, path=str(bench.work / "a.txt")) == "## main\n M a.txt\n"


async def test_status_respects_what_the_user_and_the_repository_ignore(bench: Workbench) -> None:
    (bench.user / ".config/git").mkdir(parents=True)
    (bench.user / ".config/git/ignore").write_text("*.mine\n")
    (bench.work / ".git/info/exclude").write_text("*.ours\n")
    (bench.work / ".gitignore").write_text("*.theirs\n")
    for name in ("a.mine", "a.ours", "a.theirs", "a.seen"):
        (bench.work / name).touch()

    first = await show(bench)
    (bench.user / "elsewhere").write_text("*.seen\n")
    bench.git("config", "--global", "core.excludesFile", "~/elsewhere")
    second = await show(bench)

    assert first == "## main\n?? .gitignore\n?? a.seen\n"
    assert second == "## main\n?? .gitignore\n?? a.mine\n"


async def test_the_log_tells_who_and_what(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    bench.git("commit", "-aqm", "second\n\nwith a body")

    told = await show(bench, "log")
    of_one = await show(bench, "log", path="folder/b.txt")

    assert told.count("Author: Ada <ada@example.com>") == 2
    assert "    second\n    \n    with a body\n" in told
    assert "second" not in of_one
    assert "first" in of_one


async def test_a_diff_shows_staged_and_unstaged_changes(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / "folder/b.txt").write_text("staged\n")
    bench.git("add", "folder/b.txt")

    told = await show(bench, "diff")

    assert "-one\n+changed\n" in told
    assert "-two\n+staged\n" in told


async def test_a_diff_leaves_protected_files_out(bench: Workbench) -> None:
    (bench.work / ".env").write_text("KEY=old\n")
    bench.git("add", "--force", ".env")
    bench.git("commit", "-qm", "careless")
    (bench.work / ".env").write_text("KEY=new\n")
    (bench.work / "a.txt").write_text("changed\n")

    told = await show(bench, "diff")
    asked = await bench.call("git_status", show="diff", path=".env")

    assert "KEY" not in told
    assert "+changed" in told
    assert told.endswith("[1 protected files are left out]\n")
    assert codes(asked) == ("denied", "protected_path")


async def test_a_repository_without_a_commit_can_be_looked_at(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.git("init", "--quiet", "--initial-branch=main")
    (bench.work / "a.txt").write_text("one\n")
    bench.git("add", "a.txt")

    assert await show(bench) == "## No commits yet on main\nA  a.txt\n"
    assert "+one\n" in await show(bench, "diff")
    log = await bench.call("git_status", show="log")
    assert log.status is ResultStatus.OK
    assert log.result["exit_code"] == 128


async def test_a_detached_head_can_be_looked_at(bench: Workbench) -> None:
    bench.git("checkout", "--quiet", "--detach")

    assert await show(bench) == "## HEAD (no branch)\n"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../user", "outside_scope"),
        ("/etc/passwd", "outside_scope"),
        ("link/secret", "outside_scope"),
        ("a/../../user", "outside_scope"),
        (".ssh/id_rsa", "protected_path"),
        ("a\x00b", "invalid_arguments"),
    ],
)
async def test_a_path_has_to_be_within_reach(bench: Workbench, path: str, code: str) -> None:
    (bench.work / "link").symlink_to(bench.user)

    looked = await bench.call("git_status", path=path)

    assert looked.error is not None
    assert looked.error.code == code


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", ["-a", "--exec=x", "--", ":(exclude)x", "*.txt", ":/", "a*"])
async def test_a_path_is_a_name_and_neither_flag_nor_pattern(bench: Workbench, path: str) -> None:
    (bench.work / path.replace("/", "_")).write_text("x")

    done = await bench.call("git_status", path=path.replace("/", "_"))

    assert done.result["exit_code"] == 0
    assert done.result["stdout"].count("\n") == 2


async def test_there_has_to_be_a_repository_in_reach(bench: Workbench, tmp_path: Path) -> None:
    inner = bench.work / "folder"
    bench.work = inner
    out_of_reach = await bench.call("git_status")
    bench.allow(tier=FsTier.PROJECT)
    in_reach = await bench.call("git_status")
    bench.work = bench.user
    none = await bench.call("git_status")

    assert codes(out_of_reach) == codes(none) == ("error", "not_found")
    assert codes(in_reach) == ("ok", "")


async def test_a_repository_elsewhere_is_outside(bench: Workbench, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    bench.git("init", "--quiet", folder=private)
    bench.git("-C", str(private), "commit", "--allow-empty", "-qm", "private words")
    (bench.work / ".git").rename(bench.user / "moved")
    (bench.work / ".git").write_text(f"gitdir: {private / '.git'}\n")

    by_file = await bench.call("git_status", show="log")
    (bench.work / ".git").unlink()
    (bench.work / ".git").symlink_to(private / ".git")
    by_link = await bench.call("git_status", show="log")
    (bench.work / ".git").unlink()
    (bench.user / "moved").rename(bench.work / ".git")
    (bench.work / ".git/commondir").write_text(str(private / ".git"))
    by_common = await bench.call("git_status", show="log")

    assert codes(by_file) == codes(by_link) == codes(by_common) == ("denied", "outside_scope")


async def test_what_only_looks_like_a_repository_is_none(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    (bench.work / ".git").write_text("nonsense\n")
    words = await bench.call("git_status")
    (bench.work / ".git").unlink()
    (bench.work / ".git").mkdir()
    empty = await bench.call("git_status")
    (bench.work / ".git").rmdir()
    os.mkfifo(bench.work / ".git")
    pipe = await bench.call("git_status")

    assert codes(words) == codes(empty) == codes(pipe) == ("error", "unavailable")


async def test_a_second_working_tree_can_be_used_where_both_are_in_reach(
    bench: Workbench,
) -> None:
    bench.git("worktree", "add", "--quiet", "-b", "side", "tree")
    bench.work, top = bench.work / "tree", bench.work
    bench.extra_roots = (str(top),)
    bench.allow(tier=FsTier.PROJECT)
    (bench.work / "a.txt").write_text("changed\n")

    status = await show(bench)
    done = await commit(bench, "from the side", "a.txt")

    assert status == "## side\n M a.txt\n"
    assert done.status is ResultStatus.OK, done
    assert bench.git("log", "-1", "--format=%s", "side") == "from the side\n"
    assert bench.git("status", "--short") == ""
    assert bench.git("log", "-1", "--format=%s", "main") == "first\n"


async def test_an_index_in_two_halves_can_be_read(bench: Workbench) -> None:
    bench.git("update-index", "--split-index")
    (bench.work / "new.txt").write_text("new\n")
    bench.git("add", "new.txt")

    assert await show(bench) == "## main\nA  new.txt\n"


async def test_a_repository_with_longer_names_works_too(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.git("config", "--global", "init.defaultObjectFormat", "sha256")
    bench.git("init", "--quiet", "--object-format=sha256", "--initial-branch=main")
    bench.git("config", "user.name", "Ada")
    bench.git("config", "user.email", "ada@example.com")
    (bench.work / "a.txt").write_text("one\n")

    done = await commit(bench, "first", "a.txt")

    assert done.status is ResultStatus.OK, done
    assert len(done.result["commit"]) == 64
    assert bench.git("log", "--format=%s %p") == "first \n"
    assert await show(bench) == "## main\n"


async def test_without_git_there_is_no_git_tool(bench: Workbench) -> None:
    bench.environment["PATH"] = str(bench.user)

    offered = {tool.name for tool in await bench.toolbox.offers(bench.place)}
    done = await bench.call("git_status")

    assert offered == set()
    assert codes(done) == ("error", "unavailable")


async def test_a_look_changes_nothing(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    before = snapshot(bench.work)

    for what in ("status", "log", "diff"):
        await show(bench, what)
    await planned(bench, "second", "a.txt")

    assert snapshot(bench.work) == before
    assert list(bench.scratch.iterdir()) == []


async def test_a_commit_holds_what_is_staged_and_the_named_paths(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / "staged.txt").write_text("staged\n")
    (bench.work / "left.txt").write_text("left\n")
    bench.git("add", "staged.txt")

    done = await commit(bench, "second\n\nbody", "a.txt")

    head = bench.git("rev-parse", "HEAD").strip()
    assert done.result == {
        "commit": head,
        "exit_code": 0,
        "stdout": done.result["stdout"],
        "stderr": "",
    }
    assert done.result["stdout"].startswith(f"[main {head[:10]}] second\n")
    assert bench.git("show", "--name-only", "--format=%B%an <%ae>%n%cn <%ce>") == (
        "second\n\nbody\nAda <ada@example.com>\nAda <ada@example.com>\n\na.txt\nstaged.txt\n"
    )
    assert bench.git("status", "--short") == "?? left.txt\n"
    assert bench.git("reflog", "-1", "--format=%gs") == "commit: second\n"
    assert bench.git("fsck", "--strict") == ""
    assert list(bench.scratch.iterdir()) == []


async def test_a_detached_head_moves_alone(bench: Workbench) -> None:
    bench.git("checkout", "--quiet", "--detach")
    (bench.work / "a.txt").write_text("changed\n")

    done = await commit(bench, "second", "a.txt")

    assert done.status is ResultStatus.OK, done
    assert bench.git("log", "-1", "--format=%s") == "second\n"
    assert bench.git("log", "-1", "--format=%s", "main") == "first\n"


async def test_the_question_shows_the_whole_commit(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")

    found = await planned(bench, "second\x1b[2J\nCommit to refs/heads/other", "a.txt")

    assert found.question.splitlines() == [
        f"Commit to refs/heads/main in {bench.work}",
        "as Ada <ada@example.com>",
        "staging first: a.txt",
        "with the message",
        "  second\\u001b[2J",
        "  Commit to refs/heads/other",
        "which changes",
        "   a.txt | 2 +-",
        "   1 file changed, 1 insertion(+), 1 deletion(-)",
        "Hooks, filters, fsmonitor and signing programs do not run.",
    ]
    assert (found.effect, found.tool_class) == (Effect.UNSAFE, ToolClass.COMMIT)
    assert found.memory is None
    assert found.preview == {"path": str(bench.work)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["file", "index", "head", "branch", "author", "nothing"])
async def test_a_commit_is_the_one_that_was_agreed_to(bench: Workbench, what: str) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / "b.txt").write_text("other\n")
    agreed = await planned(bench, "second", "a.txt")
    if what == "file":
        (bench.work / "a.txt").write_text("changed again\n")
    if what == "index":
        bench.git("add", "b.txt")
    if what == "head":
        bench.git("commit", "--allow-empty", "-qm", "meanwhile")
    if what == "branch":
        bench.git("checkout", "-qb", "other")
    if what == "author":
        bench.git("config", "user.name", "Eve")
    before = bench.git("rev-parse", "HEAD")

    done = await bench.toolbox.run(bench.place, agreed)

    if what == "nothing":
        assert done.status is ResultStatus.OK, done
        return
    assert codes(done) == ("denied", "target_changed")
    assert bench.git("rev-parse", "HEAD") == before
    assert not (bench.work / ".git/index.lock").exists()


async def test_a_file_that_changes_at_the_last_moment_is_not_committed(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    agreed = await planned(bench, "second", "a.txt")
    toolbox = bench.toolbox
    again = toolbox._plan

    async def meddled(*given: Any) -> PlannedCall:
        found = await again(*given)
        (bench.work / "a.txt").write_text("meddled with\n")
        return found

    monkeypatch.setattr(toolbox, "_plan", meddled)
    done = await toolbox.run(bench.place, agreed)

    assert codes(done) == ("denied", "target_changed")
    assert bench.git("log", "--format=%s") == "first\n"
    assert bench.git("status", "--short") == " M a.txt\n"


async def test_a_locked_index_is_left_alone(bench: Workbench) -> None:
    (bench.work / "a.txt").write_text("changed\n")
    (bench.work / ".git/index.lock").write_text("somebody else's")

    done = await commit(bench, "second", "a.txt")

    assert codes(done) == ("error", "failed")
    assert (bench.work / ".git/index.lock").read_text() == "somebody else's"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("pattern", ["*.txt filter=lfs", "* filter=git-crypt diff=git-crypt"])
@pytest.mark.parametrize("place", [".gitattributes", ".git/info/attributes"])
async def test_content_that_needs_a_filter_is_refused(
    bench: Workbench, pattern: str, place: str
) -> None:
    (bench.work / place).write_text(f"{pattern}\n")
    (bench.work / "a.txt").write_text("changed\n")

    done = await commit(bench, "second", "a.txt")

    assert codes(done) == ("denied", "filter_needed")
    assert done.error is not None
    assert done.error.message.startswith("a.txt needs the filter ")
    assert bench.git("log", "--format=%s") == "first\n"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [".env", "folder/.env", "id_rsa", ".ssh/config"])
async def test_a_protected_file_is_not_committed(bench: Workbench, name: str) -> None:
    (bench.work / name).parent.mkdir(exist_ok=True)
    (bench.work / name).write_text("secret\n")

    by_name = await commit(bench, "second", name)
    by_folder = await commit(bench, "second", ".")

    assert codes(by_name) == codes(by_folder) == ("denied", "protected_path")
    assert bench.git("status", "--short").startswith("??")


@each_case(
    ("message", "paths", "code"),
    [
        ("", [], "invalid_arguments"),
        (" \n ", [], "invalid_arguments"),
        ("a\x00b", [], "invalid_arguments"),
        ("ok", [""], "invalid_arguments"),
        ("ok", ["-A"], "invalid_arguments"),
        ("ok", ["/etc/passwd"], "invalid_arguments"),
        ("ok", ["../user"], "outside_scope"),
        ("ok", ["missing.txt"], "failed"),
        ("ok", ["*.txt"], "failed"),
        ("ok", [".git/config"], "protected_path"),
        ("ok", [], "failed"),
    ],
)
async def test_what_cannot_be_committed_is_told(
    bench: Workbench, message: str, paths: list[str], code: str
) -> None:
    done = await bench.call("git_commit", message=message, paths=paths)

    assert done.error is not None
    assert done.error.code == code, done
    assert bench.git("log", "--format=%s") == "first\n"


async def test_somebody_has_to_be_known_as_the_author(bench: Workbench) -> None:
    bench.git("config", "--global", "--unset", "user.email")
    (bench.work / "a.txt").write_text("changed\n")

    nobody = await commit(bench, "second", "a.txt")
    del bench.environment["HOME"]
    homeless = await commit(bench, "second", "a.txt")

    assert codes(nobody) == codes(homeless) == ("error", "unavailable")
    assert nobody.error is not None
    assert "git config --global" in nobody.error.message


async def test_what_was_begun_with_git_is_ended_with_git(bench: Workbench) -> None:
    (bench.work / ".git/MERGE_HEAD").write_text(bench.git("rev-parse", "HEAD"))
    (bench.work / "a.txt").write_text("changed\n")

    done = await commit(bench, "second", "a.txt")

    assert codes(done) == ("error", "failed")
    assert done.error is not None
    assert "MERGE_HEAD" in done.error.message


async def test_a_commit_keeps_modes_and_line_endings_and_minds_no_filter_of_other_files(
    bench: Workbench,
) -> None:
    (bench.work / ".gitattributes").write_text("*.bin filter=lfs\na.txt -filter\n")
    (bench.work / "large.bin").write_text("x")
    bench.git("config", "core.autocrlf", "input")
    (bench.work / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (bench.work / "folder/b.txt").unlink()
    (bench.work / "folder/c.txt").write_text("three\n")
    index = bench.work / ".git/index"
    index.chmod(0o664)

    done = await commit(bench, "second", "a.txt", "folder", ".gitattributes")
    # Looked at before `git status`, which may write the index anew with a mode of its own.
    kept = stat.S_IMODE(index.stat().st_mode)

    assert done.status is ResultStatus.OK, done
    assert bench.git("cat-file", "blob", "HEAD:a.txt") == "one\ntwo\n"
    assert bench.git("ls-files") == ".gitattributes\na.txt\nfolder/c.txt\n"
    assert bench.git("status", "--short") == "?? large.bin\n"
    name = done.result["commit"]
    made = (bench.work / ".git/objects" / name[:2] / name[2:]).stat().st_mode
    assert stat.S_IMODE(made) == 0o444
    assert kept == 0o664


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the content of every file below, and when it was changed."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
