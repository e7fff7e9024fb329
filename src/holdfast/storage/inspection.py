"""What can be told about a store's files without opening the store or changing anything."""

import stat
from pathlib import Path
from typing import Final

import apsw

from holdfast.storage.files import UNSUITABLE, file_system_of

_PRIVATE: Final = 0o077


def library_version() -> str:
    """Return the version of SQLite that the store is kept with."""
    return apsw.sqlite_lib_version()


def open_doors(home: Path, names: tuple[str, ...]) -> list[str]:
    """Return a sentence for the home and each file in it that others than its owner may reach."""
    found = []
    for path in (home, *(home / name for name in names)):
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue
        if mode & _PRIVATE:
            found.append(f"{path} has mode {mode:04o}: others than its owner can reach it.")
    return found


def unsuitable_file_system(home: Path) -> str | None:
    """Return the file system of the home if "saved" would not be true on it."""
    kind = file_system_of(home)
    is_bad = kind is not None and (kind in UNSUITABLE or kind.startswith("fuse."))
    return kind if is_bad else None
