"""Sandbox policy: what a child process may access, and what this system can enforce.

`Confinement` is the requested policy, `Means` the available kernel features. Both are combined into
the sandbox part of the order that `supervisor/` executes. Reported strength never exceeds the
available means.
"""

import os
import re
import resource
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.process import landlock, seccomp
from holdfast.process.environment import is_below

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000

# System folders with programs and libraries: world-readable, without user data.
SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix", "/gnu", "/snap", "/proc", "/sys", "/home/linuxbrew/.linuxbrew"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/current-system", "/run/opengl-driver"),
    "/var/lib/ca-certificates",
)
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
# World-writable folders. They are replaced because they also hold sockets of other programs.
SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 — replaced by private mounts
_SOCKETS: Final = "/run"
_OWN_MEMORY: Final = "mode=1777,size=1g,nr_inodes=200k"
_NOTHING: Final = "mode=755,size=1m"

# A command running as root retains only capabilities for file ownership and dropping root.
_KEPT_CAPABILITIES: Final = 0b1111_1011  # chown, dac_override, fowner, fsetid, kill, setgid, setuid
_FILE_LARGEST: Final = 4 << 30
_FILES_MOST: Final = 8_192
PROCESSES_MOST: Final = 4_096
# Kernel versions with a pid_max per PID namespace and process counts per user namespace. On older
# kernels the same settings would apply to the whole machine.
_OWN_NUMBERS: Final = (6, 14)
_OWN_COUNTS: Final = (5, 14)


class Namespaces(StrEnum):
    """Which privilege is used to create namespaces for a child."""

    NONE = "none"
    USER = "user"
    ROOT = "root"


class Means(Struct, frozen=True, kw_only=True):
    """Kernel features that are available to confine a child."""

    namespaces: Namespaces = Namespaces.NONE
    mounts: bool = False
    network: bool = False
    landlock: int = 0
    seccomp: bool = False
    # Whether the number of processes of a command can be limited.
    counts: bool = False


class Bounds(Struct, frozen=True, kw_only=True):
    """Resource limits of a command: memory in bytes and CPU time in seconds, per process.

    `processes` limits how many exist at a time. A memory or CPU limit of 0 means unlimited.
    """

    processes: int = PROCESSES_MOST
    memory: int = 0
    cpu_seconds: int = 0


class Guard(Struct, frozen=True, kw_only=True):
    """Folders in which protected paths are enforced for a command, with the exceptions.

    `outside` are folders that belong to the command itself. `open_names` are names of folders that
    commands may fill, and of files that otherwise need approval to be written. `home` is only
    surveyed when the command can read it. With `keeps_new`, new protected paths stay in place,
    because the user may have created them while the program ran; what redirects git is renamed.
    """

    roots: tuple[str, ...]
    outside: tuple[str, ...] = ()
    open_names: tuple[str, ...] = ()
    home: str | None = None
    writes_git: bool = False
    # Whether files that other programs run later may be written.
    writes_sensitive: bool = False
    keeps_new: bool = False


class Confinement(Struct, frozen=True, kw_only=True):
    """What a child may access; `executable=None` allows executing everything readable.

    Without a jail everything is readable and writable, except hidden paths. With `covers_home` the
    protected paths of the home and the system are covered in a jail too, because it may open parts
    of them. Without `has_own_pids` the child stays in the user's PID namespace.
    """

    is_jailed: bool = True
    covers_home: bool = False
    has_own_pids: bool = True
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    executable: tuple[str, ...] | None = None
    # Folders of Holdfast itself; readable or writable paths below them remain accessible.
    hidden: tuple[str, ...] = ()
    has_network: bool = False
    guard: Guard | None = None
    bounds: Bounds = Bounds()


class SandboxStrength(Struct, frozen=True, kw_only=True):
    """Which protections are active for commands here and which are missing, as display text."""

    active: tuple[str, ...]
    weaker: tuple[str, ...]


def sandbox_order(confinement: Confinement, means: Means) -> dict[str, Any]:
    """Return the sandbox part of the supervisor's order."""
    needs_none = not confinement.has_own_pids and not means.mounts
    has_namespaces = means.namespaces is not Namespaces.NONE and not needs_none
    has_own_network = has_namespaces and means.network and not confinement.has_network
    allows_ip_sockets = has_own_network or confinement.has_network
    return {
        "unshare": _flags(confinement, means, has_own_network) if has_namespaces else 0,
        "has_own_pids": has_namespaces and confinement.has_own_pids,
        "maps_user": means.namespaces is Namespaces.USER,
        "mounts": _mounts(confinement) if has_namespaces and means.mounts else None,
        "guard": _guard(confinement),
        "processes": confinement.bounds.processes
        if has_namespaces and confinement.has_own_pids and _kernel() >= _OWN_NUMBERS
        else 0,
        "loopback": has_own_network,
        "limits": list(_limits(confinement, means)),
        "kept_capabilities": _KEPT_CAPABILITIES,
        "rules": _rules(confinement, means) if means.landlock else None,
        "filter": seccomp.filter_program(allows_ip_sockets=allows_ip_sockets)
        if means.seccomp
        else None,
    }


def describe_strength(means: Means) -> SandboxStrength:
    """Describe which protections the means provide and which are missing."""
    statements: list[tuple[bool, str, str]] = [
        (
            means.namespaces is not Namespaces.NONE,
            "commands run in their own namespaces; the kernel ends their leftover processes",
            "no namespaces: Holdfast, not the kernel, ends leftover processes of commands",
        ),
        (
            means.landlock > 0,
            f"files outside the file scope are inaccessible (Landlock {means.landlock})",
            "no Landlock: commands can read every file that you can read",
        ),
        (
            means.mounts,
            "the rest of the system is read-only, and the sockets of other programs are hidden",
            "no mount namespaces: commands can reach the sockets of other programs and, "
            "with scope full, Holdfast's own files",
        ),
        (
            means.mounts,
            "protected paths apply to commands: secrets are hidden, and configuration "
            "and executed files are read-only",
            "protected paths do not apply to commands: a command can read .env and write "
            ".git/hooks, so in mode auto commands require approval",
        ),
        *_agent_statements(means),
        (
            means.network or means.seccomp,
            "commands have no network unless a domain is granted",
            "the network cannot be blocked for commands",
        ),
        (
            means.seccomp,
            "system calls are filtered",
            "system calls are not filtered on this machine",
        ),
        (
            means.counts,
            "the number of a command's processes is limited",
            "a command can start any number of processes until its timeout",
        ),
    ]
    return SandboxStrength(
        active=tuple(yes for holds, yes, _ in statements if holds),
        weaker=tuple(no for holds, _, no in statements if not holds),
    )


def _agent_statements(means: Means) -> Iterator[tuple[bool, str, str]]:
    yield (
        means.mounts or means.landlock > 0,
        "agent programs write only in their repository, a private temporary folder and their "
        "own configuration",
        "agent programs are not confined: they can write every file that you can write",
    )
    yield (
        means.landlock > 0,
        "agent programs read only their repository, the system, toolchains and what they own",
        "no Landlock: agent programs can read every file that you can read, except secrets",
    )
    yield (
        means.mounts,
        "protected paths apply to agent programs: secrets are hidden, and git hooks and "
        "startup files are read-only",
        "protected paths do not apply to agent programs: they can read .env and .ssh",
    )


def can_limit_processes(means: Means) -> bool:
    """Return whether the number of processes of a command can be limited here."""
    if means.namespaces is Namespaces.NONE:
        return sys.platform == "linux" and os.geteuid() != 0
    needed = _OWN_COUNTS if means.namespaces is Namespaces.USER else _OWN_NUMBERS
    return _kernel() >= needed


def _flags(confinement: Confinement, means: Means, has_own_network: bool) -> int:
    flags = _NEW_MOUNTS | _NEW_IPC | (_NEW_PROCESSES if confinement.has_own_pids else 0)
    flags |= _NEW_USER if means.namespaces is Namespaces.USER else 0
    return flags | (_NEW_NETWORK if has_own_network else 0)


def _mounts(confinement: Confinement) -> dict[str, Any]:
    """Return the writable paths, and the ordered steps that cover paths and remount others.

    A step with mount options is a cover. It is writable if it belongs to the command.
    """
    writable = tuple(dict.fromkeys(confinement.writable))
    covers = [(path, _NOTHING, False) for path in confinement.hidden]
    readable: set[str] = set()
    if confinement.is_jailed:
        shared = [path for path in (*SHARED, _SOCKETS) if not _is_in(path, writable)]
        covers += [_shared_cover(path) for path in shared]
        paths = {*confinement.readable, *SYSTEM}
        readable = {path for path in paths if not _is_in(path, writable)}
    covered = [path for path, _, _ in covers]
    back = [(path, True) for path in writable] + [(path, False) for path in readable]
    returns = [(path, "", is_own) for path, is_own in back if _is_in(path, covered)]
    # Sorted by path, because a cover may lie inside a path that was remounted through another one.
    steps = sorted([*covers, *returns], key=lambda step: (step[0], not step[1]))
    return {
        "writable": sorted(path for path in writable if not _is_in(path, covered)),
        "steps": steps,
        "is_jailed": confinement.is_jailed,
    }


def _guard(confinement: Confinement) -> dict[str, Any] | None:
    """Return where the supervisor searches for protected paths."""
    guard = confinement.guard
    if guard is None:
        return None
    return asdict(guard) | {
        "outside": (*guard.outside, *confinement.hidden),
        "hidden": confinement.hidden,
        "is_jailed": confinement.is_jailed and not confinement.covers_home,
    }


def _shared_cover(path: str) -> tuple[str, str, bool]:
    is_own = path != _SOCKETS
    return path, _OWN_MEMORY if is_own else _NOTHING, is_own


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _rules(confinement: Confinement, means: Means) -> tuple[bytes, list[tuple[str, int]]]:
    # Full access also needs a ruleset, because Landlock still isolates outside processes then.
    whole = (("/", landlock.EVERYTHING),)
    rules = _jail(confinement, means) if confinement.is_jailed else whole
    return landlock.ruleset(means.landlock, rules, keeps_outside=not confinement.is_jailed)


def _jail(confinement: Confinement, means: Means) -> Iterator[tuple[str, int]]:
    read = landlock.READ | (landlock.EXECUTE if confinement.executable is None else 0)
    for path in (*SYSTEM, *confinement.readable):
        yield path, read
    for path in confinement.writable:
        yield path, read | landlock.WRITE
    for path in confinement.executable or ():
        yield path, landlock.READ | landlock.EXECUTE
    yield "/dev", landlock.LIST
    for name in _DEVICES:
        yield (
            f"/dev/{name}",
            landlock.READ | landlock.WRITE | landlock.CONTROL,
        )
    # Shared memory is always needed; other shared folders are allowed only where they are covered.
    yield "/dev/shm", landlock.READ | landlock.WRITE  # noqa: S108
    if means.mounts and means.namespaces is not Namespaces.NONE:
        for path in (*SHARED, "/dev/pts", "/dev/ptmx"):
            yield path, read | landlock.WRITE | landlock.CONTROL


def _limits(confinement: Confinement, means: Means) -> Iterator[tuple[int, int]]:
    yield resource.RLIMIT_CORE, 0
    yield resource.RLIMIT_NOFILE, _FILES_MOST
    yield resource.RLIMIT_FSIZE, _FILE_LARGEST
    # Limits RLIMIT_DATA, not RLIMIT_AS, because some programs reserve more than is available.
    if confinement.bounds.memory:
        yield resource.RLIMIT_DATA, confinement.bounds.memory
    if confinement.bounds.cpu_seconds:
        yield resource.RLIMIT_CPU, confinement.bounds.cpu_seconds
    # RLIMIT_NPROC counts per user; in a user namespace only processes inside it count.
    if means.namespaces is Namespaces.USER and _kernel() >= _OWN_COUNTS:
        yield resource.RLIMIT_NPROC, confinement.bounds.processes
    elif means.namespaces is Namespaces.NONE and os.geteuid() != 0:
        yield resource.RLIMIT_NPROC, confinement.bounds.processes + _count_processes()


def _count_processes() -> int:
    """Return the number of processes and threads of this user; an upper bound if unknown."""
    found = 0
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return PROCESSES_MOST
    for name in names:
        # The process may have ended since the listing.
        with suppress(OSError):
            threads = os.stat(f"/proc/{name}/task")
            found += threads.st_nlink - 2 if threads.st_uid == os.geteuid() else 0
    return found


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if sys.platform == "linux" else "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
