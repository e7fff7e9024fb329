"""Files that a program has us read and write: inside the repository, and written down before."""

import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from holdfast.acp.runtime.outbox import Batch
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import count
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.ports import Done, FileTrouble, PlannedWrite

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
NOT_ALLOWED: Final = RpcError(INTERNAL_ERROR, "the user did not allow this")
DENIED: Final = Done(
    status=ResultStatus.DENIED,
    error=ToolError(code=ResultCode.REJECTED, message="The user did not allow this."),
)


async def read(stage: Stage, params: Params) -> dict[str, Any]:
    """Return the text of a file, whole or some of its lines."""
    path = _path(params)
    try:
        content = await stage.files.read(stage.folder, path)
    except FileTrouble as trouble:
        if trouble.kind == "missing" and stage.options.fs_missing == "empty":
            return {"content": ""}
        raise refusal(stage, trouble, path, "fs.read") from None
    return {"content": _lines(content, params.get("line"), params.get("limit"))}


async def begin_write(stage: Stage, params: Params) -> tuple[Batch, Coroutine[Any, Any, Any]]:
    """Return what is to be written down about a write, and the write itself, to be done then."""
    path, content = _path(params), params.get("content")
    if not isinstance(content, str):
        raise Refused(RpcError(INVALID_PARAMS, "content must be a text"))
    try:
        planned = await stage.files.plan(stage.folder, path, content)
    except FileTrouble as trouble:
        raise refusal(stage, trouble, path, "fs.write") from None
    told = {"path": path, "before": planned.before, "after": planned.after}
    asked = stage.translator.act("fs.write_text_file", "edit", told, now=stage.now())
    batch = tuple(draft for each in asked.batches for draft in each)
    return batch, _write(stage, asked, planned, content)


async def _write(stage: Stage, asked: Asked, planned: PlannedWrite, content: str) -> dict[str, Any]:
    # What the agent asked for in its own words was allowed already.
    is_plain = planned.tool_class is ToolClass.WRITE
    is_covered = stage.covers_write(planned.path) or (is_plain and stage.conversation.may_edit)
    if not is_covered and not await stage.permitted(asked, planned.tool_class):
        await _end(stage, asked, DENIED)
        raise Refused(NOT_ALLOWED)
    try:
        await stage.files.write(stage.folder, planned, content)
    except FileTrouble as trouble:
        error = ToolError(code=ResultCode.FAILED, message=trouble.message)
        await _end(stage, asked, Done(status=ResultStatus.ERROR, error=error))
        raise refusal(stage, trouble, planned.path, "fs.write") from None
    await _end(stage, asked, Done(status=ResultStatus.OK, result={"sha256": planned.after}))
    return {}


async def _end(stage: Stage, asked: Asked, done: Done) -> None:
    batches = stage.translator.acted(asked.id, done, now=stage.now())
    await stage.outbox.record(tuple(draft for each in batches for draft in each))


def refusal(stage: Stage, trouble: FileTrouble, given: str, surface: str) -> Refused:
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
    line, limit = count(first), count(most)
    if line is None and limit is None:
        return content
    start = max((line or 1) - 1, 0)
    lines = content.splitlines(keepends=True)
    return "".join(lines[start : None if limit is None else start + limit])
