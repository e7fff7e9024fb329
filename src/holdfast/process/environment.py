"""Environment variables and PATH of a child process, from a short allowlist of names."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

PASSED_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "TERM", "TMPDIR", "TZ")
# PATH if the environment has none.
DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def child_environment(
    source: Mapping[str, str],
    *,
    path: Sequence[str],
    scratch: str,
    home: str | None = None,
    more: Iterable[str] = (),
) -> dict[str, str]:
    """Return the environment of a child; variables missing in the source are omitted.

    `more` are names that were validated when the configuration was read. `home` replaces the user's
    HOME if the child cannot access it.
    """
    passed = {name: source[name] for name in (*PASSED_VARIABLES, *more) if name in source}
    ours = {"PATH": os.pathsep.join(path), "TMPDIR": scratch}
    return passed | ours | ({} if home is None else {"HOME": home})


def restricted_path(path: str | None, *, without: Sequence[str]) -> tuple[str, ...]:
    """Return the existing absolute folders of a PATH that only their owner can change.

    `without` are real paths of folders in which programs are not searched by name.
    """
    entries = dict.fromkeys((path or DEFAULT_PATH).split(os.pathsep))
    return tuple(entry for entry in entries if _is_trusted(entry, without))


def _is_trusted(entry: str, without: Sequence[str]) -> bool:
    if not entry.startswith("/"):
        return False
    real = os.path.realpath(entry)
    if any(is_below(real, folder) for folder in without):
        return False
    try:
        return stat.S_ISDIR(os.stat(real).st_mode) and all(map(_is_owner_only, _parents(real)))
    except OSError:
        return False


def _is_owner_only(folder: str) -> bool:
    """Return whether only root or this user can create or replace names in the folder."""
    found = os.stat(folder)
    is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not is_open


def _parents(folder: str) -> Iterator[str]:
    while folder != "/":
        yield folder
        folder = os.path.dirname(folder)


def is_below(path: str, folder: str) -> bool:
    """Return whether a real path is the folder or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
