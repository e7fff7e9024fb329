"""The last known state of an agent: identity, modes, commands, options, title and costs."""

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
    """Return the fields of a reply to `initialize` that we use, limited in size."""
    said = read_object(result)
    return {
        "protocolVersion": said.get("protocolVersion"),
        "agentInfo": _limit_object(said.get("agentInfo"), _AGENT_LARGEST),
        "agentCapabilities": _limit_object(said.get("agentCapabilities"), _CAPABILITIES_LARGEST),
        "authMethods": limit_list(said.get("authMethods"), _METHODS_LARGEST),
    }


def limit_list(value: object, largest: int) -> tuple[dict[str, Any], ...]:
    """Return the objects of a list that together fit into `largest` bytes; skips larger ones."""
    found: list[dict[str, Any]] = []
    for each in read_list(value)[:_ITEMS_MOST]:
        kept = limit_value(each, largest) if isinstance(each, dict) else None
        if isinstance(kept, dict):
            found.append(kept)
            largest -= _encoded_size(kept)
    return tuple(found)


def _limit_object(value: object, largest: int) -> dict[str, Any]:
    """Return the fields of an object that fit into `largest` bytes; each may use half of it."""
    found = read_object(value)
    kept: dict[str, Any] = {}
    room = largest
    # Extension fields come last, because we do not use them.
    for name in sorted(found, key=lambda name: name.startswith("_"))[:_FIELDS_MOST]:
        each = limit_value(found[name], min(room, largest // 2))
        size = _encoded_size({name: each})
        # A value that became a text was truncated and is useless.
        if isinstance(each, type(found[name])) and size <= room:
            kept[name] = each
            room -= size
    return kept


def _encoded_size(value: Mapping[str, Any]) -> int:
    return len(msgspec.json.encode(value))


_LIST_LARGEST: Final = 256 << 10
_TITLE_LONGEST: Final = 1_000


class AgentState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything an agent has reported about a session; lists have the agent's own format.

    `used` and `size` are tokens of the context window; `cost` is the total since the session began.
    An empty `title` was removed by the agent. A new session starts with an empty state.
    """

    commands: tuple[dict[str, Any], ...] = ()
    mode: str | None = None
    modes: tuple[dict[str, Any], ...] = ()
    options: tuple[dict[str, Any], ...] = ()
    # Removed from the protocol but still sent by some agents; only displayed.
    models: tuple[dict[str, Any], ...] = ()
    model: str | None = None
    used: int | None = None
    size: int | None = None
    cost: float | None = None
    currency: str | None = None
    # The part of `cost` that is in the ledger; some agents report the rest after the turn.
    charged: float | None = None
    title: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the state as it is stored and displayed."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


def restore_state(record: Mapping[str, Any]) -> AgentState:
    """Return the state from its stored form; empty if that is not valid any more."""
    try:
        return msgspec.convert(
            {each: record[each] for each in AgentState.__struct_fields__ if each in record},
            AgentState,
        )
    except msgspec.ValidationError:
        return AgentState()


def state_after_setup(state: AgentState, result: object) -> AgentState:
    """Return the state after the reply to `session/new`, `resume` or `load`."""
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
    """Return the state after an update; the same object if nothing has changed."""
    kind = update.get("sessionUpdate")
    apply = STATE_UPDATES.get(kind) if isinstance(kind, str) else None
    changed = apply(state, update) if apply else state
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
    # Null removes the title; any other value that is not a text is ignored.
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
    """Return the objects of a list, limited in size to its beginning."""
    return limit_list(value, _LIST_LARGEST)
