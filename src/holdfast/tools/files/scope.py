"""The roots below which a session's tools may work, by tier and grants."""

import os
import stat
from collections.abc import Sequence

from msgspec import Struct

from holdfast.domain.tools import FsTier, Grant, narrowest_tier

Names = tuple[str, ...]


class ScopeRoot(Struct, frozen=True, kw_only=True):
    """A directory with everything below it in scope, by its real path."""

    names: Names
    # The session's scratch folder; rules do not apply to the folders above it.
    is_scratch: bool = False

    def holds(self, names: Sequence[str]) -> bool:
        """Return whether a path is below the root."""
        return tuple(names[: len(self.names)]) == self.names

    def path(self) -> str:
        """Return the absolute path of the root."""
        return "/" + "/".join(self.names)

    def rule_path(self, names: Names) -> Names:
        """Return the names of a path below that rules check."""
        return names[len(self.names) :] if self.is_scratch else names


class ToolScope(Struct, frozen=True, kw_only=True):
    """The roots of a workspace, and how its paths are resolved."""

    tier: FsTier
    base: Names
    roots: tuple[ScopeRoot, ...]
    # Paths of the roots as configured, possibly through links, and their real paths.
    aliases: tuple[tuple[Names, Names], ...]

    @property
    def is_jailed(self) -> bool:
        """Return whether anything is outside the scope."""
        return self.tier is not FsTier.FULL

    def begin(self, names: Sequence[str]) -> tuple[ScopeRoot, Names] | None:
        """Return the innermost root that contains a path, and the rest of the path."""
        names = tuple(names)
        for alias, real in self.aliases:
            if names[: len(alias)] == alias:
                names = real + names[len(alias) :]
                break
        holding = [root for root in self.roots if root.holds(names)]
        if not holding:
            return None
        root = max(holding, key=lambda each: len(each.names))
        return root, names[len(root.names) :]


def build_scope(
    working_dir: str, scratch: str, grants: Sequence[Grant], extra_roots: Sequence[str]
) -> ToolScope:
    """Return the scope of a workspace; reads the file system."""
    tier = narrowest_tier(grants)
    extra = tuple(extra_roots) if tier is FsTier.PROJECT else ()
    real = {path: split_path(os.path.realpath(path)) for path in (working_dir, scratch, *extra)}
    base = real[working_dir]
    roots = (
        ScopeRoot(names=real[scratch], is_scratch=True),
        ScopeRoot(names=_widest(tier, base)),
        *(ScopeRoot(names=real[path]) for path in extra),
    )
    aliases = ((split_path(path), names) for path, names in real.items())
    # Longest first, because one root may lie inside another.
    ordered = sorted(aliases, key=lambda each: len(each[0]), reverse=True)
    return ToolScope(tier=tier, base=base, roots=roots, aliases=tuple(ordered))


def split_path(path: str) -> Names:
    """Split a path into names; `..` is preserved, because only a walk can resolve it."""
    return tuple(name for name in path.split("/") if name not in ("", "."))


def _widest(tier: FsTier, base: Names) -> Names:
    if tier is FsTier.PROJECT:
        return _project_of(base)
    return base if tier is FsTier.SANDBOXED else ()


def _project_of(base: Names) -> Names:
    """Return the innermost git repository top at or above the base."""
    for size in range(len(base), -1, -1):
        if _is_top("/" + "/".join(base[:size])):
            return base[:size]
    return base


def _is_top(folder: str) -> bool:
    try:
        found = os.lstat(f"{folder}/.git")
        owners = {found.st_uid, os.stat(folder).st_uid}
        if stat.S_ISDIR(found.st_mode):
            os.lstat(f"{folder}/.git/HEAD")
    except OSError:
        return False
    # As in git: a `.git` planted by another user in a parent folder must not widen the scope.
    return owners == {os.geteuid()} and not stat.S_ISLNK(found.st_mode)
