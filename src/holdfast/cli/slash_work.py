"""Slash commands about the agent's work: what it asks, does and costs, and what it may do."""

import re
from collections import Counter
from typing import Final

from holdfast.cli import doctor as doctors
from holdfast.cli.commands import require_here
from holdfast.cli.costs import by_model
from holdfast.cli.output import price
from holdfast.cli.results import standing
from holdfast.cli.slashes import Talk, WrongArgumentError, require_nothing
from holdfast.cli.tool_lines import call_line
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
from holdfast.domain.errors import Code, Denied

_FORCE: Final = re.compile(r"(?<!\S)--force(?!\S)")


async def cost(talk: Talk, argument: str) -> bool:
    """Show what the session has cost, as the store's ledger says."""
    require_nothing(argument)
    conversation = talk.conversation
    spent = await by_model(conversation.holdfast, conversation.session_id)
    lines = []
    for each in spent:
        told = price(each.microcents, priced=not each.unpriced_requests)
        tokens = f"{each.usage.input} tokens in, {each.usage.output} out"
        lines.append(f"{each.name or each.key}  {each.requests} requests, {tokens}, {told}")
    for line in sorted(lines):
        talk.printer.line(line)
    if not spent:
        talk.printer.line("No model was asked yet.")
    return False


async def mode(talk: Talk, argument: str) -> bool:
    """Show or change the approval mode; the configuration says how loose it may be."""
    conversation = talk.conversation
    holdfast, loosest = conversation.holdfast, conversation.holdfast.config.approval
    if argument:
        wanted = _mode(argument)
        if TIGHTNESS[wanted] > TIGHTNESS[loosest]:
            key = SETTING_KEYS["approval"].path
            is_remote = talk.printer.settings.server is not None
            file = "the server's own" if is_remote else holdfast.config.home / "holdfast.toml"
            raise Denied(
                Code.GRANT_EXCEEDED,
                f"The configuration allows {loosest} at most; edit {key} in {file}.",
                {"key": key},
            )
        changes = {"approval": wanted}
        await holdfast.sessions.update(holdfast.owner, conversation.session_id, changes)
    session = await conversation.session()
    talk.printer.line(f"The approval mode is {stricter_mode(session.approval, loosest)}.")
    return False


async def approvals(talk: Talk, argument: str) -> bool:
    """Show the session's questions: those that wait, and what was answered."""
    require_nothing(argument)
    conversation = talk.conversation
    page = await conversation.holdfast.approvals.list(
        conversation.holdfast.owner, conversation.session_id
    )
    found = page.items
    for each in found:
        talk.printer.line(_line(each))
    if not found:
        talk.printer.line("Nothing was asked.")
    if any(each.scope is ApprovalScope.SESSION for each in found):
        talk.printer.remark(
            f"`holdfast approvals revoke {conversation.session_id} ID` takes one back."
        )
    return False


async def calls(talk: Talk, argument: str) -> bool:
    """Show the session's calls and how far each has come."""
    require_nothing(argument)
    conversation = talk.conversation
    page = await conversation.holdfast.calls.list(
        conversation.holdfast.owner, conversation.session_id
    )
    found = page.items
    for each in found:
        told = await standing(conversation.holdfast, each)
        talk.printer.line(f"{each.id}  {told}  {call_line(each.name, each.arguments)}")
    if not found:
        talk.printer.line("The agent has done nothing yet.")
    if Counter(each.state for each in found)[CallState.UNKNOWN]:
        talk.printer.remark("`holdfast calls settle CALL` puts an unknown one right.")
    return False


async def compact(talk: Talk, argument: str) -> bool:
    """Fold what came before the last answered turn into a summary."""
    require_nothing(argument)
    conversation = talk.conversation
    holdfast = conversation.holdfast
    is_folded = await holdfast.compactions.compact(holdfast.owner, conversation.session_id)
    if not is_folded:
        talk.printer.line("There is nothing to sum up.")
    await conversation.catch_up()
    return False


async def export(talk: Talk, argument: str) -> bool:
    """Do what `holdfast sessions export` does."""
    from holdfast.cli.session_export import STDOUT, ExportOptions, export

    file, flags = _FORCE.subn("", argument)
    out = file.strip() or None
    # Another flag is none that is known here, and a file of such a name is nobody's wish.
    if out is not None and out.startswith("-") and out != STDOUT:
        raise WrongArgumentError
    wanted = ExportOptions(id=talk.conversation.session_id, out=out, force=flags > 0)
    await export(talk.printer, wanted)
    return False


async def doctor(talk: Talk, argument: str) -> bool:
    """Do what `holdfast doctor` does."""
    require_nothing(argument)
    require_here(talk.printer.settings, "/doctor")
    await doctors.examine(talk.printer, doctors.DoctorOptions())
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
    return f"{line} (by {approval.answered_by or 'nobody'}{reach})"
