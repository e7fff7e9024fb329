"""How far the tools reach: roots by tier, links that stay inside, and everything that leads out."""

import os
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier, Grant
from holdfast.tools.files.openat import KernelSupport
from tests.marks import demands, each_case
from tests.tools.file_fixture import CANARY, Workshop, result, told

pytestmark = pytest.mark.anyio

OUTSIDE = ("denied", "outside_scope")


@pytest.fixture
def project(tmp_path: Path) -> Workshop:
    """Work in a folder of a repository, with another root beside it."""
    shop = Workshop(
        tmp_path / "repository", tier=FsTier.PROJECT, extra_roots=(str(tmp_path / "extra"),)
    )
    make_repository(tmp_path / "repository")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "more.txt").write_text("more\n")
    return shop


def make_repository(folder: Path) -> None:
    """Make what git takes for a repository, without running it."""
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")


async def content(shop: Workshop, path: str | Path) -> str:
    return str(result(await shop.call("read_file", path=str(path)))["content"])


async def test_relative_paths_are_read_from_the_working_directory(shop: Workshop) -> None:
    shop.put("a/b.txt", "b\n")

    assert await content(shop, "a/b.txt") == "b\n"
    assert await content(shop, "./a//./b.txt") == "b\n"
    assert await content(shop, "a/../a/b.txt") == "b\n"
    assert await content(shop, shop.inside / "a/b.txt") == "b\n"


@demands("S0-185", "S0-007")
@each_case(
    "path",
    [
        "../outside/canary.txt",
        "a/../../outside/canary.txt",
        "a/b/../../../outside/canary.txt",
        "{outside}/canary.txt",
        "{inside}/../outside/canary.txt",
        "/{outside}/canary.txt",
        "//host/share",
        "\\\\host\\share",
        "\\\\.\\PhysicalDrive0",
        "/",
        "..",
        "/proc/self/environ",
        "/proc/self/root{outside}/canary.txt",
        "/dev/stdin",
    ],
)
async def test_what_lies_outside_is_refused_and_not_told_apart(
    tmp_path: Path, kernel: KernelSupport, path: str
) -> None:
    shop = Workshop(tmp_path, kernel=kernel)
    shop.put("a/b/c.txt")
    path = path.format(inside=shop.inside, outside=shop.outside)

    for tool in ("read_file", "list_directory", "find_text", "write_file", "edit_file"):
        more = {
            "find_text": {"pattern": "."},
            "write_file": {"content": ""},
            "edit_file": {"old": "c", "new": ""},
        }
        assert told(await shop.plan(tool, path=path, **more.get(tool, {}))) == OUTSIDE
        # The same for what does not exist there.
        assert told(await shop.plan(tool, path=f"{path}/no", **more.get(tool, {}))) == OUTSIDE


@each_case("path", ["", "a\0b", "\0"])
async def test_what_no_file_can_be_called_is_no_argument(shop: Workshop, path: str) -> None:
    done = await shop.plan("read_file", path=path)

    assert told(done) == ("error", "invalid_arguments")


async def test_reading_follows_links_that_stay_inside(
    tmp_path: Path, kernel: KernelSupport
) -> None:
    shop = Workshop(tmp_path, kernel=kernel)
    shop.put("deep/er/b.txt", "b\n")
    links = {
        "file": "deep/er/b.txt",
        "folder": "deep",
        "absolute": str(shop.inside / "deep"),
        "deep/er/up": "../../deep/er/b.txt",
        "chain": "folder/er/up",
        "self": ".",
    }
    for name, target in links.items():
        (shop.inside / name).symlink_to(target)

    for path in (
        *("file", "folder/er/b.txt", "absolute/er/b.txt", "chain", "self/self/chain"),
        *("folder/../file", "self/deep/er/../../file"),
    ):
        assert await content(shop, path) == "b\n", path
    listed = result(await shop.call("list_directory", path="folder"))
    assert [each["path"] for each in listed["entries"]] == ["folder/er"]


async def test_reading_follows_no_link_that_leads_out(
    tmp_path: Path, kernel: KernelSupport
) -> None:
    shop = Workshop(tmp_path, kernel=kernel)
    shop.put("a/b.txt")
    links = {
        "absolute": str(shop.outside),
        "relative": "../outside",
        "file": "../outside/canary.txt",
        "chain": "relative/canary.txt",
        "a/up": "../..",
        "back": f"../{shop.inside.name}/a/b.txt",
        "magic": "/proc/self/cwd",
    }
    for name, target in links.items():
        (shop.inside / name).symlink_to(target)

    for path in (
        *("absolute/canary.txt", "relative/canary.txt", "file", "chain", "a/up/outside/canary.txt"),
        *("back", "magic/x", "absolute/not-there"),
    ):
        assert told(await shop.call("read_file", path=path)) == OUTSIDE, path
    assert told(await shop.call("list_directory", path="absolute")) == OUTSIDE
    assert result(await shop.call("find_text", pattern=CANARY))["matches"] == []


async def test_links_that_lead_nowhere_are_not_there(shop: Workshop) -> None:
    (shop.inside / "loop").symlink_to("loop")
    (shop.inside / "one").symlink_to("two/x")
    (shop.inside / "two").symlink_to("one")
    (shop.inside / "dangling").symlink_to("nothing")

    for path in ("loop", "loop/x", "one", "dangling", "dangling/x"):
        assert told(await shop.call("read_file", path=path)) == ("error", "not_found"), path


async def test_nothing_is_written_through_a_link(tmp_path: Path, kernel: KernelSupport) -> None:
    shop = Workshop(tmp_path, kernel=kernel)
    target = shop.put("real/a.txt", "a\n")
    (shop.inside / "file").symlink_to("real/a.txt")
    (shop.inside / "folder").symlink_to("real")
    (shop.inside / "out").symlink_to(shop.outside)
    (shop.inside / "new").symlink_to("not-there.txt")

    for path in ("file", "folder/a.txt", "folder/b.txt", "out/canary.txt", "out/new.txt", "new"):
        done = await shop.plan("write_file", path=path, content="x", create_dirs=True)
        assert told(done) == OUTSIDE, path
    assert target.read_text() == "a\n"
    assert sorted(os.listdir(shop.outside)) == ["canary.txt"]
    assert not (shop.inside / "not-there.txt").exists()


async def test_the_scratch_folder_is_in_scope_though_it_lies_in_the_protected_home(
    shop: Workshop, tier: FsTier, tmp_path: Path
) -> None:
    shop = Workshop(tmp_path, tier=tier)
    (shop.home / "key").write_text("secret")

    written = await shop.call("write_file", path=str(shop.scratch / "x.txt"), content="x\n")

    assert result(written)["created"]
    assert await content(shop, shop.scratch / "x.txt") == "x\n"
    for path in (shop.home / "key", shop.scratch / "../key"):
        refused = await shop.call("read_file", path=str(path))
        assert told(refused) in (OUTSIDE, ("denied", "protected_path"))


@demands("S0-185b")
async def test_the_narrowest_grant_decides(shop: Workshop) -> None:
    assert shop.place.grants == (Grant(fs=FsTier.FULL), Grant(fs=FsTier.SANDBOXED))

    assert told(await shop.plan("read_file", path="../outside/canary.txt")) == OUTSIDE


@demands("S0-185", "S0-007")
async def test_a_project_reaches_from_the_top_of_its_repository_on(project: Workshop) -> None:
    assert await content(project, "../outside/canary.txt") == CANARY
    assert await content(project, project.outside / "canary.txt") == CANARY
    assert told(await project.plan("read_file", path="../../secret.txt")) == OUTSIDE


async def test_a_project_reaches_the_extra_roots(project: Workshop, tmp_path: Path) -> None:
    assert await content(project, tmp_path / "extra" / "more.txt") == "more\n"
    assert told(await project.plan("read_file", path="../../extra/more.txt")) == OUTSIDE
    (project.inside / "more").symlink_to(tmp_path / "extra" / "more.txt")
    assert await content(project, "more") == "more\n"


async def test_extra_roots_belong_to_projects_alone(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, extra_roots=(str(tmp_path / "outside"),))

    assert told(await shop.plan("read_file", path="../outside/canary.txt")) == OUTSIDE


async def test_without_a_repository_a_project_is_the_working_directory(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.PROJECT)

    assert told(await shop.plan("read_file", path="../outside/canary.txt")) == OUTSIDE


@pytest.mark.parametrize("planted", ["empty folder", "link", "another's"])
async def test_what_git_would_not_trust_does_not_widen_a_project(
    tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path, tier=FsTier.PROJECT)
    if planted == "empty folder":
        (tmp_path / ".git").mkdir()
    elif planted == "link":
        make_repository(tmp_path / "elsewhere")
        (tmp_path / ".git").symlink_to("elsewhere/.git")
    else:
        make_repository(tmp_path)
        monkeypatch.setattr(os, "geteuid", lambda: 4711)

    assert told(await shop.plan("read_file", path="../outside/canary.txt")) == OUTSIDE


async def test_a_worktree_is_a_repository_too(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.PROJECT)
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")

    assert await content(shop, "../outside/canary.txt") == CANARY


@demands("S0-185", "S0-007")
async def test_the_full_tier_reaches_everything_by_every_spelling(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)
    (shop.inside / "out").symlink_to(shop.outside)

    for path in ("../outside/canary.txt", str(shop.outside / "canary.txt"), "out/canary.txt"):
        assert await content(shop, path) == CANARY
    written = await shop.call("write_file", path="../outside/new.txt", content="n\n")
    assert result(written)["created"]


async def test_a_working_directory_may_itself_be_spelled_through_a_link(
    tmp_path: Path, tier: FsTier
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    shop = Workshop(tmp_path / "alias", tier=tier)

    for path in ("a.txt", str(shop.inside / "b.txt"), str(tmp_path / "real/inside/c.txt")):
        done = await shop.call("write_file", path=path, content="x\n")
        assert result(done)["created"], path
        assert await content(shop, path) == "x\n"


async def test_a_missing_working_directory_is_said(shop: Workshop) -> None:
    shop.inside.rmdir()

    assert told(await shop.call("list_directory")) == ("error", "not_found")


async def test_hard_links_are_read_only_where_package_managers_make_them(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path)
    os.link(shop.outside / "canary.txt", shop.inside / "linked.txt")
    (shop.inside / "node_modules" / "a").mkdir(parents=True)
    os.link(shop.outside / "canary.txt", shop.inside / "node_modules" / "a" / "index.js")

    assert told(await shop.call("read_file", path="linked.txt")) == OUTSIDE
    assert await content(shop, "node_modules/a/index.js") == CANARY
    found = result(await shop.call("find_text", pattern=CANARY))
    assert [each["path"] for each in found["matches"]] == ["node_modules/a/index.js"]
    assert found["withheld"] == 1
    for path in ("linked.txt", "node_modules/a/index.js"):
        for mode in ("replace", "append"):
            done = await shop.plan("write_file", path=path, content="x", mode=mode)
            assert told(done) == OUTSIDE
    assert (shop.outside / "canary.txt").read_text() == CANARY


async def test_hard_links_say_nothing_where_there_is_no_outside(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)
    os.link(shop.outside / "canary.txt", shop.inside / "linked.txt")

    assert await content(shop, "linked.txt") == CANARY
    assert result(await shop.call("write_file", path="linked.txt", content="x"))["path"]


async def test_a_directory_that_was_moved_out_while_open_is_outside(
    tmp_path: Path, kernel: KernelSupport
) -> None:
    moved = False

    def opened(root: int, names: object, flags: int) -> int:
        nonlocal moved
        found = kernel.open_folder(root, names, flags)  # type: ignore[arg-type]
        if names == ["a"] and not moved:
            moved = True
            (tmp_path / "inside" / "a").rename(tmp_path / "outside" / "a")
        return found

    shop = Workshop(tmp_path, kernel=kernel._replace(open_folder=opened))
    shop.put("a/b.txt")

    assert told(await shop.call("write_file", path="a/new.txt", content="x")) == OUTSIDE
    assert sorted(os.listdir(shop.outside / "a")) == ["b.txt"]


async def test_where_nothing_names_what_is_open_the_way_there_still_decides(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.tools.files.access.real_path", lambda _: None)
    shop.put("a/b.txt", "b\n")
    shop.put(".env")
    (shop.inside / "in").symlink_to("a/b.txt")
    (shop.inside / "out").symlink_to("../outside/canary.txt")
    (shop.inside / "hidden").symlink_to(".env")

    assert await content(shop, "in") == "b\n"
    assert told(await shop.call("read_file", path="out")) == OUTSIDE
    assert told(await shop.call("read_file", path="hidden")) == ("denied", "protected_path")
    assert result(await shop.call("write_file", path="a/c.txt", content="c\n"))["created"]
    assert [each["path"] for each in result(await shop.call("list_directory"))["entries"]] == [
        "a",
        "hidden",
        "in",
        "out",
    ]


async def test_our_home_is_known_by_what_it_is_and_not_only_by_its_name(
    tmp_path: Path,
) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)
    (shop.home / "key").write_text("secret")
    # As a mount would: the folder keeps being itself under a name that no rule knows.
    shop.home.rename(shop.inside / "mounted")
    shop.home.symlink_to(shop.inside / "mounted")

    for tool, path in (("read_file", "mounted/key"), ("list_directory", "mounted")):
        assert told(await shop.call(tool, path=path)) == ("denied", "protected_path")
    done = await shop.plan("write_file", path="mounted/new", content="x")
    assert told(done) == ("denied", "protected_path")
    found = result(await shop.call("list_directory", depth=3))
    assert [each["path"] for each in found["entries"]] == ["mounted"]
    assert found["withheld"] == 1
