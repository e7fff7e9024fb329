"""`holdfast approvals list|show|answer|revoke`: manage approvals from any terminal."""

from typing import Annotated, Final

import typer

from holdfast.api import Holdfast
from holdfast.cli.approval_policy import is_for_session
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import (
    LIMIT,
    LIMIT_MOST,
    SESSION_HELP,
    Cursor,
    Limit,
    argument,
    flag,
    option,
)
from holdfast.cli.output import Printer, local_time
from holdfast.cli.session_refs import find_session
from holdfast.domain.approvals import Approval, ApprovalScope, ApprovalState, Decision
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.queries import require_limit
from holdfast.domain.text import escape_hidden
from holdfast.wire.approvals import approval_form

app = typer.Typer()
group = add_group(app, "approvals")


BY_COMMAND: Final = "cli"
BEGINNING_SHORTEST: Final = 8
FIRST: Final = argument(
    "SESSION",
    f"{SESSION_HELP} The only argument is the id of a pending request, or of a session "
    "with one pending request.",
)
SECOND: Final = argument("APPROVAL", "The request's id, or a prefix of at least 8 characters.")


@command(group, "list")
async def show_list(
    printer: Printer,
    *,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
    session: Annotated[
        str | None, option("ID", "Only requests of this session, answered or not.")
    ] = None,
    state: Annotated[
        ApprovalState | None,
        option("STATE", f"Only requests in this state: {', '.join(ApprovalState)}."),
    ] = None,
) -> None:
    """List approval requests, oldest first.

    Without --session and --state, lists the pending requests of all your sessions.
    """
    limit = require_limit(limit, most=LIMIT_MOST)
    if session is None and state is None:
        state = ApprovalState.WAITING
    async with connect(printer) as holdfast:
        session = await find_session(holdfast, session) if session else None
        page = await holdfast.approvals.list(
            holdfast.owner, session, state=state, cursor=cursor, limit=limit
        )
    printer.listing(
        [approval_form(each) for each in page.items],
        page.next_cursor,
        ("ID", "STATE", "ASKED", "TOOL", "SESSION", "QUESTION"),
        map(_row, page.items),
    )
    if not page.items and cursor is None:
        is_about_waiting = state is ApprovalState.WAITING
        printer.remark(f"No {'pending' if is_about_waiting else 'matching'} approval requests.")


@command(group, "show")
async def show_one(
    printer: Printer, *, first: Annotated[str, FIRST], second: Annotated[str | None, SECOND] = None
) -> None:
    """Show an approval request and its answer."""
    async with connect(printer) as holdfast:
        approval = await _find_approval(holdfast, first, second)
    printer.record(approval_form(approval), _facts(approval))


@command(group, "answer")
async def answer(
    printer: Printer,
    *,
    first: Annotated[str, FIRST],
    second: Annotated[str | None, SECOND] = None,
    allow: Annotated[bool, flag("Allow the call.", "--allow")] = False,
    deny: Annotated[bool, flag("Deny the call.", "--deny")] = False,
    for_session: Annotated[
        bool,
        flag(
            "With --allow: also allow similar calls for the rest of the session.", "--for-session"
        ),
    ] = False,
    note: Annotated[
        str | None, option("TEXT", "The reason, shown to the agent; at most 500 characters.")
    ] = None,
    digest: Annotated[
        str | None, option("HEX", "Answer only if the request has this digest.")
    ] = None,
) -> None:
    """Answer an approval request.

    The first answer counts, from any surface; the process that runs the turn continues.
    """
    if allow is deny:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --allow and --deny.")
    if for_session and deny:
        raise Invalid(Code.INVALID_INPUT, "--for-session requires --allow.")
    said = Decision(
        state=ApprovalState.ALLOWED if allow else ApprovalState.DENIED,
        by=BY_COMMAND,
        scope=ApprovalScope.SESSION if for_session else ApprovalScope.ONCE,
        note=note,
    )
    async with connect(printer) as holdfast:
        found = await _find_approval(holdfast, first, second)
        answered = await holdfast.approvals.answer(
            holdfast.owner, found.session_id, found.id, said, digest=digest
        )
    reach = " for the whole session" if answered.scope is ApprovalScope.SESSION else ""
    message = (
        f"{answered.question.tool} in session {answered.session_id} is {answered.state}{reach}."
    )
    printer.done(approval_form(answered), message)


@command(group, "revoke")
async def revoke(
    printer: Printer, *, first: Annotated[str, FIRST], second: Annotated[str | None, SECOND] = None
) -> None:
    """Revoke an approval that covers a whole session.

    From now on the agent has to ask again; actions already taken are not undone.
    """
    async with connect(printer) as holdfast:
        found = await _find_approval(holdfast, first, second)
        revoked = await holdfast.approvals.revoke(holdfast.owner, found.session_id, found.id)
    printer.done(approval_form(revoked), f"Revoked; {revoked.question.tool} has to ask again.")


async def _find_approval(holdfast: Holdfast, first: str, second: str | None) -> Approval:
    """Return the approval with an id or prefix; without a session it must be pending.

    A session alone is enough if one request of it is pending.
    """
    text = first if second is None else second
    session = None if second is None else await find_session(holdfast, first)
    asked = text.strip().lower()
    state = ApprovalState.WAITING if session is None else None
    listed = await holdfast.approvals.list(holdfast.owner, session, state=state)
    found = [each for each in listed.items if _matches(each.id, asked)]
    whose = (
        f"Several requests begin with {asked}; write more of the id, or put the session before it."
    )
    if not found and session is None:
        found = [each for each in listed.items if _matches(each.session_id, asked)]
        whose = f"Several requests of session {asked} are pending; write the id of one after it."
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(Code.INVALID_ID, whose, {"approvals": [each.id for each in found]})
    raise NotFound(
        Code.APPROVAL_NOT_FOUND,
        "There is no such pending request; `holdfast approvals list` shows them. For "
        "an answered request, put its session before its id."
        if session is None
        else (
            "The session has no such request; `holdfast approvals list --session` shows "
            "those it has."
        ),
    )


def _matches(known: str, reference: str) -> bool:
    is_beginning = len(reference) >= BEGINNING_SHORTEST and known.startswith(reference)
    return known == reference or is_beginning


def _row(approval: Approval) -> tuple[str, ...]:
    question = approval.question
    return (
        approval.id,
        approval.state.value,
        local_time(approval.asked_at),
        question.tool,
        approval.session_id,
        question.question,
    )


def _facts(approval: Approval) -> dict[str, object]:
    question = approval.question
    is_remembered = approval.scope is ApprovalScope.SESSION
    return {
        "id": approval.id,
        "session": approval.session_id,
        "tool": f"{question.tool} ({question.tool_class.replace('_', ' ')})",
        "state": approval.state.value,
        "answered by": approval.answered_by,
        "covers": question.memory if is_remembered else None,
        "may cover": question.memory if is_for_session(question) and not is_remembered else None,
        "note": approval.note,
        "asked": local_time(approval.asked_at),
        "expires": local_time(approval.expires_at),
        "digest": question.digest,
        # Last, because it may have many lines; never truncated.
        "question": "\n" + escape_hidden(question.question),
    }
