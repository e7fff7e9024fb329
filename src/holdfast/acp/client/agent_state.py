"""The last known state of an agent: who it is, its modes, commands, options, title and costs."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.content import limit_value
from holdfast.acp.client.lenient_json import (
    read_count,
    read_list,
    read_name,
    read_object,
    read_text,
    read_word,
)
from holdfast.acp.client.usage import read_cost

_AGENT_LARGEST: Final = 4 << 10
_CAPABILITIES_LARGEST: Final = 32 << 10
_METHODS_LARGEST: Final = 16 << 10
_FIELDS_MOST: Final = 200
_ITEMS_MOST: Final = 500


def parse_initialize(result: object) -> dict[str, Any]:
    """Return what a reply to `initialize` says, as far as it is of use here and not too large."""
    said = read_object(result)
    return {
        "protocolVersion": said.get("protocolVersion"),
        "agentInfo": _limit_object(said.get("agentInfo"), _AGENT_LARGEST),
        "agentCapabilities": _limit_object(said.get("agentCapabilities"), _CAPABILITIES_LARGEST),
        "authMethods": limit_list(said.get("authMethods"), _METHODS_LARGEST),
    }


def limit_list(value: object, largest: int) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list that fit into so many bytes together; too large ones do not."""
    found: list[dict[str, Any]] = []
    for each in read_list(value)[:_ITEMS_MOST]:
        kept = limit_value(each, largest) if isinstance(each, dict) else None
        if isinstance(kept, dict):
            found.append(kept)
            largest -= _encoded_size(kept)
    return tuple(found)


def _limit_object(value: object, largest: int) -> dict[str, Any]:
    """Return the fields of an object that fit into so many bytes; none takes more than half."""
    found = read_object(value)
    kept: dict[str, Any] = {}
    room = largest
    # What is somebody's own comes last: nobody here asks for it.
    for name in sorted(found, key=_is_extension)[:_FIELDS_MOST]:
        each = limit_value(found[name], min(room, largest // 2))
        size = _encoded_size({name: each})
        # What is a text now and was none has been cut, and says nothing any more.
        if isinstance(each, type(found[name])) and size <= room:
            kept[name] = each
            room -= size
    return kept


def _is_extension(name: str) -> bool:
    return name.startswith("_")


def _encoded_size(value: Mapping[str, Any]) -> int:
    return len(msgspec.json.encode(value))


_LIST_LARGEST: Final = 256 << 10
_TITLE_LONGEST: Final = 1_000


class AgentState(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


def restore_state(kept: Mapping[str, Any]) -> AgentState:
    """Return what was kept; what does not fit any more was never told."""
    try:
        return msgspec.convert(
            {each: kept[each] for each in AgentState.__struct_fields__ if each in kept}, AgentState
        )
    except msgspec.ValidationError:
        return AgentState()


def state_after_setup(state: AgentState, result: object) -> AgentState:
    """Return what is told after the reply to `session/new`, `resume` or `load`."""
    found = read_object(result)
    modes, models = read_object(found.get("modes")), read_object(found.get("models"))
    if modes:
        mode = read_name(modes.get("currentModeId")) or state.mode
        state = replace(state, mode=mode, modes=_limited_list(modes.get("availableModes")))
    if models:
        model = read_name(models.get("currentModelId"))
        state = replace(state, model=model, models=_limited_list(models.get("availableModels")))
    if isinstance(found.get("configOptions"), list):
        state = replace(state, options=_limited_list(found["configOptions"]))
    return state


def state_after_update(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    """Return what is told after an update; the same object if the update tells nothing of it."""
    kind = update.get("sessionUpdate")
    hear = STATE_UPDATES.get(kind) if isinstance(kind, str) else None
    changed = hear(state, update) if hear else state
    return state if changed == state else changed


def _commands(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    return replace(state, commands=_limited_list(update.get("availableCommands")))


def _mode(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    mode = read_name(update.get("currentModeId")) or read_name(update.get("modeId"))
    return replace(state, mode=mode) if mode else state


def _options(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    return replace(state, options=_limited_list(update.get("configOptions")))


def _usage(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    used, size = read_count(update.get("used")), read_count(update.get("size"))
    state = replace(
        state,
        used=state.used if used is None else used,
        size=state.size if size is None else size,
    )
    cost = read_cost(update)
    return replace(state, cost=cost[0], currency=read_word(cost[1], longest=16)) if cost else state


def _info(state: AgentState, update: Mapping[str, Any]) -> AgentState:
    if "title" not in update:
        return state
    # Null takes a title back; what is no text at all says nothing.
    title = "" if update["title"] is None else read_text(update["title"], longest=_TITLE_LONGEST)
    return state if title is None else replace(state, title=title)


STATE_UPDATES: Final[Mapping[str, Callable[[AgentState, Mapping[str, Any]], AgentState]]] = {
    "available_commands_update": _commands,
    "current_mode_update": _mode,
    "config_option_update": _options,
    "usage_update": _usage,
    "session_info_update": _info,
}


def _limited_list(value: object) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list; of one that is far too long, nothing but its beginning."""
    return limit_list(value, _LIST_LARGEST)
