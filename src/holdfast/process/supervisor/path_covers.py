"""Mount covers over single paths in a mount namespace: unreadable, read-only or pinned.

A mount point can be neither renamed, removed nor replaced. Of a git configuration a command only
sees entries that run nothing and contain no secrets.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

from holdfast.process.supervisor.git_config import harmless_settings
from holdfast.process.supervisor.syscalls import StepRefused, libc, require, system

# Kinds of cover: unreadable; git settings without secrets and without entries that run programs;
# read-only; or only protected against being moved.
HIDDEN, SETTINGS, READ_ONLY, PINNED = "hidden", "settings", "read-only", "pinned"
_OPEN_TREE, _MOVE_MOUNT, _SET_MOUNT, _OPEN = 428, 429, 442, 437
_HERE, _RECURSIVE, _CLONE, _EMPTY_PATH = -100, 0x8000, 1, 0x1000
_FROM_DESCRIPTOR, _TO_DESCRIPTOR = 4, 0x40
_READ_ONLY, _NO_DEVICES = 1, 4
_NO_LINKS, _NO_SUID, _DETACH = 4, 2, 2
# Mount point for temporary files: it exists everywhere and is not needed during the set-up.
_MOUNT_FOLDER = "/proc"


def mount_covers(covers: dict[str, str]) -> None:
    """Mount the cover of each path, outer paths first."""
    if not covers:
        return
    options = b"mode=755,size=64m"
    mounted = libc.mount(
        b"tmpfs", _MOUNT_FOLDER.encode(), b"tmpfs", ctypes.c_ulong(_NO_SUID), options
    )
    require("mounts", mounted)
    try:
        os.mkdir(f"{_MOUNT_FOLDER}/folder", 0)
        for path in sorted(covers):
            _cover(path, covers[path])
    finally:
        require("mounts", libc.umount2(_MOUNT_FOLDER.encode(), _DETACH))


def _cover(path: str, kind: str) -> None:
    try:
        target = _open_without_links(path)
    except StepRefused as refused:
        # Removed meanwhile (race); if it is created again, `restore` finds it after the command.
        if refused.problem in (errno.ENOENT, errno.ENOTDIR):
            return
        raise
    try:
        tree = _source(path, target, kind)
        if kind != PINNED:
            _close(tree)
        flags = _FROM_DESCRIPTOR | _TO_DESCRIPTOR
        system("mounts", _MOVE_MOUNT, tree, b"", target, b"", flags)
        os.close(tree)
    finally:
        os.close(target)


def _source(path: str, target: int, kind: str) -> int:
    """Return the mount tree that is moved over the target."""
    if kind == SETTINGS:
        return _tree(_HERE, _write_settings(path))
    if kind == HIDDEN:
        # A device node on a nodev mount: open() fails even for root. An empty file would be read as
        # the real content, and could be committed.
        is_folder = os.path.isdir(path)
        return _tree(_HERE, f"{_MOUNT_FOLDER}/folder" if is_folder else os.devnull)
    return _tree(target, "")


def _write_settings(path: str) -> str:
    with open(path, "rb") as file:
        content = harmless_settings(file.read())
    written = f"{_MOUNT_FOLDER}/{len(os.listdir(_MOUNT_FOLDER))}"
    with open(written, "xb") as file:
        file.write(content)
    os.chmod(written, 0o444)
    return written


def _tree(folder: int, path: str) -> int:
    flags = _CLONE | _RECURSIVE | os.O_CLOEXEC | (0 if path else _EMPTY_PATH)
    return system("mounts", _OPEN_TREE, folder, os.fsencode(path), flags)


def _close(tree: int) -> None:
    attributes = (_READ_ONLY | _NO_DEVICES).to_bytes(8, sys.byteorder) + bytes(24)
    flags = _EMPTY_PATH | _RECURSIVE
    system("mounts", _SET_MOUNT, tree, b"", flags, attributes, len(attributes))


def _open_without_links(path: str) -> int:
    """Open a path without following symbolic links in any component (openat2)."""
    how = b"".join(
        each.to_bytes(8, sys.byteorder)
        for each in (os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0, _NO_LINKS)
    )
    return system("mounts", _OPEN, _HERE, os.fsencode(path), how, len(how))
