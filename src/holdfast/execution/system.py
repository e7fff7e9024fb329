"""Clocks and randomness of this machine, and proof that another process is dead."""

import os
import secrets
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from holdfast.domain.leases import Holder
from holdfast.ports.system import Machine

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Implements the `Clock` port with the system's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def lease_clock_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class SystemRandomness:
    """Implements the `Randomness` port with the system's random source."""

    def bits(self, count: int) -> int:
        return secrets.randbits(count)


class SystemMachine:
    """Identity of this process, by which other processes can check whether it is alive."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._holder = Holder(
            boot=boot_id(),
            space=process_space(),
            pid=pid,
            started=start_of(pid) or 0,
            nonce=secrets.token_hex(4),
        )

    def holder(self) -> Holder:
        return self._holder

    def is_gone(self, holder: Holder) -> bool:
        """Return whether the process is proven dead: its PID is unused or was reused."""
        mine = self._holder
        # No process survives a reboot. The boot clock restarts, so the lease time says nothing.
        if holder.boot != mine.boot:
            return True
        if holder.space != mine.space or not holder.started:
            return False
        try:
            return start_of(holder.pid) != holder.started
        except OSError:
            # A failed check does not prove that the process is dead.
            return False


@cache
def boot_id() -> str:
    """Return an identifier of the current boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without the kernel's boot id, the boot is identified by its time.
        up = time.clock_gettime(_BOOT_CLOCK)
        return f"booted-{round((time.time() - up) / 10)}"


@cache
def process_space() -> str:
    """Return an identifier of the PID namespace, which differs between containers."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def start_of(pid: int) -> int | None:
    """Return the start time of a live process in ticks since boot; `None` if it is dead."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The process name in parentheses may contain any character; the later fields do not.
    fields = status.rpartition(")")[2].split()
    # A zombie still has its PID but will never write again.
    dead = fields[0] in {"Z", "X"}
    return None if dead else int(fields[19])


class SharedMachine:
    """Implements the `Machine` port where several machines share one store.

    A different boot id is a different machine and proves nothing: its leases have to expire.
    """

    def __init__(self, inner: Machine) -> None:
        self._inner = inner

    def holder(self) -> Holder:
        return self._inner.holder()

    def is_gone(self, holder: Holder) -> bool:
        is_here = holder.boot == self._inner.holder().boot
        return is_here and self._inner.is_gone(holder)
