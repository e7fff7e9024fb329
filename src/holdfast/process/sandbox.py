"""How a child process is confined: what it may reach, and what of that this system can hold.

A confinement says what shall be, the means what can be; together they are the part of an order
that `supervisor/` carries out. Nothing is claimed that the means do not give.
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

from holdfast.process import landlock as proces_landlock
from holdfast.process import seccomp as proces_seccomp
from holdfast.process.environment import is_below

_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x00020000, 0x08000000, 0x10000000
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000

# What programs are made of; readable by everybody, and nobody's work.
SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt"),
    *("/nix", "/gnu", "/snap", "/proc", "/sys", "/home/linuxbrew/.linuxbrew"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/current-system", "/run/opengl-driver"),
)
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
# What every program may write to and none should share; sockets of other programs are there, too.
_SHARED: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 — covered by folders of its own
_SOCKETS: Final = "/run"
_OWN_MEMORY: Final = "mode=1777,size=1g,nr_inodes=200k"
_NOTHING: Final = "mode=755,size=1m"

# Of what root may do, a command needs no more than to be an owner, and to stop being root.
_KEPT_CAPABILITIES: Final = 0b1111_1011  # chown, dac_override, fowner, fsetid, kill, setgid, setuid
_FILE_LARGEST: Final = 4 << 30
_FILES_MOST: Final = 8_192
PROCESSES_MOST: Final = 4_096
# Since when a namespace has a highest process number of its own, and a count for its own users.
# To an older kernel the same words would speak of the whole machine.
_OWN_NUMBERS: Final = (6, 14)
_OWN_COUNTS: Final = (5, 14)


class Namespaces(StrEnum):
    """Whose permission it takes to give a child a world of its own."""

    NONE = "none"
    USER = "user"
    ROOT = "root"


class Means(Struct, frozen=True, kw_only=True):
    """What this system gives us to confine a child with."""

    namespaces: Namespaces = Namespaces.NONE
    mounts: bool = False
    network: bool = False
    landlock: int = 0
    seccomp: bool = False
    # Whether the number of a command's processes can be bounded.
    counts: bool = False


class Bounds(Struct, frozen=True, kw_only=True):
    """What a command may take, each process of it: bytes of memory, and seconds of CPU time.

    `processes` is how many there may be at a time. Memory and CPU time of 0 are not bounded.
    """

    processes: int = PROCESSES_MOST
    memory: int = 0
    cpu_seconds: int = 0


class Guard(Struct, frozen=True, kw_only=True):
    """Folders in which protected paths hold for a command, and what it may write all the same.

    `outside` are folders of the command's own. `open_names` are those of folders that commands
    fill, and of files that are otherwise not written without asking. `home` is looked at where
    the command is not jailed.
    """

    roots: tuple[str, ...]
    outside: tuple[str, ...] = ()
    open_names: tuple[str, ...] = ()
    home: str | None = None
    writes_git: bool = False


class Confinement(Struct, frozen=True, kw_only=True):
    """What a child may reach. `executable` of `None` is everything that is readable.

    Without a jail everything is readable and writable, apart from what is hidden.
    """

    is_jailed: bool = True
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    executable: tuple[str, ...] | None = None
    # Folders of Holdfast's own; what is readable or writable inside of them stays so.
    hidden: tuple[str, ...] = ()
    has_network: bool = False
    guard: Guard | None = None
    bounds: Bounds = Bounds()


class SandboxStrength(Struct, frozen=True, kw_only=True):
    """What holds for commands here, and what does not, in words for a person."""

    active: tuple[str, ...]
    weaker: tuple[str, ...]


def sandbox_order(confinement: Confinement, means: Means) -> dict[str, Any]:
    """Return the part of the supervisor's order that confines."""
    has_namespaces = means.namespaces is not Namespaces.NONE
    has_own_network = has_namespaces and means.network and not confinement.has_network
    has_internet = has_own_network or confinement.has_network
    return {
        "unshare": _flags(means, has_own_network) if has_namespaces else 0,
        "maps_user": means.namespaces is Namespaces.USER,
        "mounts": _mounts(confinement) if has_namespaces and means.mounts else None,
        "guard": _guard(confinement),
        "processes": confinement.bounds.processes
        if has_namespaces and _kernel() >= _OWN_NUMBERS
        else 0,
        "loopback": has_own_network,
        "limits": list(_limits(confinement, means)),
        "kept_capabilities": _KEPT_CAPABILITIES,
        "rules": _rules(confinement, means) if means.landlock else None,
        "filter": proces_seccomp.filter_program(has_internet=has_internet)
        if means.seccomp
        else None,
    }


def cover_orders(confinement: Confinement, means: Means) -> dict[str, Any]:
    """Return the same for a command that stays among the processes of its user."""
    flags = _NEW_MOUNTS | (_NEW_USER if means.namespaces is Namespaces.USER else 0)
    return sandbox_order(confinement, means) | {"unshare": flags}


def describe_strength(means: Means) -> SandboxStrength:
    """Say what the means give and what they leave out."""
    statements: list[tuple[bool, str, str]] = [
        (
            means.namespaces is not Namespaces.NONE,
            "commands run in namespaces of their own; the kernel ends what they leave behind",
            "no namespaces: what a command leaves behind is ended by Holdfast, not by the kernel",
        ),
        (
            means.landlock > 0,
            f"files outside of the scope are out of reach (Landlock {means.landlock})",
            "no Landlock: commands can read every file that you can read",
        ),
        (
            means.mounts,
            "the rest of the system is read-only, and the sockets of other programs are hidden",
            "no mounts of their own: commands can reach the sockets of other programs and, with"
            " full reach, Holdfast's own files",
        ),
        (
            means.mounts,
            "protected paths hold for commands: secrets are covered, and what rules or runs is"
            " read-only",
            "protected paths do not hold for commands: one that runs can read .env and write"
            " .git/hooks; in mode auto commands are therefore asked about",
        ),
        (
            means.network or means.seccomp,
            "commands have no network unless a domain is granted",
            "the network cannot be taken from commands",
        ),
        (
            means.seccomp,
            "system calls are filtered",
            "system calls are not filtered on this machine",
        ),
        (
            means.counts,
            "the number of a command's processes is bounded",
            "a command can start processes without number until its time is over",
        ),
    ]
    return SandboxStrength(
        active=tuple(yes for holds, yes, _ in statements if holds),
        weaker=tuple(no for holds, _, no in statements if not holds),
    )


def can_limit_processes(means: Means) -> bool:
    """Tell whether the number of a command's processes can be bounded here."""
    if means.namespaces is Namespaces.NONE:
        return sys.platform == "linux" and os.geteuid() != 0
    needed = _OWN_COUNTS if means.namespaces is Namespaces.USER else _OWN_NUMBERS
    return _kernel() >= needed


def _flags(means: Means, has_own_network: bool) -> int:
    flags = _NEW_PROCESSES | _NEW_MOUNTS | _NEW_IPC
    flags |= _NEW_USER if means.namespaces is Namespaces.USER else 0
    return flags | (_NEW_NETWORK if has_own_network else 0)


def _mounts(confinement: Confinement) -> dict[str, Any]:
    """Return what stays writable, and step by step what is covered and what is put back.

    A step with options is a cover; whether it is the command's own decides if it can be written.
    """
    writable = tuple(dict.fromkeys(confinement.writable))
    covers = [(path, _NOTHING, False) for path in confinement.hidden]
    readable: set[str] = set()
    if confinement.is_jailed:
        shared = [path for path in (*_SHARED, _SOCKETS) if not _is_in(path, writable)]
        covers += [_shared_cover(path) for path in shared]
        readable = {*confinement.readable, *SYSTEM} - {*writable}
    covered = [path for path, _, _ in covers]
    back = [(path, True) for path in writable] + [(path, False) for path in readable]
    returns = [(path, "", is_own) for path, is_own in back if _is_in(path, covered)]
    # By path, because a cover may lie in what came back through another one.
    steps = sorted([*covers, *returns], key=lambda step: (step[0], not step[1]))
    return {
        "writable": sorted(path for path in writable if not _is_in(path, covered)),
        "steps": steps,
        "is_jailed": confinement.is_jailed,
    }


def _guard(confinement: Confinement) -> dict[str, Any] | None:
    """Return where the supervisor looks for protected paths."""
    guard = confinement.guard
    if guard is None:
        return None
    return {
        "roots": list(guard.roots),
        "outside": [*guard.outside, *confinement.hidden],
        "open_names": list(guard.open_names),
        "home": guard.home,
        "writes_git": guard.writes_git,
        "is_jailed": confinement.is_jailed,
    }


def _shared_cover(path: str) -> tuple[str, str, bool]:
    is_own = path != _SOCKETS
    return path, _OWN_MEMORY if is_own else _NOTHING, is_own


def _is_in(path: str, folders: Iterable[str]) -> bool:
    return any(is_below(path, folder) for folder in folders)


def _rules(confinement: Confinement, means: Means) -> tuple[bytes, list[tuple[str, int]]]:
    # Full reach is a rule, too: processes outside stay out of reach even then.
    whole = (("/", proces_landlock.EVERYTHING),)
    rules = _jail(confinement, means) if confinement.is_jailed else whole
    return proces_landlock.ruleset(means.landlock, rules, keeps_outside=not confinement.is_jailed)


def _jail(confinement: Confinement, means: Means) -> Iterator[tuple[str, int]]:
    read = proces_landlock.READ | (proces_landlock.EXECUTE if confinement.executable is None else 0)
    for path in (*SYSTEM, *confinement.readable):
        yield path, read
    for path in confinement.writable:
        yield path, read | proces_landlock.WRITE
    for path in confinement.executable or ():
        yield path, proces_landlock.READ | proces_landlock.EXECUTE
    yield "/dev", proces_landlock.LIST
    for name in _DEVICES:
        yield f"/dev/{name}", proces_landlock.READ | proces_landlock.WRITE | proces_landlock.CONTROL
    # Shared memory has to be somewhere; the other shared folders only where they are covered.
    yield "/dev/shm", proces_landlock.READ | proces_landlock.WRITE  # noqa: S108
    if means.mounts and means.namespaces is not Namespaces.NONE:
        for path in (*_SHARED, "/dev/pts", "/dev/ptmx"):
            yield path, read | proces_landlock.WRITE | proces_landlock.CONTROL


def _limits(confinement: Confinement, means: Means) -> Iterator[tuple[int, int]]:
    yield resource.RLIMIT_CORE, 0
    yield resource.RLIMIT_NOFILE, _FILES_MOST
    yield resource.RLIMIT_FSIZE, _FILE_LARGEST
    # What a process can write to, and not what it reserves: some reserve more than there is.
    if confinement.bounds.memory:
        yield resource.RLIMIT_DATA, confinement.bounds.memory
    if confinement.bounds.cpu_seconds:
        yield resource.RLIMIT_CPU, confinement.bounds.cpu_seconds
    # Counted by user; where that is a user of the namespace, nobody else is counted.
    if means.namespaces is Namespaces.USER and _kernel() >= _OWN_COUNTS:
        yield resource.RLIMIT_NPROC, confinement.bounds.processes
    elif means.namespaces is Namespaces.NONE and os.geteuid() != 0:
        yield resource.RLIMIT_NPROC, confinement.bounds.processes + _running()


def _running() -> int:
    """Return how many processes and threads our user has; more where nobody can count them."""
    found = 0
    try:
        names = [name for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return PROCESSES_MOST
    for name in names:
        # Whoever ended meanwhile does not count.
        with suppress(OSError):
            threads = os.stat(f"/proc/{name}/task")
            found += threads.st_nlink - 2 if threads.st_uid == os.geteuid() else 0
    return found


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", os.uname().release if sys.platform == "linux" else "")
    return (int(found[1]), int(found[2])) if found else (0, 0)
