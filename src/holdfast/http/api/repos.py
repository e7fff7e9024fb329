"""Repositories of `/api`: registered, listed and forgotten."""

from typing import Final

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import is_uuid
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Answer
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.wire.repo_sessions import RepoForm, RepoList, RepoPost, repo_form


async def add_repo(asked: Asked[NoQuery, RepoPost]) -> Answer:
    """Register a repository; the same path again is the one that is there."""
    made = await asked.house.repos.make(asked.owner, asked.body.path, name=asked.body.name)
    return Answer(status=201 if made.is_new else 200, content=repo_form(made.thing))


async def list_repos(asked: Asked[NoQuery, None]) -> Answer:
    """List the repositories, by name."""
    found = await asked.house.repos.list(asked.owner)
    return Answer(content=RepoList(tuple(map(repo_form, found))))


async def remove_repo(asked: Asked[NoQuery, None]) -> Answer:
    """Forget a repository that no session is bound to; its files stay."""
    if not is_uuid(asked.path["id"]):
        raise repo_not_found()
    await asked.house.repos.remove(asked.owner, asked.path["id"])
    return Answer(status=204)


def repo_not_found() -> NotFound:
    """Return the error for a repository that is not there."""
    return NotFound(Code.REPO_NOT_FOUND, "There is no such repository; GET /api/repos lists yours.")


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/repos",
        name="api.repos.add",
        summary="Register a repository.",
        act=add_repo,
        needs=Scope.ADMIN,
        body=RepoPost,
        examples={"body": {"path": "/srv/work/sums", "name": "Sums"}},
        gives={200: RepoForm, 201: RepoForm},
        refuses=(Code.REPO_INVALID, Code.REPO_OUTSIDE_ROOT, Code.WORKSPACE_ROOT_UNSET),
        tolerant=True,
    ),
    Route(
        method="GET",
        path="/api/repos",
        name="api.repos.list",
        summary="List the repositories, by name.",
        act=list_repos,
        needs=Scope.READ,
        gives={200: RepoList},
        tolerant=True,
    ),
    Route(
        method="DELETE",
        path="/api/repos/{id}",
        name="api.repos.remove",
        summary="Forget a repository that no session is bound to.",
        act=remove_repo,
        needs=Scope.ADMIN,
        gives={204: None},
        refuses=(Code.REPO_NOT_FOUND, Code.REPO_IN_USE),
        tolerant=True,
    ),
)
