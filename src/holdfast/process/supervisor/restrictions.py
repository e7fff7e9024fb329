"""Irrevocable restrictions that a process applies to itself before it executes the command."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys

from holdfast.process.supervisor.syscalls import (
    DEATH_SIGNAL,
    KILL,
    LINUX,
    StepRefused,
    SuppressErrors,
    libc,
    require,
    reset_signals,
    system,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NO_NEW_PRIVILEGES, _DROP_CAPABILITY, _SECCOMP, _FILTER = 38, 24, 22, 2
_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
# Landlock rights that are valid for files; the other rights apply to folders only.
_FILE_RIGHTS = 1 | 2 | 4 | (1 << 14) | (1 << 15)


def exec_command(order: dict[str, Any], report: int, supervisor: int) -> NoReturn:
    """Apply all restrictions and exec the program; failures are written to the report pipe."""
    stage = "session"
    try:
        reset_signals()
        os.setsid()
        if LINUX:
            libc.prctl(DEATH_SIGNAL, KILL, 0, 0, 0)
            # The supervisor may have died before PR_SET_PDEATHSIG was set (race).
            if os.getppid() != supervisor:
                os._exit(127)
        os.umask(order["umask"])
        stage = "limits"
        _limit(order["limits"])
        if order["nice"]:
            os.nice(order["nice"])
        stage = "folder"
        os.chdir(order["folder"])
        # Checked after chdir, so that a symbolic link cannot be swapped in between (TOCTOU).
        if order["is_pinned"] and os.getcwd() != order["folder"]:
            raise OSError(errno.ELOOP, "the folder was replaced by a link")
        _require_same(stage, ".", order["folder_identity"])
        stage = "program"
        if order["program"]:
            _require_same(stage, order["program"], order["program_identity"])
        stage = "confinement"
        if order["is_confined"]:
            _confine(order)
        if not order["program"]:
            os._exit(0)
        stage = "start"
        os.execve(order["program"], order["argv"], order["environment"])  # noqa: S606
    except StepRefused as refused:
        os.write(report, refused.line())
    except (OSError, ValueError) as error:
        problem = getattr(error, "errno", None) or errno.EINVAL
        os.write(report, StepRefused(stage, problem).line())
    finally:
        os._exit(127)


def _limit(limits: list[tuple[int, int]]) -> None:
    """Set resource limits; an existing lower hard limit is not raised."""
    for name, most in limits:
        hard = resource.getrlimit(name)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (bound, bound))


def _require_same(stage: str, path: str, expected: tuple[int, ...]) -> None:
    found = os.stat(path)
    seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
    if seen[: len(expected)] != tuple(expected):
        raise StepRefused(f"{stage}-changed", 0)


def _confine(order: dict[str, Any]) -> None:
    """Drop capabilities, set no_new_privs, and apply Landlock and seccomp."""
    if not LINUX:
        return
    # Under memory pressure the OOM killer should choose the command, not Holdfast.
    with SuppressErrors(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
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
