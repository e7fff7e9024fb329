"""This machine as the tests see it: who lives, what time it is, and what they left running."""

import os
import time
from pathlib import Path


def now_ms() -> int:
    """Return milliseconds as leases count them: since boot, and on Postgres by its own clock."""
    if DATABASE in os.environ:
        return time.time_ns() // 1_000_000
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot() -> str:
    """Return what tells this boot from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_of(pid: int) -> int | None:
    """Return when a living process started, in ticks since boot."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does: T is stopped, empty is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(holder: str) -> bool:
    """Tell whether the process that a lease names is there."""
    where, *_, pid, started, _ = holder.split("/")
    return where == boot() and start_of(int(pid)) == int(started)


def pid_of(holder: str) -> int:
    """Return the number of the process that a lease names."""
    return int(holder.split("/")[-3])


def carriers(mark: str) -> list[int]:
    """Return the living processes with a mark in their environment, ourselves apart.

    One that was forked has the environment of another, and carries the mark in its name.
    """
    found = []
    named, written = mark[:NAME_LONGEST], f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            name = (entry / "comm").read_text(errors="replace").rstrip("\n")
        except OSError:
            continue
        is_marked = written in environment or name == named
        if is_marked and start_of(int(entry.name)) is not None:
            found.append(int(entry.name))
    return found


MARK = "HOLDFAST_TORTURE_MARK"
# How much of a process's name the kernel keeps.
NAME_LONGEST = 15
# Who sets it has rows kept in Postgres.
DATABASE = "HOLDFAST_DATABASE_URL"
