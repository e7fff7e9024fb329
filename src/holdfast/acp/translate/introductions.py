"""What a program says of itself when it is met: kept and shown, so within a bound."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.acp.translate.bounds import bounded
from holdfast.acp.translate.readings import fields, items

_AGENT_LARGEST: Final = 4 << 10
_CAPABILITIES_LARGEST: Final = 32 << 10
_METHODS_LARGEST: Final = 16 << 10
_FIELDS_MOST: Final = 200
_ITEMS_MOST: Final = 500


def introduction_of(result: object) -> dict[str, Any]:
    """Return what a reply to `initialize` says, as far as it is of use here and not too large."""
    said = fields(result)
    return {
        "protocolVersion": said.get("protocolVersion"),
        "agentInfo": _fitting(said.get("agentInfo"), _AGENT_LARGEST),
        "agentCapabilities": _fitting(said.get("agentCapabilities"), _CAPABILITIES_LARGEST),
        "authMethods": fitting_list(said.get("authMethods"), _METHODS_LARGEST),
    }


def fitting_list(value: object, largest: int) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list that fit into so many bytes together; too large ones do not."""
    found: list[dict[str, Any]] = []
    for each in items(value)[:_ITEMS_MOST]:
        kept = bounded(each, largest) if isinstance(each, dict) else None
        if isinstance(kept, dict):
            found.append(kept)
            largest -= _size(kept)
    return tuple(found)


def _fitting(value: object, largest: int) -> dict[str, Any]:
    """Return the fields of an object that fit into so many bytes; none takes more than half."""
    found = fields(value)
    kept: dict[str, Any] = {}
    room = largest
    # What is somebody's own comes last: nobody here asks for it.
    for name in sorted(found, key=_is_own)[:_FIELDS_MOST]:
        each = bounded(found[name], min(room, largest // 2))
        size = _size({name: each})
        # What is a text now and was none has been cut, and says nothing any more.
        if isinstance(each, type(found[name])) and size <= room:
            kept[name] = each
            room -= size
    return kept


def _is_own(name: str) -> bool:
    return name.startswith("_")


def _size(value: Mapping[str, Any]) -> int:
    return len(msgspec.json.encode(value))
