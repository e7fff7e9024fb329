"""Paths of a call to git: in the repository, within reach, and not protected."""

import os
from collections.abc import Iterable
from typing import Final

from holdfast.domain.text import is_encodable
from holdfast.domain.tools import ResultCode
from holdfast.tools.environments import is_below
from holdfast.tools.floors import Floors, folded_path
from holdfast.tools.hard_links import Places, ProtectedInodes
from holdfast.tools.repositories import Repository
from holdfast.tools.scope import names_in
from holdfast.tools.surroundings import Surroundings
from holdfast.tools.tool import ToolTrouble
from holdfast.tools.troubles import outside, protected

_RULES: Final = Floors(())
_INODES: Final = ProtectedInodes(_RULES)


def pathspec(path: str, repository: Repository, around: Surroundings) -> str:
    """Return the path as git shall read it: literally, and from the top of the repository."""
    if not path or "\x00" in path or not is_encodable(path):
        raise ToolTrouble(ResultCode.INVALID_ARGUMENTS, "A path is empty, or no file's name.")
    lexical = os.path.normpath(os.path.join(around.folder, path))
    # The last name stays: a link is a content of its own for git, and is not followed.
    parent, name = os.path.split(lexical)
    real = os.path.join(os.path.realpath(parent), name)
    is_in_reach = not around.is_jailed or any(is_below(real, root) for root in around.roots)
    if not is_in_reach or not is_below(real, repository.top):
        raise outside(path)
    below = os.path.relpath(real, repository.top)
    if is_protected(below) or any(is_below(real, each) for each in _closed(repository, around)):
        raise protected(path)
    return ":(top)" if below == "." else f":(top,literal){below}"


def is_protected(below: str) -> bool:
    """Tell whether nobody may read a file, by its path below the top."""
    return _RULES.hides(folded_path(names_in(below)), is_folder=False)


def protected_among(
    names: Iterable[str], repository: Repository, around: Surroundings
) -> tuple[str, ...]:
    """Return the files that nobody may read, by their names or as hard links to such a file."""
    places = Places(around.hidden, (repository.top,), around.user_home)
    return tuple(
        name
        for name in names
        if is_protected(name) or _is_linked(f"{repository.top}/{name}", places)
    )


def _is_linked(path: str, places: Places) -> bool:
    try:
        return _INODES.holds(os.lstat(path), places)
    # Not in the working tree: then its content is the one that was committed.
    except OSError:
        return False


def _closed(repository: Repository, around: Surroundings) -> Iterable[str]:
    """Return Holdfast's own folders, unless the repository itself lies in one."""
    return (each for each in around.hidden if not is_below(repository.top, each))
