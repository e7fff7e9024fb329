"""Commands that a program has us run: allowed before, in the repository, with its environment."""

from collections.abc import Coroutine, Mapping
from typing import Any, Final

from msgspec.structs import replace

from holdfast.acp.process.launching import Start
from holdfast.acp.runtime.hosted_files import DENIED, NOT_ALLOWED, refusal
from holdfast.acp.runtime.outbox import Batch
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import count, fields, items
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import INVALID_PARAMS, RpcError
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.programs import Exit
from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.ports import Done, FileTrouble

Params = Mapping[str, Any]

_ARGUMENTS_MOST: Final = 4_096


async def begin_create(stage: Stage, params: Params) -> tuple[Batch, Coroutine[Any, Any, Any]]:
    """Return what is to be written down about a command, and its start, to be done then."""
    start = await _start(stage, params)
    told = {"command": start.argv[0], "args": list(start.argv[1:]), "cwd": start.folder}
    asked = stage.translator.act("terminal.create", "execute", told, now=stage.now())
    batch = tuple(draft for each in asked.batches for draft in each)
    return batch, _create(stage, asked, start, count(params.get("outputByteLimit")))


async def _create(stage: Stage, asked: Asked, start: Start, most: int | None) -> dict[str, Any]:
    if not stage.covers_command(start.argv) and not await stage.permitted(asked, ToolClass.PROCESS):
        await _end(stage, asked, DENIED)
        raise Refused(NOT_ALLOWED)
    try:
        id_ = await stage.conversation.terminals.create(start, output_most=most)
    except Refused as refused:
        error = ToolError(code=ResultCode.FAILED, message=refused.error.message)
        await _end(stage, asked, Done(status=ResultStatus.ERROR, error=error))
        raise
    await _end(stage, asked, Done(status=ResultStatus.OK, result={"terminal": id_}))
    return {"terminalId": id_}


async def _end(stage: Stage, asked: Asked, done: Done) -> None:
    batches = stage.translator.acted(asked.id, done, now=stage.now())
    await stage.outbox.record(tuple(draft for each in batches for draft in each))


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
    folder = given if isinstance(given, str) and given else stage.folder
    try:
        folder = await stage.files.folder(stage.folder, folder)
    except FileTrouble as trouble:
        raise refusal(stage, trouble, folder, "terminal") from None
    return replace(
        stage.start,
        argv=texts,
        folder=folder,
        environment={**stage.start.environment, **_variables(params.get("env"))},
    )


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


def _exit(end: Exit) -> dict[str, Any]:
    return {"exitCode": end.code, "signal": None if end.signal is None else str(end.signal)}
