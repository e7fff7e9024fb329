"""`holdfast sessions resume|interrupt|compact|fork|close|delete`: steering from outside."""

import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.opening import find_session, opened
from holdfast.cli.options import OneSession
from holdfast.cli.output import Printer
from holdfast.cli.terminal import is_terminal

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.domain.ids import SessionId
    from holdfast.domain.sessions import Session


# Not `Status` itself: of its values only these two are for a person to choose.
class Ending(StrEnum):
    """How a session ends."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"


async def resume(printer: Printer, wanted: OneSession) -> None:
    """Open a closed session again.

    An open one stays as it is. A turn that waits is played by whoever runs turns.
    """
    from holdfast.cli.costs import form_of

    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        session = (await holdfast.sessions.resume(holdfast.owner, session_id)).session
        form = await form_of(holdfast, session)
    printer.done(form, f"Session {session.id} is {session.status}.")
    if session.turn > session.settled:
        printer.remark(
            f"A turn waits in it: a running server plays it, or `holdfast chat --resume "
            f"{session.id}`."
        )


async def interrupt(printer: Printer, wanted: OneSession) -> None:
    """Stop the running turn of a session.

    What was streamed is kept, and the session stays open.
    """
    from holdfast.cli.costs import form_of

    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        done = await holdfast.sessions.interrupt(holdfast.owner, session_id)
        form = await form_of(holdfast, done.session)
    shown = {"session": form, "interrupted": done.turn is not None, "turn": done.turn}
    printer.done(shown, f"Session {done.session.id} is {done.session.status}.")
    if not done.is_settled:
        printer.remark(f"Turn {done.turn} ends as soon as the store can be written.")


async def compact(printer: Printer, wanted: OneSession) -> None:
    """Sum up what came before the last answer.

    From then on the model reads the summary instead. No message is removed or changed.
    """
    from holdfast.cli.costs import form_of

    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        is_folded = await holdfast.compactions.compact(holdfast.owner, session_id)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        form = await form_of(holdfast, session)
    told = "is summed up" if is_folded else "has nothing to sum up"
    printer.done({"compacted": is_folded, "session": form}, f"Session {session.id} {told}.")


@dataclass(frozen=True, kw_only=True)
class ForkOptions(OneSession):
    """Where to fork."""

    at: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Go on from this message; else from where the last turn ended."
        ),
    ] = None
    title: Annotated[str | None, typer.Option(metavar="TITLE", help="The fork's title.")] = None


async def forked(
    holdfast: "House", session_id: "SessionId", *, at: int | None, title: str | None = None
) -> "Session":
    """Open a session that goes on from a message, as it would over HTTP."""
    from holdfast.domain.sessions import ForkRequest

    # What a turn that runs has written so far is left to that turn.
    wish = ForkRequest(at=at, is_settled=True, title=title)
    return (await holdfast.sessions.make_fork(holdfast.owner, session_id, wish)).thing


async def fork(printer: Printer, wanted: ForkOptions) -> None:
    """Go on from a message in a new session."""
    from holdfast.cli.costs import form_of

    async with opened(printer) as holdfast:
        parent_id = await find_session(holdfast, wanted.id)
        session = await forked(holdfast, parent_id, at=wanted.at, title=wanted.title)
        form = await form_of(holdfast, session)
    printer.done(form, f"Session {session.id} goes on from {parent_id}.")


@dataclass(frozen=True, kw_only=True)
class CloseOptions(OneSession):
    """How to close."""

    ending: Annotated[Ending, typer.Option("--as", help="How the session ends.")] = Ending.COMPLETED
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why it ends.")] = None


async def close(printer: Printer, wanted: CloseOptions) -> None:
    """End a session; `resume` opens it again."""
    from holdfast.cli.costs import form_of
    from holdfast.domain.sessions import Status

    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        session = await holdfast.sessions.close(
            holdfast.owner,
            session_id,
            status=Status(wanted.ending),
            reason=wanted.reason,
        )
        form = await form_of(holdfast, session)
    printer.done(form, f"Session {session.id} is {session.status}.")


@dataclass(frozen=True, kw_only=True)
class DeleteOptions(OneSession):
    """What becomes of forks."""

    cascade: Annotated[bool, typer.Option("--cascade", help="Delete its forks too.")] = False
    detach: Annotated[bool, typer.Option("--detach", help="First make its forks stand alone.")] = (
        False
    )
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False


async def delete(printer: Printer, wanted: DeleteOptions) -> int | None:
    """Remove a session and its messages for good."""
    from holdfast.domain.errors import Code, Invalid
    from holdfast.services.session_lifecycle import DeletePolicy

    if wanted.cascade and wanted.detach:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --cascade and --detach.")
    heirs = (
        DeletePolicy.CASCADE
        if wanted.cascade
        else DeletePolicy.DETACH
        if wanted.detach
        else DeletePolicy.REFUSE
    )
    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        if not wanted.yes and not _is_sure(printer, session.title or session.id):
            printer.remark("Nothing was deleted.")
            return 1
        gone = await holdfast.sessions.delete(holdfast.owner, session.id, heirs=heirs)
    told = "Session" if len(gone) == 1 else "Sessions"
    printer.done({"deleted": list(gone)}, f"{told} {', '.join(gone)} deleted.")
    return None


def _is_sure(printer: Printer, name: str) -> bool:
    """Ask a person; where nobody sits, the command itself is the answer."""
    if printer.is_json or not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return True
    # Asked on stderr, and in spite of -q: an unseen question looks like a hang.
    printer.warn(f"Delete “{name}” and all its messages for good? [y/N]")
    # The loop would only note a Ctrl-C; here it has to end the waiting for a line.
    noted = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.readline().strip().lower() in {"y", "yes"}
    finally:
        signal.signal(signal.SIGINT, noted)


def register(group: typer.Typer) -> None:
    """Put the commands into the group."""
    command(group, "resume", OneSession)(resume)
    command(group, "interrupt", OneSession)(interrupt)
    command(group, "compact", OneSession)(compact)
    command(group, "fork", ForkOptions)(fork)
    command(group, "close", CloseOptions)(close)
    command(group, "delete", DeleteOptions)(delete)
