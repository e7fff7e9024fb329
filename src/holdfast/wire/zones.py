"""JSON forms of zones: state, files, output lines, replay and archives."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast.domain.ids import SessionId
from holdfast.wire.scalars import NUMBER_MOST, Number, Uuid
from holdfast.zones.lines import LINES_MOST, LINES_USUAL, Lines
from holdfast.zones.model import ActiveZone, Archive, ArchiveResult, ArchiveSummary, ZoneFile
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


def zone_form(desk: ActiveZone) -> DeskForm:
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


class ArchivedForm(Struct, frozen=True, kw_only=True):
    """A desk was cleared into an archive; where nothing lay on it, both are null."""

    archive_zoneid: str | None
    archived_at_ms: int | None
    files: dict[str, int]


class ArchiveSummaryForm(Struct, frozen=True, kw_only=True):
    """One archive in a list."""

    archive_zoneid: str
    archived_at_ms: int
    preview: str
    node_count: int
    size: int
    lines: int
    has_state: bool
    has_output: bool
    schema_version: int | None


class ArchiveList(Struct, frozen=True, kw_only=True):
    """The archives of an agent, newest first."""

    data: tuple[ArchiveSummaryForm, ...]
    next_cursor: str | None = None


class ArchivesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many; 0 is the usual number, and more than 100 are never listed."""

    limit: Annotated[int, Meta(ge=0, le=NUMBER_MOST)] = 0


class ArchiveForm(Struct, frozen=True, kw_only=True):
    """One archive: its snapshot, and its files."""

    archive_zoneid: str
    archived_at_ms: int
    content: str | None
    files: tuple[ZoneFileForm, ...]


class RestoredForm(Struct, frozen=True, kw_only=True):
    """An archive lies on the desk again; what lay there before is in `displaced`."""

    zone: str
    restored_from: str
    displaced: str | None


class DeletedForm(Struct, frozen=True, kw_only=True):
    """Whether there was an archive to remove."""

    deleted: bool


def archived_form(archived: ArchiveResult | None) -> ArchivedForm:
    """Return what became of a desk that was to be cleared."""
    if archived is None:
        return ArchivedForm(archive_zoneid=None, archived_at_ms=None, files={})
    return msgspec.convert(archived, ArchivedForm, from_attributes=True)


def archives_form(archives: tuple[ArchiveSummary, ...]) -> ArchiveList:
    """Return a list of archives as it is shown."""
    convert = msgspec.convert
    forms = [convert(each, ArchiveSummaryForm, from_attributes=True) for each in archives]
    return ArchiveList(data=tuple(forms))


def archive_form(archive: Archive) -> ArchiveForm:
    """Return an archive as it is shown."""
    return ArchiveForm(
        archive_zoneid=archive.archive_zoneid,
        archived_at_ms=archive.archived_at_ms,
        content=archive.content,
        files=files_form(archive.files),
    )


def active_zone_of(form: DeskForm) -> ActiveZone:
    """Return the active zone of a form."""
    session = None if form.session_id is None else SessionId(form.session_id)
    return ActiveZone(zone=form.zone, session_id=session, files=_files_of(form.zone, form.files))


def archive_of(form: ArchiveForm) -> Archive:
    """Return the archive of a form."""
    return Archive(
        archive_zoneid=form.archive_zoneid,
        archived_at_ms=form.archived_at_ms,
        content=form.content,
        files=_files_of(form.archive_zoneid, form.files),
    )


def _files_of(zone: str, forms: tuple[ZoneFileForm, ...]) -> tuple[ZoneFile, ...]:
    return tuple(ZoneFile(zone=zone, **asdict(form)) for form in forms)
