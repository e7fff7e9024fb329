"""`holdfast calls list|show|answer|settle`: list tool calls, and end those that need someone."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.api import Holdfast
from holdfast.cli.approval_policy import attendance_policy
from holdfast.cli.chat.tool_lines import call_line, call_status, outcome, result_of
from holdfast.cli.command import add_group, command
from holdfast.cli.commands.approvals import BY_COMMAND
from holdfast.cli.connect import connect
from holdfast.cli.options import (
    LIMIT,
    LIMIT_MOST,
    YES_TO_HELP,
    Cursor,
    Limit,
    argument,
    flag,
    option,
)
from holdfast.cli.output import Printer, local_time
from holdfast.cli.session_refs import find_session
from holdfast.domain.calls import Call, CallState
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.domain.queries import require_limit
from holdfast.services.calls import CallAnswer, SettlementAction, SettlementRequest
from holdfast.wire.calls import call_form, call_result_form

Choice = TypeVar("Choice")
app = typer.Typer()
group = add_group(app, "calls")


CallArgument = Annotated[str, argument("CALL", "The call's id.")]
CallSession = Annotated[
    str | None,
    option("ID", "The session; optional for a call that waits for a client or is unknown."),
]


@command(group, "list")
async def show_list(
    printer: Printer,
    *,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
    session: Annotated[str | None, option("ID", "List the calls of this session.")] = None,
    unknown: Annotated[bool, flag("Only calls with an unknown outcome.", "--unknown")] = False,
    state: Annotated[
        CallState | None, option("STATE", f"Only calls in this state: {', '.join(CallState)}.")
    ] = None,
) -> None:
    """List tool calls.

    Without --session and --state, lists calls with an unknown outcome in all sessions: their
    process died before it recorded a result.
    """
    limit = require_limit(limit, most=LIMIT_MOST)
    if unknown and state not in {None, CallState.UNKNOWN}:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --unknown and --state.")
    if unknown or (session is None and state is None):
        state = CallState.UNKNOWN
    async with connect(printer) as holdfast:
        session = await find_session(holdfast, session) if session else None
        page = await holdfast.calls.list(
            holdfast.owner, session, state=state, cursor=cursor, limit=limit
        )
        # Programs read the outcome of a call from its result.
        listed = () if printer.is_json else page.items
        words = [await call_status(holdfast, each) for each in listed]
    printer.listing(
        [call_form(each) for each in page.items],
        page.next_cursor,
        ("ID", "STATE", "STARTED", "SESSION", "CALL"),
        map(_row, page.items, words),
    )
    if not page.items and cursor is None:
        is_about_unknown = state is CallState.UNKNOWN
        printer.remark("No calls with an unknown outcome." if is_about_unknown else "No calls.")


@command(group, "show")
async def show_one(printer: Printer, *, call: CallArgument, session: CallSession = None) -> None:
    """Show a tool call and its result."""
    async with connect(printer) as holdfast:
        found = await _find_call(holdfast, call, session)
        its_result = await result_of(holdfast, found)
    printer.record(call_result_form(found, its_result), _facts(found, its_result))


@command(group, "answer")
async def answer(
    printer: Printer,
    *,
    call: CallArgument,
    session: CallSession = None,
    result: Annotated[
        str | None, option("JSON", "The call was run, with this result: JSON, or text.")
    ] = None,
    error: Annotated[
        str | None, option("TEXT", "The call failed; the agent gets the text.")
    ] = None,
    unknown: Annotated[
        bool, flag("It is not known whether the call was run.", "--unknown")
    ] = False,
) -> None:
    """Answer a tool call that waits for a client.

    The first answer counts, and the turn continues; `holdfast calls list --state requested` shows
    the calls that wait.
    """
    chosen = {
        ResultStatus.OK: result is not None,
        ResultStatus.ERROR: error is not None,
        ResultStatus.UNKNOWN: unknown,
    }
    status = _only(chosen, "Choose one of --result JSON, --error TEXT and --unknown.")
    given = CallAnswer(status=status, result=_value(result), error=error)
    async with connect(printer, "own") as holdfast:
        found = await _find_call(holdfast, call, session)
        answered = await holdfast.calls.answer(holdfast.owner, found.session_id, found.id, given)
    printer.done(call_form(answered), f"Call {answered.id} is {answered.state}.")


def _only(chosen: Mapping[Choice, bool], remedy: str) -> Choice:
    """Return the one choice of several options; refuse none and more than one."""
    found = [each for each, is_chosen in chosen.items() if is_chosen]
    if len(found) != 1:
        raise Invalid(Code.INVALID_INPUT, remedy)
    return found[0]


def _value(text: str | None) -> Any:
    """Return a result as JSON if it is valid JSON, else as text."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        if text.lstrip().startswith(("{", "[")):
            raise Invalid(
                Code.INVALID_INPUT,
                "The result begins like JSON and is not; correct it, or quote it as text.",
                {"field": "result"},
            ) from None
        return text


async def _find_call(holdfast: Holdfast, call: str, session: str | None) -> Call:
    """Return the call with an id; without a session it must be requested or unknown."""
    if session is not None:
        return await holdfast.calls.get(holdfast.owner, await find_session(holdfast, session), call)
    listed = [
        await holdfast.calls.list(holdfast.owner, state=state)
        for state in (CallState.UNKNOWN, CallState.REQUESTED)
    ]
    found = [each for page in listed for each in page.items if each.id == call]
    if len(found) == 1:
        return found[0]
    if found:
        sessions = [each.session_id for each in found]
        raise Invalid(
            Code.INVALID_ID,
            f"Several sessions have an open call {call}; name one with --session: "
            f"{', '.join(sessions)}.",
            {"sessions": sessions},
        )
    raise NotFound(
        Code.CALL_NOT_FOUND,
        f"There is no open call {call}; name its session with --session, "
        "or see `holdfast calls list`.",
    )


def _row(call: Call, word: str) -> tuple[str, ...]:
    return (
        call.id,
        word,
        local_time(call.started_at),
        call.session_id,
        call_line(call.name, call.arguments),
    )


def _facts(call: Call, result: ToolResult | None) -> dict[str, object]:
    form = call_form(call)
    came_of = outcome(call.name, result.status, result.result, result.error) if result else None
    return {
        "id": call.id,
        "session": call.session_id,
        "turn": call.turn,
        "tool": call.name,
        "arguments": _json(call.arguments),
        "effect": call.effect.value,
        "state": form.state,
        "settled": form.settled,
        "result": came_of,
        "started": local_time(call.started_at),
        "ended": local_time(call.ended_at),
        "answer by": local_time(call.deadline_at),
        "run by": call.claim.worker if call.claim is not None else None,
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


@command(group, "settle")
async def settle(
    printer: Printer,
    *,
    call: CallArgument,
    session: CallSession = None,
    retry: Annotated[
        bool, flag("Run the call again, wait, and print the result.", "--retry")
    ] = False,
    skip: Annotated[bool, flag("Record the call as not executed.", "--skip")] = False,
    done: Annotated[
        str | None,
        option("RESULT", "Record the call as executed, with this result: JSON, or text."),
    ] = None,
    note: Annotated[
        str | None, option("TEXT", "The reason, shown to the agent; at most 500 characters.")
    ] = None,
    yes_to: Annotated[list[str] | None, option("TOOL", YES_TO_HELP, "--yes-to")] = None,
) -> int | None:
    """Settle a tool call with an unknown outcome.

    History is not changed: the agent gets the settlement with the next message. If a retry fails,
    the exit code is 1, or 3 if it was denied.
    """
    from holdfast.cli.chat.session import retry_call

    chosen = {
        SettlementAction.RETRY: retry,
        SettlementAction.SKIP: skip,
        SettlementAction.MARK_DONE: done is not None,
    }
    how = _only(chosen, "Choose one of --retry, --skip and --done RESULT.")
    settlement = SettlementRequest(how=how, by=BY_COMMAND, result=_value(done), note=note)
    policy = attendance_policy(printer, yes_to)
    async with connect(printer, "own", policy=policy) as holdfast:
        found = await _find_call(holdfast, call, session)
        if how is SettlementAction.RETRY:
            return await retry_call(printer, holdfast, found, settlement, policy)
        settled = await holdfast.calls.settle(
            holdfast.owner, found.session_id, found.id, settlement
        )
    printer.done(call_form(settled), f"Call {settled.id} is {settled.settlement}.")
    return None
