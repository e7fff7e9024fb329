"""The anchor of the write-ahead log: how far it was committed, kept in a file outside the log.

SQLite takes a log up to the first frame that is not whole, so a lost tail looks like a write that
was cut off. The anchor holds the salts of the log's generation and the last committed frame with
its checksum. It is written after the sync of a commit has returned, and is itself synced only when
a generation begins or ends: on disk it is behind the log or level with it, never ahead. Frames
beyond it are a torn tail; a frame at or below it that is missing was acknowledged, and is lost.

Nothing here knows tables; frames are only looked at for their checksums.
"""

import errno
import fcntl
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, HoldfastError, StorageFull, Unavailable
from holdfast.store.sqlite.files import sync_folder
from holdfast.store.sqlite.wal_check import (
    FRAME,
    HEADER,
    lost_changes,
    read_headers,
    recovered,
    salts_of,
)

log = logging.getLogger(__name__)

SUFFIX: Final = "-anchor"
# 8 MiB of log before it is moved: pages that change with every commit are moved once.
CHECKPOINT_FRAMES: Final = 2_000

# Magic, state, salts, frame and its checksums; the CRC of all of it follows. One sector holds it.
_RECORD: Final = struct.Struct(">8sIIIIII")
_CRC: Final = struct.Struct(">I")
_SIZE: Final = _RECORD.size + _CRC.size
_MAGIC: Final = b"HFanchor"
# A log with frames that count; none; and one that is being moved and cut off.
_OPEN, _EMPTY, _EMPTYING = 1, 2, 3

# `salt1` grows by one with each reset of a log; with any other distance it is another log.
_RESETS_MOST: Final = 1 << 16
_WORD: Final = 0xFFFF_FFFF
# Seconds. Writing takes microseconds, and where it cannot be done the anchor stays behind.
_WRITE_PATIENCE: Final = 0.02
_EMPTY_PATIENCE: Final = 0.25
_OPEN_PATIENCE: Final = 30.0

Inode = tuple[int, int]


class Record(Struct, frozen=True):
    """The log as it was last known: its generation, and the last committed frame."""

    state: int
    salts: tuple[int, int] = (0, 0)
    frame: int = 0
    sums: tuple[int, int] = (0, 0)

    @property
    def is_open(self) -> bool:
        """Tell whether the log holds frames that are nowhere else."""
        return self.state == _OPEN


Change = Callable[[Record | None], Record | None]


def load(store: Path) -> Record | None:
    """Return what the anchor of a store says; nothing where it is missing or damaged."""
    try:
        return _decoded(Path(f"{store}{SUFFIX}").read_bytes())
    except FileNotFoundError:
        return None


def check(record: Record | None, store: Path) -> None:
    """Refuse a log that ends before the last frame that the anchor names."""
    if record is None or record.state == _EMPTY:
        return
    header, frame = read_headers(store, record.frame)
    salts = salts_of(header)
    if salts == record.salts:
        is_there = len(frame) == FRAME.size and FRAME.unpack(frame)[2:] == (*salts, *record.sums)
    elif salts is not None and 0 < (salts[0] - record.salts[0]) & _WORD <= _RESETS_MOST:
        # Begun anew: SQLite does that only once all of it is synced into the database file.
        is_there = True
    else:
        is_there = record.state == _EMPTYING
    if not is_there:
        raise lost_changes(store, record.frame)


def write_record(descriptor: int, content: bytes, *, is_synced: bool) -> None:
    """Write the record in its place; the one place where the file changes."""
    os.pwrite(descriptor, content, 0)
    if is_synced:
        os.fsync(descriptor)


class Anchor:
    """The anchor as one connection sees it; a caller must be alone with that connection."""

    def __init__(self, store: Path) -> None:
        """Refuse a store that lost changes, before SQLite opens it and makes a new log."""
        self.is_displaced = False
        self._store = store
        self._log_path = f"{store}-wal"
        self._path = Path(f"{store}{SUFFIX}")
        self._frame = 0
        self._page = 0
        self._log: int | None = None
        self._inodes: tuple[Inode, Inode] | None = None
        # Every connection has a shared lock on it, by which the last one knows that it is alone.
        self._file = _opened(self._path) if os.path.lexists(self._path) else None
        try:
            if self._read() is None and self._file is not None and os.fstat(self._file).st_size:
                log.warning("%s is damaged; the next commit writes it anew", self._path)
            self._require_acknowledged()
        except BaseException:
            self.close()
            raise

    def compare(self, raw: apsw.Connection) -> None:
        """Refuse a log of which SQLite recovered less than the anchor names."""
        record = self._read()
        frames = recovered(raw)
        if record is None or record.state == _EMPTY or frames >= record.frame:
            return
        self._require_acknowledged()
        # Of another generation, the count says nothing about this one.
        is_same = salts_of(read_headers(self._store, 0)[0]) == record.salts
        if is_same and self._read() == record and recovered(raw) < record.frame:
            raise lost_changes(self._store, record.frame, frames)

    def watch(self, raw: apsw.Connection) -> None:
        """Note every commit of a connection from here on, and which files it writes to."""
        if self._file is None or not _is_at(self._path, _inode(os.fstat(self._file))):
            self.close()
            self._file = _opened(self._path)
        # SQLite makes the log of a new store with the first read.
        self._page = int(raw.pragma("page_size"))
        raw.pragma("schema_version")
        try:
            self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._inodes = _inode(os.stat(self._store)), _inode(os.fstat(self._log))
        except OSError as error:
            raise _unusable(Path(self._log_path), error) from error
        # In the place of SQLite's own hook, which moves the log after so many frames.
        raw.set_wal_hook(self._note)

    def advance(self) -> None:
        """Write down the last commit; call it after each one, before it is acknowledged.

        Raises where the store or its log is no longer in its place.
        """
        self.require_in_place()
        frame, self._frame = self._frame, 0
        if not frame or self._log is None:
            return
        place = HEADER.size + (frame - 1) * (FRAME.size + self._page)
        header = os.pread(self._log, FRAME.size, place)
        if len(header) < FRAME.size:
            raise self._displaced(self._log_path)
        salts, sums = FRAME.unpack(header)[2:4], FRAME.unpack(header)[4:]
        record = Record(_OPEN, (salts[0], salts[1]), frame, (sums[0], sums[1]))
        self._update(lambda before: self._later(before, record))

    def require_in_place(self) -> None:
        """Refuse to go on where the store or its log was removed or replaced."""
        if self._inodes is None:
            return
        for name, inode in zip((str(self._store), self._log_path), self._inodes, strict=True):
            if not _is_at(name, inode):
                raise self._displaced(name)
        self.is_displaced = False

    def empty_log(self, raw: apsw.Connection) -> None:
        """Move the whole log into the database file and cut it to nothing."""
        self.require_in_place()
        # Locked until the end: what another one takes back must not be what this one relies on.
        if self._log is None or not _is_locked(self._log, fcntl.LOCK_EX, _EMPTY_PATIENCE):
            raise apsw.BusyError("another connection empties the log")
        try:
            # Said beforehand: after a crash, a log that is missing held nothing that counts.
            self._change(lambda before: _in_state(before, _OPEN, _EMPTYING))
            try:
                raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except BaseException:
                self._change(lambda before: _in_state(before, _EMPTYING, _OPEN))
                raise
            # Where it is not empty, another process has begun it anew, and anchors it.
            if not os.stat(self._log_path).st_size:
                self._change(lambda before: _in_state(before, _EMPTYING, _EMPTY))
        except OSError as error:
            raise apsw.IOError(f"the anchor cannot be written: {error.strerror}") from error
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)

    def end(self, raw: apsw.Connection) -> None:
        """Prepare the closing of a connection; only the last one lets SQLite remove the log."""
        try:
            is_moved = self._is_alone() and self._is_moved(raw)
        except (apsw.Error, OSError) as error:
            log.warning("the log stays beside the store: %s", error)
            is_moved = False
        if not is_moved:
            # Closed already where a failure came before.
            with suppress(apsw.ConnectionClosedError):
                raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in (self._file, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._log = None

    def _note(self, raw: apsw.Connection, _: str, frames: int) -> int:
        self._frame = frames
        if frames >= CHECKPOINT_FRAMES:
            # As SQLite does it: what cannot be moved now is moved after a later commit.
            with suppress(apsw.Error):
                raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return 0

    def _later(self, before: Record | None, record: Record) -> Record | None:
        """Return the record of a commit, unless a later one is known."""
        if before is not None and before.salts == record.salts and before.state != _EMPTY:
            # An emptying that stands here now was cut off: who does it holds the lock.
            is_behind = before.frame < record.frame or before.state == _EMPTYING
            return record if is_behind else None
        header = os.pread(self._log or 0, HEADER.size, 0)
        # Begun anew by another process, which anchors what came after.
        return record if salts_of(header) == record.salts else None

    def _require_acknowledged(self) -> None:
        """Refuse a log that lost something; what another process does meanwhile is no loss."""
        record = self._read()
        while True:
            try:
                check(record, self._store)
                return
            except HoldfastError:
                before, record = record, self._read()
                if record == before:
                    raise

    def _read(self) -> Record | None:
        if self._file is None:
            return None
        return _decoded(os.pread(self._file, _SIZE, 0))

    def _update(self, change: Change) -> bool:
        """Replace the record under a lock; `False` where it stays behind, which fails no commit."""
        if self._file is None or self._log is None:
            return False
        try:
            if not _is_locked(self._log, fcntl.LOCK_EX, _WRITE_PATIENCE):
                return False
            try:
                self._change(change)
            finally:
                fcntl.flock(self._log, fcntl.LOCK_UN)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
            return False
        return True

    def _change(self, change: Change) -> None:
        before = self._read()
        record = change(before)
        if record is None:
            return
        known = (before.salts, before.state) if before is not None else None
        is_same = known == (record.salts, record.state)
        content = _RECORD.pack(_MAGIC, record.state, *record.salts, record.frame, *record.sums)
        content += _CRC.pack(zlib.crc32(content))
        write_record(self._file or 0, content, is_synced=not is_same)

    def _is_alone(self) -> bool:
        """Tell whether no other connection is open, and keep it so until this one is closed."""
        return (
            self._inodes is not None
            and self._file is not None
            and _is_at(self._store, self._inodes[0])
            and _is_locked(self._file, fcntl.LOCK_EX, 0)
        )

    def _is_moved(self, raw: apsw.Connection) -> bool:
        """Move the log into the database file, and say so before SQLite removes it."""
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        frames, moved = raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if frames != moved:
            return False
        record = self._read()
        is_said = record is not None and record.state == _EMPTY
        return is_said or self._update(lambda _: Record(_EMPTY))

    def _displaced(self, name: str) -> Unavailable:
        self.is_displaced = True
        told = f"{name} was removed or replaced while the store was open, so nothing is saved. "
        pid = os.getpid()
        if name == self._log_path:
            told += (
                f"Stop process {pid} with SIGTERM, which moves its log into the store; before "
                f"killing it, copy the log back: cp /proc/{pid}/fd/{self._log} {name}"
            )
        else:
            told += (
                f"Copy both files from /proc/{pid}/fd to another place before process {pid} "
                "ends, then stop it and put them back, or restore a backup."
            )
        return Unavailable(Code.STORE_POISONED, told, {"file": name})


def _opened(path: Path) -> int:
    """Open the anchor, making it if it is missing, with a shared lock that says so."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        if is_new:
            sync_folder(path.parent)
        # Held by another process while it closes the store.
        if not _is_locked(descriptor, fcntl.LOCK_SH, _OPEN_PATIENCE):
            raise Unavailable(Code.STORE_BUSY, "Another process kept the store locked; try again.")
    except OSError as error:
        os.close(descriptor)
        raise _unusable(path, error) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_locked(descriptor: int, kind: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        time.sleep(0.0002)


def _in_state(record: Record | None, before: int, after: int) -> Record | None:
    return replace(record, state=after) if record is not None and record.state == before else None


def _decoded(content: bytes) -> Record | None:
    if len(content) < _SIZE:
        return None
    magic, state, first, second, frame, one, two = _RECORD.unpack(content[: _RECORD.size])
    (crc,) = _CRC.unpack(content[_RECORD.size : _SIZE])
    if magic != _MAGIC or crc != zlib.crc32(content[: _RECORD.size]):
        return None
    return Record(state, (first, second), frame, (one, two))


def _is_at(name: str | Path, inode: Inode) -> bool:
    try:
        return _inode(os.stat(name)) == inode
    except OSError:
        return False


def _inode(found: os.stat_result) -> Inode:
    return found.st_dev, found.st_ino


def _unusable(path: Path, error: OSError) -> HoldfastError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(Code.STORAGE_FULL, "The disk is full; free some space and try again.")
    return Unavailable(Code.STORE_UNWRITABLE, f"{path} cannot be used: {error.strerror}.")
