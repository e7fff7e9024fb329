"""Repositories: registered work trees, and the check that a path lies inside a root.

Resolved paths are compared component by component (path traversal). Resolving them belongs to the
service.
"""

from datetime import datetime
from pathlib import PurePath

from msgspec import Struct

from holdfast.domain.ids import Owner, RepoId


class Repo(Struct, frozen=True, kw_only=True):
    """A registered Git work tree; `path` is absolute and resolved."""

    id: RepoId
    owner: Owner
    name: str
    path: str
    created_at: datetime


def is_within(path: PurePath, root: PurePath) -> bool:
    """Return whether a resolved path is the root or lies below it; never by string prefix."""
    # By components, because the name of a sibling may start with the name of the root.
    return path.parts[: len(root.parts)] == root.parts
