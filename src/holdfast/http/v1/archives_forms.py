"""Archives on the wire."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.http.v1.scalars import NUMBER_MOST
from holdfast.http.v1.zones_forms import ZoneFileForm, files_form
from holdfast.zones.model import Archive, ArchiveResult, ArchiveSummary


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
