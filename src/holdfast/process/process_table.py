"""Living processes as the kernel lists them: a PID with its start time and boot is an identity."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

SESSION_VARIABLE = "HOLDFAST_SESSION_ID"
# The kernel's flag of a process that is being taken down.
_EXITING = 0x4


class ProcessEntry(Struct, frozen=True, kw_only=True):
    """A living process: its group, and when it started, in ticks since boot."""

    pid: int
    group: int
    started: int


def boot_id() -> str:
    """Return what tells this boot of the machine from any other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without the kernel's word the boot is known by the time it happened at.
        return f"booted-{round((time.time() - time.monotonic()) / 10)}"


def find_process(pid: int) -> ProcessEntry | None:
    """Return a living process by its number; one that only waits to be forgotten is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything; the fields after it do not.
    fields = status.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        return None
    return ProcessEntry(pid=pid, group=int(fields[2]), started=int(fields[19]))


def is_leaving(pid: int) -> bool:
    """Tell whether a process is gone, or on its way and beyond hearing anything."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    fields = status.rpartition(")")[2].split()
    return fields[0] in {"Z", "X"} or bool(int(fields[6]) & _EXITING)


def group_members(group: int) -> Iterator[ProcessEntry]:
    """Yield the living processes of a group; none where the kernel does not tell."""
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return
    for number in numbers:
        process = find_process(number)
        if process is not None and process.group == group:
            yield process


def has_mark(pid: int, mark: str) -> bool:
    """Tell whether a process was started with this mark in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{SESSION_VARIABLE}={mark}".encode() in environment.split(b"\0")
