"""JSON form of what the open turn of a session waits for."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.waits import Wait, WaitReason
from holdfast.wire.scalars import Instant, Uuid, format_time_or_none, parse_time_or_none


class WaitForm(Struct, frozen=True, kw_only=True):
    """What the open turn of a session waits for."""

    reason: Annotated[WaitReason, Meta(description="Why the turn waits.")]
    text: Annotated[str, Meta(description="What it waits for, in a sentence.")]
    since: Annotated[Instant | None, Meta(description="Since when it waits.")]
    until: Annotated[
        Instant | None, Meta(description="When it continues without what it waits for.")
    ]
    needs: Annotated[tuple[str, ...], Meta(description="The capabilities that a process needs.")]
    call_ids: Annotated[tuple[str, ...], Meta(description="The tool calls that wait.")]
    approval_id: Annotated[str | None, Meta(description="The approval request that waits.")]
    children: Annotated[tuple[Uuid, ...], Meta(description="The child sessions it waits for.")]


def wait_form(wait: Wait | None) -> WaitForm | None:
    """Return the form of what a turn waits for."""
    if wait is None:
        return None
    times = {"since": format_time_or_none(wait.since), "until": format_time_or_none(wait.until)}
    return WaitForm(**msgspec.structs.asdict(wait) | times)


def wait_of(form: WaitForm | None) -> Wait | None:
    """Return what a turn waits for."""
    if form is None:
        return None
    times = {"since": parse_time_or_none(form.since), "until": parse_time_or_none(form.until)}
    return Wait(**msgspec.structs.asdict(form) | times)
