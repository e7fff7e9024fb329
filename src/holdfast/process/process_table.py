"""Running processes in /proc; PID, start time and boot id together identify a process."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from holdfast.process.supervisor.syscalls import status_fields

SESSION_VARIABLE = "HOLDFAST_SESSION_ID"
# PF_EXITING, the kernel flag of a process that is terminating.
_EXITING = 0x4
# States of a process that has ended: zombie and dead.
_ENDED = {b"Z", b"X"}


class ProcessEntry(Struct, frozen=True, kw_only=True):
    """A running process: its group, and its start time in clock ticks since boot."""

    pid: int
    group: int
    started: int


def boot_id() -> str:
    """Return an identifier of the current boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc the boot is identified by its approximate time.
        return f"booted-{round((time.time() - time.monotonic()) / 10)}"


def find_process(pid: int) -> ProcessEntry | None:
    """Return a running process by its PID; `None` for zombies."""
    fields = status_fields(pid)
    if not fields or fields[0] in _ENDED:
        return None
    return ProcessEntry(pid=pid, group=int(fields[2]), started=int(fields[19]))


def is_leaving(pid: int) -> bool:
    """Return whether a process has ended or is terminating."""
    fields = status_fields(pid)
    return not fields or fields[0] in _ENDED or bool(int(fields[6]) & _EXITING)


def group_members(group: int) -> Iterator[ProcessEntry]:
    """Yield the running processes of a group; none if /proc is not available."""
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except OSError:
        return
    for number in numbers:
        process = find_process(number)
        if process is not None and process.group == group:
            yield process


def has_mark(pid: int, mark: str) -> bool:
    """Return whether a process was started with this session id in its environment."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{SESSION_VARIABLE}={mark}".encode() in environment.split(b"\0")
