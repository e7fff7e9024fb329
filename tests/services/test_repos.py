"""Repositories lie inside the workspace root, judged on real paths, component by component."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Config, RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, Denied, Invalid, NotFound
from holdfast.domain.ids import Owner, RepoId
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import SessionRequest
from tests.builders import an_id
from tests.marks import demands, each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a workspace root."""
    root = tmp_path / "trees"
    root.mkdir()
    return root


@pytest.fixture
async def rooted(home: Path, root: Path, outside: Environment) -> AsyncIterator[Holdfast]:
    """Open a home that knows the root."""
    config = Config(home=home, workspace_root=root)
    async with open_holdfast(config=config, scope=RunScope.NONE, outside=outside) as house:
        yield house


def _tree(path: Path) -> Path:
    (path / ".git").mkdir(parents=True)
    return path


@demands("S1-044")
async def test_a_repository_is_registered_at_its_real_path(
    rooted: Holdfast, root: Path, clock: SettableClock
) -> None:
    tree = _tree(root / "ä b" / "project")

    repo = await rooted.repos.add(rooted.owner, f"{root}//ä b/./x/../project/")

    assert repo == Repo(
        id=repo.id, owner=rooted.owner, name="project", path=str(tree), created_at=clock.now()
    )
    assert await rooted.repos.get(rooted.owner, repo.id) == repo


async def test_the_same_path_again_is_the_same_repository(rooted: Holdfast, root: Path) -> None:
    tree = _tree(root / "project")
    (root / "link").symlink_to(tree)
    repo = await rooted.repos.add(rooted.owner, str(tree), name="Mine")

    assert await rooted.repos.add(rooted.owner, str(root / "link"), name="Other") == repo
    assert await rooted.repos.list(rooted.owner) == [repo]
    assert await rooted.repos.add(STRANGER, str(tree)) != repo


async def test_repositories_are_listed_by_name(rooted: Holdfast, root: Path) -> None:
    for name in ("b", "c", "a"):
        await rooted.repos.add(rooted.owner, str(_tree(root / name)))

    assert [repo.name for repo in await rooted.repos.list(rooted.owner)] == ["a", "b", "c"]


async def test_a_work_tree_whose_git_is_a_file_is_one_too(rooted: Holdfast, root: Path) -> None:
    tree = root / "worktree"
    tree.mkdir()
    (tree / ".git").write_text("gitdir: elsewhere")

    assert (await rooted.repos.add(rooted.owner, str(tree))).path == str(tree)


async def test_the_root_itself_may_be_a_repository(rooted: Holdfast, root: Path) -> None:
    _tree(root)

    assert (await rooted.repos.add(rooted.owner, str(root))).path == str(root)


@demands("S1-044", "S1-044b", "S1-044c")
async def test_whatever_leaves_the_root_is_refused_and_logged(
    rooted: Holdfast, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evil = _tree(root.with_name("trees-evil"))
    outside = _tree(root.parent / "outside")
    (root / "way-out").symlink_to(outside)
    given = [str(evil), str(outside), f"{root}/../outside", str(root / "way-out"), str(root.parent)]

    for path in given:
        with pytest.raises(Denied) as caught, caplog.at_level(logging.WARNING):
            await rooted.repos.add(rooted.owner, path)
        assert (caught.value.code, caught.value.details) == (Code.REPO_OUTSIDE_ROOT, {})

    records = [record for record in caplog.records if record.message == "security.path_refused"]
    assert [record.fields["given"] for record in records] == given  # type: ignore[attr-defined]
    assert records[2].fields == {  # type: ignore[attr-defined]
        "owner": rooted.owner,
        "repo_id": None,
        "given": given[2],
        "resolved": str(outside),
        "root": str(root),
        "surface": "registration",
    }
    assert await rooted.repos.list(rooted.owner) == []


@each_case("path", ["project", "~/project", "", "./x", "\x00", "/a\x00b"])
async def test_a_path_must_be_absolute_and_without_nul(rooted: Holdfast, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        await rooted.repos.add(rooted.owner, path)

    assert caught.value.code is Code.REPO_INVALID


async def test_a_path_must_be_a_folder_with_a_git_in_it(rooted: Holdfast, root: Path) -> None:
    (root / "plain").mkdir()
    (root / "file").write_text("")
    (root / "loop").symlink_to(root / "loop")

    for name in ("plain", "file", "missing", "loop"):
        with pytest.raises(Invalid) as caught:
            await rooted.repos.add(rooted.owner, str(root / name))
        assert caught.value.code is Code.REPO_INVALID, name


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00"])
async def test_a_faulty_name_is_refused(rooted: Holdfast, root: Path, name: str) -> None:
    with pytest.raises(Invalid) as caught:
        await rooted.repos.add(rooted.owner, str(_tree(root / "project")), name=name)

    assert caught.value.code is Code.INVALID_TEXT


@demands("S1-042b")
async def test_without_a_root_only_a_person_at_a_terminal_may_name_a_path(
    quiet: Holdfast, tmp_path: Path
) -> None:
    tree = _tree(tmp_path / "project")

    with pytest.raises(Denied) as caught:
        await quiet.repos.add(quiet.owner, str(tree))
    assert caught.value.code is Code.WORKSPACE_ROOT_UNSET

    repo = await quiet.repos.add(quiet.owner, str(tree), at_terminal=True)
    session = await quiet.open(request=SessionRequest(repo_id=repo.id))
    assert session.repo_id == repo.id


async def test_a_terminal_does_not_open_the_root_that_is_set(
    rooted: Holdfast, tmp_path: Path
) -> None:
    with pytest.raises(Denied):
        await rooted.repos.add(rooted.owner, str(_tree(tmp_path / "outside")), at_terminal=True)


@demands("S1-042b", "S1-042c")
async def test_a_repository_is_judged_again_when_a_session_opens(
    rooted: Holdfast, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = _tree(root / "project")
    repo = await rooted.repos.add(rooted.owner, str(tree))
    tree.rename(root.parent / "moved")
    tree.symlink_to(root.parent / "moved")

    with pytest.raises(Denied) as caught:
        await rooted.open(request=SessionRequest(repo_id=repo.id), id=an_id(40))

    assert caught.value.code is Code.REPO_OUTSIDE_ROOT
    assert [record.message for record in caplog.records] == ["security.path_refused"]
    assert caplog.records[0].fields == {  # type: ignore[attr-defined]
        "owner": rooted.owner,
        "repo_id": repo.id,
        "given": str(tree),
        "resolved": str(root.parent / "moved"),
        "root": str(root),
        "surface": "opening",
    }
    with pytest.raises(NotFound):
        await rooted.sessions.get(rooted.owner, an_id(40))


async def test_a_repository_in_use_stays_and_a_free_one_goes(rooted: Holdfast, root: Path) -> None:
    repo = await rooted.repos.add(rooted.owner, str(_tree(root / "project")))
    session = await rooted.open(request=SessionRequest(repo_id=repo.id))

    with pytest.raises(Conflict) as caught:
        await rooted.repos.remove(rooted.owner, repo.id)
    assert caught.value.code is Code.REPO_IN_USE

    await rooted.sessions.delete(rooted.owner, session.id)
    await rooted.repos.remove(rooted.owner, repo.id)
    assert await rooted.repos.list(rooted.owner) == []
    assert (root / "project" / ".git").is_dir()


@each_case("repo_id", [an_id(41), "nonsense", ""])
async def test_an_unknown_repository_is_not_found(rooted: Holdfast, repo_id: str) -> None:
    for verb in (rooted.repos.get, rooted.repos.remove):
        with pytest.raises(NotFound) as caught:
            await verb(rooted.owner, RepoId(repo_id))
        assert caught.value.code is Code.REPO_NOT_FOUND


async def test_a_folder_is_judged_by_its_real_path(rooted: Holdfast, root: Path) -> None:
    (root / "plain").mkdir()
    (root / "link").symlink_to(root / "plain")

    for given in (root / "plain", root / "link", f"{root}//plain/x/.."):
        assert await rooted.repos.require_folder(rooted.owner, str(given)) == str(root / "plain")
    assert await rooted.repos.require_folder(rooted.owner, str(root)) == str(root)


async def test_a_folder_outside_the_root_is_refused_and_logged(
    rooted: Holdfast, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (root / "way-out").symlink_to(root.parent)
    given = [str(root.parent), f"{root}/..", str(root / "way-out"), "/", "/not/there"]

    for path in given:
        with pytest.raises(Denied) as caught, caplog.at_level(logging.WARNING):
            await rooted.repos.require_folder(rooted.owner, path)
        assert (caught.value.code, caught.value.details) == (Code.REPO_OUTSIDE_ROOT, {})

    records = [record for record in caplog.records if record.message == "security.path_refused"]
    assert [record.fields["given"] for record in records] == given  # type: ignore[attr-defined]
    assert {record.fields["surface"] for record in records} == {"folder"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name", ["trees/missing", "trees/file", "trees/loop", "trees/a\x00b", "trees/\ud800"]
)
async def test_what_is_no_folder_is_refused(rooted: Holdfast, root: Path, name: str) -> None:
    (root / "file").write_text("")
    (root / "loop").symlink_to(root / "loop")

    for given in (f"{root.parent}/{name}", name, ""):
        with pytest.raises(Invalid) as caught:
            await rooted.repos.require_folder(rooted.owner, given)
        assert caught.value.code is Code.INVALID_CONTEXT
        assert caught.value.details == {"fields": ["working_dir"]}


async def test_without_a_root_no_folder_may_be_named(quiet: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(Denied) as caught:
        await quiet.repos.require_folder(quiet.owner, str(tmp_path))

    assert caught.value.code is Code.WORKSPACE_ROOT_UNSET
