"""The files of a `cursor-memory` folder, and how they map to observations.

They are read once and never written; the import itself is `cursor_memory.py`.

"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import digest
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.time import format_iso8601, instant_of, moment
from holdfast.observations.claims import SOURCE_LONGEST
from holdfast.observations.model import EntityType
from holdfast.observations.queries import ImportMark

FOLDERS: Final = {
    "sessions": EntityType.AGENT_SESSION,
    "feature_units": EntityType.FEATURE_UNIT,
    "releases": EntityType.RELEASE,
    "decisions": EntityType.AGENT_DECISION,
    "validations": EntityType.VALIDATION_RESULT,
}
# What is larger has no place in the store, however much of it is white space.
LARGEST: Final = 8 << 20
ENDING: Final = ".json"


class MemoryFile(Struct, frozen=True, kw_only=True):
    """One file: what it is about, where it lies, what is in it, and when it was last changed."""

    entity_type: EntityType
    path: str
    content: bytes
    modified_ms: int

    @property
    def stem(self) -> str:
        """Return the file's name without its ending."""
        return self.path.rpartition("/")[2].removesuffix(ENDING)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of its bytes."""
        return hashlib.sha256(self.content).hexdigest()


class MemoryFolder:
    """A folder with what another program remembers; the verbs read files, and wait for them."""

    def __init__(self, root: Path) -> None:
        self.path: Final = os.path.realpath(root)
        if not os.path.isdir(self.path):
            raise Invalid(
                Code.NOT_A_FOLDER, f"{root} is not a folder; name the one with sessions/."
            )
        # Told by their places in the folder: what leads out of it, and what cannot be listed.
        self.skipped: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}

    def files(self) -> list[tuple[EntityType, str]]:
        """Return what there is to read, by relative path in the order of code points."""
        found = [(kind, path) for name, kind in FOLDERS.items() for path in self._below(name)]
        return sorted(found, key=lambda each: each[1])

    def read(self, entity_type: EntityType, path: str) -> MemoryFile:
        """Return a file as it is now; what is no file, or too large, is refused."""
        place = os.path.realpath(os.path.join(self.path, path))
        # Not waiting: a pipe would never end. And no link: it was followed to its end just now.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(place, flags), "rb") as opened:
            known = os.fstat(opened.fileno())
            if not stat.S_ISREG(known.st_mode):
                raise Invalid(Code.NOT_A_FILE, "It is no file.")
            content = opened.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise Invalid(Code.TOO_LARGE, f"A file may have {LARGEST >> 20} MiB at most.")
        return MemoryFile(
            entity_type=entity_type,
            path=path,
            content=content,
            modified_ms=known.st_mtime_ns // 1_000_000,
        )

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
        # A kind of which nothing was kept has no folder.
        if not isinstance(error, FileNotFoundError):
            path = os.path.relpath(os.fsdecode(error.filename), self.path)
            self.unreadable[path] = error.strerror or "it cannot be read"


NAME: Final = "cursor-memory"
IMPORTED: Final = {"type": "session_imported", "result": "success"}
_DAY: Final = re.compile(r"(\d{4})(\d{2})(\d{2})(?!\d)", re.ASCII)
_UNIT: Final = re.compile(r"FU-[0-9]+")
_VERSION: Final = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+")
# By type, for each member: the names it may have, the first that is there.
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
# The times that a claim of a type cannot be without.
_TIMES: Final[Mapping[EntityType, tuple[str, ...]]] = {
    EntityType.AGENT_SESSION: ("started_at",),
    EntityType.FEATURE_UNIT: ("created_at", "updated_at"),
    EntityType.RELEASE: ("created_at", "updated_at"),
    EntityType.AGENT_DECISION: ("timestamp",),
    EntityType.VALIDATION_RESULT: ("timestamp",),
}


class FieldRepair(Struct, frozen=True, kw_only=True):
    """What was put into a claim that its file does not say."""

    file: str
    field: str
    rule: str


def map_fields(file: MemoryFile, data: Any) -> Any:
    """Return what a file says as its type has it; what is no object is left to be refused."""
    if not isinstance(data, dict):
        return data
    # Changed in place, because it may know of keys that stood twice.
    for name, names in _ALIASES[file.entity_type].items():
        given = next((each for each in names if data.get(each) is not None), None)
        if given is not None and given != name:
            data[name] = data.pop(given)
    for name, value in _fallbacks(file).items():
        if data.get(name) is None and value is not None:
            data[name] = value
    return data


def _fallbacks(file: MemoryFile) -> dict[str, str | None]:
    """Return what a file means where it says nothing."""
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
    """Mend what a claim cannot be without, and return what was mended."""
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
    told = _format_time(file.modified_ms)
    for holder, name, field in places:
        if holder.get(name) is None and told is not None:
            holder[name] = told
            found.append(FieldRepair(file=file.path, field=field, rule="mtime"))
    return found


def _format_time(ms: int) -> str | None:
    try:
        return format_iso8601(ms)
    except OverflowError:
        # A file system may tell any number; it is then no time of ours.
        return None


def claim_origin(file: MemoryFile, fields: Mapping[str, Any]) -> ImportMark:
    """Return where a claim was found, what it is known by, and when it was true."""
    source = f"{NAME}:{file.path}"
    return ImportMark(
        source=source if len(source) <= SOURCE_LONGEST else f"{source[: SOURCE_LONGEST - 1]}…",
        idempotency_key=file_key(file),
        observed_at=_observed_at(file.entity_type, fields),
    )


def file_key(file: MemoryFile) -> str:
    """Return the key of a file with these bytes in that place."""
    return f"{NAME}:{digest([file.path, file.digest])[:32]}"


def _observed_at(entity_type: EntityType, fields: Mapping[str, Any]) -> datetime:
    if entity_type is not EntityType.AGENT_SESSION:
        return moment(instant_of(fields.get("updated_at") or fields["timestamp"]))
    if fields.get("ended_at") is not None:
        return moment(instant_of(fields["ended_at"]))
    inside = [*_times(fields.get("actions")), *_times(fields.get("checkpoints"))]
    return moment(max(inside) if inside else instant_of(fields["started_at"]))


def _times(items: Sequence[Mapping[str, Any]] | None) -> list[int]:
    told = (each.get("timestamp") for each in items or ())
    return [instant_of(each) for each in told if each is not None]
