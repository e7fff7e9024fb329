"""Commands that a program has us run: allowed before, in the repository, with its environment."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.process.identities import MARK
from holdfast.acp.process.launching import Start, find
from holdfast.acp.runtime.hosted_files import (
    end,
    failed,
    refusal,
    require_no_secret,
    require_yes,
)
from holdfast.acp.runtime.outbox import Batch
from holdfast.acp.runtime.permissions import Matter
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.runtime.worktree import texts_in
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import count, fields, items
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from holdfast.domain.agent_processes import ProcessExit
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import ToolClass
from holdfast.ports import COVERED_VARIABLE, CallOutcome, FileProblem

Params = Mapping[str, Any]

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
    return batch, _create(stage, asked, start, count(params.get("outputByteLimit")))


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
    command, words = params.get("command"), items(params.get("args"))
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
    for each in map(fields, items(given)):
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
