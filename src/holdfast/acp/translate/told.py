"""What a program has told about its conversation beside the answers: the newest of each counts.

It changes at any time, also between turns; no row of the record is made of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.translate.introductions import fitting_list
from holdfast.acp.translate.readings import count, fields, name, text, word
from holdfast.acp.translate.usages import cost_of

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
    found = fields(result)
    modes, models = fields(found.get("modes")), fields(found.get("models"))
    if modes:
        mode = name(modes.get("currentModeId")) or told.mode
        told = replace(told, mode=mode, modes=_list(modes.get("availableModes")))
    if models:
        model = name(models.get("currentModelId"))
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
    mode = name(update.get("currentModeId")) or name(update.get("modeId"))
    return replace(told, mode=mode) if mode else told


def _options(told: Told, update: Mapping[str, Any]) -> Told:
    return replace(told, options=_list(update.get("configOptions")))


def _usage(told: Told, update: Mapping[str, Any]) -> Told:
    used, size = count(update.get("used")), count(update.get("size"))
    told = replace(
        told,
        used=told.used if used is None else used,
        size=told.size if size is None else size,
    )
    cost = cost_of(update)
    return replace(told, cost=cost[0], currency=word(cost[1], longest=16)) if cost else told


def _info(told: Told, update: Mapping[str, Any]) -> Told:
    if "title" not in update:
        return told
    # Null takes a title back; what is no text at all says nothing.
    title = "" if update["title"] is None else text(update["title"], longest=_TITLE_LONGEST)
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
