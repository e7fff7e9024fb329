"""A protected file is protected under every name that it has, in every tier."""

import os
from pathlib import Path

import pytest

from holdfast.domain.tools import FsTier
from holdfast.ports.tools import FileProblem
from holdfast.process.launcher import Launcher
from holdfast.tools.files import hard_links as file_hard_links
from holdfast.tools.files.access import FileAccess
from holdfast.tools.files.openat import probe_kernel
from holdfast.tools.files.tools import FileSettings, file_tools
from holdfast.tools.git.status import GitStatus
from holdfast.tools.process_context import ProcessSettings
from holdfast.tools.repository_files import LocalRepositoryFiles
from holdfast.tools.toolbox import LocalToolbox
from tests.tools.file_fixture import Workshop, result, told
from tests.tools.process_fixture import Workbench

pytestmark = pytest.mark.anyio

SECRET = "KEY=canary-0123456789\n"


@pytest.fixture
def full(tmp_path: Path) -> Workshop:
    """Be a session that reaches everything."""
    return Workshop(tmp_path, tier=FsTier.FULL)


def linked(shop: Workshop, target: Path, name: str = "notes.txt") -> str:
    """Give a file a second name in the working directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(SECRET)
    (shop.inside / name).parent.mkdir(parents=True, exist_ok=True)
    os.link(target, shop.inside / name)
    return name


@pytest.mark.parametrize("where", ["inside/.env", "inside/deep/er/.env.local", "home/key"])
async def test_a_link_to_a_protected_file_is_neither_read_nor_changed(
    full: Workshop, tmp_path: Path, where: str
) -> None:
    name = linked(full, tmp_path / where)

    assert told(await full.call("read_file", path=name)) == ("denied", "protected_path")
    for tool, arguments in (
        ("write_file", {"content": "x"}),
        ("write_file", {"content": "x", "mode": "append"}),
        ("edit_file", {"old": "KEY", "new": "x"}),
    ):
        done = await full.call(tool, path=name, **arguments)
        assert told(done) == ("denied", "protected_path"), tool
    assert (tmp_path / where).read_text() == SECRET


async def test_a_link_to_a_protected_file_is_not_found_by_searching(
    full: Workshop, tmp_path: Path
) -> None:
    linked(full, full.inside / ".env")
    full.put("plain.txt", "canary of another kind\n")

    found = result(await full.call("find_text", pattern="canary", path="."))

    assert [each["path"] for each in found["matches"]] == ["plain.txt"]
    assert "0123456789" not in str(found)


async def test_credentials_in_the_users_home_are_known(tmp_path: Path) -> None:
    shop = Workshop(tmp_path, tier=FsTier.FULL)
    user = tmp_path / "user"
    name = linked(shop, user / ".aws/credentials")
    settings = FileSettings(protected=(str(shop.home),), user_home=str(user))
    shop.toolbox = LocalToolbox(file_tools(settings))

    assert told(await shop.call("read_file", path=name)) == ("denied", "protected_path")


async def test_where_hard_links_are_allowed_a_protected_file_is_not(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    name = linked(shop, shop.inside / ".env", "node_modules/x/notes.txt")
    plain = linked(shop, tmp_path / "store/index.js", "node_modules/x/index.js")

    assert told(await shop.call("read_file", path=name)) == ("denied", "protected_path")
    assert result(await shop.call("read_file", path=plain))["content"] == SECRET


async def test_a_plain_hard_link_is_read_with_full_reach(full: Workshop, tmp_path: Path) -> None:
    name = linked(full, tmp_path / "outside/plain.txt")

    assert result(await full.call("read_file", path=name))["content"] == SECRET


async def test_with_too_many_files_to_know_a_file_with_several_names_is_refused(
    full: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = linked(full, tmp_path / "outside/plain.txt")
    monkeypatch.setattr(file_hard_links, "_ENTRIES_MOST", 0)

    assert told(await full.call("read_file", path=name)) == ("denied", "protected_path")


async def test_an_agent_beside_us_does_not_read_it_either(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)
    name = linked(shop, shop.inside / ".env", "node_modules/notes.txt")
    keeper = FileAccess(FileSettings(protected=(str(shop.home),)), probe_kernel())
    status = GitStatus(ProcessSettings(environment={}), Launcher())
    files = LocalRepositoryFiles(keeper, status)
    folder = str(shop.inside)

    with pytest.raises(FileProblem) as refused:
        await files.read(folder, f"{folder}/{name}")
    assert refused.value.kind == "outside"


@pytest.mark.slow
async def test_git_does_not_show_or_commit_it(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    bench.repository({"a.txt": "one\n", "b.txt": "one\n"})
    bench.allow(tier=FsTier.FULL)
    (bench.work / ".env").write_text(SECRET)
    (bench.work / "a.txt").unlink()
    os.link(bench.work / ".env", bench.work / "a.txt")
    (bench.work / "b.txt").write_text("two\n")

    shown = await bench.call("git_status", show="diff")
    committed = await bench.call("git_commit", message="x", paths=["a.txt"])

    assert "canary" not in str(shown)
    assert "+two" in shown.result["stdout"]
    assert committed.error is not None
    assert committed.error.code == "protected_path"
