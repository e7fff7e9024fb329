"""Uncommitted changes of a repository, one entry per path.

A fingerprint of the working tree shows whether the cached result is still valid.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from struct import Struct as Packing
from threading import Event
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import Grant
from holdfast.process.cancellation import run_in_thread
from holdfast.process.launcher import Launcher
from holdfast.tools.git.cli import git_output, nul_records
from holdfast.tools.git.repository import (
    Repository,
    Worktree,
    find_repository,
    read_regular_file,
)
from holdfast.tools.process_context import ProcessContext, ProcessSettings, process_context

# For more files, the fingerprint takes as long as git itself.
FILES_MOST: Final = 20_000
# Timestamp granularity: a second change within one tick would be invisible.
_TICK: Final = 50_000_000
# Some file systems store whole seconds only.
_COARSE: Final = 2_000_000_000
_HEAD_LARGEST: Final = 4096
_STATED: Final = Packing("<QQQqqq")
TreeItem = tuple[str, os.stat_result]


class _NoFingerprint(Exception):  # noqa: N818 — named after the state
    """A fingerprint would be unreliable: there are too many files."""


def fingerprint(repository: Repository, ignored: Collection[str], stop: Event) -> bytes | None:
    """Return a hash that changes whenever git's status may change; `None` if unreliable.

    `ignored` are folders that git ignores, as paths with a trailing slash.
    """
    found = hashlib.blake2b(digest_size=16)
    now = time.time_ns()
    try:
        for path, status in chain(_parts(repository), _tree(repository.top, ignored, stop)):
            changed = status.st_ctime_ns
            if changed > now - (_COARSE if changed % 1_000_000 == 0 else _TICK):
                return None
            times = (status.st_size, status.st_mtime_ns, changed)
            found.update(os.fsencode(path))
            found.update(_STATED.pack(status.st_mode, status.st_dev, status.st_ino, *times))
    except (OSError, _NoFingerprint):
        return None
    return found.digest()


def _tree(top: str, ignored: Collection[str], stop: Event) -> Iterator[TreeItem]:
    """Yield everything below a folder except folders; symbolic links are not followed."""
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
                    raise _NoFingerprint


def _parts(repository: Repository) -> Iterator[TreeItem]:
    """Yield the git files that affect the status: index, HEAD, branch and exclusions."""
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
    head = os.fsdecode(read_regular_file(f"{repository.git_dir}/HEAD", _HEAD_LARGEST) or b"")
    branch = os.path.join(repository.common_dir, head.removeprefix("ref: ").strip())
    with suppress(FileNotFoundError):
        yield branch, os.lstat(branch)


_STATUS: Final = ("status", "--porcelain=v2", "-z", "--ignore-submodules=all", "--ignored=matching")
# Number of fields before the path, by the first character of an entry.
_BLANKS: Final[Mapping[str, int]] = {"1": 8, "2": 9, "u": 10, "?": 1, "!": 1}
_IGNORED_CODE: Final = "!"
_REMEMBERED_MOST: Final = 64


class _CachedStatus(Struct, frozen=True, kw_only=True):
    """A cached status of a repository, with the fingerprint taken before it."""

    fingerprint: bytes | None
    entries: Mapping[str, str]
    ignored: frozenset[str]


class GitStatus:
    """Returns the git status; runs git only if the working tree may have changed."""

    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher
        self._known: dict[str, _CachedStatus] = {}

    async def entries(self, folder: str) -> Mapping[str, str]:
        """Return the state of each path that differs from the last commit."""
        known = self._known.get(folder)
        ignored = known.ignored if known is not None else frozenset()
        seen = await run_in_thread(lambda stop: self._fingerprint(folder, ignored, stop))
        if known is not None and seen is not None and known.fingerprint == seen:
            return known.entries
        states = dict(parse_status(await self._run_status(folder)))
        entries = {path: state for path, state in states.items() if state != _IGNORED_CODE}
        now = frozenset(path for path in states if path not in entries and path.endswith("/"))
        self._known.pop(folder, None)
        if len(self._known) >= _REMEMBERED_MOST:
            self._known.pop(next(iter(self._known)))
        # A fingerprint taken with other ignored folders cannot be compared later.
        fingerprint_before = seen if now == ignored else None
        self._known[folder] = _CachedStatus(
            fingerprint=fingerprint_before, entries=entries, ignored=now
        )
        return entries

    def _fingerprint(self, folder: str, ignored: frozenset[str], stop: Event) -> bytes | None:
        return fingerprint(find_repository(self._context(folder, folder)), ignored, stop)

    async def _run_status(self, folder: str) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="holdfast-") as scratch:
            worktree = await run_in_thread(
                lambda _: Worktree.find(self._context(folder, scratch), self._launcher)
            )
            async with worktree.shadow() as shadow:
                return nul_records(git_output(await shadow.run_read_only(*_STATUS)))

    def _context(self, folder: str, scratch: str) -> ProcessContext:
        return process_context(folder, scratch, (Grant(),), settings=self._settings)


def parse_status(entries: list[str]) -> Iterator[tuple[str, str]]:
    """Yield path and state of each entry; for a rename the old path is the next record."""
    found = iter(entries)
    for entry in found:
        blanks = _BLANKS.get(entry[:1])
        if blanks is None:
            continue
        *state, path = entry.split(" ", blanks)
        if entry[0] == "2":
            state.append(next(found, ""))
        yield path, " ".join(state)
