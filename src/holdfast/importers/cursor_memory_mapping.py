"""How the files of another program become claims: names that changed, and what may be mended.

Nothing here knows a clock: what a file does not say comes from its name, or from its own time.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import digest
from holdfast.domain.time import format_iso8601, instant_of, moment
from holdfast.importers.cursor_memory_files import MemoryFile
from holdfast.observations.claims import SOURCE_LONGEST
from holdfast.observations.model import EntityType
from holdfast.observations.queries import ImportMark

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


class Repair(Struct, frozen=True, kw_only=True):
    """What was put into a claim that its file does not say."""

    file: str
    field: str
    rule: str


def mapped(file: MemoryFile, data: Any) -> Any:
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


def repaired(file: MemoryFile, data: Any) -> list[Repair]:
    """Mend what a claim cannot be without, and return what was mended."""
    if not isinstance(data, dict):
        return []
    found: list[Repair] = []
    is_session = file.entity_type is EntityType.AGENT_SESSION
    if is_session and (data.get("actions") is None or data["actions"] == []):
        data["actions"] = [dict(IMPORTED)]
        found.append(Repair(file=file.path, field="actions", rule="session_imported"))
    places = [(data, name, name) for name in _TIMES[file.entity_type]]
    if is_session and isinstance(data.get("checkpoints"), list):
        places += [
            (each, "timestamp", f"checkpoints[{number}].timestamp")
            for number, each in enumerate(data["checkpoints"])
            if isinstance(each, dict)
        ]
    told = _spelled(file.modified_ms)
    for holder, name, field in places:
        if holder.get(name) is None and told is not None:
            holder[name] = told
            found.append(Repair(file=file.path, field=field, rule="mtime"))
    return found


def _spelled(ms: int) -> str | None:
    try:
        return format_iso8601(ms)
    except OverflowError:
        # A file system may tell any number; it is then no time of ours.
        return None


def mark_of(file: MemoryFile, fields: Mapping[str, Any]) -> ImportMark:
    """Return where a claim was found, what it is known by, and when it was true."""
    source = f"{NAME}:{file.path}"
    return ImportMark(
        source=source if len(source) <= SOURCE_LONGEST else f"{source[: SOURCE_LONGEST - 1]}…",
        idempotency_key=key_of(file),
        observed_at=_observed_at(file.entity_type, fields),
    )


def key_of(file: MemoryFile) -> str:
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
