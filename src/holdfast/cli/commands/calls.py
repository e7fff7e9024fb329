"""`holdfast calls list|show|answer|settle`: list tool calls, and end those that need someone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import LIMIT_MOST, YES_TO_HELP, Paging, argument, flag, option
from holdfast.cli.output import Printer, local_time
from holdfast.cli.session_refs import find_session
from holdfast.domain.calls import Call, CallState
from holdfast.domain.errors import Code, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.ids import SessionId
    from holdfast.domain.messages import ToolResult
    from holdfast.services.calls import CallAnswer, SettlementRequest


CALL_HELP: Final = "The call's id."


@dataclass(frozen=True, kw_only=True)
class CallListOptions(Paging):
    """Which calls."""

    session: Annotated[str | None, option("ID", "List the calls of this session.")] = None
    unknown: Annotated[bool, flag("Only calls with an unknown outcome.", "--unknown")] = False
    state: Annotated[
        CallState | None, option("STATE", f"Only calls in this state: {', '.join(CallState)}.")
    ] = None


async def show_list(printer: Printer, options: CallListOptions) -> None:
    """List tool calls.

    Without --session and --state, lists calls with an unknown outcome in all sessions: their
    process died before it recorded a result.
    """
    from holdfast.cli.chat.tool_lines import call_status
    from holdfast.domain.queries import require_limit
    from holdfast.wire.calls import call_form

    limit = require_limit(options.limit, most=LIMIT_MOST)
    if options.unknown and options.state not in {None, CallState.UNKNOWN}:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --unknown and --state.")
    state = options.state
    if options.unknown or (options.session is None and state is None):
        state = CallState.UNKNOWN
    async with connect(printer) as holdfast:
        session = await find_session(holdfast, options.session) if options.session else None
        page = await holdfast.calls.list(
            holdfast.owner, session, state=state, cursor=options.cursor, limit=limit
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
    if not page.items and options.cursor is None:
        is_about_unknown = state is CallState.UNKNOWN
        printer.remark("No calls with an unknown outcome." if is_about_unknown else "No calls.")


@dataclass(frozen=True, kw_only=True)
class OneCall:
    """A call by its id, and the session it belongs to."""

    call: Annotated[str, argument("CALL", CALL_HELP)]
    session: Annotated[
        str | None,
        option("ID", "The session; optional for a call that waits for a client or is unknown."),
    ] = None


async def show_one(printer: Printer, options: OneCall) -> None:
    """Show a tool call and its result."""
    from holdfast.cli.chat.tool_lines import result_of
    from holdfast.wire.calls import call_result_form

    async with connect(printer) as holdfast:
        call = await _find_call(holdfast, options)
        result = await result_of(holdfast, call)
    printer.record(call_result_form(call, result), _facts(call, result))


@dataclass(frozen=True, kw_only=True)
class SettleOptions(OneCall):
    """How an unknown outcome is put right."""

    retry: Annotated[bool, flag("Run the call again, wait, and print the result.", "--retry")] = (
        False
    )
    skip: Annotated[bool, flag("Record the call as not executed.", "--skip")] = False
    done: Annotated[
        str | None,
        option("RESULT", "Record the call as executed, with this result: JSON, or text."),
    ] = None
    note: Annotated[
        str | None, option("TEXT", "The reason, shown to the agent; at most 500 characters.")
    ] = None
    yes_to: Annotated[list[str] | None, option("TOOL", YES_TO_HELP, "--yes-to")] = None


async def settle(printer: Printer, options: SettleOptions) -> int | None:
    """Settle a tool call with an unknown outcome.

    History is not changed: the agent gets the settlement with the next message. If a retry fails,
    the exit code is 1, or 3 if it was denied.
    """
    from holdfast.cli.approval_policy import attendance_policy
    from holdfast.cli.chat.session import retry_call
    from holdfast.services.calls import SettlementAction
    from holdfast.wire.calls import call_form

    settlement = _settlement(options)
    policy = attendance_policy(printer, options.yes_to)
    async with connect(printer, "own", policy=policy) as holdfast:
        call = await _find_call(holdfast, options)
        if settlement.how is SettlementAction.RETRY:
            return await retry_call(printer, holdfast, call, settlement, policy)
        settled = await holdfast.calls.settle(holdfast.owner, call.session_id, call.id, settlement)
    printer.done(call_form(settled), f"Call {settled.id} is {settled.settlement}.")
    return None


@dataclass(frozen=True, kw_only=True)
class CallAnswerOptions(OneCall):
    """What came of a call that a client was asked to run."""

    result: Annotated[
        str | None, option("JSON", "The call was run, with this result: JSON, or text.")
    ] = None
    error: Annotated[str | None, option("TEXT", "The call failed; the agent gets the text.")] = None
    unknown: Annotated[bool, flag("It is not known whether the call was run.", "--unknown")] = False


async def answer(printer: Printer, options: CallAnswerOptions) -> None:
    """Answer a tool call that waits for a client.

    The first answer counts, and the turn continues; `holdfast calls list --state requested` shows
    the calls that wait.
    """
    from holdfast.wire.calls import call_form

    given = _answer(options)
    async with connect(printer, "own") as holdfast:
        call = await _find_call(holdfast, options)
        answered = await holdfast.calls.answer(holdfast.owner, call.session_id, call.id, given)
    printer.done(call_form(answered), f"Call {answered.id} is {answered.state}.")


def _answer(options: CallAnswerOptions) -> "CallAnswer":
    from holdfast.domain.messages import ResultStatus
    from holdfast.services.calls import CallAnswer

    chosen = {
        ResultStatus.OK: options.result is not None,
        ResultStatus.ERROR: options.error is not None,
        ResultStatus.UNKNOWN: options.unknown,
    }
    if list(chosen.values()).count(True) != 1:
        raise Invalid(
            Code.INVALID_INPUT, "Choose one of --result JSON, --error TEXT and --unknown."
        )
    status = next(each for each, is_chosen in chosen.items() if is_chosen)
    return CallAnswer(status=status, result=_value(options.result), error=options.error)


def _settlement(options: SettleOptions) -> "SettlementRequest":
    from holdfast.cli.commands.approvals import BY_COMMAND
    from holdfast.services.calls import SettlementAction, SettlementRequest

    chosen = [options.retry, options.skip, options.done is not None]
    if chosen.count(True) != 1:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --retry, --skip and --done RESULT.")
    how = (
        SettlementAction.RETRY
        if options.retry
        else SettlementAction.SKIP
        if options.skip
        else SettlementAction.MARK_DONE
    )
    return SettlementRequest(how=how, by=BY_COMMAND, result=_value(options.done), note=options.note)


def _value(text: str | None) -> Any:
    """Return a result as JSON if it is valid JSON, else as text."""
    import msgspec

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


async def _find_call(holdfast: "Holdfast", options: OneCall) -> Call:
    """Return the call with an id; without a session it must be requested or unknown."""
    session: SessionId | None = None
    if options.session is not None:
        session = await find_session(holdfast, options.session)
        return await holdfast.calls.get(holdfast.owner, session, options.call)
    listed = [
        await holdfast.calls.list(holdfast.owner, state=state)
        for state in (CallState.UNKNOWN, CallState.REQUESTED)
    ]
    found = [each for page in listed for each in page.items if each.id == options.call]
    if len(found) == 1:
        return found[0]
    if found:
        sessions = [each.session_id for each in found]
        raise Invalid(
            Code.INVALID_ID,
            f"Several sessions have an open call {options.call}; name one with --session: "
            f"{', '.join(sessions)}.",
            {"sessions": sessions},
        )
    raise NotFound(
        Code.CALL_NOT_FOUND,
        f"There is no open call {options.call}; name its session with --session, "
        "or see `holdfast calls list`.",
    )


def _row(call: Call, word: str) -> tuple[str, ...]:
    from holdfast.cli.chat.tool_lines import call_line

    return (
        call.id,
        word,
        local_time(call.started_at),
        call.session_id,
        call_line(call.name, call.arguments),
    )


def _facts(call: Call, result: "ToolResult | None") -> dict[str, object]:
    from holdfast.cli.chat.tool_lines import outcome
    from holdfast.wire.calls import call_form

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
    }


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "calls", "List, answer and settle tool calls.")
    command(group, "list", CallListOptions)(show_list)
    command(group, "show", OneCall)(show_one)
    command(group, "answer", CallAnswerOptions)(answer)
    command(group, "settle", SettleOptions)(settle)
