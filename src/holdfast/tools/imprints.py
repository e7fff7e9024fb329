"""The imprint of a working tree: as long as it is the same, git has nothing new to say about it.

Nothing is read but names, and what the system knows of each file. Whoever changes a content changes
the time of its file's last change, which nobody can set.
"""

import hashlib
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from struct import Struct as Packing
from threading import Event
from typing import Final

from holdfast.tools.repositories import Repository, read_plain

# More take as long to look at as git does.
FILES_MOST: Final = 20_000
# A second change within one tick of the clock that file systems go by could not be told.
_TICK: Final = 50_000_000
# Some know no parts of a second.
_COARSE: Final = 2_000_000_000
_HEAD_LARGEST: Final = 4096
_STATED: Final = Packing("<QQQqqq")

Seen = tuple[str, os.stat_result]


class _Unsure(Exception):  # noqa: N818 — it says what is, not what went wrong
    """An imprint would prove nothing: there is too much, or it has changed a moment ago."""


def imprint(repository: Repository, ignored: Collection[str], stop: Event) -> bytes | None:
    """Return what stays the same as long as git says the same; nothing where that is not sure.

    `ignored` are folders that git passes over, by their paths with a slash behind.
    """
    found = hashlib.blake2b(digest_size=16)
    now = time.time_ns()
    try:
        for path, status in chain(_parts(repository), _tree(repository.top, ignored, stop)):
            _require_settled(status, now)
            found.update(os.fsencode(path))
            found.update(_stated(status))
    except (OSError, _Unsure):
        return None
    return found.digest()


def _tree(top: str, ignored: Collection[str], stop: Event) -> Iterator[Seen]:
    """Yield what is no folder, below a folder; links are not followed."""
    waiting, count = [(top, "")], 0
    while waiting:
        folder, prefix = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                path = prefix + entry.name
                if not entry.is_dir(follow_symlinks=False):
                    yield path, entry.stat(follow_symlinks=False)
                elif path != ".git" and f"{path}/" not in ignored:
                    waiting.append((entry.path, f"{path}/"))
                count += 1
                if count > FILES_MOST or stop.is_set():
                    raise _Unsure


def _parts(repository: Repository) -> Iterator[Seen]:
    """Yield what decides beside the tree: the index, what is checked out, what is excluded."""
    for folder in dict.fromkeys((repository.git_dir, repository.common_dir)):
        for inner in (folder, f"{folder}/info"):
            with suppress(FileNotFoundError), os.scandir(inner) as entries:
                yield from (
                    (entry.path, entry.stat(follow_symlinks=False))
                    for entry in entries
                    if not entry.is_dir(follow_symlinks=False)
                )
        for path in (f"{folder}/logs/HEAD", f"{folder}/reftable/tables.list"):
            with suppress(FileNotFoundError):
                yield path, os.lstat(path)
    head = os.fsdecode(read_plain(f"{repository.git_dir}/HEAD", _HEAD_LARGEST) or b"")
    branch = os.path.join(repository.common_dir, head.removeprefix("ref: ").strip())
    with suppress(FileNotFoundError):
        yield branch, os.lstat(branch)


def _require_settled(status: os.stat_result, now: int) -> None:
    changed = status.st_ctime_ns
    if changed > now - (_COARSE if changed % 1_000_000 == 0 else _TICK):
        raise _Unsure


def _stated(status: os.stat_result) -> bytes:
    times = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _STATED.pack(status.st_mode, status.st_dev, status.st_ino, *times)
