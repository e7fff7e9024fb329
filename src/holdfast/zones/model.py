"""Zones: named sets of files of an agent; one active zone, the others are archives."""

import json
import re
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import SessionId

SNAPSHOT_FILE: Final = "output.state.json"
OUTPUT_FILE: Final = "output"
MIGRATION_MARKER_V1: Final = "migration_agent_zones_v1.flag"
# Written and never read: its condition is ensured at every start.
TEMPLATE_PROMOTE_MARKER_V1: Final = "migration_template_promote_v1.flag"
# Tag of an agent used as a template; such an agent owns no zone.
TEMPLATE_TAG: Final = "template"

PART_SIZE: Final = 65_536
FILE_LARGEST: Final = 64 << 30
WRITE_LARGEST: Final = 64 << 20
APPEND_LARGEST: Final = 16 << 20
ARCHIVES_USUAL: Final = 20
ARCHIVES_MOST: Final = 100
TIME_LATEST: Final = (1 << 63) - 1

_ID: Final = re.compile(r"[A-Za-z0-9_-]+")
_TIME: Final = re.compile(r"0|[1-9][0-9]*")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SHOWN: Final = 100


class ZoneFile(Struct, frozen=True, kw_only=True):
    """A file of a zone; `generation` changes whenever its content is replaced.

    `ended` counts the lines that end with a line break; `tail` represents the unfinished last line,
    see `lines.py`. `key` is the primary key in the store. `rest` is the number of trailing bytes
    that the store holds in the file's own row, with a separate checksum.
    """

    key: int = 0
    zone: str
    name: str
    size: int = 0
    created_ms: int
    modified_ms: int
    generation: str
    lines: int = 0
    ended: int = 0
    tail: bytes | None = None
    rest: int = 0
    rest_checksum: int = 0

    @property
    def parts(self) -> int:
        """Return the number of parts of the content."""
        return -(-self.size // PART_SIZE)

    @property
    def tail_open(self) -> bool:
        """Return whether the last byte is not a line break."""
        return self.tail is not None


class ActiveZone(Struct, frozen=True, kw_only=True):
    """Files of an agent's active zone, its first prompt, and the session bound to it."""

    zone: str
    session_id: SessionId | None
    files: tuple[ZoneFile, ...]
    preview: str = ""


class ZoneState(Struct, frozen=True, kw_only=True):
    """Snapshot of an active zone; both values are `None` if there is no snapshot."""

    zone: str
    content: str | None
    modified_ms: int | None


class StateWritten(Struct, frozen=True, kw_only=True):
    """Result of writing a snapshot."""

    zone: str
    bytes_written: int
    modified_ms: int


class OutputAppended(Struct, frozen=True, kw_only=True):
    """Result of appending lines; `offset` is where they begin."""

    zone: str
    offset: int
    bytes_written: int


class ArchiveResult(Struct, frozen=True, kw_only=True):
    """Result of archiving an active zone; `files` maps names to sizes."""

    archive_zoneid: str
    archived_at_ms: int
    files: dict[str, int]


class ArchiveSummary(Struct, frozen=True, kw_only=True):
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


class Archive(Struct, frozen=True, kw_only=True):
    """An archive with its snapshot and its files."""

    archive_zoneid: str
    archived_at_ms: int
    content: str | None
    files: tuple[ZoneFile, ...]


class RestoreResult(Struct, frozen=True, kw_only=True):
    """Result of a restore; `displaced` is the archive of the previous content."""

    zone: str
    restored_from: str
    displaced: str | None


def is_valid_definition_id(text: str) -> bool:
    """Return whether the text is a valid id for zones: ASCII letters, digits, `_` and `-`."""
    return _ID.fullmatch(text) is not None


def require_definition_id(text: str) -> str:
    """Return the id unchanged; raises `Invalid` with the same message prefix everywhere."""
    if not is_valid_definition_id(text):
        shown = text[:_SHOWN]
        raise Invalid(
            Code.INVALID_DEFINITION_ID,
            f"INVALID_DEFINITION_ID: expected [A-Za-z0-9_-]+, got {json.dumps(shown)}",
            {"value": shown},
        )
    return text


def agent_current_zone(definition_id: str) -> str:
    """Return the name of an agent's active zone; the id must be validated before."""
    assert is_valid_definition_id(definition_id)  # noqa: S101 — a programming error
    return f"agent:{definition_id}:current"


def agent_archive_zone(definition_id: str, ms: int) -> str:
    """Return the name of the archive of a timestamp; the id must be validated before."""
    assert is_valid_definition_id(definition_id)  # noqa: S101 — a programming error
    return f"{archive_prefix(definition_id)}{ms}"


def validate_and_current(definition_id: str) -> str:
    """Return the name of an agent's active zone; raises `Invalid` for an invalid id."""
    return agent_current_zone(require_definition_id(definition_id))


def archive_prefix(definition_id: str) -> str:
    """Return the common prefix of an agent's archives."""
    # Includes the colon, so that an id that is a prefix of another one does not match.
    return f"agent:{definition_id}:archive:"


def archive_time(definition_id: str, zone: str) -> int | None:
    """Return the timestamp of an agent's archive; `None` if it is not one of its archives."""
    prefix = archive_prefix(definition_id)
    return parse_archive_time(zone[len(prefix) :]) if zone.startswith(prefix) else None


def parse_archive_time(text: str) -> int | None:
    """Return the timestamp if the text is in canonical form, else `None`."""
    # Length is checked before parsing, because `int()` raises its own error for long numbers.
    if _TIME.fullmatch(text) is None or len(text) > 19:
        return None
    ms = int(text)
    return ms if ms <= TIME_LATEST else None


def definition_of(zone: str) -> str | None:
    """Return the agent id in the name of an active zone or an archive, else `None`."""
    parts = zone.split(":")
    match parts:
        case ["agent", definition_id, "current"] if is_valid_definition_id(definition_id):
            return definition_id
        case ["agent", definition_id, "archive", ms] if is_valid_definition_id(definition_id):
            return None if parse_archive_time(ms) is None else definition_id
        case _:
            return None


def rename_zone(zone: str, definition_id: str) -> str:
    """Return the name of the same zone for another agent."""
    _, _, *kind = zone.split(":")
    return ":".join(("agent", definition_id, *kind))


def require_file_name(name: str) -> str:
    """Return the name unchanged; raises `Invalid` for an invalid name or a path."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise Invalid(
            Code.INVALID_INPUT,
            "A file name in a zone has 1 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'.",
            {"field": "name"},
        )
    return name


def require_size(size: int, most: int, *, what: str) -> None:
    """Refuse more bytes than one operation accepts."""
    if size > most:
        raise Invalid(
            Code.TOO_LARGE,
            f"{what} may have at most {most} bytes, not {size}.",
            {"limit": most, "size": size},
        )


def archives_limit(limit: int | None) -> int:
    """Return the number of archives to list: 20 by default, at most 100."""
    if limit is not None and limit < 0:
        raise Invalid(Code.INVALID_LIMIT, "The limit must not be negative.", {"field": "limit"})
    return min(limit or ARCHIVES_USUAL, ARCHIVES_MOST)


def archives_before(cursor: str | None) -> int | None:
    """Return the time that a cursor of a list of archives encodes."""
    if cursor is None:
        return None
    ms = parse_archive_time(cursor)
    if ms is None:
        raise Invalid(
            Code.INVALID_CURSOR, "The cursor is not one of this list; start without a cursor."
        )
    return ms


def is_filled(files: tuple[ZoneFile, ...]) -> bool:
    """Return whether the zone has a snapshot or an output that is not empty."""
    return any(file.size and file.name in {SNAPSHOT_FILE, OUTPUT_FILE} for file in files)


def archive_not_found() -> NotFound:
    """Return the same error for a missing archive and for an archive of another owner."""
    return NotFound(
        Code.ARCHIVE_NOT_FOUND,
        "There is no such archive; `holdfast zones archives ID` lists the archives of an agent.",
    )


def zone_changed(details: dict[str, object]) -> Conflict:
    """Return the error for a file that was changed since the caller read it."""
    return Conflict(
        Code.ZONE_CHANGED, "The file was changed since you read it; read it again.", details
    )
