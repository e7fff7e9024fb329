"""Repositories of `/api`: registered inside the root only, listed, and forgotten when unused."""

import logging
from pathlib import Path

import pytest

from holdfast.domain.tokens import Scope
from tests.http.api.client import Client
from tests.http.v1.client import A_STRANGER, Visitor, a_repository, refusal
from tests.marks import each_case

pytestmark = pytest.mark.anyio

AT = "2026-01-02T03:04:05.678901Z"


async def test_a_repository_is_registered_once_and_listed(client: Client, root: Path) -> None:
    path = a_repository(root / "ä b" / "repo")
    answer = await client.post("/api/repos", {"path": f"{path}/", "name": "Mine", "colour": "red"})
    again = await client.post("/api/repos", {"path": str(path), "name": "Other"})

    made = answer.document
    assert (answer.status, made) == (
        201,
        {"id": made["id"], "name": "Mine", "path": str(path), "createdAt": AT},
    )
    assert (again.status, again.document) == (200, made)
    listed = (await client.get("/api/repos?page=1")).document
    assert listed == {"repos": [made, client.repo]}


async def test_a_repository_without_a_name_has_that_of_its_folder(client: Client) -> None:
    assert client.repo["name"] == "tree"


async def test_only_an_unused_repository_is_forgotten_and_its_files_stay(
    quiet_client: Client, root: Path
) -> None:
    client = quiet_client
    session = await client.opened()

    used = await client.delete(f"/api/repos/{client.repo['id']}")
    await client.delete(f"/v1/sessions/{session['id']}")
    answer = await client.delete(f"/api/repos/{client.repo['id']}")

    assert refusal(used) == (409, "repo_in_use")
    assert (answer.status, answer.body) == (204, b"")
    assert (await client.get("/api/repos")).document == {"repos": []}
    assert (root / "tree" / ".git").is_dir()


@each_case("id_", [A_STRANGER, "nobody", "0192F0C1-0000-7000-8000-00000000DEAD"])
async def test_what_is_not_there_is_not_forgotten(quiet_client: Client, id_: str) -> None:
    answer = await quiet_client.delete(f"/api/repos/{id_}")

    assert refusal(answer) == (404, "repo_not_found")


@pytest.mark.parametrize(
    "path", ["{root}-evil", "{root}/../outside", "{root}/link", "/", "{root}/tree/../../outside"]
)
async def test_whatever_leaves_the_root_is_refused_and_logged(
    quiet_client: Client, root: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("outside", "work-evil"):
        a_repository(root.parent / name)
    (root / "link").symlink_to(root.parent / "outside")
    given = path.format(root=root)

    with caplog.at_level(logging.WARNING):
        answer = await quiet_client.post("/api/repos", {"path": given})

    told = [record for record in caplog.records if record.message == "security.path_refused"]
    assert refusal(answer) == (403, "repo_outside_root")
    assert [record.levelname for record in told] == ["WARNING"]
    assert told[0].fields["given"] == given
    assert told[0].fields["root"] == str(root)
    assert (await quiet_client.get("/api/repos")).document == {"repos": [quiet_client.repo]}


@pytest.mark.parametrize("path", ["tree", "~/tree", "{root}/nothing", "{root}/plain", "$HOME"])
async def test_what_is_no_repository_is_refused_with_its_rule(
    quiet_client: Client, root: Path, path: str
) -> None:
    (root / "plain").mkdir()

    answer = await quiet_client.post("/api/repos", {"path": path.format(root=root)})

    assert refusal(answer) == (400, "repo_invalid")
    assert answer.document["details"]["rule"]


async def test_without_a_root_nothing_is_registered_and_nothing_opened(
    quiet_visitor: Visitor, tmp_path: Path
) -> None:
    answer = await quiet_visitor.post("/api/repos", {"path": str(a_repository(tmp_path / "tree"))})

    assert refusal(answer) == (403, "workspace_root_unset")
    assert (await quiet_visitor.get("/api/repos")).document == {"repos": []}


async def test_repositories_are_registered_by_those_who_may(quiet_client: Client) -> None:
    writer = await quiet_client.as_("local", Scope.WRITE)

    assert refusal(await writer.post("/api/repos", {"path": "/"})) == (403, "forbidden")
    assert (await writer.get("/api/repos")).status == 200


async def test_nobody_sees_the_repositories_of_somebody_else(quiet_client: Client) -> None:
    other = await quiet_client.as_("somebody", Scope.ADMIN)

    assert (await other.get("/api/repos")).document == {"repos": []}
    theirs = f"/api/repos/{quiet_client.repo['id']}"
    assert refusal(await other.delete(theirs)) == (404, "repo_not_found")
