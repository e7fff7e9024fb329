"""The write-ahead log, read past the point where SQLite stops: is something acknowledged in it?

SQLite takes the log up to the first frame that is not whole, because a cut-off write looks so. A
damaged frame in the middle looks the same, and all commits behind it would be gone without a word.
Each commit is synced before the next one is written, so a commit that other frames follow was
acknowledged; one that SQLite did not recover is lost, and that is said instead of going on.
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
_MAGIC: Final = (0x377F0682, 0x377F0683)


class Log(Struct, frozen=True):
    """What a log file says of itself: its mark, and the last commit that other frames follow."""

    salts: tuple[int, int] | None = None
    acknowledged: int = 0


def read_log(store: Path) -> Log:
    """Read the frames of a store's log; taken before a connection may change the file."""
    try:
        with Path(f"{store}-wal").open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return Log()
            magic, _, page, _, *salts, _, _ = _HEADER.unpack(header)
            if magic not in _MAGIC:
                return Log()
            frames = _frames(file.read(), page, (salts[0], salts[1]))
    except FileNotFoundError:
        return Log()
    commits = [number for number, ends in frames if ends]
    last = frames[-1][0] if frames else 0
    followed = [number for number in commits if number < last]
    return Log((salts[0], salts[1]), followed[-1] if followed else 0)


def require_whole(connection: Connection, before: Log, store: Path) -> None:
    """Refuse a log of which SQLite recovered less than was acknowledged."""
    if before.salts is None:
        return
    recovered, _ = connection.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    # With another mark the log was begun anew since, by a process that had all of it.
    if recovered >= before.acknowledged or read_log(store).salts != before.salts:
        return
    # Closing must not clear the log away: it is all there is to save something from.
    connection.raw.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    raise Internal(
        Code.CORRUPT_STORE,
        f"{store}-wal is damaged after frame {recovered}, and acknowledged changes stand behind "
        "it. Restore a backup, or move that file away to go on without them.",
        {"recovered": recovered, "acknowledged": before.acknowledged},
    )


def _frames(content: bytes, page: int, salts: tuple[int, int]) -> list[tuple[int, bool]]:
    """Return the numbers of the log's own frames, and which of them end a commit."""
    size = _FRAME.size + page
    found = []
    for number, start in enumerate(range(0, len(content) - _FRAME.size + 1, size), start=1):
        _, ends, first, second, _, _ = _FRAME.unpack_from(content, start)
        # Frames of an earlier round of the log carry another mark.
        if (first, second) == salts:
            found.append((number, ends != 0))
    return found
