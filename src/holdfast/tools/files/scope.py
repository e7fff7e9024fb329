"""The roots below which a session's tools may work, by tier and grants."""

import os
import stat
from collections.abc import Sequence

from msgspec import Struct

from holdfast.domain.tools import FsTier, narrowest_tier
from holdfast.ports import ToolWorkspace

Names = tuple[str, ...]


class ScopeRoot(Struct, frozen=True, kw_only=True):
    """A directory below which everything is in scope, by its real names."""

    names: Names
    # Ours for this session, wherever it lies: what is above it says nothing about what is in it.
    is_scratch: bool = False

    def holds(self, names: Sequence[str]) -> bool:
        """Tell whether a path begins with the root's."""
        return tuple(names[: len(self.names)]) == self.names

    def path(self) -> str:
        """Return where the root is."""
        return "/" + "/".join(self.names)


class PathSpelling(Struct, frozen=True, kw_only=True):
    """One way in which a file was named on the way to it."""

    root: ScopeRoot
    # Below the root; a name that a later `..` took back still counts.
    names: Names

    def whole(self) -> Names:
        """Return the names that rules look at."""
        return self.names if self.root.is_scratch else self.root.names + self.names


class ToolScope(Struct, frozen=True, kw_only=True):
    """The roots of a workplace, and how its paths are read."""

    tier: FsTier
    base: Names
    roots: tuple[ScopeRoot, ...]
    # Spellings of the roots, which may go through links, and what they really are.
    aliases: tuple[tuple[Names, Names], ...]

    @property
    def is_jailed(self) -> bool:
        """Tell whether there is anything outside."""
        return self.tier is not FsTier.FULL

    def begin(self, names: Sequence[str]) -> tuple[ScopeRoot, Names] | None:
        """Return the innermost root that a path starts at, and the rest of the path."""
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


def build_scope(place: ToolWorkspace, extra_roots: Sequence[str]) -> ToolScope:
    """Return what a place reaches; looks at the file system."""
    tier = narrowest_tier(place.grants)
    extra = tuple(extra_roots) if tier is FsTier.PROJECT else ()
    real = {path: _real(path) for path in (place.working_dir, place.scratch, *extra)}
    base = real[place.working_dir]
    roots = (
        ScopeRoot(names=real[place.scratch], is_scratch=True),
        ScopeRoot(names=_widest(tier, base)),
        *(ScopeRoot(names=real[path]) for path in extra),
    )
    aliases = ((split_path(path), names) for path, names in real.items())
    # The longest first, because one may lie in another.
    ordered = sorted(aliases, key=lambda each: len(each[0]), reverse=True)
    return ToolScope(tier=tier, base=base, roots=roots, aliases=tuple(ordered))


def split_path(path: str) -> Names:
    """Return the names that a path is made of; `..` is kept, because only walking can tell."""
    return tuple(name for name in path.split("/") if name not in ("", "."))


def _real(path: str) -> Names:
    return split_path(os.path.realpath(path))


def _widest(tier: FsTier, base: Names) -> Names:
    if tier is FsTier.PROJECT:
        return _project_of(base)
    return base if tier is FsTier.SANDBOXED else ()


def _project_of(base: Names) -> Names:
    """Return the innermost directory at or above the base that is the top of a git repository."""
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
    # As git does: what somebody else planted above us must not widen what we reach.
    return owners == {os.geteuid()} and not stat.S_ISLNK(found.st_mode)
