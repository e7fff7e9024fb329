"""Requests of the agent during a turn: permission, files of the repository, terminals.

Each is written down before it has an effect, and gets exactly one answer.

"""

import asyncio
import io
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.client.lenient_json import read_count, read_list, read_object
from holdfast.acp.client.multiplex import NOT_DECIDED
from holdfast.acp.client.permissions import (
    Matter,
    choices_of,
    class_of,
    is_allowed,
    outcome_of,
    place_of,
)
from holdfast.acp.client.tool_calls import Asked
from holdfast.acp.client.turn_context import Batch, Posed, Stage
from holdfast.acp.client.unreported_changes import texts_in
from holdfast.acp.rpc.connection import Lost, Refused
from holdfast.acp.rpc.framing import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    NOT_FOUND,
    Request,
    RpcError,
)
from holdfast.domain.agent_processes import ProcessExit
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.ports import COVERED_VARIABLE, CallOutcome, FileProblem, PlannedWrite
from holdfast.process.agent_child import Start, find
from holdfast.process.process_table import MARK
from holdfast.services.approvals import BY_TIME

log = logging.getLogger(__name__)
Params = Mapping[str, Any]
_CODES: Final[Mapping[str, int]] = {
    "outside": INVALID_PARAMS,
    "missing": NOT_FOUND,
    "not_a_file": INVALID_PARAMS,
    "too_large": INVALID_PARAMS,
    "not_text": INTERNAL_ERROR,
    "failed": INTERNAL_ERROR,
}
_NOT_ALLOWED: Final = RpcError(INTERNAL_ERROR, "the user did not allow this")
_DENIED: Final = CallOutcome(
    status=ResultStatus.DENIED,
    error=ToolError(code=ResultCode.REJECTED, message="The user did not allow this."),
)
_UNWANTED: Final = CallOutcome(
    status=ResultStatus.ERROR,
    error=ToolError(code=ResultCode.ABORTED, message="The agent has taken its request back."),
)


async def read(stage: Stage, params: Params) -> dict[str, Any]:
    """Return the text of a file, whole or some of its lines."""
    path = _path(params)
    try:
        content = await stage.files.read(stage.folder, path)
    except FileProblem as trouble:
        if trouble.kind == "missing" and stage.options.fs_missing == "empty":
            return {"content": ""}
        raise refusal(stage, trouble, path, "fs.read") from None
    return {"content": _lines(content, params.get("line"), params.get("limit"))}


async def begin_write(stage: Stage, params: Params) -> tuple[Batch, Coroutine[Any, Any, Any]]:
    """Return what is to be written down about a write, and the write itself, to be done then."""
    path, content = _path(params), params.get("content")
    if not isinstance(content, str):
        raise Refused(RpcError(INVALID_PARAMS, "content must be a text"))
    require_no_secret(stage, path, content)
    try:
        planned = await stage.files.plan(stage.folder, path, content)
    except FileProblem as trouble:
        raise refusal(stage, trouble, path, "fs.write") from None
    told = {"path": path, "before": planned.before, "after": planned.after}
    asked = stage.translator.act("fs.write_text_file", "edit", told, now=stage.now())
    batch = tuple(draft for each in asked.batches for draft in each)
    return batch, _write(stage, asked, planned, content)


async def _write(stage: Stage, asked: Asked, planned: PlannedWrite, content: str) -> dict[str, Any]:
    matter = Matter(
        tool_class=planned.tool_class,
        shown=planned.question,
        path=planned.path,
        memory=planned.memory,
    )
    # What the agent asked for in its own words was allowed already.
    before = await _text(stage, planned.path) if stage.licences else ""
    if not stage.covers_write(planned, before, content):
        await require_yes(stage, asked, matter)
    try:
        await stage.files.write(stage.folder, planned, content)
    except FileProblem as trouble:
        await end(stage, asked, failed(trouble.message))
        raise refusal(stage, trouble, planned.path, "fs.write") from None
    await end(stage, asked, CallOutcome(status=ResultStatus.OK, result={"sha256": planned.after}))
    return {}


async def _text(stage: Stage, path: str) -> str:
    """Return what is in a file that would be written; nothing if it holds no text."""
    try:
        return await stage.files.read(stage.folder, path)
    except FileProblem:
        return ""


async def require_yes(stage: Stage, asked: Asked, matter: Matter) -> None:
    """Have an act allowed; one that is not, or not wanted any more, ends here."""
    try:
        is_allowed = await stage.permitted(asked, matter)
    except asyncio.CancelledError:
        await end(stage, asked, _UNWANTED)
        raise
    if not is_allowed:
        await end(stage, asked, _DENIED)
        raise Refused(_NOT_ALLOWED)


def require_no_secret(stage: Stage, *texts: str) -> None:
    """Refuse an act with a managed secret: a question shows something else in its place."""
    if stage.conversation.program.connection.censor.holds(*texts):
        raise Refused(RpcError(INVALID_PARAMS, "this holds a secret that Holdfast manages"))


def failed(message: str) -> CallOutcome:
    """Return the end of an act that could not be done."""
    error = ToolError(code=ResultCode.FAILED, message=message)
    return CallOutcome(status=ResultStatus.ERROR, error=error)


async def end(stage: Stage, asked: Asked, done: CallOutcome) -> None:
    """Write down what came of an act."""
    batches = stage.translator.acted(asked.id, done, now=stage.now())
    await stage.outbox.record(tuple(draft for each in batches for draft in each))


def refusal(stage: Stage, trouble: FileProblem, given: str, surface: str) -> Refused:
    """Return the refusal of a path; one that leads out of the repository is a violation."""
    if trouble.kind == "outside":
        fields = {
            "session_id": stage.start.environment.get("HOLDFAST_SESSION_ID"),
            "given": given[:4_096],
            "root": stage.folder,
            "surface": surface,
        }
        log.warning("security.path_refused", extra={"fields": fields})
    return Refused(RpcError(_CODES[trouble.kind], trouble.message))


def _path(params: Params) -> str:
    path = params.get("path")
    if not isinstance(path, str) or not path.startswith("/") or "\x00" in path:
        raise Refused(RpcError(INVALID_PARAMS, "path must be absolute"))
    return path


def _lines(content: str, first: object, most: object) -> str:
    line, limit = read_count(first), read_count(most)
    if line is None and limit is None:
        return content
    start = max((line or 1) - 1, 0)
    # Only where the agent's own tools count a line: other marks may stand inside of one.
    lines = io.StringIO(content, newline="\n")
    return "".join(islice(lines, start, None if limit is None else start + limit))


_ARGUMENTS_MOST: Final = 4_096
_SHOWN_MOST: Final = 128 << 10


async def begin_create(stage: Stage, params: Params) -> tuple[Batch, Coroutine[Any, Any, Any]]:
    """Return what is to be written down about a command, and its start, to be done then."""
    start = await _start(stage, params)
    told: dict[str, Any] = {
        "command": params["command"],
        "args": list(start.argv[1:]),
        "cwd": start.folder,
    }
    given = _variables(params.get("env"))
    require_no_secret(stage, params["command"], *start.argv[1:], *given, *given.values())
    if given:
        told["env"] = given
    # Whole or not at all: nobody agrees to what they cannot have seen.
    if sum(map(len, (*texts_in(told), *given))) > _SHOWN_MOST:
        raise Refused(RpcError(INVALID_PARAMS, "the command is too long"))
    asked = stage.translator.act("terminal.create", "execute", told, now=stage.now())
    batch = tuple(draft for each in asked.batches for draft in each)
    return batch, _create(stage, asked, start, read_count(params.get("outputByteLimit")))


async def _create(stage: Stage, asked: Asked, start: Start, most: int | None) -> dict[str, Any]:
    command = (asked.arguments["command"], *start.argv[1:])
    covering = await stage.files.covering(stage.folder)
    # Where nothing is covered it may write what runs later: that is asked about in every mode.
    tool_class = ToolClass.SENSITIVE_WRITE if covering is None else ToolClass.PROCESS
    if not stage.covers_command(command, start):
        await require_yes(stage, asked, Matter(tool_class=tool_class))
    try:
        await _require_there(stage, start.folder)
        start = _covered(start, covering or ())
        id_ = await stage.conversation.terminals.create(start, output_most=most)
    except Refused as refused:
        await end(stage, asked, failed(refused.error.message))
        raise
    await end(stage, asked, CallOutcome(status=ResultStatus.OK, result={"terminal": id_}))
    return {"terminalId": id_}


def _covered(start: Start, covering: tuple[str, ...]) -> Start:
    """Return how a command is started behind covers, if there are any."""
    if not covering:
        return start
    given = {f"{COVERED_VARIABLE}{name}": value for name, value in start.environment.items()}
    return replace(
        start,
        wrap=(*covering, *start.wrap),
        environment={**given, MARK: start.environment.get(MARK, "")},
    )


async def _require_there(stage: Stage, folder: str) -> None:
    """Refuse a folder that is not any more what was asked about."""
    if await _real(stage, folder) != folder:
        trouble = FileProblem("outside", f"{folder} was replaced by a link.")
        raise refusal(stage, trouble, folder, "terminal")


async def _real(stage: Stage, folder: str) -> str:
    try:
        return await stage.files.folder(stage.folder, folder)
    except FileProblem as trouble:
        raise refusal(stage, trouble, folder, "terminal") from None


async def output(stage: Stage, params: Params) -> dict[str, Any]:
    """Return what a terminal shows."""
    shown = stage.conversation.terminals.output(_id(params))
    form: dict[str, Any] = {"output": shown.text, "truncated": shown.truncated}
    return form if shown.exit is None else form | {"exitStatus": _exit(shown.exit)}


async def wait_for_exit(stage: Stage, params: Params) -> dict[str, Any]:
    """Return how a command came out, when it has."""
    return _exit(await stage.conversation.terminals.wait(_id(params)))


async def kill(stage: Stage, params: Params) -> dict[str, Any]:
    """End a command; what it showed stays."""
    await stage.conversation.terminals.kill(_id(params))
    return {}


async def release(stage: Stage, params: Params) -> dict[str, Any]:
    """End a command and forget it."""
    await stage.conversation.terminals.release(_id(params))
    return {}


async def _start(stage: Stage, params: Params) -> Start:
    command, words = params.get("command"), read_list(params.get("args"))
    texts = (command, *words)
    is_sound = all(isinstance(word, str) and "\x00" not in word for word in texts)
    if not is_sound or not command or len(words) > _ARGUMENTS_MOST:
        raise Refused(RpcError(INVALID_PARAMS, "command and args must be texts"))
    given = params.get("cwd")
    folder = await _real(stage, given if isinstance(given, str) and given else stage.folder)
    own, variables = stage.start.environment, _variables(params.get("env"))
    return replace(
        stage.start,
        argv=(_found(str(command), own), *words),
        folder=folder,
        is_pinned=True,
        wrap=tuple(
            _found(word, own) if at == 0 else word for at, word in enumerate(stage.start.wrap)
        ),
        # Under our mark in any case: by it those are found whom nobody looks after any more.
        environment={**own, **variables, MARK: own.get(MARK, "")},
    )


def _found(command: str, environment: Mapping[str, str]) -> str:
    """Return the program that the agent itself would run: a command's own `PATH` chooses none."""
    found = find(command, environment)
    if found is None:
        raise Refused(
            RpcError(INTERNAL_ERROR, "the command cannot be run: there is no such program")
        )
    return found


def _variables(given: object) -> dict[str, str]:
    found = {}
    for each in map(read_object, read_list(given)):
        name, value = each.get("name"), each.get("value")
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise Refused(RpcError(INVALID_PARAMS, "env must be names with values"))
        found[name] = value
    return found


def _id(params: Params) -> str:
    id_ = params.get("terminalId")
    if not isinstance(id_, str):
        raise Refused(RpcError(INVALID_PARAMS, "terminalId must be a text"))
    return id_


def _exit(end: ProcessExit) -> dict[str, Any]:
    return {"exitCode": end.code, "signal": None if end.signal is None else str(end.signal)}


Work = Coroutine[Any, Any, Any]
_UNKNOWN: Final = RpcError(METHOD_NOT_FOUND, "there is no such method here")
_NOT_OURS: Final = RpcError(INVALID_PARAMS, "there is no such session here")
# Those that change something: written down first, and then done.
_RECORDED: Final[Mapping[str, Callable[[Stage, Params], Awaitable[tuple[Batch, Work]]]]] = {
    "fs/write_text_file": begin_write,
    "terminal/create": begin_create,
}
_PLAIN: Final[Mapping[str, Callable[[Stage, Params], Work]]] = {
    "fs/read_text_file": read,
    "terminal/output": output,
    "terminal/wait_for_exit": wait_for_exit,
    "terminal/kill": kill,
    "terminal/release": release,
}


class Host:
    """Answers one program in one turn; every request gets one answer, whatever happens."""

    def __init__(self, stage: Stage, *, has_terminals: bool) -> None:
        self._stage = stage
        self._connection = stage.conversation.connection
        self._has_terminals = has_terminals
        # Requests for a permission that somebody is asked about right now.
        self._undecided: list[Request] = []

    async def take(self, request: Request) -> AsyncGenerator[Batch, None]:
        """Take a request at its place; yield what has to be on disk before it goes on."""
        params = read_object(request.params)
        try:
            self._require(request.method, params)
            if request.method == "session/request_permission":
                async for batch in self._permission(request, params):
                    yield batch
            elif request.method in _RECORDED:
                batch, work = await _RECORDED[request.method](self._stage, params)
                try:
                    yield batch
                except BaseException:
                    work.close()
                    raise
                self._connection.handle(request, work)
            else:
                self._connection.handle(request, _PLAIN[request.method](self._stage, params))
        except Refused as refused:
            with suppress(Lost):
                await self._connection.refuse(request, refused.error)

    async def hush(self) -> None:
        """Answer the permissions that nobody will decide about any more."""
        waiting, self._undecided = self._undecided, []
        for request in waiting:
            await self._connection.answer(request, NOT_DECIDED)

    def _require(self, method: str, params: Params) -> None:
        family = method.partition("/")[0]
        is_known = method in _RECORDED or method in _PLAIN or method == "session/request_permission"
        is_off = (family == "fs" and not self._stage.options.fs) or (
            family == "terminal" and not self._has_terminals
        )
        if not is_known or is_off:
            raise Refused(_UNKNOWN)
        if params.get("sessionId") != self._stage.conversation.session:
            raise Refused(_NOT_OURS)

    async def _permission(self, request: Request, params: Params) -> AsyncGenerator[Batch, None]:
        stage = self._stage
        choices = choices_of(params.get("options"))
        asked = stage.translator.asked(params.get("toolCall"), now=stage.now())
        for batch in asked.batches:
            yield batch
        matter = await self._matter(asked)
        if choices:
            posed = await stage.pose(asked, matter, choices)
        else:
            posed = stage.unanswerable(asked, matter)
        if posed.batch:
            yield posed.batch
        if posed.answer is None:
            self._undecided.append(request)
            self._connection.handle(request, self._decision(request, asked, posed))
            return
        stage.heed(asked, posed.answer, matter.tool_class)
        with suppress(Lost):
            await self._connection.answer(request, outcome_of(choices, posed.answer))

    async def _decision(self, request: Request, asked: Asked, posed: Posed) -> dict[str, Any]:
        question = posed.question
        try:
            answer = await self._stage.approver.decision(question)
        except asyncio.CancelledError:
            # Not wanted any more; otherwise it was answered already, or nobody is there.
            if request in self._undecided:
                self._undecided.remove(request)
                await self._stage.withdraw(question)
            raise
        if answer.state is ApprovalState.EXPIRED and answer.answered_by != BY_TIME:
            # The turn has ended, and with it the question; it may be answered so already.
            return dict(NOT_DECIDED)
        if request in self._undecided:
            self._undecided.remove(request)
        is_yes = self._stage.heed(asked, answer, question.tool_class)
        if is_allowed(answer) and not is_yes:
            # Another request has got this yes, which was for one.
            return dict(NOT_DECIDED)
        return outcome_of(question.choices, answer)

    async def _matter(self, asked: Asked) -> Matter:
        found, paths = class_of(asked.kind), asked.paths
        folder, files = self._stage.folder, self._stage.files
        if found is ToolClass.READ and asked.edits:
            # Whatever it is called, it changes something.
            found = ToolClass.WRITE
        changes = [await files.change(each.path, each.old, each.new) for each in asked.edits]
        if found is not ToolClass.WRITE or not paths:
            return Matter(tool_class=found, changes=tuple(changes))
        found = await files.class_of(folder, paths)
        # Who lets files be edited has not said that they may go.
        memory = place_of(paths, folder) if asked.kind == "edit" else None
        return Matter(tool_class=found, memory=memory, changes=tuple(changes))
