"""Workspaces: a private folder for each session, and nothing of it left behind."""

from pathlib import Path

from holdfast.domain.ids import LOCAL_OWNER, Owner, SessionId
from holdfast.execution.workspace_folders import WorkspaceFolders
from tests.builders import an_id

SESSION = SessionId(an_id(1))
OTHER = SessionId(an_id(2))


def test_a_folder_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    workspaces = WorkspaceFolders(tmp_path)

    mine = Path(workspaces.of(LOCAL_OWNER, SESSION))
    again = Path(workspaces.of(LOCAL_OWNER, SESSION))
    theirs = Path(workspaces.of(Owner(".."), SESSION))

    assert mine == again != theirs
    assert [folder.stat().st_mode & 0o777 for folder in (mine, theirs)] == [0o700, 0o700]
    assert all(folder.is_relative_to(tmp_path / "workspaces") for folder in (mine, theirs))


def test_it_is_removed_with_what_tools_and_servers_have_beside_it(tmp_path: Path) -> None:
    workspaces = WorkspaceFolders(tmp_path)
    gone, kept = (Path(workspaces.of(LOCAL_OWNER, each)) for each in (SESSION, OTHER))
    for folder in (gone, kept):
        (folder / "a.txt").write_text("a")
        folder.with_name(f"{folder.name}.attempt").write_text("{}")
        folder.with_name(f"{folder.name}.attempt.new").write_text("{}")
        (folder.with_name(f"{folder.name}.servers") / "of-notes").mkdir(parents=True)

    workspaces.remove(LOCAL_OWNER, SESSION)
    workspaces.remove(LOCAL_OWNER, SESSION)

    left = sorted(path.name for path in kept.parent.iterdir())
    beside = (".attempt", ".attempt.new", ".servers")
    assert left == [OTHER, *(f"{OTHER}{ending}" for ending in beside)]
