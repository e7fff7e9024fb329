"""`holdfast sessions …`: list, read, verify, resume, interrupt, fork, close and delete sessions."""

import signal
import sys
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from holdfast.api import Holdfast
from holdfast.cli import session_export
from holdfast.cli.chat.transcript import lines_of
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.errors import FINDINGS
from holdfast.cli.json_stream import EventLines
from holdfast.cli.options import (
    LIMIT_MOST,
    SESSION_HELP,
    Paging,
    SessionArgument,
    argument,
    flag,
    message_cursor,
    option,
)
from holdfast.cli.output import Printer, local_time, money
from holdfast.cli.session_refs import find_session, short_ids
from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.queries import MESSAGES_MOST, Page, SessionOrder, SessionQuery, require_limit
from holdfast.domain.sessions import Status
from holdfast.domain.turns import Endings
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.services.session_views import OverviewPage, SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.messages import MessageList, message_forms
from holdfast.wire.session_actions import Compacted, Interrupted, resumed_form, verified_form
from holdfast.wire.sessions import session_form

app = typer.Typer()
group = add_group(app, "sessions")


# A page may end before the notice that its last answer was interrupted.
READ_AHEAD = 200


@dataclass(frozen=True, kw_only=True)
class SessionListOptions(Paging):
    """Which sessions."""

    status: Annotated[
        list[Status] | None,
        option("STATUS", f"Only sessions with this status: {', '.join(Status)}; repeatable."),
    ] = None
    agent: Annotated[str | None, option("AGENT", "Only sessions of this agent.")] = None
    tag: Annotated[list[str] | None, option("TAG", "Only sessions with this tag.")] = None
    query: Annotated[str | None, option("TEXT", "Only sessions with this text in their title.")] = (
        None
    )
    all: Annotated[bool, flag("All sessions, without a limit.", "--all")] = False

    def is_narrowed(self) -> bool:
        """Return whether any filter is set."""
        return any((self.status, self.agent, self.tag, self.query, self.cursor))


@command(app, "chat-list")
@command(group, "list")
async def show_list(printer: Printer, options: SessionListOptions) -> None:
    """List sessions, most recently used first."""
    async with connect(printer) as holdfast:
        page = await _list_page(holdfast, options)
    shown = short_ids([each.session.id for each in page.items])
    printer.listing(
        [session_form(each) for each in page.items],
        page.next_cursor,
        ("ID", "STATUS", "UPDATED", "AGENT", "COST", "TITLE"),
        [_row(each, shown[each.session.id]) for each in page.items],
    )
    if not page.items and options.is_narrowed():
        printer.remark("No matching sessions; remove a filter or the cursor.")
    elif not page.items:
        printer.remark("No sessions; start one with `holdfast chat`.")


@command(group, "show")
async def show_one(printer: Printer, *, id: SessionArgument) -> None:
    """Show a session's state and cost."""
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        overview = await holdfast.session_views.get(holdfast.owner, session_id)
    printer.record(session_form(overview), _facts(overview))


@command(group, "tree")
async def show_tree(printer: Printer, *, id: SessionArgument) -> None:
    """Show a session and the sessions that it has started, and these have started."""
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        tree = await holdfast.children.tree(holdfast.owner, session_id)
        found = [await holdfast.session_views.get(holdfast.owner, each.id) for each in tree]
    if printer.is_json:
        printer.document({"data": [session_form(each) for each in found], "next_cursor": None})
        return
    shown, depths = short_ids([each.id for each in tree]), {session_id: 0}
    for each in found:
        session, above = each.session, each.session.parent
        depth = depths.get(above.session_id, -1) + 1 if above and session.id != session_id else 0
        depths[session.id] = depth
        waits = f"  {session.waiting.text}" if session.waiting else ""
        name = f"{shown[session.id]}  {session.agent.slug}  {session.title or '-'}"
        printer.line(f"{'  ' * depth}{name}  {session.status.value}  {_cost(each)}{waits}")


@command(group, "messages")
async def show_messages(
    printer: Printer,
    *,
    id: SessionArgument,
    after: Annotated[int, option("N", "Only messages after this one.")] = 0,
    limit: Annotated[
        int | None, option("N", "At most this many; default: all, up to 10,000.")
    ] = None,
    cursor: Annotated[str | None, option("CURSOR", "Continue after this page.")] = None,
) -> None:
    """Show the messages of a session, oldest first."""
    after = message_cursor(cursor, after)
    async with connect(printer) as holdfast:
        owner, session = holdfast.owner, await find_session(holdfast, id)
        limit = MESSAGES_MOST if limit is None else limit
        page = await holdfast.messages.list(owner, session, after=after, limit=limit)
        if printer.is_json:
            cut = await _find_interrupted(holdfast, session, page)
            forms = message_forms(page.items, session, cut)
            printer.document(MessageList(data=forms, next_cursor=page.next_cursor))
            return
    for message in page.items:
        for line in lines_of(message):
            printer.line(line)
    if page.next_cursor is not None:
        printer.remark(f"More results: --cursor {page.next_cursor}")
    elif not page.items and after:
        printer.remark(f"There is no message after {after}.")
    elif not page.items:
        printer.remark(f"No messages; send the first with `holdfast chat --resume {session}`.")


async def _find_interrupted(
    holdfast: Holdfast, session_id: SessionId, page: Page[Message]
) -> frozenset[MessageId]:
    """Return which messages of a page were cut off; reads on until the last turn's end is known."""
    endings = Endings()
    endings.add(page.items)
    cursor = page.next_cursor
    while cursor is not None and endings.is_undecided(page.items):
        following = await holdfast.messages.list(
            holdfast.owner, session_id, after=int(cursor), limit=READ_AHEAD
        )
        endings.add(following.items)
        cursor = following.next_cursor
    return endings.interrupted(page.items)


@command(group, "events")
async def show_events(
    printer: Printer,
    *,
    id: SessionArgument,
    after: Annotated[int, option("N", "Only events after this one.")] = 0,
    limit: Annotated[int, option("N", "At most this many, 1 to 10,000.")] = 1_000,
    cursor: Annotated[str | None, option("CURSOR", "Continue after this page.")] = None,
    follow: Annotated[bool, flag("Wait for new events, until Ctrl-C.", "--follow", "-f")] = False,
) -> None:
    """Show the events of a session.

    With --json, events have the same form as in `chat --json`: one document, or with --follow one
    event per line.
    """
    after = message_cursor(cursor, after)
    async with connect(printer) as holdfast:
        owner = holdfast.owner
        session = await holdfast.sessions.get(owner, await find_session(holdfast, id))
        if not follow:
            page = await holdfast.events.list(owner, session.id, after=after, limit=limit)
            # Events before the cursor are read too, because some lines repeat their data.
            lines = await EventLines.from_sequence(holdfast, session, after)
            forms = [await lines.line(item) for item in page.items]
            rows = [_event_row(form) for form in forms]
            printer.listing(forms, page.next_cursor, ("NUMBER", "TIME", "TYPE", "DATA"), rows)
            if not rows:
                printer.remark(
                    f"There is no event after {after}; use --follow to wait for the next."
                )
            return
        lines = await EventLines.from_sequence(holdfast, session, after)
        async with aclosing(holdfast.follow(session.id, after=after)) as items:
            async for item in items:
                form = await lines.line(item)
                if printer.is_json:
                    printer.document(form)
                else:
                    printer.line("\t".join(_event_row(form)))
                    printer.flush()


def _event_row(form: dict[str, object]) -> tuple[str, ...]:
    envelope = ("type", "timestamp", "sequenceNumber", "sessionId")
    data = {name: value for name, value in form.items() if name not in envelope}
    said = msgspec.json.encode(data).decode() if data else ""
    return (str(form["sequenceNumber"]), str(form["timestamp"]), str(form["type"]), said)


# Not `Status` itself: a person can choose only two of its values.
class Ending(StrEnum):
    """How a session ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"


@command(group, "resume")
async def resume(printer: Printer, *, id: SessionArgument) -> None:
    """Reopen a closed session.

    An open session does not change. A waiting turn is run by the process that runs turns.
    """
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        resumed = await holdfast.sessions.resume(holdfast.owner, session_id)
        session = resumed.session
        overview = await holdfast.session_views.get(holdfast.owner, session.id)
    form = resumed_form(overview, resumed.turns_left)
    printer.done(form, f"Session {session.id} is {session.status}.")
    if session.turn > session.settled:
        printer.remark(
            "A turn is waiting: a running server runs it, or `holdfast chat --resume "
            f"{session.id}`."
        )


@command(group, "interrupt")
async def interrupt(printer: Printer, *, id: SessionArgument) -> None:
    """Stop the running turn of a session.

    The partial answer is saved, and the session stays open.
    """
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        done = await holdfast.sessions.interrupt(holdfast.owner, session_id)
        form = session_form(await holdfast.session_views.get(holdfast.owner, done.session.id))
    shown = Interrupted(session=form, interrupted=done.turn is not None, turn=done.turn)
    printer.done(shown, f"Session {done.session.id} is {done.session.status}.")
    if not done.is_settled:
        printer.remark(f"Turn {done.turn} will end as soon as the store can be written.")


@command(group, "compact")
async def compact(printer: Printer, *, id: SessionArgument) -> None:
    """Summarize everything before the last answer.

    From then on the model gets the summary instead. No message is removed or changed.
    """
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        is_folded = await holdfast.compactions.compact(holdfast.owner, session_id)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        form = session_form(await holdfast.session_views.get(holdfast.owner, session.id))
    label = "has been summarized" if is_folded else "has nothing to summarize"
    shown = Compacted(compacted=is_folded, session=form)
    printer.done(shown, f"Session {session.id} {label}.")


@command(group, "fork")
async def fork(
    printer: Printer,
    *,
    id: SessionArgument,
    at: Annotated[
        int | None, option("N", "The message to fork at; default: the end of the last turn.")
    ] = None,
    title: Annotated[str | None, option("TITLE", "The title of the fork.")] = None,
) -> None:
    """Fork a session at a message."""
    async with connect(printer) as holdfast:
        parent_id = await find_session(holdfast, id)
        session = await holdfast.sessions.fork(
            holdfast.owner, parent_id, at=at, title=title, is_settled=True
        )
        form = session_form(await holdfast.session_views.get(holdfast.owner, session.id))
    printer.done(form, f"Created session {session.id}, a fork of {parent_id}.")


@command(group, "update")
async def update(
    printer: Printer,
    *,
    id: SessionArgument,
    title: Annotated[str | None, option("TITLE", "The title.")] = None,
    model: Annotated[
        str | None, option("P:N", "The model to try first, from the next turn.")
    ] = None,
    turn_cap: Annotated[int | None, option("N", "How many turns the session may have.")] = None,
) -> None:
    """Change the title, the model or the turn cap of a session."""
    given = {"title": title, "model": model, "turn_cap": turn_cap}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise Invalid(Code.INVALID_INPUT, "Name a change: --title, --model or --turn-cap.")
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        await holdfast.sessions.update(holdfast.owner, session_id, changes)
        form = session_form(await holdfast.session_views.get(holdfast.owner, session_id))
    printer.done(form, f"Session {session_id} has been changed.")


@command(group, "close")
async def close(
    printer: Printer,
    *,
    id: SessionArgument,
    ending: Annotated[
        Ending, option(None, "The final status of the session.", "--as")
    ] = Ending.COMPLETED,
    reason: Annotated[str | None, option("TEXT", "The reason for closing it.")] = None,
) -> None:
    """Close a session; `resume` reopens it."""
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        session = await holdfast.sessions.close(
            holdfast.owner,
            session_id,
            status=Status(ending),
            reason=reason,
        )
        form = session_form(await holdfast.session_views.get(holdfast.owner, session.id))
    printer.done(form, f"Session {session.id} is {session.status}.")


@command(group, "delete")
async def delete(
    printer: Printer,
    *,
    id: SessionArgument,
    cascade: Annotated[bool, flag("Delete its forks and children too.", "--cascade")] = False,
    detach: Annotated[
        bool, flag("First make its forks and children independent.", "--detach")
    ] = False,
    yes: Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")] = False,
) -> int | None:
    """Delete a session and its messages permanently."""
    if cascade and detach:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --cascade and --detach.")
    policy = (
        DeletePolicy.CASCADE if cascade else DeletePolicy.DETACH if detach else DeletePolicy.REFUSE
    )
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        if not yes and not _confirm_deletion(printer, session.title or session.id):
            printer.remark("Nothing was deleted.")
            return 1
        gone = await holdfast.sessions.delete(holdfast.owner, session.id, policy=policy)
    label = "Session" if len(gone) == 1 else "Sessions"
    printer.done({"deleted": list(gone)}, f"{label} {', '.join(gone)} deleted.")
    return None


def _confirm_deletion(printer: Printer, name: str) -> bool:
    """Ask for confirmation; without a terminal, the command itself is the confirmation."""
    if printer.is_json or not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return True
    # On stderr, and in spite of -q: an unseen question looks like a hang.
    printer.warn(f"Delete “{name}” and all its messages permanently? [y/N]")
    # asyncio's handler would only record a Ctrl-C; here it must interrupt the blocking read.
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    finally:
        signal.signal(signal.SIGINT, previous_handler)


command(app, "chat-export")(command(group, "export")(session_export.export))


@command(group, "verify")
async def verify(
    printer: Printer,
    *,
    id: Annotated[str | None, argument("ID", f"{SESSION_HELP} Default: all sessions.")] = None,
) -> int:
    """Verify that messages are unchanged.

    Every message is checked against its hash chain. Exits with 1 if a check fails.
    """
    async with connect(printer) as holdfast:
        if id is not None:
            ids = [await find_session(holdfast, id)]
        else:
            every = await _list_page(holdfast, SessionListOptions(all=True))
            ids = [each.session.id for each in every.items]
        checked = [await holdfast.sessions.verify(holdfast.owner, each) for each in ids]
    if printer.is_json:
        forms = [verified_form(each) for each in checked]
        printer.document(forms[0] if id is not None else {"data": forms})
    else:
        _print_verification(printer, checked)
    return FINDINGS if any(each.faults for each in checked) else 0


def _print_verification(printer: Printer, checked: list[Verification]) -> None:
    if not checked:
        printer.remark("No sessions to check; start one with `holdfast chat`.")
        return
    for each in checked:
        for fault in each.faults:
            printer.line(f"{each.session_id}: {fault}")
    bad = sum(bool(each.faults) for each in checked)
    rows = sum(each.messages for each in checked)
    sound = f"{len(checked) - bad} of {len(checked)} sessions are intact"
    printer.line(f"{sound} ({rows} messages checked).")


async def _list_page(holdfast: Holdfast, options: SessionListOptions) -> OverviewPage:
    """Return the requested page, or all pages as one."""
    # The option may be a slug, but sessions refer to their agent by id.
    agent = await holdfast.agents.get(holdfast.owner, options.agent) if options.agent else None
    query = SessionQuery(
        owner=holdfast.owner,
        agent_id=agent.id if agent else None,
        statuses=tuple(options.status or ()),
        tags=tuple(options.tag or ()),
        text=options.query,
        order=SessionOrder.UPDATED_AT,
        limit=require_limit(options.limit, most=LIMIT_MOST),
    )
    page = await holdfast.session_views.list(query, cursor=options.cursor)
    found = list(page.items)
    while options.all and page.next_cursor is not None:
        page = await holdfast.session_views.list(query, cursor=page.next_cursor)
        found += page.items
    return OverviewPage(items=tuple(found), next_cursor=page.next_cursor)


def _cost(overview: SessionOverview) -> str:
    spent = overview.spent
    return money(
        spent.microcents, priced=not spent.unpriced_requests, estimated=spent.is_upper_bound
    )


def _row(overview: SessionOverview, shown_id: str) -> tuple[str, ...]:
    session = overview.session
    return (
        shown_id,
        session.status.value,
        local_time(session.updated_at),
        session.agent.slug,
        _cost(overview),
        session.title or "-",
    )


def _facts(overview: SessionOverview) -> dict[str, object]:
    session, usage = overview.session, overview.spent.usage
    fork = session.forked_from
    return {
        "id": session.id,
        "title": session.title,
        "agent": session.agent.slug,
        "status": session.status.value,
        "last turn": session.last_stop.value if session.last_stop else None,
        "reason": session.reason,
        "turns": f"{session.settled} settled, {session.turn - session.settled} waiting",
        "waiting": session.waiting.text if session.waiting else None,
        "messages": session.message_count,
        "events": session.last_event,
        "tokens": f"{usage.input + usage.cache_write} in, {usage.output} out",
        "cost": _cost(overview),
        "folder": session.context.working_dir,
        "git": session.context.git_ref,
        "forked from": f"{fork.session_id} at message {fork.sequence}" if fork else None,
        "started by": session.parent.session_id if session.parent else None,
        "has started": f"{session.children} sessions" if session.children else None,
        "created": local_time(session.created_at),
        "updated": local_time(session.updated_at),
    }
