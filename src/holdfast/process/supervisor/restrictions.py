"""Irrevocable restrictions that a process applies to itself before it executes the command."""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from holdfast.process.supervisor.syscalls import (
    LINUX,
    StepRefused,
    SuppressErrors,
    libc,
    require,
    system,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NO_NEW_PRIVILEGES, _DROP_CAPABILITY, _SECCOMP, _FILTER = 38, 24, 22, 2
_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
_BROKEN_PIPE, _FILE_TOO_LARGE = 13, 25
# Landlock rights that are valid for files; the other rights apply to folders only.
_FILE_RIGHTS = 1 | 2 | 4 | (1 << 14) | (1 << 15)


def exec_command(order: dict[str, Any], report: int) -> NoReturn:
    """Apply all restrictions and exec the command; failures are written to the report pipe."""
    stage = "session"
    try:
        # Python ignores these signals, and ignored signals stay ignored across exec.
        for number in (_BROKEN_PIPE, _FILE_TOO_LARGE):
            libc.signal(number, None)
        os.setsid()
        os.umask(order["umask"])
        stage = "limits"
        limit(order["limits"])
        stage = "folder"
        os.chdir(order["folder"])
        _require_same(stage, ".", order["folder_identity"])
        stage = "program"
        if order["program"]:
            _require_same(stage, order["program"], order["program_identity"])
        stage = "confinement"
        _confine(order)
        if not order["program"]:
            os._exit(0)
        stage = "start"
        os.execve(order["program"], order["argv"], order["environment"])  # noqa: S606
    except StepRefused as refused:
        os.write(report, refused.line())
    except (OSError, ValueError) as error:
        os.write(report, StepRefused(stage, getattr(error, "errno", None)).line())
    os._exit(127)


def confine(order: dict[str, Any]) -> None:
    """Apply all restrictions of the order without executing the command."""
    limit(order["limits"])
    _confine(order)


def limit(limits: list[tuple[int, int]]) -> None:
    """Set resource limits; an existing lower hard limit is not raised."""
    for name, most in limits:
        hard = resource.getrlimit(name)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (bound, bound))
    # Under memory pressure the OOM killer should choose the command, not Holdfast.
    with SuppressErrors(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def _require_same(stage: str, path: str, wanted: tuple[int, ...]) -> None:
    found = os.stat(path)
    seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if seen[: len(wanted)] != tuple(wanted):
        raise StepRefused(f"{stage}-changed", 0)


def _confine(order: dict[str, Any]) -> None:
    """Drop capabilities, set no_new_privs, and apply Landlock and seccomp."""
    if not LINUX:
        return
    if os.geteuid() == 0:
        for number in range(64):
            if not order["kept_capabilities"] >> number & 1:
                libc.prctl(_DROP_CAPABILITY, number, 0, 0, 0)
    require("privileges", libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if order["rules"] is not None:
        _restrict_files(*order["rules"])
    if order["filter"] is not None:
        _filter_calls(order["filter"])


def _restrict_files(attributes: bytes, rules: list[tuple[str, int]]) -> None:
    ruleset = system("landlock", _CREATE_RULES, attributes, len(attributes), 0)
    for path, rights in rules:
        # A path that does not exist needs no rule, because Landlock denies by default.
        with SuppressErrors(FileNotFoundError, NotADirectoryError, PermissionError):
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            given = rights if os.path.isdir(path) else rights & _FILE_RIGHTS
            rule = given.to_bytes(8, sys.byteorder) + beneath.to_bytes(4, sys.byteorder)
            system("landlock", _ADD_RULE, ruleset, 1, rule, 0)
            os.close(beneath)
    system("landlock", _RESTRICT, ruleset, 0)
    os.close(ruleset)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_calls(program: bytes) -> None:
    given = _Program(len(program) // 8, program)
    require("seccomp", libc.prctl(_SECCOMP, _FILTER, ctypes.byref(given), 0, 0))
