"""The environment variables and the PATH that a child process gets: a short list of names."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

PASSED_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "TERM", "TMPDIR", "TZ")
# Where programs are when nobody says so.
DEFAULT_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


def child_environment(
    source: Mapping[str, str],
    *,
    path: Sequence[str],
    scratch: str,
    home: str | None = None,
    more: Iterable[str] = (),
) -> dict[str, str]:
    """Return the environment of a child; what the source does not have is left out.

    `more` are names that were judged when the configuration was read. A `home` stands for the
    user's where that is out of the child's reach.
    """
    passed = {name: source[name] for name in (*PASSED_VARIABLES, *more) if name in source}
    ours = {"PATH": os.pathsep.join(path), "TMPDIR": scratch}
    return passed | ours | ({} if home is None else {"HOME": home})


def restricted_path(path: str | None, *, without: Sequence[str]) -> tuple[str, ...]:
    """Return the folders of a PATH that are absolute, there, and open to nobody but their owner.

    `without` are real paths of folders from which no program is found by its name.
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
    """Tell whether nobody but its owner and us decides what a name in it means."""
    found = os.stat(folder)
    is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not is_open


def _parents(folder: str) -> Iterator[str]:
    while folder != "/":
        yield folder
        folder = os.path.dirname(folder)


def is_below(path: str, folder: str) -> bool:
    """Tell whether a real path is a folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
