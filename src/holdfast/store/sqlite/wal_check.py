"""The write-ahead log, read past the point where SQLite stops: is something acknowledged in it?

SQLite takes the log up to the first frame that is not whole, because a cut-off write looks so. A
damaged frame in the middle looks the same, and all commits behind it would be gone without a word.
Nobody chains a frame to a commit that was not synced, so a commit that a frame is chained to was
acknowledged; where SQLite did not recover one, that is said instead of going on. What processes
left behind that died while they committed has nothing chained to it, and is no damage.
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
# SQLite sums in the order of its machine, and a store does not leave its machine while it is open.
_ORDER: Final = ">" if sys.byteorder == "big" else "<"

# Seconds; a checkpoint takes moments, and this connection has no handler of its own yet.
_PATIENCE: Final = 30.0

Sums = tuple[int, int]


class Log(Struct, frozen=True):
    """The frames of a log behind some that are known, and the mark that they should carry."""

    marks: Sums
    page: int
    known: int
    frames: bytes


def require_whole(raw: apsw.Connection, store: Path) -> None:
    """Refuse a log of which SQLite recovered less than was acknowledged."""
    page = int(raw.pragma("page_size"))
    log = _read(store, page, recovered(raw))
    lost = _acknowledged(log) if log is not None else None
    if log is None or lost is None:
        return
    # Another process may have written it just now.
    if recovered(raw) >= lost:
        return
    # Or has begun the log anew, having had all of it. Looked at last, because what was recovered of
    # a new log says nothing about the old one.
    again = _read(store, page, log.known)
    if again is None or again.marks != log.marks:
        return
    # Closing must not clear the log away: it is all there is to save something from.
    raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    raise lost_changes(store, lost, log.known)


def lost_changes(store: Path, acknowledged: int, recovered: int | None = None) -> Internal:
    """Return the error for a log that ends before what was acknowledged."""
    whole = "" if recovered is None else f", and only {recovered} are whole"
    return Internal(
        Code.CORRUPT_STORE,
        f"{store}-wal is damaged, cut off or missing: {acknowledged} frames of it were "
        f"acknowledged at least{whole}. Put the file back if it was moved, restore a backup, or "
        "run `holdfast salvage FILE` to keep what is whole.",
        {"recovered": recovered, "acknowledged": acknowledged},
    )


def is_whole_header(header: bytes) -> bool:
    """Tell whether the header of a log is one, and undamaged."""
    if len(header) < HEADER.size:
        return False
    magic, *_, one, two = HEADER.unpack(header)
    return magic & ~1 == MAGIC and summed(header[:24], (0, 0)) == (one, two)


def salts_of(header: bytes) -> tuple[int, int] | None:
    """Return the salts of a log, unless its header is missing or damaged."""
    if not is_whole_header(header):
        return None
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def read_headers(store: Path, frame: int) -> tuple[bytes, bytes]:
    """Return the headers of the log and of one of its frames; empty where they are missing."""
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


def recovered(raw: apsw.Connection) -> int:
    """Return how many frames SQLite recovered; waits for a checkpoint of another process."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.002)


def _read(store: Path, page: int, known: int) -> Log | None:
    """Return what the log holds behind the known frames; nothing where there is no log."""
    try:
        with Path(f"{store}-wal").open("rb") as file:
            header = file.read(HEADER.size)
            file.seek(known * (FRAME.size + page), 1)
            frames = file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        # What cannot be looked at is not called whole.
        raise _unreadable(store, error) from error
    if len(header) < HEADER.size or len(frames) < FRAME.size:
        return None
    # A header that is damaged says nothing about the frames; they carry the mark themselves.
    whole = is_whole_header(header)
    marks = HEADER.unpack(header)[4:6] if whole else FRAME.unpack_from(frames)[2:4]
    return Log((marks[0], marks[1]), page, known, frames)


def _acknowledged(log: Log) -> int | None:
    """Return the number of the first commit among the frames that another frame is chained to."""
    size = FRAME.size + log.page
    for place in range(len(log.frames) // size - 1):
        _, ends, *marks, one, two = FRAME.unpack_from(log.frames, place * size)
        _, _, *next_marks, next_one, next_two = FRAME.unpack_from(log.frames, (place + 1) * size)
        if ends and tuple(marks) == tuple(next_marks) == log.marks:
            start = (place + 1) * size
            content = log.frames[start : start + 8] + log.frames[start + FRAME.size : start + size]
            if summed(content, (one, two)) == (next_one, next_two):
                return log.known + place + 1
    return None


def summed(content: bytes, before: Sums) -> Sums:
    """Return SQLite's sums of some words, going on from those of the words before."""
    words = struct.unpack(f"{_ORDER}{len(content) // 4}I", content)
    first, second = before
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFF_FFFF
        second = (second + right + first) & 0xFFFF_FFFF
    return first, second


def _unreadable(store: Path, error: OSError) -> Unavailable:
    return Unavailable(Code.STORE_UNWRITABLE, f"{store}-wal cannot be read: {error.strerror}.")
