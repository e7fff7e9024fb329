"""A disk in Python under SQLite: it remembers every write and sync, and fails when it is told to.

The ciphers lie above it: a store is opened on `disk.vfs`, which stacks the two.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from holdfast.store.sqlite import wal_anchor as sqlite_wal_anchor

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Operation:
    """One thing that SQLite did to a file; `file` is the name's end: db, wal or journal."""

    kind: str
    file: str
    offset: int = 0
    content: bytes = b""


Fault = Callable[[Operation], None]


def no_fault(operation: Operation) -> None:
    """Let everything pass."""


class Disk(apsw.VFS):
    """Passes everything on to the file system, noting it; a fault may raise before it happens."""

    def __init__(self, *, encrypted: bool = True, recording: bool = True) -> None:
        self.name = f"torture{next(_numbers)}"
        self.vfs = f"multipleciphers-{self.name}" if encrypted else self.name
        self.log: list[Operation] = []
        self.fault: Fault = no_fault
        self._recording = recording
        super().__init__(self.name, "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "DiskFile":  # noqa: N802 — SQLite's name
        """Open a file as one of ours."""
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return DiskFile(self, part_of(path or ""), name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802 — SQLite's name
        """Note that a file goes."""
        self.note(Operation("delete", part_of(filename)))
        super().xDelete(filename, syncdir)

    def note(self, operation: Operation) -> None:
        """Let the fault have its say, then write the operation down."""
        try:
            self.fault(operation)
        except apsw.Error:
            self.log.append(Operation(f"failed {operation.kind}", operation.file))
            raise
        if self._recording:
            self.log.append(operation)


@contextmanager
def recorded_anchor(disk: Disk) -> Iterator[None]:
    """Note on a disk what is written to the anchor of the log, which SQLite does not write."""
    true_write = sqlite_wal_anchor.write_record

    def write(descriptor: int, content: bytes, *, is_synced: bool) -> None:
        disk.note(Operation("write", "anchor", 0, content))
        if is_synced:
            disk.note(Operation("sync", "anchor"))
        true_write(descriptor, content, is_synced=is_synced)

    sqlite_wal_anchor.write_record = write
    try:
        yield
    finally:
        sqlite_wal_anchor.write_record = true_write


class DiskFile(apsw.VFSFile):
    """One file of the disk."""

    def __init__(
        self, disk: Disk, part: str, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        self._disk = disk
        self._part = part
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 — SQLite's name
        """Write, unless the fault forbids it."""
        self._disk.note(Operation("write", self._part, offset, bytes(data)))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802 — SQLite's name
        """Sync, unless the fault forbids it."""
        self._disk.note(Operation("sync", self._part))
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:  # noqa: N802 — SQLite's name
        """Cut the file, unless the fault forbids it."""
        self._disk.note(Operation("truncate", self._part, size))
        super().xTruncate(size)


class NthFault:
    """Fails the Nth operation of a kind, once or from then on, with an error of SQLite's."""

    def __init__(
        self, kind: str, nth: int, error: type[apsw.Error], *, for_good: bool = False
    ) -> None:
        self._kind = kind
        self._nth = nth
        self._error = error
        self._for_good = for_good
        self.seen = 0

    @property
    def has_struck(self) -> bool:
        """Tell whether the operation that fails has come."""
        return self.seen >= self._nth

    def __call__(self, operation: Operation) -> None:
        """Count, and fail when it is time."""
        if operation.kind != self._kind:
            return
        self.seen += 1
        if self.seen == self._nth or (self._for_good and self.seen > self._nth):
            raise self._error(f"{self._kind} {self.seen} fails")


def part_of(path: str) -> str:
    """Return which of the store's files a path is."""
    return Path(path).name.rpartition("-")[2] if "-" in Path(path).name else "db"
