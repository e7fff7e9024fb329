"""JSON forms of zones: state, files, output lines, replay and archives."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast.domain.ids import SessionId
from holdfast.wire.scalars import NUMBER_MOST, Number, Uuid
from holdfast.zones.lines import LINES_MOST, LINES_USUAL, Lines
from holdfast.zones.model import (
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    ZoneFile,
    archives_limit,
)
from holdfast.zones.replay import PAGE, WINDOW, Replay, ReplayProblem, ReplaySource

Count = Annotated[int, Meta(ge=1, le=LINES_MOST)]
Generation = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class ZoneFileForm(Struct, frozen=True, kw_only=True):
    """A file of a zone; blank lines are not counted."""

    name: str
    size: int
    lines: int
    created_ms: int
    modified_ms: int
    generation: Generation


class ActiveZoneForm(Struct, frozen=True, kw_only=True):
    """An agent's active zone, the first prompt in it, and the session bound to it."""

    zone: str
    session_id: Uuid | None
    files: tuple[ZoneFileForm, ...]
    preview: str


class StateForm(Struct, frozen=True, kw_only=True):
    """The snapshot of an active zone; both values are null if there is none."""

    zone: str
    content: str | None
    modified_ms: int | None


class StatePut(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot; with `if_modified_ms` it replaces only the version of that time, 0 for none."""

    content: str
    if_modified_ms: Number | None = None


class StateWrittenForm(Struct, frozen=True, kw_only=True):
    """The result of writing a snapshot."""

    zone: str
    bytes_written: int
    modified_ms: int


class OutputPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output line; a missing line end is added."""

    line: str


class OutputAppendedForm(Struct, frozen=True, kw_only=True):
    """The byte offset of an appended line, and its length with the line end."""

    zone: str
    offset: int
    bytes_written: int


class LinesForm(Struct, frozen=True, kw_only=True):
    """Output lines.

    `torn` is true if the last line is not valid JSON, `tail_open` if it has no line end.
    """

    lines: tuple[str, ...]
    start: int
    total: int
    generation: Generation | None
    torn: bool
    tail_open: bool


class LinesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range of lines; with `generation`, only if the content is still that one."""

    start: Number = 0
    limit: Count = LINES_USUAL
    generation: Generation | None = None


class ReplayForm(Struct, frozen=True, kw_only=True):
    """The initial view of an active zone: nodes of the snapshot, and the newest output lines."""

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
    """The number of lines to return with a usable snapshot (`window`) and without one (`page`)."""

    window: Count = WINDOW
    page: Count = PAGE


def zone_form(active: ActiveZone) -> ActiveZoneForm:
    """Return the form of an active zone."""
    return ActiveZoneForm(
        zone=active.zone,
        session_id=active.session_id,
        files=files_form(active.files),
        preview=active.preview,
    )


def lines_form(lines: Lines) -> LinesForm:
    """Return the form of a range of lines."""
    return msgspec.convert(lines, LinesForm, from_attributes=True)


def replay_form(replay: Replay) -> ReplayForm:
    """Return the form of a replay."""
    return msgspec.convert(replay, ReplayForm, from_attributes=True)


def files_form(files: tuple[ZoneFile, ...]) -> tuple[ZoneFileForm, ...]:
    """Return the forms of files."""
    return tuple(msgspec.convert(each, ZoneFileForm, from_attributes=True) for each in files)


class ArchivedForm(Struct, frozen=True, kw_only=True):
    """The result of archiving an active zone; both values are null if the zone was empty."""

    archive_zoneid: str | None
    archived_at_ms: int | None
    files: dict[str, int]


class ArchiveSummaryForm(Struct, frozen=True, kw_only=True):
    """An archive in a list."""

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
    """The maximum number of archives; 0 for the default, at most 100. The cursor continues."""

    limit: Annotated[int, Meta(ge=0, le=NUMBER_MOST)] = 0
    cursor: str | None = None


class ArchiveForm(Struct, frozen=True, kw_only=True):
    """An archive: its snapshot and its files."""

    archive_zoneid: str
    archived_at_ms: int
    content: str | None
    files: tuple[ZoneFileForm, ...]


class RestoredForm(Struct, frozen=True, kw_only=True):
    """The result of restoring an archive; `displaced` is the archive of the previous content."""

    zone: str
    restored_from: str
    displaced: str | None


class DeletedForm(Struct, frozen=True, kw_only=True):
    """Whether an archive was deleted."""

    deleted: bool


def archived_form(archived: ArchiveResult | None) -> ArchivedForm:
    """Return the form of an archived zone."""
    if archived is None:
        return ArchivedForm(archive_zoneid=None, archived_at_ms=None, files={})
    return msgspec.convert(archived, ArchivedForm, from_attributes=True)


def archives_form(archives: tuple[ArchiveSummary, ...], limit: int | None) -> ArchiveList:
    """Return the form of a list of archives; only a full page can have a next one."""
    convert = msgspec.convert
    forms = [convert(each, ArchiveSummaryForm, from_attributes=True) for each in archives]
    is_full = len(archives) == archives_limit(limit)
    cursor = str(archives[-1].archived_at_ms) if is_full else None
    return ArchiveList(data=tuple(forms), next_cursor=cursor)


def archive_form(archive: Archive) -> ArchiveForm:
    """Return the form of an archive."""
    return ArchiveForm(
        archive_zoneid=archive.archive_zoneid,
        archived_at_ms=archive.archived_at_ms,
        content=archive.content,
        files=files_form(archive.files),
    )


def active_zone_of(form: ActiveZoneForm) -> ActiveZone:
    """Return the active zone of a form."""
    session = None if form.session_id is None else SessionId(form.session_id)
    return ActiveZone(
        zone=form.zone,
        session_id=session,
        files=_files_of(form.zone, form.files),
        preview=form.preview,
    )


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
