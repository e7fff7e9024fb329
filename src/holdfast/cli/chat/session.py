"""Opening or resuming the session of a conversation, and running one call again in it."""

import asyncio
import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from holdfast.cli.approval_policy import Manner
from holdfast.cli.chat.approvals import Answering, Asking, Questions, allow_by_flag
from holdfast.cli.chat.conversation import Conversation, Signals
from holdfast.cli.chat.live_page import fitting_page
from holdfast.cli.chat.prompt import AnswerPrompt
from holdfast.cli.chat.screen import NEVER_BY_FLAG, JsonScreen, TextScreen
from holdfast.cli.chat.tool_lines import result_of
from holdfast.cli.errors import EXIT_CODES, FINDINGS, INTERRUPTED
from holdfast.cli.forms import call_form, result_form
from holdfast.cli.json_stream import EventLines
from holdfast.cli.options import ChatOptions, InputForm
from holdfast.cli.output import Printer, money
from holdfast.cli.session_refs import find_session
from holdfast.cli.terminal import is_terminal
from holdfast.cli.workspace import git_ref, named_path, repository_around, working_dir
from holdfast.config import absolute_model
from holdfast.domain.agents import AcpRuntime, AgentStatus
from holdfast.domain.approvals import ApprovalMode, ApprovalState, stricter_mode
from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Conflict, Denied, Invalid
from holdfast.domain.messages import ResultStatus
from holdfast.domain.sessions import Session, SessionContext, SessionRequest
from holdfast.domain.tools import FsTier, Grant, narrowest_tier
from holdfast.services.agents import BUILT_IN

if TYPE_CHECKING:
    from holdfast.cli.services import House
    from holdfast.services.calls import SettlementRequest


def require_fitting(wanted: ChatOptions) -> None:
    """Refuse wishes that a session which is picked up cannot fulfil: they were fixed at opening."""
    fixed = {
        "--agent": wanted.agent,
        "--model": wanted.model,
        "--repo": wanted.repo,
        "--title": wanted.title,
        "--var": wanted.var,
        "--tools": wanted.tools,
        "--fs-scope": wanted.fs_scope,
    }
    named = [flag for flag, value in fixed.items() if value is not None]
    if wanted.resume is not None and named:
        raise Invalid(
            Code.INVALID_INPUT,
            f"{', '.join(named)} cannot be changed in a session that is resumed; leave it out, or "
            "open a new session.",
        )
    if wanted.prompt is not None and wanted.input is not InputForm.TEXT:
        raise Invalid(Code.INVALID_INPUT, "Choose one of PROMPT and --input; one is what is said.")
    if wanted.repo is not None and wanted.cwd is not None:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --repo and --cwd.")


async def begin(
    printer: Printer,
    holdfast: "House",
    wanted: ChatOptions,
    signals: Signals,
    manner: Manner,
) -> Conversation:
    """Return the conversation, with its cursor before the first news to show."""
    if wanted.resume is not None:
        # Read before it is woken: what happens from then on is news.
        session_id = await find_session(holdfast, wanted.resume)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        if not manner.is_attended:
            await _require_answered(holdfast, session, manner)
        conversation = await _following(printer, holdfast, session, signals, manner)
        place = await _place(wanted.cwd, is_remote=manner.is_remote)
        await holdfast.sessions.resume(holdfast.owner, session.id, context=place)
        await _tell_changed(holdfast, session, conversation)
        for told in _limits(session):
            conversation.screen.remark(told)
        return conversation
    session = await _opened(holdfast, wanted, is_remote=manner.is_remote)
    # Before its own opening, because a stream of JSON begins with that.
    conversation = await _following(
        printer, holdfast, replace(session, last_event=0), signals, manner
    )
    if is_terminal(sys.stderr) and wanted.prompt is not None:
        conversation.screen.remark(f"Session {session.id}")
    return conversation


async def _place(wish: Path | None, *, is_remote: bool) -> SessionContext | None:
    """Return where a session that is picked up moves to; nothing when it stays where it was."""
    if is_remote:
        return None if wish is None else SessionContext(working_dir=str(named_path(wish)))
    folder = working_dir(wish) if wish is not None else None
    if folder is None:
        return None
    # In a thread, because a signal must be heard while git waits for a slow disk.
    return SessionContext(working_dir=folder, git_ref=await asyncio.to_thread(git_ref, folder))


async def _tell_changed(holdfast: "House", session: Session, conversation: Conversation) -> None:
    """Say that the session's agent is not the one that a new session would get."""
    agent = await holdfast.agents.get(holdfast.owner, session.agent_id)
    if agent.updated_at > session.created_at:
        conversation.screen.remark(
            f"Agent {agent.slug} was changed since; this session keeps it as it was opened."
        )


def _limits(session: Session) -> Iterator[str]:
    """Yield which of a session's limits are reached: what is said now ends at once."""
    if session.settled >= session.turn_cap:
        cap = session.turn_cap
        yield f"The session has had its {cap} turns, and none is left; fork it to go on."
    budget = session.budget
    if budget is not None and 0 < budget.microcents <= session.microcents:
        yield f"The session's budget of {money(budget.microcents, priced=True)} is spent."


async def _require_answered(holdfast: "House", session: Session, manner: Manner) -> None:
    """Refuse to go on, with nobody there, where a question waits: that could take a day.

    Also where a server holds the turn, which waits, and knows no flag of ours.
    """
    waiting = await holdfast.approvals.list(holdfast.owner, session.id, state=ApprovalState.WAITING)
    for approval in waiting.items:
        if not manner.answers(approval.question):
            raise Conflict(
                Code.APPROVAL_WAITING,
                f"{approval.question.tool} waits for an answer in this session; give it with "
                f"`holdfast approvals answer {approval.id} --allow` or --deny.",
                {"approval": approval.id, "tool": approval.question.tool},
            )
    for approval in waiting.items:
        await allow_by_flag(holdfast, approval)


async def _following(
    printer: Printer,
    holdfast: "House",
    session: Session,
    signals: Signals,
    manner: Manner,
) -> Conversation:
    """Return a conversation whose cursor is where the session was when it was read."""
    if not printer.is_json:
        return conversing(printer, holdfast, session, signals, manner)
    lines = await EventLines.behind(holdfast, session, session.last_event)
    screen = JsonScreen(printer, lines)
    answering = Answering(holdfast, screen, manner)
    return Conversation(holdfast, session, screen, signals, answering)


def conversing(
    printer: Printer,
    holdfast: "House",
    session: Session,
    signals: Signals,
    manner: Manner,
) -> Conversation:
    """Return a conversation in words for people; remarks are left out where JSON is wanted."""
    screen = TextScreen(printer, holdfast, manner, fitting_page(printer, manner))
    asking: Asking | Answering = Answering(holdfast, screen, manner)
    if manner.asks:
        asking = Asking(holdfast, screen, Questions(printer, AnswerPrompt(), manner))
    return Conversation(holdfast, session, screen, signals, asking)


async def _opened(holdfast: "House", wanted: ChatOptions, *, is_remote: bool) -> Session:
    """Open the session; whatever can be refused is refused before anything is written."""
    wanted = await _answered_by(holdfast, wanted, is_remote=is_remote)
    wanted = wanted if is_remote else await _housed(holdfast, wanted)
    context = _remote_context(wanted) if is_remote else await _context(holdfast, wanted)
    request = SessionRequest(
        title=wanted.title,
        model=absolute_model(wanted.model) if wanted.model is not None else None,
        context=context,
        tools=_tools(wanted.tools),
        approval=holdfast.config.approval,
    )
    await _require_openable(holdfast, wanted, request)
    if wanted.repo is not None:
        path = str(named_path(wanted.repo))
        repo = await holdfast.repos.add(holdfast.owner, path, at_terminal=True)
        request = replace(request, repo_id=repo.id)
        if is_remote and context is not None:
            request = replace(request, context=replace(context, working_dir=repo.path))
    return await holdfast.open(wanted.agent or BUILT_IN, request)


async def _answered_by(holdfast: "House", wanted: ChatOptions, *, is_remote: bool) -> ChatOptions:
    """Name the stored agent that is meant: its reference may be that of a file."""
    from holdfast.cli.agent_files import agent_named

    if wanted.agent is None:
        return wanted
    folder = _folder(wanted) if not is_remote else None
    named = await agent_named(holdfast, wanted.agent, Path(folder) if folder else None)
    return dataclasses.replace(wanted, agent=named)


async def _housed(holdfast: "House", wanted: ChatOptions) -> ChatOptions:
    """Name the repository around the folder, for an agent that works in nothing else."""
    from holdfast.acp.client.agent_command import find_agent_program

    if wanted.agent is None or wanted.agent == BUILT_IN:
        return wanted
    agent = await holdfast.agents.get(holdfast.owner, wanted.agent)
    if not isinstance(agent.runtime, AcpRuntime):
        return wanted
    # Said before a repository is registered for a session that could not be opened.
    find_agent_program(agent.runtime, os.environ)
    if wanted.repo is not None:
        return wanted
    folder = working_dir(wanted.cwd)
    # In a thread, because a signal must be heard while a slow disk is looked at.
    around = await asyncio.to_thread(repository_around, folder) if folder else None
    if around is None:
        raise Invalid(
            Code.REPO_REQUIRED,
            f"Agent {agent.slug} works in a Git repository, and there is none around this folder; "
            "run this inside of one, or name one with --repo.",
        )
    return dataclasses.replace(wanted, repo=Path(around), cwd=None)


async def _require_openable(
    holdfast: "House", wanted: ChatOptions, request: SessionRequest
) -> None:
    if request.model is not None:
        await holdfast.models.check(request.model)
    # The built-in agent is made when it is first needed.
    if wanted.agent is None or wanted.agent == BUILT_IN:
        return
    agent = await holdfast.agents.get(holdfast.owner, wanted.agent)
    if agent.status is AgentStatus.ARCHIVED:
        raise Conflict(
            Code.AGENT_ARCHIVED,
            f"Agent {agent.slug} is archived; `holdfast agents edit {agent.slug} --status active` "
            "brings it back.",
        )


def _tools(names: str | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


async def _context(holdfast: "House", wanted: ChatOptions) -> SessionContext | None:
    """Return the workspace as it is detected; without a folder the session gets its own."""
    folder = _folder(wanted)
    variables = dict(_variable(each) for each in wanted.var or ())
    if folder is None:
        if variables:
            raise Invalid(Code.INVALID_INPUT, "There is no current folder; name one with --cwd.")
        return None
    return SessionContext(
        working_dir=folder,
        # In a thread, because a signal must be heard while git waits for a slow disk.
        git_ref=await asyncio.to_thread(git_ref, folder),
        fs_scope_tier=wanted.fs_scope or await widest_tier(holdfast, wanted.agent),
        variables=variables,
    )


def _remote_context(wanted: ChatOptions) -> SessionContext | None:
    """Return the workspace of a session that a server opens; this machine's folders are not its.

    Without a folder there, the session gets one of its own.
    """
    variables = dict(_variable(each) for each in wanted.var or ())
    folder = wanted.repo or wanted.cwd
    is_special = bool(variables) or wanted.fs_scope is not None
    if folder is None and is_special:
        raise Invalid(
            Code.INVALID_INPUT,
            "--var and --fs-scope belong to a folder; name a repository of the server with --repo.",
        )
    # A repository alone is enough: the server knows where it is.
    if folder is None or (wanted.repo is not None and not is_special):
        return None
    return SessionContext(
        working_dir=str(named_path(folder)),
        fs_scope_tier=wanted.fs_scope or FsTier.SANDBOXED,
        variables=variables,
    )


async def widest_tier(holdfast: "House", agent: str | None) -> FsTier:
    """Return the tier of a session that asks for no narrower one: its agent's, as configured."""
    allowed = holdfast.config.chat.fs_scope
    granted = None
    if agent is not None and agent != BUILT_IN:
        granted = (await holdfast.agents.get(holdfast.owner, agent)).grant
    return allowed if granted is None else narrowest_tier([granted, Grant(fs=allowed)])


def _folder(wanted: ChatOptions) -> str | None:
    return working_dir(wanted.cwd) if wanted.repo is None else _resolved(wanted.repo)


def _resolved(repo: Path) -> str:
    """Return where a repository really is; that it is one is judged when it is registered."""
    path = named_path(repo)
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):
        return str(path)


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(Code.INVALID_INPUT, "A variable is written --var NAME=VALUE.")
    return name, value


_CODES: Final[Mapping[ResultStatus, int]] = {
    **dict.fromkeys(ResultStatus, FINDINGS),
    ResultStatus.OK: 0,
    ResultStatus.DENIED: EXIT_CODES[Denied],
}


async def retried(
    printer: Printer, holdfast: "House", call: Call, wish: "SettlementRequest", manner: Manner
) -> int:
    """Settle a call by running it again; return the exit code."""
    signals = Signals()
    try:
        with signals:
            session = await holdfast.sessions.get(holdfast.owner, call.session_id)
            _require_permitted(holdfast, session, call, manner)
            conversation = conversing(printer, holdfast, session, signals, manner)
            await holdfast.calls.settle(holdfast.owner, call.session_id, call.id, wish)
            again = await _again(holdfast, call)
            # It may have been run again before, and then what came of that is told.
            if session.settled < again.turn:
                await conversation.settle(again.turn, own=True)
    except asyncio.CancelledError:
        # Cancelled by somebody else than the person: not ours to swallow.
        if not signals.is_leaving:
            raise
        return INTERRUPTED
    if conversation.has_finished():
        return INTERRUPTED
    return await _told(printer, holdfast, call)


def _require_permitted(holdfast: "House", session: Session, call: Call, manner: Manner) -> None:
    """Refuse before anything is written what could only be denied."""
    mode = stricter_mode(session.approval, holdfast.config.approval)
    if mode is ApprovalMode.DENY:
        raise Denied(
            Code.GRANT_EXCEEDED, "The session's approval mode is deny: nothing can be run again."
        )
    is_flagged = call.name in manner.yes_to and call.name != NEVER_BY_FLAG
    if mode is not ApprovalMode.AUTO and not manner.is_attended and not is_flagged:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"Nobody is here to be asked about {call.name}; settle the call at a terminal, or add "
            f"--yes-to {call.name} where that may answer for it. Nothing was changed.",
            {"tool": call.name},
        )


async def _told(printer: Printer, holdfast: "House", call: Call) -> int:
    settled = await holdfast.calls.get(holdfast.owner, call.session_id, call.id)
    again = await _again(holdfast, call)
    result = await result_of(holdfast, again)
    if printer.is_json:
        form = call_form(settled) | {"retry": call_form(again) | result_form(result)}
        printer.document(form)
    elif result is not None and result.error is None:
        printer.line(msgspec.json.encode(result.result).decode())
    return _CODES[result.status] if result is not None else FINDINGS


async def _again(holdfast: "House", call: Call) -> Call:
    """Return the newest call that is the same one again: it has the same key."""
    newest, cursor = call, None
    while True:
        page = await holdfast.calls.list(holdfast.owner, call.session_id, cursor=cursor)
        same = [each for each in page.items if each.idempotency_key == call.idempotency_key]
        newest = same[-1] if same else newest
        if (cursor := page.next_cursor) is None:
            return newest
