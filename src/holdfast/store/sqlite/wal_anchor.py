"""Anchor of the write-ahead log: a file outside the log that records the last committed frame.

SQLite replays a log up to the first invalid frame, so a lost tail is indistinguishable from an
interrupted write. The anchor holds the salts of the log's generation and the last committed frame
with its checksum. It is written after the fsync of a commit, and is itself synced only when a
generation begins or ends. On disk it is never ahead of the log. Frames after it are a torn tail; a
missing frame at or before it was acknowledged and is lost.

A reset log usually continues the salts of the previous one; a connection that did not see the reset
takes random salts instead. A log is reset only after a checkpoint, so the anchor records that one
may have copied the frames before it begins. From then on, any newer log may follow.

Knows no tables; frames are only read for their checksums.
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
    recovered_frames,
    salts_of,
)

log = logging.getLogger(__name__)

SUFFIX: Final = "-anchor"
# Checkpoint after 8 MiB of log, so that frequently changed pages are copied once.
CHECKPOINT_FRAMES: Final = 2_000

# Magic, state, salts, frame, its checksums, and a CRC of these; fits into one disk sector.
_RECORD: Final = struct.Struct(">8sIIIIII")
_CRC: Final = struct.Struct(">I")
_SIZE: Final = _RECORD.size + _CRC.size
_FRAME_AT: Final = 20
_MAGIC: Final = b"HFanchor"
# Log with committed frames; empty log; log that is being checkpointed and truncated; log with
# committed frames that a checkpoint may have copied.
_OPEN, _EMPTY, _EMPTYING, _CHECKPOINTED = 1, 2, 3, 4

# `salt1` increases by one per log reset unless it is random; a larger distance means another log.
_RESETS_MOST: Final = 1 << 16
_WORD: Final = 0xFFFF_FFFF
# Seconds. A write takes microseconds; on a timeout the anchor just stays behind.
_WRITE_TIMEOUT: Final = 0.02
_EMPTY_TIMEOUT: Final = 0.25
_OPEN_TIMEOUT: Final = 30.0

Inode = tuple[int, int]


class Record(Struct, frozen=True):
    """Last known state of the log: its generation and the last committed frame."""

    state: int
    salts: tuple[int, int] = (0, 0)
    frame: int = 0
    sums: tuple[int, int] = (0, 0)

    @property
    def is_open(self) -> bool:
        """Return whether the log may hold frames that are not in the database file."""
        return self.state in {_OPEN, _CHECKPOINTED}


Change = Callable[[Record | None], Record | None]


def load(store: Path) -> Record | None:
    """Return the anchor record of a store; None if it is missing or damaged."""
    try:
        return _decode(Path(f"{store}{SUFFIX}").read_bytes())
    except FileNotFoundError:
        return None


def check(record: Record | None, store: Path) -> None:
    """Raise if a log ends before the last frame in the anchor."""
    if record is None or record.state == _EMPTY:
        return
    header, frame = read_headers(store, record.frame)
    salts = salts_of(header)
    if salts == record.salts:
        is_there = len(frame) == FRAME.size and FRAME.unpack(frame)[2:] == (*salts, *record.sums)
    elif salts is None:
        is_there = record.state == _EMPTYING
    elif record.state == _OPEN:
        # A reset log: SQLite resets only after all frames were synced into the database file.
        is_there = 0 < (salts[0] - record.salts[0]) & _WORD <= _RESETS_MOST
    else:
        # Any log but an older one, which would replace pages of the database file with its own.
        is_there = (record.salts[0] - salts[0]) & _WORD > _RESETS_MOST
    if not is_there:
        raise lost_changes(store, record.frame)


def write_record(descriptor: int, content: bytes, *, is_synced: bool) -> None:
    """Write the record in place; the only function that changes the file."""
    os.pwrite(descriptor, content, 0)
    if is_synced:
        os.fsync(descriptor)


class Anchor:
    """Anchor of one connection; not thread-safe."""

    def __init__(self, store: Path) -> None:
        """Raise if a store lost commits; runs before SQLite opens it and creates a new log."""
        self.is_displaced = False
        self._store = store
        self._log_path = f"{store}-wal"
        self._store_path = str(store)
        self._path = Path(f"{store}{SUFFIX}")
        self._frame = 0
        self._page = 0
        # The generation of the log that this connection has seen last.
        self._salts: tuple[int, int] | None = None
        # The record that this connection has written last.
        self._written: bytes | None = None
        self._raw: apsw.Connection | None = None
        self._log: int | None = None
        # Where Linux tells the path of the open log, and the path.
        self._log_link = self._log_name = ""
        self._inodes: tuple[Inode, Inode] | None = None
        # Every connection holds a shared lock, so that the last one can detect that it is alone.
        self._file = _open(self._path) if os.path.lexists(self._path) else None
        # Only while no other connection is open does nothing move under the check. A connection
        # that is open has checked the store, and watches its files.
        self._is_first = self._file is not None and _is_only(self._file)
        try:
            if self._read() is None and self._file is not None and os.fstat(self._file).st_size:
                log.warning("%s is damaged; the next commit recreates it", self._path)
            if self._is_first:
                check(self._read(), self._store)
        except BaseException:
            self.close()
            raise

    def compare(self, raw: apsw.Connection) -> None:
        """Raise if SQLite recovered fewer frames than the anchor records."""
        record = self._read()
        if record is None or record.state == _EMPTY:
            return
        if self._is_first:
            frames = recovered_frames(raw)
            # A frame count of another generation is not comparable.
            is_same = salts_of(read_headers(self._store, 0)[0]) == record.salts
            if is_same and frames < record.frame:
                raise lost_changes(self._store, record.frame, frames)
            return
        try:
            check(record, self._store)
        except HoldfastError:
            # Another process may just reset the log: under the write lock it cannot.
            raw.execute("BEGIN IMMEDIATE")
            try:
                check(self._read(), self._store)
            finally:
                raw.execute("ROLLBACK")

    def watch(self, raw: apsw.Connection) -> None:
        """Record every commit of a connection from now on; remembers the inodes of its files."""
        if self._file is None or not _is_at(self._path, _inode(os.fstat(self._file))):
            self.close()
            self._file = _open(self._path)
        # SQLite creates the log of a new store on the first read.
        self._page = int(raw.pragma("page_size"))
        raw.pragma("schema_version")
        try:
            self._log = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            self._inodes = _inode(os.stat(self._store)), _inode(os.fstat(self._log))
            self._log_link = f"/proc/self/fd/{self._log}"
            with suppress(OSError):
                self._log_name = os.readlink(self._log_link)
            self._salts = salts_of(os.pread(self._log, HEADER.size, 0))
        except OSError as error:
            raise _unusable(Path(self._log_path), error) from error
        if self._is_first:
            fcntl.flock(self._file, fcntl.LOCK_SH)
            self._is_first = False
        self._raw = raw
        # Replaces SQLite's own hook, which would run automatic checkpoints.
        raw.set_wal_hook(self._note)

    def advance(self) -> None:
        """Record the last commit; call after each commit, before it is acknowledged.

        Raises if the store or its log was removed or replaced.
        """
        self.require_in_place()
        frame, self._frame = self._frame, 0
        if not frame or self._log is None:
            return
        offset = HEADER.size + (frame - 1) * (FRAME.size + self._page)
        header = os.pread(self._log, FRAME.size, offset)
        if self._is_next(frame, header):
            return
        if len(header) < FRAME.size:
            if self._is_emptied():
                return
            raise self._displaced_error(self._log_path)
        if FRAME.unpack(header)[2:4] != self._salts:
            header = self._committed_frame(offset)
        _, pages, first, second, one, two = FRAME.unpack(header)
        # Only the last frame of a transaction has a number of pages.
        if not pages:
            return
        self._salts = first, second
        is_due = frame >= CHECKPOINT_FRAMES
        record = Record(_CHECKPOINTED if is_due else _OPEN, self._salts, frame, (one, two))
        current = self._update(lambda before: self._later(before, record))
        # If it was not recorded, a later commit tries again.
        if is_due and current is not None and current.salts == self._salts:
            self._checkpoint(self._salts)

    def _is_next(self, frame: int, header: bytes) -> bool:
        """Record a later frame of the same log, if this connection wrote the last record too."""
        if self._written is None or len(header) < FRAME.size or frame >= CHECKPOINT_FRAMES:
            return False
        _, pages, first, second, *sums = FRAME.unpack(header)
        if not pages or (first, second) != self._salts or self._log is None or self._file is None:
            return False
        content = _RECORD.pack(_MAGIC, _OPEN, first, second, frame, *sums)
        # Magic, state and salts are the same, and the frame is later.
        if content[:_FRAME_AT] != self._written[:_FRAME_AT] or content <= self._written:
            return False
        content += _CRC.pack(zlib.crc32(content))
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        try:
            is_ours = os.pread(self._file, _SIZE, 0) == self._written
            if is_ours:
                write_record(self._file, content, is_synced=False)
                self._written = content
        except OSError:
            return False
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)
        return is_ours

    def _checkpoint(self, salts: tuple[int, int]) -> None:
        """Copy the log into the database file, after the anchor has recorded it."""
        # Like SQLite's hook: a failed checkpoint is retried after a later commit.
        with suppress(apsw.Error):
            if self._raw is not None:
                self._raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if salts_of(os.pread(self._log or 0, HEADER.size, 0)) != salts:
            # Another process has reset the log before it was copied.
            self._update(lambda before: _in_state(before, _CHECKPOINTED, _OPEN))

    def _committed_frame(self, offset: int) -> bytes:
        """Return a frame of a new generation, or an empty one if it is not of the current one.

        After the commit another process may have reset the log and be writing the same frame.
        Under the write lock every frame that ends a transaction is committed and synced.
        """
        empty = bytes(FRAME.size)
        if self._raw is None or self._log is None:
            return empty
        try:
            self._raw.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            # The next commit tries again.
            return empty
        try:
            salts = salts_of(os.pread(self._log, HEADER.size, 0))
            header = os.pread(self._log, FRAME.size, offset)
        finally:
            self._raw.execute("ROLLBACK")
        is_current = len(header) == FRAME.size and FRAME.unpack(header)[2:4] == salts
        return header if is_current else empty

    def require_in_place(self) -> None:
        """Raise if the store or its log was removed or replaced."""
        if self._inodes is None:
            return
        store, log = self._inodes
        # No stat of the log: after one, Linux gives the next write a time of its own, and a file
        # system without a journal then writes the inode in each sync.
        try:
            is_there = os.readlink(self._log_link) == self._log_name
            is_there = is_there and _inode(os.stat(self._store_path)) == store
        except OSError:
            is_there = False
        if not is_there:
            self._require_at(self._store_path, store)
            self._require_at(self._log_path, log)
        self.is_displaced = False

    def _require_at(self, name: str, inode: Inode) -> None:
        if not _is_at(name, inode):
            raise self._displaced_error(name)

    def empty_log(self, raw: apsw.Connection) -> None:
        """Checkpoint the log into the database file and truncate it."""
        self.require_in_place()
        # Hold the lock to the end, so that a concurrent rollback of the state cannot interfere.
        if self._log is None or not _is_locked(self._log, fcntl.LOCK_EX, _EMPTY_TIMEOUT):
            raise apsw.BusyError("another connection empties the log")
        try:
            # Recorded first: after a crash in the truncation, a missing log is not a loss.
            self._change(lambda before: _in_state(before, _EMPTYING, _OPEN, _CHECKPOINTED))
            try:
                raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except BaseException:
                # A reader that prevents the truncation does not prevent the copy.
                self._change(lambda before: _in_state(before, _CHECKPOINTED, _EMPTYING))
                raise
            # A log that is not empty was started by another process, which anchors it.
            if not os.stat(self._log_path).st_size:
                self._change(lambda before: _in_state(before, _EMPTY, _EMPTYING))
        except OSError as error:
            raise apsw.IOError(f"the anchor cannot be written: {error.strerror}") from error
        finally:
            fcntl.flock(self._log, fcntl.LOCK_UN)

    def end(self, raw: apsw.Connection) -> None:
        """Prepare to close a connection; only the last one lets SQLite delete the log."""
        try:
            is_moved = self._is_alone() and self._empty_log(raw)
        except (apsw.Error, OSError) as error:
            log.warning("the log stays beside the store: %s", error)
            is_moved = False
        if not is_moved:
            # Already closed after an earlier failure.
            with suppress(apsw.ConnectionClosedError):
                raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def close(self) -> None:
        """Close the file descriptors."""
        for descriptor in (self._file, self._log):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._log = None

    def _note(self, _: apsw.Connection, __: str, frames: int) -> int:
        self._frame = frames
        return 0

    def _is_emptied(self) -> bool:
        """Return whether another connection has emptied the log since the last commit.

        It records this before it truncates the log; the commit is in the database file then.
        """
        record = self._read()
        return record is None or not record.is_open or record.salts != self._salts

    def _later(self, before: Record | None, record: Record) -> Record | None:
        """Return the record of a commit, or None if a later one is recorded."""
        if before is not None and before.salts == record.salts and before.state != _EMPTY:
            later = max(before, record, key=lambda each: each.frame)
            # A truncation recorded here was interrupted, because a running one holds the lock. It
            # may have copied the log, and so may a checkpoint, as long as the log is not reset.
            state = record.state if before.state == _OPEN else _CHECKPOINTED
            later = replace(later, state=state)
            return later if later != before else None
        header = os.pread(self._log or 0, HEADER.size, 0)
        # If another process has reset the log, it anchors the later commits.
        return record if salts_of(header) == record.salts else None

    def _read(self) -> Record | None:
        if self._file is None:
            return None
        return _decode(os.pread(self._file, _SIZE, 0))

    def _update(self, change: Change) -> Record | None:
        """Replace the record under a lock; return the present one, or None if that failed.

        Never fails a commit.
        """
        if self._file is None or self._log is None:
            return None
        try:
            if not _is_locked(self._log, fcntl.LOCK_EX, _WRITE_TIMEOUT):
                return None
            try:
                return self._change(change)
            finally:
                fcntl.flock(self._log, fcntl.LOCK_UN)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
            return None

    def _change(self, change: Change) -> Record | None:
        before = self._read()
        record = change(before)
        if record is None:
            return before
        known = (before.salts, before.state) if before is not None else None
        is_same = known == (record.salts, record.state)
        content = _RECORD.pack(_MAGIC, record.state, *record.salts, record.frame, *record.sums)
        content += _CRC.pack(zlib.crc32(content))
        self._written = None
        write_record(self._file or 0, content, is_synced=not is_same)
        self._written = content
        return record

    def _is_alone(self) -> bool:
        """Return whether no other connection is open; holds an exclusive lock until closed."""
        return (
            self._inodes is not None
            and self._file is not None
            and _is_at(self._store, self._inodes[0])
            and _is_locked(self._file, fcntl.LOCK_EX, 0)
        )

    def _empty_log(self, raw: apsw.Connection) -> bool:
        """Checkpoint the log and record it as empty, before SQLite deletes it."""
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        frames, moved = raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if frames != moved:
            return False
        record = self._read()
        is_said = record is not None and record.state == _EMPTY
        return is_said or self._update(lambda _: Record(_EMPTY)) is not None

    def _displaced_error(self, name: str) -> Unavailable:
        self.is_displaced = True
        message = f"{name} was removed or replaced while the store was open, so nothing is saved. "
        pid = os.getpid()
        if name == self._log_path:
            message += (
                f"Stop process {pid} with SIGTERM, which moves its log into the store; before "
                f"killing it, copy the log back: cp /proc/{pid}/fd/{self._log} {name}"
            )
        else:
            message += (
                f"Copy both files from /proc/{pid}/fd to another place before process {pid} "
                "ends, then stop it and put them back, or restore a backup."
            )
        return Unavailable(Code.STORE_POISONED, message, {"file": name})


def _open(path: Path) -> int:
    """Open or create the anchor with a shared lock."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        is_new = not os.path.lexists(path)
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        if is_new:
            sync_folder(path.parent)
        # Another process holds the lock while it closes the store.
        if not _is_locked(descriptor, fcntl.LOCK_SH, _OPEN_TIMEOUT):
            raise Unavailable(Code.STORE_BUSY, "Another process kept the store locked; try again.")
    except OSError as error:
        os.close(descriptor)
        raise _unusable(path, error) from error
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_only(descriptor: int) -> bool:
    """Return whether no other connection is open; holds the exclusive lock in that case."""
    if _is_locked(descriptor, fcntl.LOCK_EX, 0):
        return True
    # A failed change of a lock may have dropped the shared one.
    if not _is_locked(descriptor, fcntl.LOCK_SH, _OPEN_TIMEOUT):
        raise Unavailable(Code.STORE_BUSY, "Another process kept the store locked; try again.")
    return False


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


def _in_state(record: Record | None, state: int, *before: int) -> Record | None:
    return replace(record, state=state) if record is not None and record.state in before else None


def _decode(content: bytes) -> Record | None:
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


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _unusable(path: Path, error: OSError) -> HoldfastError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StorageFull(Code.STORAGE_FULL, "The disk is full; free some space and try again.")
    return Unavailable(Code.STORE_UNWRITABLE, f"{path} cannot be used: {error.strerror}.")
