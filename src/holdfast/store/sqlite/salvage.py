"""Recovery of a store with a damaged write-ahead log, into a new file.

Each frame of the log has a checksum that continues the checksum of the previous frame, so frames
after a damaged one can still be verified. If later commits wrote all damaged pages again, nothing
is lost. Otherwise the recovered store ends with the last commit before the damage, and later
messages are returned separately.

The store is only read; it is never moved or changed.
"""

import shutil
import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import apsw
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.messages import Message
from holdfast.ports.store import Segment
from holdfast.store.messages import MessageRows
from holdfast.store.sqlite import checks as sqlite_checks
from holdfast.store.sqlite.backup import (
    clean_failures,
    draft_beside,
    name_target,
    open_draft,
    require_target,
    to_single_file,
)
from holdfast.store.sqlite.connection import Connection, drive, translate_errors
from holdfast.store.sqlite.files import exclusively
from holdfast.store.sqlite.wal_anchor import load
from holdfast.store.sqlite.wal_check import FRAME, HEADER, MAGIC, frame_checksum, is_whole_header

_VERSION: Final = 3_007_000
_PAGE: Final = 4096
_SEED: Final = struct.Struct(">II")

MESSAGE_COUNTS = """
-- Number of messages of each session.
SELECT id, key, messages
  FROM sessions
"""

Sums = tuple[int, int]


class Frame(Struct, frozen=True):
    """A page in one commit; `ends` is the database size if the frame ends a commit, otherwise 0."""

    number: int
    page: int
    ends: int
    content: bytes


class Frames(Struct, frozen=True):
    """Content of a log: valid frames, and the pages of invalid frames."""

    salts: Sums
    whole: tuple[Frame, ...]
    # Page of each lost frame by frame number; 0 if the frame is missing.
    lost: dict[int, int]

    @property
    def before_damage(self) -> tuple[Frame, ...]:
        """Return the frames of the commits before the first invalid frame."""
        first = min(self.lost, default=sys.maxsize)
        return _committed_frames([frame for frame in self.whole if frame.number < first])

    @property
    def is_complete(self) -> bool:
        """Return whether later commits wrote all pages of lost frames again."""
        last = {frame.page: frame.number for frame in _committed_frames(self.whole)}
        return all(last.get(page, 0) > number for number, page in self.lost.items())

    @property
    def all(self) -> tuple[Frame, ...]:
        """Return all valid frames, with the last one marked as the end of a commit."""
        *others, last = self.whole
        return (*others, replace(last, ends=max(frame.ends for frame in self.whole) or last.page))


class LostMessages(Struct, frozen=True):
    """Range of messages of a session that cannot be recovered."""

    session_id: str
    first: int
    last: int


class Salvaged(Struct, frozen=True):
    """Result of a recovery.

    `apart` holds verified messages from after the damage; they are not in the recovered store.
    """

    frames: int
    lost_frames: int
    lost: tuple[LostMessages, ...]
    apart: tuple[Message, ...]
    is_incomplete: bool = False


def salvage(store: Path, key: bytes | None, target: Path, *, force: bool = False) -> Salvaged:
    """Write a consistent store with all recoverable commits to `target`; the source is unchanged.

    Refused while another process has the store open.
    """
    with clean_failures(target), translate_errors(), ExitStack() as stack:
        require_target(store, target, force=force)
        sound = stack.enter_context(draft_beside(target))
        beyond = stack.enter_context(draft_beside(target))
        with exclusively(store):
            # Read the log first, because closing the store file releases the POSIX lock.
            log = Path(f"{store}-wal")
            content = log.read_bytes() if log.exists() else b""
            shutil.copyfile(store, sound)
        frames = read_frames(store, content)
        shutil.copyfile(sound, beyond)
        faults = _faults(beyond, key, frames, frames.all if frames.whole else ())
        if frames.is_complete and not faults:
            name_target(beyond, target, force=force)
            return Salvaged(len(frames.whole), len(frames.lost), (), ())
        if faults := _faults(sound, key, frames, frames.before_damage):
            raise Internal(
                Code.CORRUPT_STORE,
                f"Not only the log is damaged: {faults[0]} Restore a backup.",
                {"faults": faults},
            )
        with open_draft(sound, key) as kept, open_draft(beyond, key) as rest:
            lost, apart = _behind(kept, rest)
        name_target(sound, target, force=force)
        return Salvaged(
            len(frames.before_damage), len(frames.lost), lost, apart, is_incomplete=True
        )


def read_frames(store: Path, content: bytes) -> Frames:
    """Return the valid and the lost frames of a log; the anchor has the number of frames."""
    record = load(store)
    header = content[: HEADER.size]
    is_known = is_whole_header(header)
    page = int.from_bytes(header[8:12]) if is_known else _PAGE
    if is_known:
        salts = _SEED.unpack_from(header, 16)
    elif record is not None and record.frame:
        salts = record.salts
    else:
        salts = _SEED.unpack_from(content, HEADER.size + 8) if len(content) > 48 else (0, 0)
    whole = _whole_frames(content, page, (salts[0], salts[1]))
    acknowledged = 0
    # If the log is missing, all frames that the anchor names are lost.
    if record is not None and record.is_open and (not content or record.salts == salts):
        acknowledged = record.frame
    last = max([acknowledged, *(frame.number for frame in whole)])
    lost = sorted(set(range(1, last + 1)) - {frame.number for frame in whole})
    starts = {number: HEADER.size + (number - 1) * (FRAME.size + page) for number in lost}
    pages = {number: int.from_bytes(content[at : at + 4]) for number, at in starts.items()}
    return Frames((salts[0], salts[1]), whole, pages)


def _whole_frames(content: bytes, page: int, salts: Sums) -> tuple[Frame, ...]:
    size = FRAME.size + page
    found: dict[int, Frame] = {}
    # Checksums before the next frame: as computed from the content, and as written in the log.
    header = content[: HEADER.size]
    computed = frame_checksum(header[:24], (0, 0)) if len(header) == HEADER.size else (0, 0)
    written = _pair(header, 24) if len(header) == HEADER.size else (0, 0)
    pending: Frame | None = None
    for number in range(1, (len(content) - HEADER.size) // size + 1):
        start = HEADER.size + (number - 1) * size
        state = content[start : start + FRAME.size]
        body = content[start + FRAME.size : start + size]
        frame = Frame(number, int.from_bytes(state[:4]), int.from_bytes(state[4:8]), body)
        is_ours = _pair(state, 8) == salts
        summed_on = frame_checksum(state[:8] + body, computed)
        stands = _pair(state, 16)
        is_chained = summed_on == stands
        is_whole = is_chained or (is_ours and frame_checksum(state[:8] + body, written) == stands)
        # Only the stored checksum of the previous frame was damaged; this frame proves its content.
        if is_chained and pending is not None:
            found[pending.number] = pending
        if is_whole and (is_ours or is_chained):
            found[number] = frame
        pending = None if is_whole else frame
        computed, written = (stands, stands) if is_whole else (summed_on, stands)
    return tuple(found[number] for number in sorted(found))


def _committed_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return the frames up to the last one that ends a commit."""
    ends = [place for place, frame in enumerate(frames) if frame.ends]
    return tuple(frames[: ends[-1] + 1]) if ends else ()


def _faults(draft: Path, key: bytes | None, frames: Frames, chosen: Sequence[Frame]) -> list[str]:
    """Replay frames into a draft; return the faults of the result."""
    if chosen:
        Path(f"{draft}-wal").write_bytes(_log_of(frames.salts, chosen))
    try:
        with open_draft(draft, key) as connection:
            to_single_file(connection)
            return sqlite_checks.faults(connection)
    except (apsw.Error, HoldfastError) as error:
        if isinstance(error, apsw.NotADBError):
            raise
        return [f"The file cannot be read: {error}."]


def _log_of(salts: Sums, frames: Sequence[Frame]) -> bytes:
    """Return a log of the given frames, with new checksums that SQLite accepts."""
    magic = MAGIC | (sys.byteorder == "big")
    start = struct.pack(">IIII", magic, _VERSION, len(frames[0].content), 0) + _SEED.pack(*salts)
    sums = frame_checksum(start, (0, 0))
    pieces = [start, _SEED.pack(*sums)]
    for frame in frames:
        state = _SEED.pack(frame.page, frame.ends)
        sums = frame_checksum(state + frame.content, sums)
        pieces += [state, _SEED.pack(*salts), _SEED.pack(*sums), frame.content]
    return b"".join(pieces)


def _behind(
    kept: Connection, rest: Connection
) -> tuple[tuple[LostMessages, ...], tuple[Message, ...]]:
    """Return the messages from after the damage: the lost ranges, and the verified ones."""
    counts = {row[0]: row[2] for row in kept.query(MESSAGE_COUNTS)}
    try:
        sessions = rest.query(MESSAGE_COUNTS)
    except (apsw.Error, HoldfastError):
        return (), ()
    lost: list[LostMessages] = []
    apart: list[Message] = []
    for session_id, key, messages in sessions:
        missing = []
        for number in range(counts.get(session_id, 0) + 1, messages + 1):
            segment = Segment(key=key, session_id=session_id, first=number, last=number)
            try:
                apart += drive(MessageRows(rest).span(segment, limit=1))
            except (apsw.Error, HoldfastError):
                missing.append(number)
        lost += [LostMessages(session_id, *ends) for ends in _stretches(missing)]
    return tuple(lost), tuple(apart)


def _stretches(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def _pair(content: bytes, place: int) -> Sums:
    first, second = _SEED.unpack_from(content, place)
    return first, second
