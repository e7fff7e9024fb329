"""The folder of another program: JSON files by kind, each read once and never written.

Nothing outside the folder is read: a link that leads out of it is passed over and told of.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.observations.model import EntityType

FOLDERS: Final = {
    "sessions": EntityType.AGENT_SESSION,
    "feature_units": EntityType.FEATURE_UNIT,
    "releases": EntityType.RELEASE,
    "decisions": EntityType.AGENT_DECISION,
    "validations": EntityType.VALIDATION_RESULT,
}
# What is larger has no place in the store, however much of it is white space.
LARGEST: Final = 8 << 20
ENDING: Final = ".json"


class MemoryFile(Struct, frozen=True, kw_only=True):
    """One file: what it is about, where it lies, what is in it, and when it was last changed."""

    entity_type: EntityType
    path: str
    content: bytes
    modified_ms: int

    @property
    def stem(self) -> str:
        """Return the file's name without its ending."""
        return self.path.rpartition("/")[2].removesuffix(ENDING)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of its bytes."""
        return hashlib.sha256(self.content).hexdigest()


class MemoryFolder:
    """A folder with what another program remembers; the verbs read files, and wait for them."""

    def __init__(self, root: Path) -> None:
        self.path: Final = os.path.realpath(root)
        if not os.path.isdir(self.path):
            raise Invalid(
                Code.NOT_A_FOLDER, f"{root} is not a folder; name the one with sessions/."
            )
        # Told by their places in the folder: what leads out of it, and what cannot be listed.
        self.skipped: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def files(self) -> list[tuple[EntityType, str]]:
        """Return what there is to read, by relative path in the order of code points."""
        found = [(kind, path) for name, kind in FOLDERS.items() for path in self._below(name)]
        return sorted(found, key=lambda each: each[1])

    def read(self, entity_type: EntityType, path: str) -> MemoryFile:
        """Return a file as it is now; what is no file, or too large, is refused."""
        place = os.path.realpath(os.path.join(self.path, path))
        # Not waiting: a pipe would never end. And no link: it was followed to its end just now.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(place, flags), "rb") as opened:
            known = os.fstat(opened.fileno())
            if not stat.S_ISREG(known.st_mode):
                raise Invalid(Code.NOT_A_FILE, "It is no file.")
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise Invalid(Code.TOO_LARGE, f"A file may have {LARGEST >> 20} MiB at most.")
        return MemoryFile(
            entity_type=entity_type,
            path=path,
            content=content,
            modified_ms=known.st_mtime_ns // 1_000_000,
        )

    def _below(self, folder: str) -> Iterator[str]:
        top = os.path.join(self.path, folder)
        if os.path.islink(top):
            self._pass_over(folder)
            return
        for place, folders, names in os.walk(top, onerror=self._note):
            for name in sorted((*folders, *names)):
                path = os.path.relpath(os.path.join(place, name), self.path)
                is_link = os.path.islink(os.path.join(place, name))
                if is_link and (name in folders or not self._is_inside(path)):
                    self._pass_over(path)
                elif name in names and name.endswith(ENDING):
                    yield path

    def _is_inside(self, path: str) -> bool:
        end = os.path.realpath(os.path.join(self.path, path))
        return os.path.commonpath([self.path, end]) == self.path

    def _pass_over(self, path: str) -> None:
        self.skipped[path] = (
            "a link to a folder is not followed"
            if self._is_inside(path)
            else "a link that leaves the folder is not followed"
        )

    def _note(self, error: OSError) -> None:
        # A kind of which nothing was kept has no folder.
        if not isinstance(error, FileNotFoundError):
            path = os.path.relpath(os.fsdecode(error.filename), self.path)
            self.unreadable[path] = error.strerror or "it cannot be read"
