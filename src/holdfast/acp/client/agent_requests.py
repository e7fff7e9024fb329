"""Requests of the agent during a turn: permissions, files of the repository, terminals.

Each request is recorded before it takes effect and is answered exactly once.

"""

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_session import HOSTED, NOT_DECIDED
from holdfast.acp.client.lenient_json import read_count, read_list, read_object
from holdfast.acp.client.permissions import (
    ApprovalSubject,
    folder_memory,
    is_allowed,
    permission_outcome,
    read_choices,
    tool_class_of,
)
from holdfast.acp.client.presets import find_command
from holdfast.acp.client.tool_calls import CallRequest
from holdfast.acp.client.turn_context import PosedQuestion, TurnContext
from holdfast.acp.client.unreported_changes import texts_in
from holdfast.acp.rpc.framing import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    ConnectionLost,
    JsonRpcError,
    JsonRpcRequest,
    RequestRefused,
)
from holdfast.domain.agent_processes import ProcessExit
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.ports.tools import CallOutcome, FileProblem, PlannedWrite
from holdfast.process.process_table import SESSION_VARIABLE
from holdfast.services.approvals import BY_TIME

log = logging.getLogger(__name__)
Params = Mapping[str, Any]
Work = Coroutine[Any, Any, Any]
_CODES: Final[Mapping[str, int]] = {
    "outside": INVALID_PARAMS,
    "missing": NOT_FOUND,
    "not_a_file": INVALID_PARAMS,
    "too_large": INVALID_PARAMS,
    "not_text": INTERNAL_ERROR,
    "failed": INTERNAL_ERROR,
}
_NOT_ALLOWED: Final = JsonRpcError(INTERNAL_ERROR, "the user did not allow this")
_DENIED: Final = CallOutcome(
    status=ResultStatus.DENIED,
    error=ToolError(code=ResultCode.REJECTED, message="The user did not allow this."),
)
_WITHDRAWN: Final = CallOutcome(
    status=ResultStatus.ERROR,
    error=ToolError(code=ResultCode.ABORTED, message="The agent has withdrawn its request."),
)


async def read_file(context: TurnContext, params: Params) -> dict[str, Any]:
    """Return the text of a file, or a range of its lines."""
    path = _path_parameter(params)
    try:
        content = await context.files.read(context.folder, path)
    except FileProblem as problem:
        if problem.kind == "missing" and context.options.fs_missing == "empty":
            return {"content": ""}
        raise path_error(context, problem, path, "fs.read") from None
    return {"content": _select_lines(content, params.get("line"), params.get("limit"))}


async def begin_file_write(context: TurnContext, params: Params) -> Work:
    """Record the request; return the coroutine that then writes the file."""
    path, content = _path_parameter(params), params.get("content")
    if not isinstance(content, str):
        raise RequestRefused(JsonRpcError(INVALID_PARAMS, "content must be a string"))
    require_no_secret(context, path, content)
    try:
        planned = await context.files.plan(context.folder, path, content)
    except FileProblem as problem:
        raise path_error(context, problem, path, "fs.write") from None
    details = {"path": path, "before": planned.before, "after": planned.after}
    asked = context.translator.act("fs.write_text_file", "edit", details, now=context.now())
    await context.drafts.write(asked.drafts)
    return _write_file(context, asked, planned, content)


async def _write_file(
    context: TurnContext, call: CallRequest, planned: PlannedWrite, content: str
) -> dict[str, Any]:
    subject = ApprovalSubject(
        tool_class=planned.tool_class,
        shown=planned.question,
        path=planned.path,
        memory=planned.memory,
    )
    # The user may already have allowed this write as part of a tool call of the agent.
    before = await _current_text(context, planned.path) if context.allowed_calls else ""
    if not context.covers_write(planned, before, content):
        await require_approval(context, call, subject)
    try:
        await context.files.write(context.folder, planned, content)
    except FileProblem as problem:
        await end_act(context, call, failed_outcome(problem.message))
        raise path_error(context, problem, planned.path, "fs.write") from None
    await end_act(
        context, call, CallOutcome(status=ResultStatus.OK, result={"sha256": planned.after})
    )
    return {}


async def _current_text(context: TurnContext, path: str) -> str:
    """Return the current text of a file; empty if it is missing or not text."""
    try:
        return await context.files.read(context.folder, path)
    except FileProblem:
        return ""


async def require_approval(
    context: TurnContext, call: CallRequest, subject: ApprovalSubject
) -> None:
    """Require approval of an action; records it as denied or withdrawn otherwise."""
    try:
        is_allowed = await context.is_permitted(call, subject)
    except asyncio.CancelledError:
        await end_act(context, call, _WITHDRAWN)
        raise
    if not is_allowed:
        await end_act(context, call, _DENIED)
        raise RequestRefused(_NOT_ALLOWED)


def require_no_secret(context: TurnContext, *texts: str) -> None:
    """Refuse an action that contains a managed secret, because the question would redact it."""
    if context.agent_session.agent_process.connection.redactor.holds(*texts):
        raise RequestRefused(
            JsonRpcError(INVALID_PARAMS, "this contains a secret that Holdfast manages")
        )


def failed_outcome(message: str) -> CallOutcome:
    """Return the outcome of an action that failed."""
    error = ToolError(code=ResultCode.FAILED, message=message)
    return CallOutcome(status=ResultStatus.ERROR, error=error)


async def end_act(context: TurnContext, call: CallRequest, done: CallOutcome) -> None:
    """Record the outcome of an action."""
    await context.drafts.record(context.translator.finish_act(call.id, done, now=context.now()))


def path_error(
    context: TurnContext, problem: FileProblem, path: str, surface: str
) -> RequestRefused:
    """Return the refusal of a path; logs a security event for a path traversal."""
    if problem.kind == "outside":
        fields = {
            "session_id": context.start.environment.get("HOLDFAST_SESSION_ID"),
            "given": path[:4_096],
            "root": context.folder,
            "surface": surface,
        }
        log.warning("security.path_refused", extra={"fields": fields})
    return RequestRefused(JsonRpcError(_CODES[problem.kind], problem.message))


def _path_parameter(params: Params) -> str:
    path = params.get("path")
    if not isinstance(path, str) or not path.startswith("/") or "\x00" in path:
        raise RequestRefused(JsonRpcError(INVALID_PARAMS, "path must be absolute"))
    return path


def _select_lines(content: str, first: object, most: object) -> str:
    line, limit = read_count(first), read_count(most)
    if line is None and limit is None:
        return content
    start = max((line or 1) - 1, 0)
    # Split at `\n` only, as the agent's own tools do; other separators are part of a line.
    lines = io.StringIO(content, newline="\n")
    return "".join(islice(lines, start, None if limit is None else start + limit))


_ARGUMENTS_MOST: Final = 4_096
_SHOWN_MOST: Final = 128 << 10


async def begin_terminal(context: TurnContext, params: Params) -> Work:
    """Record the request; return the coroutine that then starts the command."""
    start = await _terminal_start(context, params)
    details: dict[str, Any] = {
        "command": params["command"],
        "args": list(start.argv[1:]),
        "cwd": start.folder,
    }
    given = _variables(params.get("env"))
    require_no_secret(context, params["command"], *start.argv[1:], *given, *given.values())
    if given:
        details["env"] = given
    # Refused rather than truncated, because a user cannot approve what is not shown.
    if sum(map(len, (*texts_in(details), *given))) > _SHOWN_MOST:
        raise RequestRefused(JsonRpcError(INVALID_PARAMS, "the command is too long"))
    asked = context.translator.act("terminal.create", "execute", details, now=context.now())
    await context.drafts.write(asked.drafts)
    return _create_terminal(context, asked, start, read_count(params.get("outputByteLimit")))


async def _create_terminal(
    context: TurnContext, call: CallRequest, start: AgentStart, most: int | None
) -> dict[str, Any]:
    command = (call.arguments["command"], *start.argv[1:])
    # Without covers the command may write files that run later, so every mode has to ask.
    is_covered = start.sandbox.covers_terminals
    tool_class = ToolClass.PROCESS if is_covered else ToolClass.SENSITIVE_WRITE
    if not context.covers_command(command, start):
        await require_approval(context, call, ApprovalSubject(tool_class=tool_class))
    try:
        await _require_same_folder(context, start.folder)
        id_ = await context.agent_session.terminals.create(start, output_most=most)
    except RequestRefused as refused:
        await end_act(context, call, failed_outcome(refused.error.message))
        raise
    await end_act(context, call, CallOutcome(status=ResultStatus.OK, result={"terminal": id_}))
    return {"terminalId": id_}


async def _require_same_folder(context: TurnContext, folder: str) -> None:
    """Refuse a folder that was replaced since the approval (TOCTOU)."""
    if await _real_path(context, folder) != folder:
        problem = FileProblem("outside", f"{folder} was replaced by a link.")
        raise path_error(context, problem, folder, "terminal")


async def _real_path(context: TurnContext, folder: str) -> str:
    try:
        return await context.files.folder(context.folder, folder)
    except FileProblem as problem:
        raise path_error(context, problem, folder, "terminal") from None


async def terminal_output(context: TurnContext, params: Params) -> dict[str, Any]:
    """Return the output of a terminal."""
    shown = context.agent_session.terminals.output(_terminal_id(params))
    form: dict[str, Any] = {"output": shown.text, "truncated": shown.truncated}
    return form if shown.exit is None else form | {"exitStatus": _exit_form(shown.exit)}


async def wait_for_terminal_exit(context: TurnContext, params: Params) -> dict[str, Any]:
    """Wait for a command to exit and return its status."""
    return _exit_form(await context.agent_session.terminals.wait(_terminal_id(params)))


async def kill_terminal(context: TurnContext, params: Params) -> dict[str, Any]:
    """End a command; its output stays readable."""
    await context.agent_session.terminals.kill(_terminal_id(params))
    return {}


async def release_terminal(context: TurnContext, params: Params) -> dict[str, Any]:
    """End a command and remove it."""
    await context.agent_session.terminals.release(_terminal_id(params))
    return {}


async def _terminal_start(context: TurnContext, params: Params) -> AgentStart:
    command, words = params.get("command"), read_list(params.get("args"))
    texts = (command, *words)
    is_sound = all(isinstance(word, str) and "\x00" not in word for word in texts)
    if not is_sound or not command or len(words) > _ARGUMENTS_MOST:
        raise RequestRefused(JsonRpcError(INVALID_PARAMS, "command and args must be strings"))
    given = params.get("cwd")
    folder = await _real_path(
        context, given if isinstance(given, str) and given else context.folder
    )
    own, variables = context.start.environment, _variables(params.get("env"))
    return replace(
        context.start,
        argv=(_find_command(str(command), own), *words),
        folder=folder,
        is_pinned=True,
        sandbox=replace(context.start.sandbox, program=context.start.sandbox.terminal),
        keeps_background=False,
        wrap=tuple(
            _find_command(word, own) if at == 0 else word
            for at, word in enumerate(context.start.wrap)
        ),
        # Our mark last, so that the agent cannot override it: orphaned processes are found by it.
        environment={**own, **variables, SESSION_VARIABLE: own.get(SESSION_VARIABLE, "")},
    )


def _find_command(command: str, environment: Mapping[str, str]) -> str:
    """Resolve a command by the agent's own `PATH`; the request's `env` cannot change it."""
    found = find_command(command, environment)
    if found is None:
        raise RequestRefused(
            JsonRpcError(INTERNAL_ERROR, "the command cannot be run: the program does not exist")
        )
    return found


def _variables(env: object) -> dict[str, str]:
    found = {}
    for each in map(read_object, read_list(env)):
        name, value = each.get("name"), each.get("value")
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise RequestRefused(JsonRpcError(INVALID_PARAMS, "env must be names with values"))
        found[name] = value
    return found


def _terminal_id(params: Params) -> str:
    id_ = params.get("terminalId")
    if not isinstance(id_, str):
        raise RequestRefused(JsonRpcError(INVALID_PARAMS, "terminalId must be a string"))
    return id_


def _exit_form(end: ProcessExit) -> dict[str, Any]:
    # The protocol has either of them, not both.
    if end.signal is not None:
        return {"exitCode": None, "signal": str(end.signal)}
    return {"exitCode": end.code, "signal": None}


_UNKNOWN_METHOD: Final = JsonRpcError(METHOD_NOT_FOUND, "method not found")
_UNKNOWN_SESSION: Final = JsonRpcError(INVALID_PARAMS, "unknown session")
# Methods with side effects: recorded first, then executed.
_RECORDED_METHODS: Final[Mapping[str, Callable[[TurnContext, Params], Awaitable[Work]]]] = {
    "fs/write_text_file": begin_file_write,
    "terminal/create": begin_terminal,
}
_PLAIN_METHODS: Final[Mapping[str, Callable[[TurnContext, Params], Work]]] = {
    "fs/read_text_file": read_file,
    "terminal/output": terminal_output,
    "terminal/wait_for_exit": wait_for_terminal_exit,
    "terminal/kill": kill_terminal,
    "terminal/release": release_terminal,
}


class AgentRequestHandler:
    """Answers the requests of one agent in one turn; each request gets exactly one answer."""

    def __init__(self, context: TurnContext, *, has_terminals: bool) -> None:
        self._context = context
        self._connection = context.agent_session.connection
        self._has_terminals = has_terminals
        # Permission requests whose approval is still open.
        self._undecided: list[JsonRpcRequest] = []

    async def begin(self, request: JsonRpcRequest) -> None:
        """Process a request in line order: record it if it has effects, then start its handler."""
        context, params = self._context, read_object(request.params)
        try:
            self._require(request.method, params)
            if request.method == "session/request_permission":
                await self._ask_permission(request, params)
            elif record := _RECORDED_METHODS.get(request.method):
                self._connection.handle(request, await record(context, params))
            else:
                self._connection.handle(request, _PLAIN_METHODS[request.method](context, params))
        except RequestRefused as refused:
            with suppress(ConnectionLost):
                await self._connection.refuse(request, refused.error)

    async def withdraw(self) -> None:
        """Answer open permission requests as cancelled, because the turn was abandoned."""
        waiting, self._undecided = self._undecided, []
        for request in waiting:
            await self._connection.answer(request, NOT_DECIDED)

    def _require(self, method: str, params: Params) -> None:
        family = method.partition("/")[0]
        is_off = (family == "fs" and not self._context.options.fs) or (
            family == "terminal" and not self._has_terminals
        )
        if method not in HOSTED or is_off:
            raise RequestRefused(_UNKNOWN_METHOD)
        if params.get("sessionId") != self._context.agent_session.agent_session_id:
            raise RequestRefused(_UNKNOWN_SESSION)

    async def _ask_permission(self, request: JsonRpcRequest, params: Params) -> None:
        context = self._context
        choices = read_choices(params.get("options"))
        asked = context.translator.request(params.get("toolCall"), now=context.now())
        await context.drafts.write(asked.drafts)
        subject = await self._subject(asked)
        if choices:
            posed = await context.pose(asked, subject, choices)
        else:
            posed = context.unanswerable(asked, subject)
        await context.drafts.write(posed.drafts)
        if posed.answer is None:
            self._undecided.append(request)
            self._connection.handle(request, self._decision(request, asked, posed))
            return
        context.take_answer(asked, posed.answer, subject.tool_class)
        with suppress(ConnectionLost):
            await self._connection.answer(request, permission_outcome(choices, posed.answer))

    async def _decision(
        self, request: JsonRpcRequest, call: CallRequest, posed: PosedQuestion
    ) -> dict[str, Any]:
        question = posed.question
        try:
            answer = await self._context.approver.decision(question)
        except asyncio.CancelledError:
            # Cancelled by the agent; else it is already answered, or the connection is lost.
            if request in self._undecided:
                self._undecided.remove(request)
                await self._context.withdraw(question)
            raise
        if answer.state is ApprovalState.EXPIRED and answer.answered_by != BY_TIME:
            # The question expired with the turn; `withdraw` may already have answered the request.
            return dict(NOT_DECIDED)
        if request in self._undecided:
            self._undecided.remove(request)
        is_yes = self._context.take_answer(call, answer, question.tool_class)
        if is_allowed(answer) and not is_yes:
            # This one-time approval was already used by another request.
            return dict(NOT_DECIDED)
        return permission_outcome(question.choices, answer)

    async def _subject(self, call: CallRequest) -> ApprovalSubject:
        found, paths = tool_class_of(call.kind), call.paths
        folder, files = self._context.folder, self._context.files
        if found is ToolClass.READ and call.edits:
            # The agent calls it a read, but its diffs change files.
            found = ToolClass.WRITE
        changes = [await files.change(each.path, each.old, each.new) for each in call.edits]
        if found is not ToolClass.WRITE or not paths:
            return ApprovalSubject(tool_class=found, changes=tuple(changes))
        found = await files.class_of(folder, paths)
        # Permission to edit files does not include permission to delete or move them.
        memory = folder_memory(paths, folder) if call.kind == "edit" else None
        return ApprovalSubject(tool_class=found, memory=memory, changes=tuple(changes))
