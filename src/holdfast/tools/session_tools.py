"""`checkpoint`, `notify` and `read_output`: tools that concern the session itself.

A checkpoint is recorded by the call itself. `read_output` returns parts of stored outputs.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.streams import leading_partial_bytes, trailing_partial_bytes
from holdfast.tools.files.read import format_instant
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure, plan_read_only

_DEPTH_MOST: Final = 32
_STRING_LONGEST: Final = 65_536
_STATE_LARGEST: Final = 1 << 20


class CheckpointArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `checkpoint` takes."""

    name: Annotated[str, Meta(min_length=1, max_length=512)]
    state: dict[str, Any] | None = None


def checkpoint_tool(now: Callable[[], datetime]) -> LocalTool[CheckpointArguments]:
    """Return the `checkpoint` tool; `now` is its clock."""

    async def act(
        _: ToolWorkspace, arguments: CheckpointArguments, __: RequestedCall
    ) -> dict[str, Any]:
        return {"name": arguments.name, "at": format_instant(now())}

    return LocalTool(
        name="checkpoint",
        description="Save a named checkpoint with a state from which a later session can continue.",
        arguments=CheckpointArguments,
        effect=lambda _: Effect.PURE,
        plan=_plan_checkpoint,
        act=act,
    )


async def _plan_checkpoint(workspace: ToolWorkspace, arguments: CheckpointArguments) -> CallPlan:
    if not arguments.name.strip():
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, "A checkpoint needs a name.")
    if not _is_plain(arguments.name, 1) or not _is_plain(arguments.state, 1):
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS,
            f"The state may be {_DEPTH_MOST} levels deep, with texts of at most"
            f" {_STRING_LONGEST} characters and finite numbers.",
        )
    if len(msgspec.json.encode(arguments.state)) > _STATE_LARGEST:
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, "The state has more than 1 MiB.")
    return await plan_read_only(workspace, arguments)


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


class NotifyArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `notify` takes."""

    message: Annotated[str, Meta(min_length=1, max_length=2_000)]


def notify_tool() -> LocalTool[NotifyArguments]:
    """Return the `notify` tool; the recorded call is what users see."""

    async def act(_: ToolWorkspace, __: NotifyArguments, ___: RequestedCall) -> dict[str, Any]:
        return {"shown": True}

    return LocalTool(
        name="notify",
        description=(
            "Show the user a short message during the turn, such as progress. The user cannot reply"
            " to it."
        ),
        arguments=NotifyArguments,
        effect=lambda _: Effect.PURE,
        plan=plan_read_only,
        act=act,
    )


# Small enough to stay inline even when fully escaped; a larger result would be stored again.
_PART_LARGEST: Final = 16 << 10


class ReadOutputArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `read_output` takes; bytes are counted from zero, and `end` is not included."""

    handle: Annotated[str, Meta(min_length=1, max_length=200)]
    start: Annotated[int, Meta(ge=0, le=1 << 62)] = 0
    end: Annotated[int, Meta(ge=0, le=1 << 62)] | None = None


def read_output_tool() -> LocalTool[ReadOutputArguments]:
    """Return the `read_output` tool."""
    return LocalTool(
        name="read_output",
        description=(
            "Read a part of a long result by its media:// handle. start and end count bytes; at"
            " most 16 KiB are returned at once, so continue from the `end` in the result."
        ),
        arguments=ReadOutputArguments,
        effect=lambda _: Effect.PURE,
        plan=_plan_read,
        act=_read_part,
    )


async def _plan_read(workspace: ToolWorkspace, arguments: ReadOutputArguments) -> CallPlan:
    if arguments.end is not None and arguments.end < arguments.start:
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, "end must not be smaller than start.")
    return await plan_read_only(workspace, arguments)


async def _read_part(
    workspace: ToolWorkspace, arguments: ReadOutputArguments, _: RequestedCall
) -> dict[str, Any]:
    most = arguments.start + _PART_LARGEST
    end = most if arguments.end is None else min(arguments.end, most)
    part = await workspace.shelf.read(arguments.handle, start=arguments.start, end=end)
    if part is None:
        raise ToolFailure(
            ResultCode.NOT_GRANTED, "This session has no stored output with that handle."
        )
    before = leading_partial_bytes(part.content) if part.start else 0
    start, content = part.start + before, part.content[before:]
    if part.start + len(part.content) < part.total:
        content = content[: len(content) - trailing_partial_bytes(content)]
    return {
        "content": content.decode("utf-8", "replace").replace("\0", "\ufffd"),
        "start": start,
        "end": start + len(content),
        "total_bytes": part.total,
    }
