"""Clocks and randomness of this machine, and proof that another process is dead."""

import os
import secrets
import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, Final

from holdfast.domain.leases import Holder
from holdfast.ports.system import Machine

_CHUNK_BITS: Final = 128
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Implements the `Clock` port with the system's clocks."""

    def __init__(self) -> None:
        # Not a function of Python, because every row that is written asks for it.
        self.now = partial(datetime.now, UTC)

    def lease_clock_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000


class SystemRandomness:
    """Implements the `Randomness` port with the system's random source.

    Ids take their bits from a block, because a system call for each costs more than all the rest
    of an id. Secrets are longer and are never kept.
    """

    _chunks: ClassVar[Iterator[tuple[bytes]]] = iter(())

    def bits(self, count: int) -> int:
        if count > _CHUNK_BITS:
            return secrets.randbits(count)
        try:
            # One step of a C iterator, so that two threads cannot take the same chunk.
            (chunk,) = next(self._chunks)
        except StopIteration:
            fresh = struct.iter_unpack(f"{_CHUNK_BITS // 8}s", os.urandom(_CHUNK_BITS * 32))
            (chunk,) = next(fresh)
            SystemRandomness._chunks = fresh
        return int.from_bytes(chunk) >> (_CHUNK_BITS - count)

    @classmethod
    def forget(cls) -> None:
        """Drop the block; a forked process would otherwise repeat the ids of its parent."""
        cls._chunks = iter(())


os.register_at_fork(after_in_child=SystemRandomness.forget)


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
