"""Namespaces of a command: its processes, its network, and its view of the file system."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
import time

from holdfast.process.supervisor.syscalls import StepRefused, SuppressErrors, libc, require, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.process.supervisor.path_survey import Identity, Survey

_OPEN_TREE, _MOVE_MOUNT, _SET_MOUNT = 428, 429, 442
_HERE, _RECURSIVE, _CLONE, _FROM_DESCRIPTOR = -100, 0x8000, 1, 4
_NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _PRIVATE = 2, 4, 8, 4096, (1 << 18) | (1 << 14)
_SET_FLAGS = 0x8914


def enter_namespaces(flags: int, *, maps_user: bool) -> None:
    """Enter new namespaces; a new user namespace maps the current user and group to themselves."""
    user, group = os.geteuid(), os.getegid()
    require("namespaces", libc.unshare(flags))
    if not maps_user:
        return
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    try:
        for name, content in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(content)
    except OSError as error:
        raise StepRefused("namespaces", error.errno) from None


def set_up_mounts(order: dict[str, Any]) -> dict[str, tuple[Identity, str]]:
    """Restrict the file system to what the command may see and change; mount its own /proc.

    Returns the protected paths of the workspace with their identities after covering.
    """
    known = _cover_paths(order)
    if order["has_own_pids"]:
        _mount("proc", ("proc", "/proc", "proc"), _NO_SUID | _NO_DEVICES | _NO_EXEC)
        if order["processes"]:
            with SuppressErrors(OSError), open("/proc/sys/kernel/pid_max", "w") as file:
                file.write(str(order["processes"]))
        if order["mounts"] is not None:
            _set_read_only("/proc/sys")
    if order["loopback"]:
        _raise_loopback()
    return known


def _cover_paths(order: dict[str, Any]) -> dict[str, tuple[Identity, str]]:
    _mount("proc", (None, "/", None), _PRIVATE)
    # Before the mounts, which may hide a git configuration that names paths of the workspace.
    survey = survey_of(order["guard"])
    if order["mounts"] is not None:
        _cover(order["mounts"])
    if survey is None:
        return {}
    from holdfast.process.supervisor.path_covers import mount_covers
    from holdfast.process.supervisor.path_survey import refresh_identities

    if order["mounts"] is not None:
        mount_covers(survey.covers)
    return refresh_identities(survey.known)


def survey_of(guard: dict[str, Any] | None) -> Survey | None:
    """Find the protected paths of a workspace."""
    if guard is None:
        return None
    from holdfast.process.supervisor.path_survey import Survey

    return Survey(guard)


def _cover(mounts: dict[str, Any]) -> None:
    """Make everything read-only except the writable folders, then cover the hidden folders.

    Paths below a cover are mounted again through it, unchanged or read-only. All mount trees are
    cloned first, while every path is still accessible.
    """
    kept = [(path, _tree(path)) for path in _folders(mounts["writable"])]
    steps = [step for step in mounts["steps"] if os.path.exists(step[0])]
    trees = {path: _tree(path) for path, options, _ in steps if not options}
    folders = set(_folders(list(trees)))
    if mounts["is_jailed"]:
        _set_read_only("/", recursive=True)
        for path, tree in kept:
            _put(tree, path)
    closed = []
    for path, options, is_own in steps:
        if not options:
            _make_place(path, is_folder=path in folders)
            _put(trees[path], path)
            if not is_own:
                _set_read_only(path, recursive=True)
        # An earlier cover may already hide this path.
        elif os.path.isdir(path):
            _mount("mounts", ("tmpfs", path, "tmpfs"), _NO_SUID | _NO_DEVICES, options)
            closed += [] if is_own else [path]
    # Last, because creating mount points needs a writable cover.
    for path in closed:
        _set_read_only(path)
    # A private devpts instance, because the command must not write to other users' terminals.
    if mounts["is_jailed"]:
        pts = ("devpts", "/dev/pts", "devpts")
        _mount("mounts", pts, _NO_SUID | _NO_EXEC, "newinstance,ptmxmode=0666")
        _mount("mounts", ("/dev/pts/ptmx", "/dev/ptmx", None), _BIND)


def _make_place(path: str, *, is_folder: bool) -> None:
    """Create the mount point for a tree, if a cover has hidden the original path."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def _folders(paths: list[str]) -> list[str]:
    return [path for path in paths if os.path.isdir(path)]


def _tree(path: str) -> int:
    flags = _CLONE | _RECURSIVE | os.O_CLOEXEC
    return system("mounts", _OPEN_TREE, _HERE, os.fsencode(path), flags)


def _put(tree: int, path: str) -> None:
    system("mounts", _MOVE_MOUNT, tree, b"", _HERE, os.fsencode(path), _FROM_DESCRIPTOR)
    os.close(tree)


def _set_read_only(path: str, *, recursive: bool = False) -> None:
    """Make a path read-only; it becomes a mount point if it is not one yet."""
    if not os.path.ismount(path):
        _put(_tree(path), path)
    attributes = (1).to_bytes(8, sys.byteorder) + bytes(24)
    given = (os.fsencode(path), _RECURSIVE if recursive else 0, attributes, len(attributes))
    for _ in range(50):
        try:
            system("mounts", _SET_MOUNT, _HERE, *given)
            return
        except StepRefused as refused:
            # EBUSY is transient: even a read writes for a moment when the kernel updates atime.
            if refused.problem != errno.EBUSY:
                raise
            time.sleep(0.002)
    raise StepRefused("mounts", errno.EBUSY)


def _mount(stage: str, what: tuple[str | None, ...], flags: int, options: str = "") -> None:
    source, target, kind = (os.fsencode(each) if each is not None else None for each in what)
    given = os.fsencode(options) or None
    require(stage, libc.mount(source, target, kind, ctypes.c_ulong(flags), given))


def _raise_loopback() -> None:
    """Bring up the loopback interface; in a new network namespace all interfaces are down."""
    socket = require("network", libc.socket(2, 2, 0))
    try:
        fcntl.ioctl(socket, _SET_FLAGS, b"lo".ljust(16, b"\0") + b"\x41".ljust(24, b"\0"))
    except OSError as error:
        raise StepRefused("network", error.errno) from None
    finally:
        os.close(socket)
