"""Slash commands of the interactive loop: one registry for help, completion and execution."""

import difflib
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from holdfast.cli.chat.conversation import ChatConversation
from holdfast.cli.chat.tool_lines import call_line, call_status
from holdfast.cli.chat.transcript import last_turns, lines_of_turns
from holdfast.cli.command import require_local
from holdfast.cli.output import Printer, local_time, price
from holdfast.config import SETTING_KEYS
from holdfast.domain.approvals import (
    TIGHTNESS,
    Approval,
    ApprovalMode,
    ApprovalScope,
    ApprovalState,
    stricter_mode,
)
from holdfast.domain.calls import CallState
from holdfast.domain.costs import CostQuery, CostSum
from holdfast.domain.errors import Code, Denied, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Status

if TYPE_CHECKING:
    from holdfast.api import Holdfast


@dataclass(frozen=True)
class SlashContext:
    """The state that a slash command works on."""

    printer: Printer
    conversation: ChatConversation


class WrongArgumentError(Exception):
    """The argument of a slash command is invalid."""


# Returns whether to leave the chat.
SlashHandler = Callable[[SlashContext, str], Awaitable[bool]]


@dataclass(frozen=True)
class SlashCommand:
    """One command: its name, usage and description."""

    name: str
    usage: str
    help: str
    run: SlashHandler
    # Possible arguments, if they are known in advance.
    choices: tuple[str, ...] = ()


def require_no_argument(argument: str) -> None:
    """Refuse an argument where none is taken."""
    if argument:
        raise WrongArgumentError


def parse_number(argument: str) -> int:
    """Return an argument as a number of at least 1."""
    # Bounded, because int() raises its own error for very long numbers.
    if not argument.isascii() or not argument.isdigit() or not 0 < len(argument) <= 9:
        raise WrongArgumentError
    return max(int(argument), 1)


_FORCE: Final = re.compile(r"(?<!\S)--force(?!\S)")


async def cost(context: SlashContext, argument: str) -> bool:
    """Show the cost of the session, from the store's ledger."""
    require_no_argument(argument)
    conversation = context.conversation
    spent = await costs_by_model(conversation.holdfast, conversation.session_id)
    lines = []
    for each in spent:
        label = price(
            each.microcents, priced=not each.unpriced_requests, estimated=each.is_upper_bound
        )
        tokens = f"{each.usage.input} tokens in, {each.usage.output} out"
        lines.append(f"{each.name or each.key}  {each.requests} requests, {tokens}, {label}")
    for line in sorted(lines):
        context.printer.line(line)
    if not spent:
        context.printer.line("No model requests yet.")
    return False


async def mode(context: SlashContext, argument: str) -> bool:
    """Show or change the approval mode; the configuration limits how permissive it may be."""
    conversation = context.conversation
    holdfast = conversation.holdfast
    loosest = (await holdfast.defaults()).approval
    if argument:
        wanted = _mode(argument)
        if TIGHTNESS[wanted] > TIGHTNESS[loosest]:
            key = SETTING_KEYS["approval"].path
            is_remote = context.printer.settings.server is not None
            home = context.printer.settings.load().home
            file = "the configuration of the server" if is_remote else home / "holdfast.toml"
            raise Denied(
                Code.GRANT_EXCEEDED,
                f"The configuration allows at most {loosest}; edit {key} in {file}.",
                {"key": key},
            )
        changes = {"approval": wanted}
        await holdfast.sessions.update(holdfast.owner, conversation.session_id, changes)
    session = await conversation.session()
    context.printer.line(f"The approval mode is {stricter_mode(session.approval, loosest)}.")
    return False


async def approvals(context: SlashContext, argument: str) -> bool:
    """Show the session's approvals: pending ones and answers."""
    require_no_argument(argument)
    conversation = context.conversation
    page = await conversation.holdfast.approvals.list(
        conversation.holdfast.owner, conversation.session_id
    )
    found = page.items
    for each in found:
        context.printer.line(_line(each))
    if not found:
        context.printer.line("No approval requests.")
    if any(each.scope is ApprovalScope.SESSION for each in found):
        context.printer.remark(
            f"Revoke one with `holdfast approvals revoke {conversation.session_id} ID`."
        )
    return False


async def calls(context: SlashContext, argument: str) -> bool:
    """Show the session's calls and their states."""
    require_no_argument(argument)
    conversation = context.conversation
    page = await conversation.holdfast.calls.list(
        conversation.holdfast.owner, conversation.session_id
    )
    found = page.items
    for each in found:
        label = await call_status(conversation.holdfast, each)
        context.printer.line(f"{each.id}  {label}  {call_line(each.name, each.arguments)}")
    if not found:
        context.printer.line("No tool calls yet.")
    if Counter(each.state for each in found)[CallState.UNKNOWN]:
        context.printer.remark("Settle an unknown call with `holdfast calls settle CALL`.")
    return False


async def compact(context: SlashContext, argument: str) -> bool:
    """Replace what came before the last answered turn with a summary."""
    require_no_argument(argument)
    conversation = context.conversation
    holdfast = conversation.holdfast
    is_folded = await holdfast.compactions.compact(holdfast.owner, conversation.session_id)
    if not is_folded:
        context.printer.line("There is nothing to summarize.")
    await conversation.catch_up()
    return False


async def export(context: SlashContext, argument: str) -> bool:
    """Run `holdfast sessions export`."""
    from holdfast.cli.session_export import STDOUT, export

    file, flags = _FORCE.subn("", argument)
    out = file.strip() or None
    # An unknown flag; a file whose name starts with a dash is unlikely to be intended.
    if out is not None and out.startswith("-") and out != STDOUT:
        raise WrongArgumentError
    session_id = context.conversation.session_id
    await export(context.printer, id=session_id, out=out, force=flags > 0)
    return False


async def doctor(context: SlashContext, argument: str) -> bool:
    """Run `holdfast doctor`."""
    from holdfast.cli.doctor import examine

    require_no_argument(argument)
    require_local(context.printer.settings, "/doctor")
    await examine(context.printer)
    return False


def _mode(argument: str) -> ApprovalMode:
    try:
        return ApprovalMode(argument.lower())
    except ValueError:
        raise WrongArgumentError from None


def _line(approval: Approval) -> str:
    question = approval.question
    line = f"{approval.id}  {approval.state}  {call_line(question.tool, question.arguments)}"
    if approval.state is ApprovalState.WAITING:
        return line
    reach = f", for {question.memory}" if approval.scope is ApprovalScope.SESSION else ""
    return f"{line} (by {approval.answered_by or 'no one'}{reach})"


async def costs_by_model(holdfast: "Holdfast", session_id: SessionId) -> tuple[CostSum, ...]:
    """Return the cost of a session, by model."""
    query = CostQuery(owner=holdfast.owner, session_id=session_id)
    return (await holdfast.costs.report(query)).groups


SHOWN_TURNS: Final = 20


async def run_slash_command(context: SlashContext, line: str) -> bool:
    """Run a slash command; return whether to leave the chat.

    Unknown commands and invalid arguments are reported with one line, and never sent to the agent.
    """
    word, _, argument = line[1:].strip().partition(" ")
    found = BY_NAME.get(word.lower())
    if found is None:
        nearest = difflib.get_close_matches(word.lower(), BY_NAME, n=1, cutoff=0.0)[0]
        context.printer.warn(
            f"There is no /{word}; did you mean /{nearest}? To send it as text, write //{word}."
        )
        return False
    try:
        return await found.run(context, argument.strip())
    except WrongArgumentError:
        context.printer.warn(f"Usage: {found.usage}.")
        return False


async def _help(context: SlashContext, argument: str) -> bool:
    require_no_argument(argument)
    width = max(len(each.usage) for each in REGISTRY)
    for each in REGISTRY:
        context.printer.line(f"{each.usage:<{width}}  {each.help}")
    context.printer.line(f"{'//text':<{width}}  send /text as a message")
    return False


async def _exit(_: SlashContext, argument: str) -> bool:
    require_no_argument(argument)
    return True


async def _end(context: SlashContext, argument: str) -> bool:
    require_no_argument(argument)
    return await _close(context, Status.COMPLETED)


async def _cancel(context: SlashContext, argument: str) -> bool:
    require_no_argument(argument)
    if await context.conversation.interrupt():
        return False
    return await _close(context, Status.CANCELLED)


async def _close(context: SlashContext, status: Status) -> bool:
    conversation = context.conversation
    holdfast = conversation.holdfast
    await holdfast.sessions.close(holdfast.owner, conversation.session_id, status=status)
    # Events are not followed between turns, so the closing event is not seen here.
    conversation.is_over = True
    return True


async def _history(context: SlashContext, argument: str) -> bool:
    most = parse_number(argument) if argument else SHOWN_TURNS
    session = await context.conversation.session()
    for line in lines_of_turns(await last_turns(context.conversation.holdfast, session, most)):
        context.printer.line(line)
    return False


async def _status(context: SlashContext, argument: str) -> bool:
    require_no_argument(argument)
    session = await context.conversation.session()
    context.printer.line(
        f"{session.id}  {session.status}, {session.settled} turns, "
        f"{session.message_count} messages, {session.usage.input} tokens in and "
        f"{session.usage.output} out, since {local_time(session.created_at)}"
    )
    return False


async def _cap(context: SlashContext, argument: str) -> bool:
    conversation = context.conversation
    holdfast = conversation.holdfast
    if argument:
        changes = {"turn_cap": parse_number(argument)}
        await holdfast.sessions.update(holdfast.owner, conversation.session_id, changes)
    session = await conversation.session()
    context.printer.line(f"The session may have {session.turn_cap} turns.")
    return False


async def _fork(context: SlashContext, argument: str) -> bool:
    conversation = context.conversation
    holdfast = conversation.holdfast
    at = await _last_row(context, parse_number(argument)) if argument else None
    fork = await holdfast.sessions.fork(
        holdfast.owner, conversation.session_id, at=at, is_settled=True
    )
    context.printer.line(f"This is now session {fork.id}; {conversation.session_id} is unchanged.")
    conversation.move_to(fork)
    return False


async def _last_row(context: SlashContext, turn: int) -> int:
    """Return the number of the last message of a turn."""
    session = await context.conversation.session()
    for past in await last_turns(context.conversation.holdfast, session, None):
        if past.number == turn:
            return past.messages[-1].sequence
    raise NotFound(Code.MESSAGE_NOT_FOUND, f"There is no turn {turn}; /history shows all turns.")


REGISTRY: Final = (
    SlashCommand("help", "/help", "show the commands", _help),
    SlashCommand("exit", "/exit", "leave; the session stays open", _exit),
    SlashCommand("end", "/end", "close the session as completed and leave", _end),
    SlashCommand(
        "cancel",
        "/cancel",
        "stop the turn; without one, cancel the session",
        _cancel,
    ),
    SlashCommand("history", "/history [N]", "show the last N turns (default 20)", _history),
    SlashCommand("status", "/status", "show the session's state", _status),
    SlashCommand("cost", "/cost", "show the session's cost by model", cost),
    SlashCommand(
        "mode",
        f"/mode [{'|'.join(ApprovalMode)}]",
        "show or change the approval mode",
        mode,
        tuple(ApprovalMode),
    ),
    SlashCommand("approvals", "/approvals", "show approval requests and answers", approvals),
    SlashCommand("calls", "/calls", "show the tool calls", calls),
    SlashCommand("compact", "/compact", "summarize everything before the last answer", compact),
    SlashCommand("cap", "/cap [N]", "show or change how many turns the session may have", _cap),
    SlashCommand("fork", "/fork [TURN]", "fork the session at the end of a turn", _fork),
    SlashCommand(
        "export",
        "/export [FILE] [--force]",
        "export the session, like `sessions export`",
        export,
    ),
    SlashCommand("doctor", "/doctor", "check the home folder and the store", doctor),
)
BY_NAME: Final = {each.name: each for each in REGISTRY}
