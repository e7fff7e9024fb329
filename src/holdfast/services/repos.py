"""Repositories: registered by their owner, inside the workspace root, judged on real paths.

Folders that somebody names over the network are judged here too, by the same root.
"""

import asyncio
import logging
from pathlib import Path
from typing import Literal

from holdfast.domain.errors import Code, Conflict, Denied, Invalid, NotFound
from holdfast.domain.ids import Owner, RepoId
from holdfast.domain.repos import Repo, is_within
from holdfast.domain.sessions import Created
from holdfast.domain.text import is_encodable, require_text
from holdfast.ports import Clock, Store, Tx
from holdfast.services.stamping import IdFactory

log = logging.getLogger(__name__)

# By which way a path came to be judged.
Surface = Literal["registration", "opening", "start", "folder"]


class Repos:
    """Where work may happen, for its owner."""

    def __init__(
        self, store: Store, clock: Clock, id_factory: IdFactory, root: Path | None
    ) -> None:
        """`root` is the folder that all repositories must lie in."""
        self._store = store
        self._clock = clock
        self._mint = id_factory
        self._root = root

    async def add(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Repo:
        """Register a Git work tree; the same path again returns the repository that is there.

        A person at a terminal may name any repository of theirs while no root is set.
        """
        return (await self.make(owner, path, name=name, at_terminal=at_terminal)).thing

    async def make(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Created[Repo]:
        """Register a Git work tree, and tell whether it is a new one."""
        resolved = self._admitted(owner, path, at_terminal=at_terminal)
        title = name if name is not None else resolved.name or str(resolved)
        require_text(title, field="name", shortest=1, longest=255)

        async def work(tx: Tx) -> Created[Repo]:
            known = await tx.repos.by_path(owner, str(resolved))
            if known is not None:
                return Created(thing=known, is_new=False)
            repo = Repo(
                id=RepoId(self._mint.new()),
                owner=owner,
                name=title,
                path=str(resolved),
                created_at=self._clock.now(),
            )
            await tx.repos.add(repo)
            return Created(thing=repo, is_new=True)

        return await self._store.write(work)

    async def get(self, owner: Owner, repo_id: str) -> Repo:
        """Return the owner's repository."""
        return await self._store.read(lambda tx: find_repo(tx, owner, repo_id))

    async def list(self, owner: Owner) -> list[Repo]:
        """Return the owner's repositories by name."""
        return await self._store.read(lambda tx: tx.repos.all(owner))

    async def remove(self, owner: Owner, repo_id: str) -> None:
        """Forget a repository that no session is bound to; its files stay."""

        async def work(tx: Tx) -> None:
            repo = await find_repo(tx, owner, repo_id)
            if await tx.repos.is_used(repo.id):
                raise Conflict(
                    Code.REPO_IN_USE, "Sessions are bound to this repository; delete them first."
                )
            await tx.repos.remove(repo.id)

        await self._store.write(work)

    def require_inside(self, repo: Repo, surface: Surface = "opening") -> Path:
        """Judge a registered repository again, as its path resolves now."""
        resolved = Path(repo.path).resolve()
        # A folder may have become a link since it was registered.
        if str(resolved) != repo.path or (self._root and not is_within(resolved, self._real_root)):
            self._violation(repo.owner, repo.path, resolved, surface, repo_id=repo.id)
        return resolved

    async def require_folder(self, owner: Owner, path: str) -> str:
        """Return the real path of a folder that may be worked in by whoever is not at a terminal.

        It need not be a repository, but it lies inside the workspace root.
        """
        self._require_root()
        if not _is_whole(path):
            raise _no_folder()
        # In a thread: a folder may lie on a disk that takes its time.
        return str(await asyncio.to_thread(self._judged_folder, owner, path))

    def _judged_folder(self, owner: Owner, path: str) -> Path:
        try:
            resolved = Path(path).resolve()
            is_folder = resolved.is_dir()
        except (OSError, RuntimeError):
            raise _no_folder() from None
        self._require_within(owner, path, resolved, "folder")
        if not is_folder:
            raise _no_folder()
        return resolved

    def _admitted(self, owner: Owner, path: str, *, at_terminal: bool) -> Path:
        if not at_terminal:
            self._require_root()
        if not _is_whole(path):
            raise _invalid("an absolute path without NUL")
        try:
            resolved = Path(path).resolve()
            is_tree = resolved.is_dir() and (resolved / ".git").exists()
        except (OSError, RuntimeError):
            raise _invalid("a readable folder") from None
        self._require_within(owner, path, resolved, "registration")
        if not is_tree:
            raise _invalid("an existing folder with a .git in it")
        return resolved

    def _require_root(self) -> None:
        if self._root is None:
            raise Denied(
                Code.WORKSPACE_ROOT_UNSET,
                "Set AGENT_WORKSPACE_ROOT, where the server runs, to the folder that holds your "
                "repositories.",
            )

    def _require_within(self, owner: Owner, given: str, resolved: Path, surface: Surface) -> None:
        # Before its content is judged: outside the root nothing is told about what is there.
        if self._root is not None and not is_within(resolved, self._real_root):
            self._violation(owner, given, resolved, surface)

    @property
    def _real_root(self) -> Path:
        return (self._root or Path("/")).resolve()

    def _violation(
        self,
        owner: Owner,
        given: str,
        resolved: Path,
        surface: Surface,
        *,
        repo_id: RepoId | None = None,
    ) -> None:
        log.warning(
            "security.path_refused",
            extra={
                "fields": {
                    "owner": owner,
                    "repo_id": repo_id,
                    "given": given,
                    "resolved": str(resolved),
                    "root": str(self._root),
                    "surface": surface,
                }
            },
        )
        raise Denied(
            Code.REPO_OUTSIDE_ROOT,
            "The folder lies outside the workspace root, which AGENT_WORKSPACE_ROOT names.",
            {},
        )


async def find_repo(tx: Tx, owner: Owner, repo_id: str) -> Repo:
    """Return the owner's repository, or say that there is none."""
    repo = await tx.repos.by_id(owner, RepoId(repo_id))
    if repo is None:
        raise NotFound(
            Code.REPO_NOT_FOUND, "There is no such repository; `holdfast repos list` shows yours."
        )
    return repo


def _is_whole(path: str) -> bool:
    return "\x00" not in path and is_encodable(path) and Path(path).is_absolute()


def _no_folder() -> Invalid:
    return Invalid(
        Code.INVALID_CONTEXT,
        "working_dir must be the absolute path of a folder that is there.",
        {"fields": ["working_dir"]},
    )


def _invalid(rule: str) -> Invalid:
    return Invalid(Code.REPO_INVALID, f"A repository's path must be {rule}.", {"rule": rule})
