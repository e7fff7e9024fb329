"""Repositories: where work may happen, and when a path lies inside a root.

Paths are judged component by component on real paths; resolving them is the service's business.
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
    """Tell whether a resolved path is the root or lies below it; never by string prefix."""
    # By parts, because the name of a sibling may begin with the name of the root.
    return path.parts[: len(root.parts)] == root.parts
