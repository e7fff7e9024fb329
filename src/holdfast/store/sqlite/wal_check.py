"""Detect acknowledged commits in the write-ahead log that SQLite did not recover.

SQLite replays the log up to the first invalid frame, because an interrupted write leaves one. A
damaged frame in the middle of the log has the same effect, and all later commits would be lost
silently. A frame is only written after the previous commit was synced, so a commit followed by a
chained frame was acknowledged. If SQLite did not recover it, this module raises. Frames of a
process that crashed during a commit have no successor and are not damage.
"""

import struct
import sys
import time
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct

from holdfast.domain.errors import Code, Internal, Unavailable

HEADER: Final = struct.Struct(">IIIIIIII")
FRAME: Final = struct.Struct(">IIIIII")
MAGIC: Final = 0x377F0682
# SQLite computes checksums in native byte order; an open store stays on its machine.
_ORDER: Final = ">" if sys.byteorder == "big" else "<"

# Seconds to wait for a checkpoint; this connection has no busy handler yet.
_BUSY_TIMEOUT: Final = 30.0

Sums = tuple[int, int]


class Log(Struct, frozen=True):
    """Frames of a log after the first `known` ones, and the salts they must have."""

    marks: Sums
    page: int
    known: int
    frames: bytes


def require_whole(raw: apsw.Connection, store: Path) -> None:
    """Raise if SQLite recovered fewer frames than were acknowledged."""
    page = int(raw.pragma("page_size"))
    log = _read(store, page, recovered_frames(raw))
    lost = _first_acknowledged(log) if log is not None else None
    if log is None or lost is None:
        return
    # Another process may have written the frames just now.
    if recovered_frames(raw) >= lost:
        return
    # Or it has reset the log after a checkpoint. Checked last, because a frame count of the new log
    # is not comparable with the old one.
    again = _read(store, page, log.known)
    if again is None or again.marks != log.marks:
        return
    # Closing must not delete the log, because it is required for recovery.
    raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    raise lost_changes(store, lost, log.known)


def lost_changes(store: Path, acknowledged: int, recovered: int | None = None) -> Internal:
    """Return the error for a log that lacks acknowledged commits."""
    whole = "" if recovered is None else f", and only {recovered} are whole"
    return Internal(
        Code.CORRUPT_STORE,
        f"{store}-wal is damaged, cut off or missing: {acknowledged} frames of it were "
        f"acknowledged at least{whole}. Put the file back if it was moved, restore a backup, or "
        "run `holdfast salvage FILE` to keep what is whole. If another SQLite program has opened "
        "the store, it may have copied the log into it and removed it: nothing is lost then, and "
        "`holdfast salvage` followed by `holdfast restore` keeps everything.",
        {"recovered": recovered, "acknowledged": acknowledged},
    )


def is_whole_header(header: bytes) -> bool:
    """Return whether the header of a log is complete and undamaged."""
    if len(header) < HEADER.size:
        return False
    magic, *_, one, two = HEADER.unpack(header)
    return magic & ~1 == MAGIC and frame_checksum(header[:24], (0, 0)) == (one, two)


def salts_of(header: bytes) -> tuple[int, int] | None:
    """Return the salts of a log, or None if its header is missing or damaged."""
    if not is_whole_header(header):
        return None
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def read_headers(store: Path, frame: int) -> tuple[bytes, bytes]:
    """Return the headers of the log and of one frame; empty bytes if missing."""
    try:
        with Path(f"{store}-wal").open("rb") as file:
            header = file.read(HEADER.size)
            page = int.from_bytes(header[8:12]) or 1
            file.seek(HEADER.size + max(frame - 1, 0) * (FRAME.size + page))
            return header, file.read(FRAME.size)
    except FileNotFoundError:
        return b"", b""
    except OSError as error:
        raise _unreadable(store, error) from error


def recovered_frames(raw: apsw.Connection) -> int:
    """Return how many frames SQLite recovered; waits for a checkpoint of another process."""
    deadline = time.monotonic() + _BUSY_TIMEOUT
    while True:
        try:
            return raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _read(store: Path, page: int, known: int) -> Log | None:
    """Return the log after the known frames, or None if there is none."""
    try:
        with Path(f"{store}-wal").open("rb") as file:
            header = file.read(HEADER.size)
            file.seek(known * (FRAME.size + page), 1)
            frames = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        # An unreadable log must not pass the check.
        raise _unreadable(store, error) from error
    if len(header) < HEADER.size or len(frames) < FRAME.size:
        return None
    # If the header is damaged, take the salts from the first frame.
    whole = is_whole_header(header)
    marks = HEADER.unpack(header)[4:6] if whole else FRAME.unpack_from(frames)[2:4]
    return Log((marks[0], marks[1]), page, known, frames)


def _first_acknowledged(log: Log) -> int | None:
    """Return the number of the first commit that is followed by a chained frame."""
    size = FRAME.size + log.page
    for place in range(len(log.frames) // size - 1):
        _, ends, *marks, one, two = FRAME.unpack_from(log.frames, place * size)
        _, _, *next_marks, next_one, next_two = FRAME.unpack_from(log.frames, (place + 1) * size)
        if ends and tuple(marks) == tuple(next_marks) == log.marks:
            start = (place + 1) * size
            content = log.frames[start : start + 8] + log.frames[start + FRAME.size : start + size]
            if frame_checksum(content, (one, two)) == (next_one, next_two):
                return log.known + place + 1
    return None


def frame_checksum(content: bytes, before: Sums) -> Sums:
    """Return SQLite's checksum of some words, continued from `before`."""
    words = struct.unpack(f"{_ORDER}{len(content) // 4}I", content)
    first, second = before
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFF_FFFF
        second = (second + right + first) & 0xFFFF_FFFF
    return first, second


def _unreadable(store: Path, error: OSError) -> Unavailable:
    return Unavailable(Code.STORE_UNWRITABLE, f"{store}-wal cannot be read: {error.strerror}.")
