"""The folders of a client's sessions: validates a folder and finds sessions by it."""

import asyncio
import os
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from holdfast.acp.server.errors import invalid_params
from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import SessionId
from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionContext, SessionRequest
from holdfast.domain.tools import FsTier

PAGE: Final = 100


def unknown_git_ref(_: str) -> str | None:
    """Return no Git ref."""
    return None


class SessionFolders(Struct, frozen=True, kw_only=True):
    """Opens, loads and lists sessions by folder; sets their agent and file access tier."""

    agent: str
    tier: FsTier = FsTier.SANDBOXED
    # Blocking, because it runs Git.
    git_ref: Callable[[str], str | None] = unknown_git_ref

    async def open(self, backend: Holdfast, cwd: str) -> Session:
        """Open a session in a folder; registers the folder if it is a repository."""
        folder = await _require_folder(backend, cwd)
        repo = await _register_repo(backend, folder)
        defaults = await backend.defaults()
        request = SessionRequest(
            context=SessionContext(
                working_dir=repo.path if repo else folder,
                git_ref=await asyncio.to_thread(self.git_ref, folder),
                fs_scope_tier=self.tier,
            ),
            repo_id=repo.id if repo else None,
            approval=defaults.approval,
            turn_cap=defaults.turn_cap,
        )
        return await backend.open(self.agent, request)

    async def load(self, backend: Holdfast, session_id: SessionId, cwd: str) -> Session:
        """Return a session of the owner; moves it if another folder is given."""
        session = await backend.sessions.get(backend.owner, session_id)
        folder = await _require_folder(backend, cwd)
        if folder == session.context.working_dir:
            return session
        context = SessionContext(
            working_dir=folder,
            git_ref=await asyncio.to_thread(self.git_ref, folder),
            fs_scope_tier=session.context.fs_scope_tier,
            variables=session.context.variables,
        )
        return (await backend.sessions.resume(backend.owner, session_id, context=context)).session

    async def list(self, backend: Holdfast, cwd: str | None, cursor: str | None) -> dict[str, Any]:
        """Return sessions, last used first; with `cwd`, only those of that folder."""
        query = SessionQuery(owner=backend.owner, order=SessionOrder.UPDATED_AT, limit=PAGE)
        folder = None if cwd is None else await asyncio.to_thread(_resolve, cwd)
        found: list[Session] = []
        while True:
            page = await backend.sessions.list(query, cursor=cursor)
            found += [each for each in page.items if folder in {None, each.context.working_dir}]
            cursor = page.next_cursor
            if cursor is None or len(found) >= PAGE:
                break
        shown = {"sessions": list(map(_session_form, found))}
        return shown if cursor is None else shown | {"nextCursor": cursor}


def _resolve(cwd: str) -> str:
    try:
        return os.path.realpath(cwd)
    # The path contains characters such as NUL.
    except ValueError:
        raise invalid_params("cwd is not a valid path.") from None


async def _require_folder(backend: Holdfast, cwd: str) -> str:
    if not os.path.isabs(cwd):
        raise invalid_params("cwd must be an absolute path.")
    return await backend.repos.require_folder(backend.owner, cwd)


async def _register_repo(backend: Holdfast, folder: str) -> Repo | None:
    try:
        return await backend.repos.add(backend.owner, folder)
    except Invalid as error:
        # An agent that is a model does not need a repository.
        if error.code is not Code.REPO_INVALID:
            raise
        return None


def _session_form(session: Session) -> dict[str, Any]:
    form = {
        "sessionId": session.id,
        "cwd": session.context.working_dir,
        "updatedAt": session.updated_at.isoformat().replace("+00:00", "Z"),
    }
    return form if session.title is None else form | {"title": session.title}
