"""`holdfast sessions list|show|messages|verify`: reading what is written down."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import session_events, session_export, session_verbs
from holdfast.cli.commands import command
from holdfast.cli.errors import FINDINGS
from holdfast.cli.known_sessions import shown_ids
from holdfast.cli.opening import find_session, opened
from holdfast.cli.options import LIMIT_MOST, SESSION_HELP, OneSession, Paging, message_cursor
from holdfast.cli.output import Printer, local_time, money
from holdfast.domain.sessions import Session, Status

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.domain.messages import Message
    from holdfast.domain.queries import Page
    from holdfast.services.sessions import Verification

# A page may end before the notice which says that its last answer was cut off.
LOOK_AHEAD = 200


@dataclass(frozen=True, kw_only=True)
class ListOptions(Paging):
    """Which sessions."""

    status: Annotated[
        list[Status] | None,
        typer.Option(
            metavar="STATUS", help=f"Only sessions that are {', '.join(Status)}; repeatable."
        ),
    ] = None
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Only sessions of this agent.")
    ] = None
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only sessions with this tag.")
    ] = None
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only sessions with this in their title.")
    ] = None
    all: Annotated[bool, typer.Option("--all", help="All of them, whatever the limit.")] = False

    def is_narrowed(self) -> bool:
        """Tell whether something was said about which sessions."""
        return any((self.status, self.agent, self.tag, self.query, self.cursor))


async def show_list(printer: Printer, wanted: ListOptions) -> None:
    """List sessions.

    The one that was written to last comes first.
    """
    from holdfast.cli.costs import unpriced
    from holdfast.cli.forms import session_form

    async with opened(printer) as holdfast:
        page = await _pages(holdfast, wanted)
        unknown = await unpriced(holdfast, page.items)
    shown = shown_ids([each.id for each in page.items])
    printer.listing(
        [session_form(each, priced=each.id not in unknown) for each in page.items],
        page.next_cursor,
        ("ID", "STATUS", "UPDATED", "AGENT", "COST", "TITLE"),
        [_row(each, shown[each.id], priced=each.id not in unknown) for each in page.items],
    )
    if not page.items and wanted.is_narrowed():
        printer.remark("No session fits; leave a filter out, or the cursor.")
    elif not page.items:
        printer.remark("No sessions; `holdfast chat` opens one.")


async def show_one(printer: Printer, wanted: OneSession) -> None:
    """Show where a session stands and what it has cost."""
    from holdfast.cli.costs import unpriced
    from holdfast.cli.forms import session_form

    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        priced = session.id not in await unpriced(holdfast, [session])
    printer.record(session_form(session, priced=priced), _facts(session, priced=priced))


@dataclass(frozen=True, kw_only=True)
class MessagesOptions(OneSession):
    """Which messages."""

    after: Annotated[int, typer.Option(metavar="N", help="Only messages behind this one.")] = 0
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="At most so many; else all, up to 10,000.")
    ] = None
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind an earlier page.")
    ] = None


async def show_messages(printer: Printer, wanted: MessagesOptions) -> None:
    """Print the messages of a session.

    They come in the order they were written.
    """
    from holdfast.cli.forms import message_forms
    from holdfast.cli.transcript import lines_of
    from holdfast.domain.queries import MESSAGES_MOST

    after = message_cursor(wanted.cursor, wanted.after)
    async with opened(printer) as holdfast:
        owner, session = holdfast.owner, await find_session(holdfast, wanted.id)
        limit = MESSAGES_MOST if wanted.limit is None else wanted.limit
        page = await holdfast.messages.list(owner, session, after=after, limit=limit)
        following: tuple[Message, ...] = ()
        if page.next_cursor is not None:
            behind = await holdfast.messages.list(
                owner, session, after=int(page.next_cursor), limit=LOOK_AHEAD
            )
            following = behind.items
    if printer.is_json:
        forms = message_forms(page.items, following)
        printer.document({"data": forms, "next_cursor": page.next_cursor})
        return
    for message in page.items:
        for line in lines_of(message):
            printer.line(line)
    if page.next_cursor is not None:
        printer.remark(f"There is more: --cursor {page.next_cursor}")
    elif not page.items and after:
        printer.remark(f"There is no message behind {after}.")
    elif not page.items:
        printer.remark(f"No messages; `holdfast chat --resume {session}` says the first.")


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Which sessions to check."""

    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help=f"{SESSION_HELP} Without one, all sessions."),
    ] = None


async def verify(printer: Printer, wanted: VerifyOptions) -> int:
    """Check that messages are what was written.

    Every message is checked against the chain of hashes it belongs to. Ends with 1 if something
    is wrong.
    """
    from holdfast.cli.forms import verification_form

    async with opened(printer) as holdfast:
        if wanted.id is not None:
            ids = [await find_session(holdfast, wanted.id)]
        else:
            every = await _pages(holdfast, ListOptions(all=True))
            ids = [each.id for each in every.items]
        checked = [await holdfast.sessions.verify(holdfast.owner, each) for each in ids]
    if printer.is_json:
        forms = [verification_form(each) for each in checked]
        printer.document(forms[0] if wanted.id is not None else {"data": forms})
    else:
        _tell_verified(printer, checked)
    return FINDINGS if any(each.faults for each in checked) else 0


def _tell_verified(printer: Printer, checked: "list[Verification]") -> None:
    if not checked:
        printer.remark("No sessions to check; `holdfast chat` opens one.")
        return
    for each in checked:
        for fault in each.faults:
            printer.line(f"{each.session_id}: {fault}")
    bad = sum(bool(each.faults) for each in checked)
    rows = sum(each.messages for each in checked)
    sound = f"{len(checked) - bad} of {len(checked)} sessions are what was written"
    printer.line(f"{sound} ({rows} messages checked).")


async def _pages(holdfast: "House", wanted: ListOptions) -> "Page[Session]":
    """Return the wanted page, or all pages as one."""
    from holdfast.domain.queries import Page, SessionOrder, SessionQuery, require_limit

    # A slug may have been given, and sessions know their agent by its id.
    agent = await holdfast.agents.get(holdfast.owner, wanted.agent) if wanted.agent else None
    query = SessionQuery(
        owner=holdfast.owner,
        agent_id=agent.id if agent else None,
        statuses=tuple(wanted.status or ()),
        tags=tuple(wanted.tag or ()),
        text=wanted.query,
        order=SessionOrder.UPDATED_AT,
        limit=require_limit(wanted.limit, most=LIMIT_MOST),
    )
    page = await holdfast.sessions.list(query, cursor=wanted.cursor)
    found = list(page.items)
    while wanted.all and page.next_cursor is not None:
        page = await holdfast.sessions.list(query, cursor=page.next_cursor)
        found += page.items
    return Page(items=tuple(found), next_cursor=page.next_cursor)


def _row(session: Session, shown_id: str, *, priced: bool) -> tuple[str, ...]:
    return (
        shown_id,
        session.status.value,
        local_time(session.updated_at),
        session.agent.slug,
        money(session.microcents, priced=priced),
        session.title or "-",
    )


def _facts(session: Session, *, priced: bool) -> dict[str, object]:
    fork = session.forked_from
    return {
        "id": session.id,
        "title": session.title,
        "agent": session.agent.slug,
        "status": session.status.value,
        "last turn": session.last_stop.value if session.last_stop else None,
        "reason": session.reason,
        "turns": f"{session.settled} settled, {session.turn - session.settled} waiting",
        "messages": session.message_count,
        "events": session.last_event,
        "tokens": f"{session.usage.input} in, {session.usage.output} out",
        "cost": money(session.microcents, priced=priced),
        "folder": session.context.working_dir,
        "git": session.context.git_ref,
        "forked from": f"{fork.session_id} at message {fork.sequence}" if fork else None,
        "created": local_time(session.created_at),
        "updated": local_time(session.updated_at),
    }


def register(app: typer.Typer) -> None:
    """Put the group, and its other name, into the command line."""
    group = typer.Typer(
        name="sessions", help="Look at sessions and steer them.", no_args_is_help=True
    )
    command(group, "list", ListOptions)(show_list)
    command(group, "show", OneSession)(show_one)
    command(group, "messages", MessagesOptions)(show_messages)
    session_events.register(group)
    session_verbs.register(group)
    session_export.register(group)
    command(group, "verify", VerifyOptions)(verify)
    app.add_typer(group)
    command(app, "chat-list", ListOptions)(show_list)
    session_export.register_alone(app)
