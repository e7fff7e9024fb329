"""The files of a `cursor-memory` folder, and their mapping to observations.

Files are only read. The import is in `cursor_memory.py`.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import digest
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.time import format_iso8601, instant_of, moment
from holdfast.observations.model import PAYLOADS, SOURCE_LONGEST, EntityType
from holdfast.observations.validation import members_of

FOLDERS: Final = {
    "sessions": EntityType.AGENT_SESSION,
    "feature_units": EntityType.FEATURE_UNIT,
    "releases": EntityType.RELEASE,
    "decisions": EntityType.AGENT_DECISION,
    "validations": EntityType.VALIDATION_RESULT,
}
# Size limit of a file, including whitespace.
LARGEST: Final = 8 << 20
ENDING: Final = ".json"
# Where a project keeps its memories, for the remedy of an error.
USUAL_FOLDERS: Final = (".cursor/memory", "memory")
_NAMES: Final = ", ".join(f"{name}/" for name in FOLDERS)


class MemoryFile(Struct, frozen=True, kw_only=True):
    """One file: its entity type, relative path, content and modification time."""

    entity_type: EntityType
    path: str
    content: bytes
    modified_ms: int

    @property
    def stem(self) -> str:
        """Return the file name without its extension."""
        return self.path.rpartition("/")[2].removesuffix(ENDING)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        return hashlib.sha256(self.content).hexdigest()


class MemoryFolder:
    """Reads a `cursor-memory` folder; the methods block on file I/O."""

    def __init__(self, root: Path) -> None:
        self.path: Final = os.path.realpath(root)
        if not os.path.isdir(self.path):
            raise Invalid(
                Code.NOT_A_FOLDER,
                f"{root} is not a folder; name the folder that contains sessions/.",
            )
        self._require_memories(root)
        # By relative path: what is not read, and folders that cannot be listed.
        self.skipped: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def files(self) -> list[tuple[EntityType, str]]:
        """Return the files to read, sorted by relative path; notes what is not read."""
        found = [(kind, path) for name, kind in FOLDERS.items() for path in self._below(name)]
        others = sorted(set(os.listdir(self.path)) - set(FOLDERS))
        self.skipped |= dict.fromkeys(others, f"only {_NAMES} are read")
        return sorted(found, key=lambda each: each[1])

    def read(self, entity_type: EntityType, path: str) -> MemoryFile:
        """Read a file; raises `Invalid` if it is not a regular file or too large."""
        place = os.path.realpath(os.path.join(self.path, path))
        # O_NONBLOCK, because opening a FIFO blocks; O_NOFOLLOW against a symlink swap (TOCTOU).
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(place, flags), "rb") as opened:
            known = os.fstat(opened.fileno())
            if not stat.S_ISREG(known.st_mode):
                raise Invalid(Code.NOT_A_FILE, "It is not a file.")
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise Invalid(Code.TOO_LARGE, f"A file may have at most {LARGEST >> 20} MiB.")
        return MemoryFile(
            entity_type=entity_type,
            path=path,
            content=content,
            modified_ms=known.st_mtime_ns // 1_000_000,
        )

    def _require_memories(self, root: Path) -> None:
        """Refuse a folder above or below the right one, where an import would find no file."""
        if any(os.path.lexists(os.path.join(self.path, name)) for name in FOLDERS):
            return
        nearby = (*(root / each for each in USUAL_FOLDERS), root.parent)
        meant = next((each for each in nearby if (each / "sessions").is_dir()), None)
        remedy = "the folder that contains sessions/" if meant is None else str(meant)
        raise Invalid(Code.NOT_A_FOLDER, f"{root} contains none of {_NAMES}; name {remedy}.")

    def _below(self, folder: str) -> Iterator[str]:
        top = os.path.join(self.path, folder)
        if os.path.islink(top):
            self._pass_over(folder)
            return
        for place, folders, names in os.walk(top, onerror=self._note):
            for name in sorted((*folders, *names)):
                path = os.path.relpath(os.path.join(place, name), self.path)
                is_link = os.path.islink(os.path.join(place, name))
                if is_link and (name in folders or not self._is_inside(path)):
                    self._pass_over(path)
                elif name in names and name.endswith(ENDING):
                    yield path
                elif name in names:
                    self.skipped[path] = f"only {ENDING} files are read"

    def _is_inside(self, path: str) -> bool:
        end = os.path.realpath(os.path.join(self.path, path))
        return os.path.commonpath([self.path, end]) == self.path

    def _pass_over(self, path: str) -> None:
        self.skipped[path] = (
            "a link to a folder is not followed"
            if self._is_inside(path)
            else "a link that leaves the folder is not followed"
        )

    def _note(self, error: OSError) -> None:
        # A missing folder means that there are no files of this type.
        if not isinstance(error, FileNotFoundError):
            path = os.path.relpath(os.fsdecode(error.filename), self.path)
            self.unreadable[path] = error.strerror or "it cannot be read"


NAME: Final = "cursor-memory"
IMPORTED: Final = {"type": "session_imported", "result": "success"}
# Where the next word of a name in camelCase begins.
_CAMEL_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])[A-Z]")
_DAY: Final = re.compile(r"(\d{4})(\d{2})(\d{2})(?!\d)", re.ASCII)
_UNIT: Final = re.compile(r"FU-[0-9]+")
_VERSION: Final = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+")
# By type and member: accepted names, in order of preference.
_ALIASES: Final[Mapping[EntityType, Mapping[str, tuple[str, ...]]]] = {
    EntityType.AGENT_SESSION: {"session_id": ("session_id", "id")},
    EntityType.FEATURE_UNIT: {
        "description": ("description", "overview"),
        "risk_level": ("risk_level", "risk"),
        "created_at": ("created_at", "created"),
        "updated_at": ("updated_at", "updated"),
    },
    EntityType.RELEASE: {
        "id": ("id", "release_id"),
        "feature_units": ("feature_units", "fus"),
    },
    EntityType.AGENT_DECISION: {"decision_type": ("decision_type", "type")},
    EntityType.VALIDATION_RESULT: {"validation_type": ("validation_type", "type")},
}
# Required timestamps by type.
_TIMES: Final[Mapping[EntityType, tuple[str, ...]]] = {
    EntityType.AGENT_SESSION: ("started_at",),
    EntityType.FEATURE_UNIT: ("created_at", "updated_at"),
    EntityType.RELEASE: ("created_at", "updated_at"),
    EntityType.AGENT_DECISION: ("timestamp",),
    EntityType.VALIDATION_RESULT: ("timestamp",),
}


class FieldRepair(Struct, frozen=True, kw_only=True):
    """A field that was filled in because the file lacks it."""

    file: str
    field: str
    rule: str


def map_fields(file: MemoryFile, data: Any) -> Any:
    """Map a file's fields to its type's schema; a value that is not an object stays unchanged."""
    if not isinstance(data, dict):
        return data
    # Modified in place, because the object may carry its list of duplicate keys.
    aliases = _ALIASES[file.entity_type]
    known = {*members_of(PAYLOADS[file.entity_type]), *chain(*aliases.values())}
    for given in list(data):
        name = _CAMEL_BOUNDARY.sub(r"_\g<0>", given).lower()
        if name != given and name in known and data.get(name) is None:
            data[name] = data.pop(given)
    for name, names in aliases.items():
        given = next((each for each in names if data.get(each) is not None), None)
        if given is not None and given != name:
            data[name] = data.pop(given)
    for name, value in _fallbacks(file).items():
        if data.get(name) is None and value is not None:
            data[name] = value
    return data


def _fallbacks(file: MemoryFile) -> dict[str, str | None]:
    """Return defaults derived from the file's type and name."""
    stem = file.stem
    match file.entity_type:
        case EntityType.AGENT_SESSION:
            return {"session_id": stem.removeprefix("session-")}
        case EntityType.AGENT_DECISION:
            return {"decision_type": "technical", "timestamp": _day(stem)}
        case EntityType.VALIDATION_RESULT:
            named = _UNIT.search(stem) or _VERSION.search(stem)
            return {"validation_type": "custom", "target": named[0] if named else stem}
        case _:
            return {}


def _day(stem: str) -> str | None:
    found = _DAY.match(stem)
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    try:
        return f"{date(year, month, day).isoformat()}T00:00:00Z"
    except ValueError:
        return None


def repair_fields(file: MemoryFile, data: Any) -> list[FieldRepair]:
    """Fill in missing required fields and return the repairs."""
    if not isinstance(data, dict):
        return []
    found: list[FieldRepair] = []
    is_session = file.entity_type is EntityType.AGENT_SESSION
    if is_session and (data.get("actions") is None or data["actions"] == []):
        data["actions"] = [dict(IMPORTED)]
        found.append(FieldRepair(file=file.path, field="actions", rule="session_imported"))
    places = [(data, name, name) for name in _TIMES[file.entity_type]]
    if is_session and isinstance(data.get("checkpoints"), list):
        places += [
            (each, "timestamp", f"checkpoints[{number}].timestamp")
            for number, each in enumerate(data["checkpoints"])
            if isinstance(each, dict)
        ]
    modified_at = _format_time(file.modified_ms)
    for holder, name, field in places:
        if holder.get(name) is None and modified_at is not None:
            holder[name] = modified_at
            found.append(FieldRepair(file=file.path, field=field, rule="mtime"))
    return found


def _format_time(ms: int) -> str | None:
    try:
        return format_iso8601(ms)
    except OverflowError:
        # A file system may return a time outside the supported range.
        return None


def source_of(file: MemoryFile) -> str:
    """Return the source of a file's claim, truncated to its limit."""
    source = f"{NAME}:{file.path}"
    return source if len(source) <= SOURCE_LONGEST else f"{source[: SOURCE_LONGEST - 1]}…"


def file_key(file: MemoryFile) -> str:
    """Return the idempotency key of a file, a hash of its path and content."""
    return f"{NAME}:{digest([file.path, file.digest])[:32]}"


def observed_at(entity_type: EntityType, fields: Mapping[str, Any]) -> datetime:
    """Return when the claim of a file was observed: at the latest time that it states."""
    if entity_type is not EntityType.AGENT_SESSION:
        return moment(instant_of(fields.get("updated_at") or fields["timestamp"]))
    if fields.get("ended_at") is not None:
        return moment(instant_of(fields["ended_at"]))
    inside = [*_times(fields.get("actions")), *_times(fields.get("checkpoints"))]
    return moment(max(inside) if inside else instant_of(fields["started_at"]))


def _times(items: Sequence[Mapping[str, Any]] | None) -> list[int]:
    timestamps = (each.get("timestamp") for each in items or ())
    return [instant_of(each) for each in timestamps if each is not None]
