"""How a conversation begins: with a new session in a place, or with one that is picked up."""

import asyncio
import sys
from typing import TYPE_CHECKING

from holdfast.cli.conversation import Conversation
from holdfast.cli.opening import session_id
from holdfast.cli.options import ChatOptions
from holdfast.cli.output import Printer
from holdfast.cli.places import git_ref, working_dir
from holdfast.cli.screen import JsonScreen, Screen, TextScreen
from holdfast.cli.signals import Signals
from holdfast.cli.stream import EventLines
from holdfast.cli.terminal import is_terminal
from holdfast.domain.contexts import SessionContext
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.openings import SessionRequest
from holdfast.domain.sessions import Session
from holdfast.services.agents import BUILT_IN

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast
    from holdfast.domain.repos import Repo


def require_fitting(wanted: ChatOptions) -> None:
    """Refuse wishes that a session which is picked up cannot fulfil: they were fixed at opening."""
    fixed = {
        "--agent": wanted.agent,
        "--model": wanted.model,
        "--repo": wanted.repo,
        "--cwd": wanted.cwd,
        "--title": wanted.title,
        "--var": wanted.var,
    }
    named = [flag for flag, value in fixed.items() if value is not None]
    if wanted.resume is not None and named:
        raise Invalid(
            Code.INVALID_INPUT,
            f"{', '.join(named)} cannot be changed in a session that is resumed; leave it out, or "
            "open a new session.",
        )
    if wanted.repo is not None and wanted.cwd is not None:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --repo and --cwd.")


async def begin(
    printer: Printer, holdfast: "Holdfast", wanted: ChatOptions, signals: Signals
) -> Conversation:
    """Return the conversation, with its cursor before the first news to show."""
    if wanted.resume is not None:
        # Read before it is woken: what happens from then on is news.
        session = await holdfast.sessions.get(holdfast.owner, session_id(wanted.resume))
        screen = await _screen(printer, holdfast, session, session.last_event)
        conversation = Conversation(holdfast, session, screen, signals)
        await holdfast.sessions.resume(holdfast.owner, session.id)
        return conversation
    session = await _opened(holdfast, wanted)
    screen = await _screen(printer, holdfast, session, 0)
    conversation = Conversation(holdfast, session, screen, signals)
    # Before its own opening, because a stream of JSON begins with that.
    conversation.cursor = 0
    if is_terminal(sys.stderr) and wanted.prompt is not None:
        screen.remark(f"Session {session.id}")
    return conversation


async def _screen(printer: Printer, holdfast: "Holdfast", session: Session, after: int) -> Screen:
    if printer.is_json:
        return JsonScreen(printer, await EventLines.behind(holdfast, session, after))
    return TextScreen(printer, holdfast)


async def _opened(holdfast: "Holdfast", wanted: ChatOptions) -> Session:
    repo = await _repo(holdfast, wanted)
    request = SessionRequest(
        title=wanted.title,
        model=wanted.model,
        repo_id=repo.id if repo else None,
        context=await _context(wanted, repo),
        approval=holdfast.config.approval,
    )
    return await holdfast.open(wanted.agent or BUILT_IN, request)


async def _repo(holdfast: "Holdfast", wanted: ChatOptions) -> "Repo | None":
    if wanted.repo is None:
        return None
    path = str(wanted.repo.expanduser().absolute())
    return await holdfast.repos.add(holdfast.owner, path, at_terminal=True)


async def _context(wanted: ChatOptions, repo: "Repo | None") -> SessionContext | None:
    """Return the workspace as it is detected; without a folder the session gets its own."""
    folder = repo.path if repo else working_dir(wanted.cwd)
    variables = dict(_variable(each) for each in wanted.var or ())
    if folder is None:
        if variables:
            raise Invalid(Code.INVALID_INPUT, "There is no current folder; name one with --cwd.")
        return None
    return SessionContext(
        working_dir=folder,
        # In a thread, because a signal must be heard while git waits for a slow disk.
        git_ref=await asyncio.to_thread(git_ref, folder),
        variables=variables,
    )


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(Code.INVALID_INPUT, "A variable is written --var NAME=VALUE.")
    return name, value
