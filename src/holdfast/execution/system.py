"""This machine: its clocks, its randomness, and proof that another process is dead."""

import os
import secrets
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from holdfast.domain.leases import Holder
from holdfast.ports import Machine

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The system's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class SystemRandomness:
    """The system's randomness."""

    def bits(self, count: int) -> int:
        return secrets.randbits(count)


class SystemMachine:
    """This process, as others can judge it."""

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
        """Tell whether the process is proven dead: its number is free, or somebody else's now."""
        mine = self._holder
        # No process outlives its boot; and the boot clock starts anew, so its lease says nothing.
        if holder.boot != mine.boot:
            return True
        if holder.space != mine.space or not holder.started:
            return False
        try:
            return start_of(holder.pid) != holder.started
        except OSError:
            # We could not look, which proves nothing about the other.
            return False


@cache
def boot_id() -> str:
    """Return what tells this boot of the machine from any other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without the kernel's word the boot is known by the second it happened in.
        up = time.clock_gettime(_BOOT_CLOCK)
        return f"booted-{round((time.time() - up) / 10)}"


@cache
def process_space() -> str:
    """Return what tells this container's process numbers from another's."""
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return "0"


def start_of(pid: int) -> int | None:
    """Return when a living process started, in ticks since boot; `None` when it is not there."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything; the fields after it do not.
    fields = status.rpartition(")")[2].split()
    # A zombie has its number still, and will never write again.
    dead = fields[0] in {"Z", "X"}
    return None if dead else int(fields[19])


class SharedMachine:
    """Implements the `Machine` port where several machines share one store.

    Another boot is another machine there, and proves nothing: its leases have to run out.
    """

    def __init__(self, inner: Machine) -> None:
        self._inner = inner

    def holder(self) -> Holder:
        return self._inner.holder()

    def is_gone(self, holder: Holder) -> bool:
        is_here = holder.boot == self._inner.holder().boot
        return is_here and self._inner.is_gone(holder)
