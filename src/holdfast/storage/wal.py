"""The write-ahead log, read past the point where SQLite stops: is something acknowledged in it?

SQLite takes the log up to the first frame that is not whole, because a cut-off write looks so. A
damaged frame in the middle looks the same, and all commits behind it would be gone without a word.
Nobody chains a frame to a commit that was not synced, so a commit that a frame is chained to was
acknowledged; where SQLite did not recover one, that is said instead of going on. What processes
left behind that died while they committed has nothing chained to it, and is no damage.
"""

import struct
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct

from holdfast.domain.errors import Code, Internal
from holdfast.storage.sqlite import Connection

_HEADER: Final = struct.Struct(">IIIIIIII")
_FRAME: Final = struct.Struct(">IIIIII")
_MAGIC: Final = 0x377F0682

Sums = tuple[int, int]


class Log(Struct, frozen=True):
    """A log file as it was before anybody could change it; without a mark there is none."""

    marks: Sums | None = None
    page: int = 0
    is_big: bool = False
    frames: bytes = b""


class Frame(Struct, frozen=True):
    """One frame of a log: whether it ends a commit, and what it is chained by."""

    ends_commit: bool
    marks: Sums
    sums: Sums
    summed: bytes


def read_log(store: Path) -> Log:
    """Read a store's log; taken before a connection may change the file."""
    try:
        with Path(f"{store}-wal").open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return Log()
            magic, _, page, _, first, second, _, _ = _HEADER.unpack(header)
            # The last bit tells in which order the words of a sum are read.
            if magic & ~1 != _MAGIC:
                return Log()
            return Log((first, second), page, bool(magic & 1), file.read())
    except FileNotFoundError:
        return Log()


def require_whole(connection: Connection, before: Log, store: Path) -> None:
    """Refuse a log of which SQLite recovered less than was acknowledged."""
    if before.marks is None:
        return
    recovered, _ = connection.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    lost = _acknowledged_behind(before, recovered)
    # With another mark the log was begun anew since, by a process that had all of it.
    if lost is None or read_log(store).marks != before.marks:
        return
    # Closing must not clear the log away: it is all there is to save something from.
    connection.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    raise Internal(
        Code.CORRUPT_STORE,
        f"{store}-wal is damaged after frame {recovered}, and acknowledged changes stand behind "
        "it. Restore a backup, or move that file away to go on without them.",
        {"recovered": recovered, "acknowledged": lost},
    )


def _acknowledged_behind(log: Log, recovered: int) -> int | None:
    """Return the number of a commit behind the recovered frames that another frame follows."""
    size = _FRAME.size + log.page
    for number in range(recovered + 1, len(log.frames) // size):
        commit = _frame(log, number)
        after = _frame(log, number + 1)
        ours = commit.marks == after.marks == log.marks
        if ours and commit.ends_commit and _is_chained(log, commit, after):
            return number
    return None


def _frame(log: Log, number: int) -> Frame:
    start = (number - 1) * (_FRAME.size + log.page)
    _, ends, first, second, *sums = _FRAME.unpack_from(log.frames, start)
    content = log.frames[start + _FRAME.size : start + _FRAME.size + log.page]
    summed = log.frames[start : start + 8] + content
    return Frame(ends != 0, (first, second), (sums[0], sums[1]), summed)


def _is_chained(log: Log, frame: Frame, after: Frame) -> bool:
    """Tell whether the sums of a frame go on from those of the one before it."""
    words = struct.unpack(f"{'>' if log.is_big else '<'}{len(after.summed) // 4}I", after.summed)
    first, second = frame.sums
    for left, right in zip(words[::2], words[1::2], strict=True):
        first = (first + left + second) & 0xFFFF_FFFF
        second = (second + right + first) & 0xFFFF_FFFF
    return (first, second) == after.sums
