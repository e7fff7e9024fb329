"""Opens or resumes the session of a conversation, and reruns one call in it."""

import asyncio
import dataclasses
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.approvals import (
    ApprovalPrompt,
    AutomaticApprovals,
    InteractiveApprovals,
    allow_by_flag,
)
from holdfast.cli.chat.conversation import ChatConversation, SignalHandler
from holdfast.cli.chat.live_page import choose_page
from holdfast.cli.chat.prompt import AnswerPrompt
from holdfast.cli.chat.screen import NEVER_BY_FLAG, JsonScreen, TextScreen, describe_wait
from holdfast.cli.chat.tool_lines import result_of
from holdfast.cli.errors import EXIT_CODES, FINDINGS, INTERRUPTED
from holdfast.cli.json_stream import EventLines
from holdfast.cli.options import ChatOptions, InputForm
from holdfast.cli.output import Printer, money
from holdfast.cli.session_refs import find_session
from holdfast.cli.terminal import is_terminal
from holdfast.cli.workspace import absolute_path, find_repository, git_ref, working_dir
from holdfast.config import absolute_model
from holdfast.domain.agents import AcpRuntime, AgentStatus, LlmRuntime
from holdfast.domain.approvals import ApprovalMode, ApprovalState, stricter_mode
from holdfast.domain.calls import Call
from holdfast.domain.errors import Code, Conflict, Denied, Invalid, LimitReached
from holdfast.domain.messages import ResultStatus
from holdfast.domain.sessions import (
    Selection,
    Session,
    SessionContext,
    SessionRequest,
    may_have_few_turns,
)
from holdfast.domain.tools import FsTier, Grant, narrowest_tier
from holdfast.services.agents import BUILT_IN

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.services.calls import SettlementRequest
    from holdfast.services.session_lifecycle import Resumption


def require_resumable_options(options: ChatOptions) -> None:
    """Refuse options that cannot apply to a resumed session: they were fixed when it was opened."""
    fixed = {
        "--agent": options.agent,
        "--model": options.model,
        "--repo": options.repo,
        "--title": options.title,
        "--active-file": options.active_file,
        "--selection": options.selection,
        "--var": options.var,
        "--tools": options.tools,
        "--fs-scope": options.fs_scope,
    }
    named = [flag for flag, value in fixed.items() if value is not None]
    if options.resume is not None and named:
        raise Invalid(
            Code.INVALID_INPUT,
            f"{', '.join(named)} cannot be changed when a session is resumed; leave it "
            "out, or start a new session.",
        )
    if options.prompt is not None and options.input is not InputForm.TEXT:
        raise Invalid(Code.INVALID_INPUT, "Choose one of PROMPT and --input.")
    if options.repo is not None and options.cwd is not None:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --repo and --cwd.")
    if options.attach and options.prompt is None:
        raise Invalid(
            Code.INVALID_INPUT, "--attach requires a PROMPT; in a chat, name files with @FILE."
        )


async def open_conversation(
    printer: Printer,
    holdfast: "Holdfast",
    options: ChatOptions,
    signals: SignalHandler,
    policy: AttendancePolicy,
    *,
    request: SessionRequest | None = None,
) -> ChatConversation:
    """Return the conversation, with its cursor before the first event to show.

    `request` has the settings of a new session that are not options.
    """
    if options.resume is not None:
        # Read before it is resumed, so that events after that are shown.
        session_id = await find_session(holdfast, options.resume)
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        if not policy.is_attended:
            await _require_answered(holdfast, session, policy)
        conversation = await _follow_from_now(printer, holdfast, session, signals, policy)
        context = await _new_context(options.cwd, is_remote=policy.is_remote)
        resumed = await holdfast.sessions.resume(holdfast.owner, session.id, context=context)
        if policy.asks and options.prompt is not None:
            _require_turns(resumed)
        conversation.known = resumed.session.last_event
        await _remark_changed_agent(holdfast, session, conversation)
        for limit_text in _limits(session, resumed.turns_left):
            conversation.screen.remark(limit_text)
        if session.waiting is not None and (said := describe_wait(session.waiting)):
            conversation.screen.remark(said)
        return conversation
    wanted = request or SessionRequest()
    session = await _open_session(printer, holdfast, options, policy, wanted)
    # The cursor is before the opening event, because a JSON stream begins with it.
    conversation = await _follow_from_now(
        printer, holdfast, replace(session, last_event=0), signals, policy
    )
    conversation.known = 0
    if is_terminal(sys.stderr) and options.prompt is not None:
        conversation.screen.remark(f"Session {session.id}")
    return conversation


async def _new_context(chosen: Path | None, *, is_remote: bool) -> SessionContext | None:
    """Return the new workspace of a resumed session; None if it is unchanged."""
    if is_remote:
        return None if chosen is None else SessionContext(working_dir=str(absolute_path(chosen)))
    folder = working_dir(chosen) if chosen is not None else None
    if folder is None:
        return None
    # In a thread, so that signals are handled while git waits for a slow disk.
    return SessionContext(working_dir=folder, git_ref=await asyncio.to_thread(git_ref, folder))


async def _remark_changed_agent(
    holdfast: "Holdfast", session: Session, conversation: ChatConversation
) -> None:
    """Print that the session's agent differs from the one a new session would get."""
    agent = await holdfast.agents.get(holdfast.owner, session.agent_id)
    if agent.updated_at > session.created_at:
        conversation.screen.remark(
            f"Agent {agent.slug} has changed; this session uses the version it was opened with."
        )


def _limits(session: Session, turns_left: int) -> Iterator[str]:
    """Yield which limits of the session are reached: a new turn would end at once."""
    budget = session.budget
    if budget is not None and 0 < budget.microcents <= session.microcents:
        yield f"The session's budget of {money(budget.microcents, priced=True)} is spent."
    elif not turns_left:
        yield (
            f"The session has reached its limit of {session.turn_cap} turns; raise it with "
            f"`holdfast sessions update {session.id} --turn-cap N`, or fork the session."
        )


def _require_turns(resumed: "Resumption") -> None:
    """Refuse to send a person's message past the turn cap: it would not be answered."""
    if not resumed.turns_left and may_have_few_turns(resumed.session):
        text = next(_limits(resumed.session, 0))
        raise LimitReached(Code.SESSION_LIMIT, f"{text} Nothing was sent.")


async def _require_answered(
    holdfast: "Holdfast", session: Session, policy: AttendancePolicy
) -> None:
    """Refuse to continue unattended while a question is pending: it could wait for a day.

    Also if a server runs the turn, because it does not know our flags.
    """
    waiting = await holdfast.approvals.list(holdfast.owner, session.id, state=ApprovalState.WAITING)
    for approval in waiting.items:
        if not policy.answers(approval.question):
            raise Conflict(
                Code.APPROVAL_WAITING,
                f"{approval.question.tool} waits for approval in this session; answer with "
                f"`holdfast approvals answer {approval.id} --allow` or --deny.",
                {"approval": approval.id, "tool": approval.question.tool},
            )
    for approval in waiting.items:
        await allow_by_flag(holdfast, approval)


async def _follow_from_now(
    printer: Printer,
    holdfast: "Holdfast",
    session: Session,
    signals: SignalHandler,
    policy: AttendancePolicy,
) -> ChatConversation:
    """Return a conversation whose cursor is at the session's last event."""
    if not printer.is_json:
        return build_conversation(printer, holdfast, session, signals, policy)
    lines = await EventLines.from_sequence(holdfast, session, session.last_event)
    screen = JsonScreen(printer, lines)
    answering = AutomaticApprovals(holdfast, screen, policy)
    return ChatConversation(holdfast, session, screen, signals, answering)


def build_conversation(
    printer: Printer,
    holdfast: "Holdfast",
    session: Session,
    signals: SignalHandler,
    policy: AttendancePolicy,
) -> ChatConversation:
    """Return a conversation with text output; remarks are omitted with `--json`."""
    screen = TextScreen(printer, holdfast, policy, choose_page(printer, policy))
    asking: InteractiveApprovals | AutomaticApprovals = AutomaticApprovals(holdfast, screen, policy)
    if policy.asks:
        asking = InteractiveApprovals(
            holdfast, screen, ApprovalPrompt(printer, AnswerPrompt(), policy)
        )
    return ChatConversation(holdfast, session, screen, signals, asking)


async def _open_session(
    printer: Printer,
    holdfast: "Holdfast",
    options: ChatOptions,
    policy: AttendancePolicy,
    wanted: SessionRequest,
) -> Session:
    """Open the session; everything is validated before anything is written."""
    config, is_remote = printer.settings.load(), policy.is_remote
    defaults = await holdfast.defaults()
    options = await _with_stored_agent(holdfast, options, config.home, is_remote=is_remote)
    options = options if is_remote else await _with_repository(holdfast, options)
    tier = config.chat.fs_scope
    context = _remote_context(options) if is_remote else await _context(holdfast, options, tier)
    request = replace(
        wanted,
        grant=wanted.grant and replace(wanted.grant, fs=_tier(context)),
        title=options.title,
        model=absolute_model(options.model) if options.model is not None else None,
        context=context,
        tools=_tools(options.tools),
        approval=defaults.approval,
        turn_cap=defaults.turn_cap if policy.is_attended else None,
    )
    await _require_openable(holdfast, options, request)
    if options.repo is not None:
        path = str(absolute_path(options.repo))
        repo = await holdfast.repos.add(holdfast.owner, path, at_terminal=True)
        request = replace(request, repo_id=repo.id)
        if is_remote and context is not None:
            request = replace(request, context=replace(context, working_dir=repo.path))
    return await holdfast.open(options.agent or BUILT_IN, request)


def _tier(context: SessionContext | None) -> FsTier:
    return FsTier.SANDBOXED if context is None else context.fs_scope_tier


async def _with_stored_agent(
    holdfast: "Holdfast", options: ChatOptions, home: Path, *, is_remote: bool
) -> ChatOptions:
    """Resolve the agent reference, which may be a file, to a stored agent."""
    if options.agent is None:
        return options
    from holdfast.cli.agent_files import is_path, resolve_agent

    found = _folder(options) if not is_remote else None
    folder = Path(found) if found else None
    # A path is relative to the current folder, as the shell completes it, also with --cwd.
    ref = str(absolute_path(Path(options.agent))) if is_path(options.agent) else options.agent
    named = await resolve_agent(holdfast, ref, folder=folder, home=home)
    return dataclasses.replace(options, agent=named)


async def unnamed_model(printer: Printer, conversation: ChatConversation) -> str | None:
    """Return which model answers although neither the session nor a setting names one."""
    # A server chooses by its own environment.
    notice = None if printer.settings.server else printer.settings.unnamed_model()
    if notice is None:
        return None
    session = await conversation.session()
    runtime = session.agent.runtime
    is_open = isinstance(runtime, LlmRuntime) and not runtime.models
    return notice if is_open and session.model_id is None else None


async def _with_repository(holdfast: "Holdfast", options: ChatOptions) -> ChatOptions:
    """Add the repository around the folder, for an agent that requires one."""
    from holdfast.acp.client.agent_command import find_agent_program

    if options.agent is None or options.agent == BUILT_IN:
        return options
    agent = await holdfast.agents.get(holdfast.owner, options.agent)
    if not isinstance(agent.runtime, AcpRuntime):
        return options
    # Checked before a repository is registered for a session that could not be opened.
    find_agent_program(agent.runtime, os.environ)
    if options.repo is not None:
        return options
    folder = working_dir(options.cwd)
    # In a thread, so that signals are handled while a slow disk is read.
    around = await asyncio.to_thread(find_repository, folder) if folder else None
    if around is None:
        raise Invalid(
            Code.REPO_REQUIRED,
            f"Agent {agent.slug} requires a Git repository, and this folder is not in "
            "one; change to one, or name one with --repo.",
        )
    return dataclasses.replace(options, repo=Path(around), cwd=None)


async def _require_openable(
    holdfast: "Holdfast", options: ChatOptions, request: SessionRequest
) -> None:
    if request.model is not None:
        await holdfast.models.check(request.model)
    # The built-in agent is created on first use.
    if options.agent is None or options.agent == BUILT_IN:
        return
    agent = await holdfast.agents.get(holdfast.owner, options.agent)
    if agent.status is AgentStatus.ARCHIVED:
        raise Conflict(
            Code.AGENT_ARCHIVED,
            f"Agent {agent.slug} is archived; run `holdfast agents edit {agent.slug} "
            "--status active` to restore it.",
        )


def _tools(names: str | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


async def _context(
    holdfast: "Holdfast", options: ChatOptions, widest: FsTier
) -> SessionContext | None:
    """Return the detected workspace; without a folder the session gets its own."""
    folder, fields = _folder(options), _context_fields(options)
    if folder is None:
        if any(fields.values()):
            raise Invalid(
                Code.INVALID_INPUT, "The current folder does not exist; name one with --cwd."
            )
        return None
    return SessionContext(
        working_dir=folder,
        # In a thread, so that signals are handled while git waits for a slow disk.
        git_ref=await asyncio.to_thread(git_ref, folder),
        fs_scope_tier=options.fs_scope or await widest_tier(holdfast, options.agent, widest),
        **fields,
    )


def _context_fields(options: ChatOptions) -> dict[str, Any]:
    """Return the fields of a workspace that are given by options."""
    return {
        "variables": dict(_variable(each) for each in options.var or ()),
        "active_file": options.active_file,
        "selection": None if options.selection is None else _selection(options.selection),
    }


def _selection(text: str) -> Selection:
    found = re.fullmatch(r"(.+):([0-9]{1,9})-([0-9]{1,9})", text)
    if found is None:
        raise Invalid(
            Code.INVALID_INPUT, "--selection must be FILE:FIRST-LAST, such as src/app.py:10-20."
        )
    return Selection(file=found[1], start_line=int(found[2]), end_line=int(found[3]))


def _remote_context(options: ChatOptions) -> SessionContext | None:
    """Return the workspace of a session on a server, which has other folders.

    Without a folder there, the session gets one of its own.
    """
    fields = _context_fields(options)
    folder = options.repo or options.cwd
    is_special = any(fields.values()) or options.fs_scope is not None
    if folder is None and is_special:
        raise Invalid(
            Code.INVALID_INPUT,
            "Variables, an active file, a selection and a file tier require a folder; name one of "
            "the server with --repo or --cwd.",
        )
    # A repository alone is enough: the server knows its path.
    if folder is None or (options.repo is not None and not is_special):
        return None
    return SessionContext(
        working_dir=str(absolute_path(folder)),
        fs_scope_tier=options.fs_scope or FsTier.SANDBOXED,
        **fields,
    )


async def widest_tier(holdfast: "Holdfast", agent: str | None, allowed: FsTier) -> FsTier:
    """Return the default tier of a session: its agent's, within the configured one."""
    granted = None
    if agent is not None and agent != BUILT_IN:
        granted = (await holdfast.agents.get(holdfast.owner, agent)).grant
    return allowed if granted is None else narrowest_tier([granted, Grant(fs=allowed)])


def _folder(options: ChatOptions) -> str | None:
    return working_dir(options.cwd) if options.repo is None else _resolve_repo(options.repo)


def _resolve_repo(repo: Path) -> str:
    """Return the real path of a repository; it is validated when it is registered."""
    path = absolute_path(repo)
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):
        return str(path)


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(Code.INVALID_INPUT, "Write a variable as --var NAME=VALUE.")
    return name, value


_CODES: Final[Mapping[ResultStatus, int]] = {
    **dict.fromkeys(ResultStatus, FINDINGS),
    ResultStatus.OK: 0,
    ResultStatus.DENIED: EXIT_CODES[Denied],
}


async def retry_call(
    printer: Printer,
    holdfast: "Holdfast",
    call: Call,
    chosen: "SettlementRequest",
    policy: AttendancePolicy,
) -> int:
    """Settle a call by running it again; return the exit code."""
    signals = SignalHandler()
    try:
        with signals:
            session = await holdfast.sessions.get(holdfast.owner, call.session_id)
            loosest = (await holdfast.defaults()).approval
            _require_permitted(stricter_mode(session.approval, loosest), call, policy)
            conversation = build_conversation(printer, holdfast, session, signals, policy)
            await holdfast.calls.settle(holdfast.owner, call.session_id, call.id, chosen)
            again = await _find_retry(holdfast, call)
            # If it was already run again, that result is shown.
            if session.settled < again.turn:
                await conversation.follow_turn(again.turn, own=True)
    except asyncio.CancelledError:
        # Cancelled by other code than our signal handler: must not be swallowed.
        if not signals.is_leaving:
            raise
        return INTERRUPTED
    if conversation.has_finished():
        return INTERRUPTED
    return await _report_result(printer, holdfast, call)


def _require_permitted(mode: ApprovalMode, call: Call, policy: AttendancePolicy) -> None:
    """Refuse, before anything is written, a rerun that could only be denied."""
    if mode is ApprovalMode.DENY:
        raise Denied(
            Code.GRANT_EXCEEDED, "The session's approval mode is deny, so no call can be run again."
        )
    is_flagged = call.name in policy.yes_to and call.name != NEVER_BY_FLAG
    if mode is not ApprovalMode.AUTO and not policy.is_attended and not is_flagged:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"No user is present to approve {call.name}; settle the call at a terminal, "
            f"or add --yes-to {call.name} if that tool may run unattended. A function is "
            "run again by the program that has it. Nothing was changed.",
            {"tool": call.name},
        )


async def _report_result(printer: Printer, holdfast: "Holdfast", call: Call) -> int:
    settled = await holdfast.calls.get(holdfast.owner, call.session_id, call.id)
    again = await _find_retry(holdfast, call)
    result = await result_of(holdfast, again)
    if printer.is_json:
        from holdfast.wire.calls import call_result_form, retried_call_form

        printer.document(retried_call_form(settled, call_result_form(again, result)))
    elif result is not None and result.error is None:
        printer.line(msgspec.json.encode(result.result).decode())
    return _CODES[result.status] if result is not None else FINDINGS


async def _find_retry(holdfast: "Holdfast", call: Call) -> Call:
    """Return the newest call with the same idempotency key."""
    newest, cursor = call, None
    while True:
        page = await holdfast.calls.list(holdfast.owner, call.session_id, cursor=cursor)
        same = [each for each in page.items if each.idempotency_key == call.idempotency_key]
        newest = same[-1] if same else newest
        if (cursor := page.next_cursor) is None:
            return newest
