"""Calls of one model step that run at once; each result is on disk as it comes.

Which calls may is the toolbox's to say, and how one call runs is `tool_calls.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState
from holdfast.domain.drafts import CallsRequested
from holdfast.domain.ids import CallId
from holdfast.domain.tools import INVOKE_AGENT, Effect
from holdfast.domain.waits import WaitReason
from holdfast.engine.tool_calls import answer, dispatch
from holdfast.engine.turn_state import TurnState
from holdfast.ports.runtime import TurnPausedError
from holdfast.ports.tools import Toolbox

# The first reason of the list is shown.
_REASONS: Final = tuple(WaitReason)


def group_calls(toolbox: Toolbox, state: TurnState, calls: Sequence[Call]) -> list[list[Call]]:
    """Return the calls in their order; adjacent ones that may run at once are one group."""
    workspace = state.turn.workspace
    # The usual case, and the quickest.
    if len(calls) < 2 or workspace is None:
        return [[call] for call in calls]
    groups: list[list[Call]] = []
    was_parallel = False
    for call in calls:
        # By the stored effect as well: the tool may have changed since the call was requested.
        is_safe = call.effect is not Effect.UNSAFE
        is_parallel = is_safe and toolbox.is_parallel(call.name, workspace)
        if is_parallel and was_parallel:
            groups[-1].append(call)
        else:
            groups.append([call])
        was_parallel = is_parallel
    return groups


async def dispatch_together(
    toolbox: Toolbox, state: TurnState, calls: Sequence[Call], new_id: Callable[[], str]
) -> None:
    """Run calls at once and write their results; raises `TurnPausedError` if some have to wait."""
    workspace = state.turn.workspace
    pausing = {INVOKE_AGENT, *(workspace.client_tools if workspace is not None else ())}
    while calls:
        # Some of them run here, for as long as they take.
        is_mixed = any(call.name not in pausing for call in calls)
        paused: dict[CallId, TurnPausedError] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for call in calls:
                    run = _run(toolbox, state, call, new_id, paused, is_mixed=is_mixed)
                    group.create_task(run)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        waiting = [call for call in calls if call.id in paused]
        # An approval may have been given while others ran; the pause itself notices an ended child.
        is_over = not any(_is_asked(each) for each in paused.values())
        if waiting and (is_over or len(waiting) == len(calls)):
            raise _merge([paused[call.id] for call in waiting])
        calls = waiting


async def _run(
    toolbox: Toolbox,
    state: TurnState,
    call: Call,
    new_id: Callable[[], str],
    paused: dict[CallId, TurnPausedError],
    *,
    is_mixed: bool,
) -> None:
    try:
        done = await dispatch(toolbox, state, call, new_id)
    except TurnPausedError as error:
        paused[call.id] = error
        # The client need not wait for them. Without them the request and the pause are one commit.
        if error.timeouts and is_mixed and call.state is not CallState.REQUESTED:
            await state.emit((CallsRequested(timeouts=error.timeouts),))
    else:
        await state.emit(answer(call, done))


def _is_asked(paused: TurnPausedError) -> bool:
    return paused.wait.reason is WaitReason.APPROVAL


def _merge(paused: Sequence[TurnPausedError]) -> TurnPausedError:
    """Return one wait for all: its reason is the most urgent one, and it names all calls."""
    waits = [each.wait for each in paused]
    first = min(waits, key=lambda wait: _REASONS.index(wait.reason))
    wait = replace(
        first,
        call_ids=tuple(each for wait in waits for each in wait.call_ids),
        children=tuple(each for wait in waits for each in wait.children),
    )
    timeouts = {call_id: most for each in paused for call_id, most in each.timeouts.items()}
    return TurnPausedError(wait, timeouts=timeouts)
