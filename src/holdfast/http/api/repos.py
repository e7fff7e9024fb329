"""Repositories of `/api`: register, list and remove."""

from typing import Final

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import is_uuid
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, Route, RouteRequest
from holdfast.wire.repo_sessions import RepoForm, RepoList, RepoPost, repo_form


async def add_repo(request: RouteRequest[NoQuery, RepoPost]) -> Response:
    """Register a repository."""
    created = await request.holdfast.repos.make(
        request.owner, request.body.path, name=request.body.name
    )
    return Response(status=201 if created.is_new else 200, content=repo_form(created.thing))


async def list_repos(request: RouteRequest[NoQuery, None]) -> Response:
    """List the repositories, by name."""
    found = await request.holdfast.repos.list(request.owner)
    return Response(content=RepoList(tuple(map(repo_form, found))))


async def remove_repo(request: RouteRequest[NoQuery, None]) -> Response:
    """Unregister a repository that no session is bound to."""
    if not is_uuid(request.path["id"]):
        raise repo_not_found()
    await request.holdfast.repos.remove(request.owner, request.path["id"])
    return Response(status=204)


def repo_not_found() -> NotFound:
    """Return the error for a repository that does not exist."""
    return NotFound(Code.REPO_NOT_FOUND, "There is no such repository; GET /api/repos lists yours.")


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/repos",
        name="api.repos.add",
        handler=add_repo,
        needs=Scope.ADMIN,
        body=RepoPost,
        examples={"body": {"path": "/srv/work/sums", "name": "Sums"}},
        responses={200: RepoForm, 201: RepoForm},
        error_codes=(Code.REPO_INVALID, Code.REPO_OUTSIDE_ROOT, Code.WORKSPACE_ROOT_UNSET),
        tolerant=True,
    ),
    Route(
        method="GET",
        path="/api/repos",
        name="api.repos.list",
        handler=list_repos,
        needs=Scope.READ,
        responses={200: RepoList},
        tolerant=True,
    ),
    Route(
        method="DELETE",
        path="/api/repos/{id}",
        name="api.repos.remove",
        handler=remove_repo,
        needs=Scope.ADMIN,
        responses={204: None},
        error_codes=(Code.REPO_NOT_FOUND, Code.REPO_IN_USE),
        tolerant=True,
    ),
)
