"""What can be told about a store and its files without changing anything."""

import stat
from pathlib import Path
from typing import Final

import apsw

from holdfast.storage.files import UNSUITABLE, file_system_of
from holdfast.storage.migrate import version
from holdfast.storage.sqlite import Connection

_OTHERS: Final = 0o077
_OURS: Final = ("history.db", "key", "server.json", "token")


FILLED = """
-- Whether anything that a person made is in the store.
SELECT EXISTS (SELECT 1 FROM sessions)
    OR EXISTS (SELECT 1 FROM agents)
    OR EXISTS (SELECT 1 FROM repos)
"""

OBSERVED = """
-- Whether anything was observed.
SELECT EXISTS (SELECT 1 FROM entities)
"""

OBSERVING: Final = 8


def is_filled(connection: Connection) -> bool:
    """Tell whether taking the schema away would take something of a person with it."""
    found = version(connection)
    statements = [FILLED, *([OBSERVED] if found >= OBSERVING else [])]
    return found > 0 and any(connection.query(each)[0][0] for each in statements)


def library_version() -> str:
    """Return the version of SQLite that the store is kept with."""
    return apsw.sqlite_lib_version()


def open_doors(home: Path) -> list[str]:
    """Return a sentence for the home and each file of ours that others may reach."""
    if not home.is_dir():
        return []
    ours = [path for path in sorted(home.iterdir()) if path.name.startswith(_OURS)]
    found = []
    for path in (home, *ours):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & _OTHERS:
            found.append(f"{path} has mode {mode:04o}: others than its owner can reach it.")
    return found


def unsuitable_file_system(home: Path) -> str | None:
    """Return the file system of the home if "saved" would not be true on it."""
    kind = file_system_of(home)
    is_bad = kind is not None and (kind in UNSUITABLE or kind.startswith("fuse."))
    return kind if is_bad else None
