"""Detects hard links to protected files by inode, because their names reveal nothing.

Only files with several links are checked. Known protected files are those in Holdfast's own
folders, credentials in the user's home, and protected names in the folders of a session. A link to
a protected file elsewhere is not recognised.
"""

import os
import time
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from holdfast.process.protected_paths import CREDENTIALS, ProtectedPaths, fold_path
from holdfast.tools.files.openat import Identity
from holdfast.tools.files.scope import split_path

# Seconds for which the inodes are cached, because a search opens thousands of linked files.
_CACHE_SECONDS: Final = 5.0
_ENTRIES_MOST: Final = 100_000
# Package folders, which contain no secrets.
_PACKAGE_FOLDERS: Final = frozenset({"node_modules", "site-packages", "__pycache__"})
_OBJECTS: Final = ".git/objects"


class SearchedFolders(Struct, frozen=True):
    """Where protected files are searched, by absolute paths."""

    # Every file in these folders is protected.
    own: tuple[str, ...]
    # In these folders, files with protected names are protected.
    searched: tuple[str, ...] = ()
    user_home: str | None = None


class ProtectedInodes:
    """The inodes of protected files, with a short-lived cache."""

    def __init__(self, protected_paths: ProtectedPaths) -> None:
        self._protected_paths = protected_paths
        self._known: dict[SearchedFolders, tuple[float, frozenset[Identity] | None]] = {}

    def holds(self, status: os.stat_result, searched: SearchedFolders) -> bool:
        """Return whether a file is a hard link to a protected file.

        If there are too many files to list, every file with several links counts as protected.
        """
        if status.st_nlink < 2:
            return False
        taken, inodes = self._known.get(searched, (-_CACHE_SECONDS, None))
        if time.monotonic() - taken >= _CACHE_SECONDS:
            # One cached list at a time, because later sessions have other folders.
            inodes = self._list_inodes(searched)
            self._known = {searched: (time.monotonic(), inodes)}
        return inodes is None or (status.st_dev, status.st_ino) in inodes

    def _list_inodes(self, searched: SearchedFolders) -> frozenset[Identity] | None:
        inodes = set()
        for count, (path, is_protected) in enumerate(self._files(searched)):
            if count >= _ENTRIES_MOST:
                return None
            if is_protected:
                try:
                    status = os.lstat(path)
                # Removed meanwhile.
                except OSError:
                    continue
                inodes.add((status.st_dev, status.st_ino))
        return frozenset(inodes)

    def _files(self, searched: SearchedFolders) -> Iterator[tuple[str, bool]]:
        for folder in searched.own:
            yield from ((path, True) for path in _below(folder))
        home = searched.user_home
        for name in CREDENTIALS if home else ():
            yield from ((path, True) for path in _below(os.path.join(home or "", name)))
        for folder in searched.searched:
            for path in _below(folder):
                names = fold_path(split_path(path))
                yield path, self._protected_paths.hides(names, is_folder=False)


def _below(path: str) -> Iterator[str]:
    """Yield a file, or all files below a folder; symbolic links are not followed."""
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry.path
                    elif entry.name not in _PACKAGE_FOLDERS and not entry.path.endswith(_OBJECTS):
                        waiting.append(entry.path)
        except NotADirectoryError:
            yield here
        # Missing or unreadable folders contain no file that could be read through another link.
        except OSError:
            continue
