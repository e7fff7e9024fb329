"""Repositories: registered by their owner, inside the workspace root, checked on resolved paths.

Working directories named over the network are checked here too, against the same root.
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
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.stamping import IdFactory

log = logging.getLogger(__name__)

# Where a checked path came from.
Surface = Literal["registration", "opening", "start", "folder"]


class Repos:
    """Repositories of an owner."""

    def __init__(
        self, store: Store, clock: Clock, id_factory: IdFactory, root: Path | None
    ) -> None:
        """`root` is the folder that must contain all repositories."""
        self._store = store
        self._clock = clock
        self._id_factory = id_factory
        self._root = root

    async def add(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Repo:
        """Register a Git work tree; the same path again returns the existing repository.

        Without a root, a user at a terminal may register any repository.
        """
        return (await self.make(owner, path, name=name, at_terminal=at_terminal)).value

    async def make(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Created[Repo]:
        """Register a Git work tree; `is_new` is false if it was registered before."""
        resolved = self._check_repository(owner, path, at_terminal=at_terminal)
        title = name if name is not None else resolved.name or str(resolved)
        require_text(title, field="name", shortest=1, longest=255)

        async def work(tx: Tx) -> Created[Repo]:
            known = await tx.repos.by_path(owner, str(resolved))
            if known is not None:
                return Created(value=known, is_new=False)
            repo = Repo(
                id=RepoId(self._id_factory.new()),
                owner=owner,
                name=title,
                path=str(resolved),
                created_at=self._clock.now(),
            )
            await tx.repos.add(repo)
            return Created(value=repo, is_new=True)

        return await self._store.write(work)

    async def get(self, owner: Owner, repo_id: str) -> Repo:
        """Return the owner's repository."""
        return await self._store.read(lambda tx: find_repo(tx, owner, repo_id))

    async def list(self, owner: Owner) -> list[Repo]:
        """Return the owner's repositories by name."""
        return await self._store.read(lambda tx: tx.repos.all(owner))

    async def remove(self, owner: Owner, repo_id: str) -> None:
        """Unregister a repository that no session is bound to; its files stay."""

        async def work(tx: Tx) -> None:
            repo = await find_repo(tx, owner, repo_id)
            if await tx.repos.is_used(repo.id):
                raise Conflict(
                    Code.REPO_IN_USE, "Sessions are bound to this repository; delete them first."
                )
            await tx.repos.remove(repo.id)

        await self._store.write(work)

    def require_inside(self, repo: Repo, surface: Surface = "opening") -> Path:
        """Check a registered repository again, as its path resolves now."""
        resolved = Path(repo.path).resolve()
        # A folder may have been replaced by a symbolic link since registration (TOCTOU).
        if str(resolved) != repo.path or (self._root and not is_within(resolved, self._real_root)):
            self._violation(repo.owner, repo.path, resolved, surface, repo_id=repo.id)
        return resolved

    async def require_folder(self, owner: Owner, path: str) -> str:
        """Return the resolved path of a folder that a remote client may work in.

        It need not be a repository, but must be inside the workspace root.
        """
        self._require_root()
        if not _is_whole(path):
            raise _no_folder()
        # In a thread, because a folder may be on a slow disk.
        return str(await asyncio.to_thread(self._check_folder, owner, path))

    def _check_folder(self, owner: Owner, path: str) -> Path:
        try:
            resolved = Path(path).resolve()
            is_folder = resolved.is_dir()
        except (OSError, RuntimeError):
            raise _no_folder() from None
        self._require_within(owner, path, resolved, "folder")
        if not is_folder:
            raise _no_folder()
        return resolved

    def _check_repository(self, owner: Owner, path: str, *, at_terminal: bool) -> Path:
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
            raise _invalid("an existing folder that contains .git")
        return resolved

    def _require_root(self) -> None:
        if self._root is None:
            raise Denied(
                Code.WORKSPACE_ROOT_UNSET,
                "Set AGENT_WORKSPACE_ROOT of the server to the folder that contains your "
                "repositories.",
            )

    def _require_within(self, owner: Owner, given: str, resolved: Path, surface: Surface) -> None:
        # Checked before the content, so that errors do not reveal what exists outside the root.
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
            "The folder is outside the workspace root (AGENT_WORKSPACE_ROOT).",
            {},
        )


async def find_repo(tx: Tx, owner: Owner, repo_id: str) -> Repo:
    """Return the owner's repository, or raise `NotFound`."""
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
        "working_dir must be the absolute path of an existing folder.",
        {"fields": ["working_dir"]},
    )


def _invalid(rule: str) -> Invalid:
    return Invalid(Code.REPO_INVALID, f"A repository's path must be {rule}.", {"rule": rule})
