"""Files that a program has us read and write: inside the repository, and written down before."""

import asyncio
import io
import logging
from collections.abc import Coroutine, Mapping
from itertools import islice
from typing import Any, Final

from holdfast.acp.runtime.outbox import Batch
from holdfast.acp.runtime.permissions import Matter
from holdfast.acp.runtime.stage import Stage
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import count
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import INTERNAL_ERROR, INVALID_PARAMS, NOT_FOUND, RpcError
from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.tools import ResultCode
from holdfast.ports import CallOutcome, FileProblem, PlannedWrite

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
    line, limit = count(first), count(most)
    if line is None and limit is None:
        return content
    start = max((line or 1) - 1, 0)
    # Only where the agent's own tools count a line: other marks may stand inside of one.
    lines = io.StringIO(content, newline="\n")
    return "".join(islice(lines, start, None if limit is None else start + limit))
