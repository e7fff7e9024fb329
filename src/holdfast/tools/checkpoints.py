"""`checkpoint`: a name for this moment; the call itself is the record of it."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports import RequestedCall, ToolWorkspace
from holdfast.tools.reading import stamped
from holdfast.tools.tool import Aim, Tool, ToolTrouble, nothing_to_ask

_DEPTH_MOST: Final = 32
_STRING_LONGEST: Final = 65_536
_STATE_LARGEST: Final = 1 << 20


class CheckpointArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `checkpoint` takes."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    state: dict[str, Any] | None = None


def checkpoint_tool(now: Callable[[], datetime]) -> Tool[CheckpointArguments]:
    """Return `checkpoint`, which tells the time by the given clock."""

    async def act(
        _: ToolWorkspace, arguments: CheckpointArguments, __: RequestedCall
    ) -> dict[str, Any]:
        return {"name": arguments.name, "at": stamped(now())}

    return Tool(
        name="checkpoint",
        description=(
            "Mark a moment of the work by a name, with a state that a later session can take up."
        ),
        arguments=CheckpointArguments,
        effect=lambda _: Effect.PURE,
        plan=_plan,
        act=act,
    )


async def _plan(place: ToolWorkspace, arguments: CheckpointArguments) -> Aim:
    if not arguments.name.strip():
        raise ToolTrouble(ResultCode.INVALID_ARGUMENTS, "A checkpoint needs a name.")
    if not _is_plain(arguments.name, 1) or not _is_plain(arguments.state, 1):
        raise ToolTrouble(
            ResultCode.INVALID_ARGUMENTS,
            f"The state may be {_DEPTH_MOST} levels deep, with texts of at most"
            f" {_STRING_LONGEST} characters and finite numbers.",
        )
    if len(msgspec.json.encode(arguments.state)) > _STATE_LARGEST:
        raise ToolTrouble(ResultCode.INVALID_ARGUMENTS, "The state has more than 1 MiB.")
    return await nothing_to_ask(place, arguments)


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return len(value) <= _STRING_LONGEST
    if isinstance(value, float):
        return value - value == 0
    if not isinstance(value, dict | list):
        return True
    if depth > _DEPTH_MOST:
        return False
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(part, depth + 1) for part in parts)
