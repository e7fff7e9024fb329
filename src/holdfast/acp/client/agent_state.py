"""The last known state of an agent: who it is, its modes, commands, options, title and costs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.content import bounded
from holdfast.acp.client.lenient_json import (
    read_count,
    read_list,
    read_name,
    read_object,
    read_text,
    read_word,
)
from holdfast.acp.client.usage import cost_of

_AGENT_LARGEST: Final = 4 << 10
_CAPABILITIES_LARGEST: Final = 32 << 10
_METHODS_LARGEST: Final = 16 << 10
_FIELDS_MOST: Final = 200
_ITEMS_MOST: Final = 500


def introduction_of(result: object) -> dict[str, Any]:
    """Return what a reply to `initialize` says, as far as it is of use here and not too large."""
    said = read_object(result)
    return {
        "protocolVersion": said.get("protocolVersion"),
        "agentInfo": _fitting(said.get("agentInfo"), _AGENT_LARGEST),
        "agentCapabilities": _fitting(said.get("agentCapabilities"), _CAPABILITIES_LARGEST),
        "authMethods": fitting_list(said.get("authMethods"), _METHODS_LARGEST),
    }


def fitting_list(value: object, largest: int) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list that fit into so many bytes together; too large ones do not."""
    found: list[dict[str, Any]] = []
    for each in read_list(value)[:_ITEMS_MOST]:
        kept = bounded(each, largest) if isinstance(each, dict) else None
        if isinstance(kept, dict):
            found.append(kept)
            largest -= _size(kept)
    return tuple(found)


def _fitting(value: object, largest: int) -> dict[str, Any]:
    """Return the fields of an object that fit into so many bytes; none takes more than half."""
    found = read_object(value)
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


_LARGEST: Final = 256 << 10
_TITLE_LONGEST: Final = 1_000


class Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a program has told so far; lists are kept as the program words them.

    `used` and `size` are tokens of the model's window, `cost` is a sum since the conversation
    began. A `title` that is empty was taken back. A conversation that begins anew begins with
    nothing told.
    """

    commands: tuple[dict[str, Any], ...] = ()
    mode: str | None = None
    modes: tuple[dict[str, Any], ...] = ()
    options: tuple[dict[str, Any], ...] = ()
    # Removed from the protocol and still sent: for people to read.
    models: tuple[dict[str, Any], ...] = ()
    model: str | None = None
    used: int | None = None
    size: int | None = None
    cost: float | None = None
    currency: str | None = None
    # How much of the cost stands in the ledger: some programs tell the rest after the turn.
    charged: float | None = None
    title: str | None = None

    def kept(self) -> dict[str, Any]:
        """Return it as it is kept and shown."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def told_from(kept: Mapping[str, Any]) -> Told:
    """Return what was kept; what does not fit any more was never told."""
    try:
        return msgspec.convert(
            {each: kept[each] for each in Told.__struct_fields__ if each in kept}, Told
        )
    except msgspec.ValidationError:
        return Told()


def opened(told: Told, result: object) -> Told:
    """Return what is told after the reply to `session/new`, `resume` or `load`."""
    found = read_object(result)
    modes, models = read_object(found.get("modes")), read_object(found.get("models"))
    if modes:
        mode = read_name(modes.get("currentModeId")) or told.mode
        told = replace(told, mode=mode, modes=_list(modes.get("availableModes")))
    if models:
        model = read_name(models.get("currentModelId"))
        told = replace(told, model=model, models=_list(models.get("availableModels")))
    if isinstance(found.get("configOptions"), list):
        told = replace(told, options=_list(found["configOptions"]))
    return told


def heard(told: Told, update: Mapping[str, Any]) -> Told:
    """Return what is told after an update; the same object if the update tells nothing of it."""
    kind = update.get("sessionUpdate")
    hear = STATES.get(kind) if isinstance(kind, str) else None
    changed = hear(told, update) if hear else told
    return told if changed == told else changed


def _commands(told: Told, update: Mapping[str, Any]) -> Told:
    return replace(told, commands=_list(update.get("availableCommands")))


def _mode(told: Told, update: Mapping[str, Any]) -> Told:
    mode = read_name(update.get("currentModeId")) or read_name(update.get("modeId"))
    return replace(told, mode=mode) if mode else told


def _options(told: Told, update: Mapping[str, Any]) -> Told:
    return replace(told, options=_list(update.get("configOptions")))


def _usage(told: Told, update: Mapping[str, Any]) -> Told:
    used, size = read_count(update.get("used")), read_count(update.get("size"))
    told = replace(
        told,
        used=told.used if used is None else used,
        size=told.size if size is None else size,
    )
    cost = cost_of(update)
    return replace(told, cost=cost[0], currency=read_word(cost[1], longest=16)) if cost else told


def _info(told: Told, update: Mapping[str, Any]) -> Told:
    if "title" not in update:
        return told
    # Null takes a title back; what is no text at all says nothing.
    title = "" if update["title"] is None else read_text(update["title"], longest=_TITLE_LONGEST)
    return told if title is None else replace(told, title=title)


STATES: Final[Mapping[str, Callable[[Told, Mapping[str, Any]], Told]]] = {
    "available_commands_update": _commands,
    "current_mode_update": _mode,
    "config_option_update": _options,
    "usage_update": _usage,
    "session_info_update": _info,
}


def _list(value: object) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list; of one that is far too long, nothing but its beginning."""
    return fitting_list(value, _LARGEST)
