"""Zones on the wire: desks, their files and lines, and archives."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from holdfast.http.v1.scalars import Number, Uuid
from holdfast.zones.lines import LINES_MOST, LINES_USUAL, Lines
from holdfast.zones.model import ActiveZone, ZoneFile
from holdfast.zones.replay import PAGE, WINDOW, Replay, ReplayProblem, ReplaySource

Count = Annotated[int, Meta(ge=1, le=LINES_MOST)]
Generation = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class ZoneFileForm(Struct, frozen=True, kw_only=True):
    """A file of a zone; lines that are blank do not count."""

    name: str
    size: int
    lines: int
    created_ms: int
    modified_ms: int
    generation: Generation


class DeskForm(Struct, frozen=True, kw_only=True):
    """What lies on an agent's desk, and the session that sits at it."""

    zone: str
    session_id: Uuid | None
    files: tuple[ZoneFileForm, ...]


class StateForm(Struct, frozen=True, kw_only=True):
    """The snapshot of a desk; both are null where there is nothing to restore."""

    zone: str
    content: str | None
    modified_ms: int | None


class StatePut(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot; with `if_modified_ms` only over the one of that time, 0 for none."""

    content: str
    if_modified_ms: Number | None = None


class StateWrittenForm(Struct, frozen=True, kw_only=True):
    """A snapshot was written."""

    zone: str
    bytes_written: int
    modified_ms: int


class OutputPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line; its end is added if it has none."""

    line: str


class OutputAppendedForm(Struct, frozen=True, kw_only=True):
    """Where a line was appended, and how many bytes it has with its end."""

    zone: str
    offset: int
    bytes_written: int


class LinesForm(Struct, frozen=True, kw_only=True):
    """Lines of an output; its last is torn if it is no JSON, or open because nothing ends it."""

    lines: tuple[str, ...]
    start: int
    total: int
    generation: Generation | None
    torn: bool
    tail_open: bool


class LinesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which lines; with a generation, only of the very content that it names."""

    start: Number = 0
    limit: Count = LINES_USUAL
    generation: Generation | None = None


class ReplayForm(Struct, frozen=True, kw_only=True):
    """What to show of a desk at once: nodes of a snapshot, and the newest lines of the log."""

    source: ReplaySource
    lines: tuple[str, ...]
    nodes: tuple[Any, ...]
    start: int
    total: int
    overlay: dict[str, Any]
    generation: Generation | None
    torn: bool
    problem: ReplayProblem | None


class ReplayQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many lines with a snapshot that has seen some, and how many without."""

    window: Count = WINDOW
    page: Count = PAGE


def desk_form(desk: ActiveZone) -> DeskForm:
    """Return a desk as it is shown."""
    return DeskForm(zone=desk.zone, session_id=desk.session_id, files=files_form(desk.files))


def lines_form(lines: Lines) -> LinesForm:
    """Return lines as they are shown."""
    return msgspec.convert(lines, LinesForm, from_attributes=True)


def replay_form(replay: Replay) -> ReplayForm:
    """Return a replay as it is shown."""
    return msgspec.convert(replay, ReplayForm, from_attributes=True)


def files_form(files: tuple[ZoneFile, ...]) -> tuple[ZoneFileForm, ...]:
    """Return files as they are shown."""
    return tuple(msgspec.convert(each, ZoneFileForm, from_attributes=True) for each in files)
