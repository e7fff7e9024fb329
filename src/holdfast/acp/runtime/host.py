"""What a program asks of us in a turn: permission, files of the repository, commands.

Each request takes its place in the turn first. What takes longer is done beside the turn, so that
one that waits for somebody keeps nothing else waiting.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.acp.runtime import hosted_files, hosted_terminals
from holdfast.acp.runtime.outbox import Batch
from holdfast.acp.runtime.permissions import (
    Matter,
    choices_of,
    class_of,
    is_allowed,
    outcome_of,
    place_of,
)
from holdfast.acp.runtime.stage import Posed, Stage
from holdfast.acp.runtime.strands import NOT_DECIDED
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.readings import fields
from holdfast.acp.transport.connection import Lost, Refused
from holdfast.acp.transport.framing import INVALID_PARAMS, METHOD_NOT_FOUND, Request, RpcError
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.tools import ToolClass
from holdfast.services.approvals import BY_TIME

Params = Mapping[str, Any]
Work = Coroutine[Any, Any, Any]

_UNKNOWN: Final = RpcError(METHOD_NOT_FOUND, "there is no such method here")
_NOT_OURS: Final = RpcError(INVALID_PARAMS, "there is no such session here")

# Those that change something: written down first, and then done.
_RECORDED: Final[Mapping[str, Callable[[Stage, Params], Awaitable[tuple[Batch, Work]]]]] = {
    "fs/write_text_file": hosted_files.begin_write,
    "terminal/create": hosted_terminals.begin_create,
}
_PLAIN: Final[Mapping[str, Callable[[Stage, Params], Work]]] = {
    "fs/read_text_file": hosted_files.read,
    "terminal/output": hosted_terminals.output,
    "terminal/wait_for_exit": hosted_terminals.wait_for_exit,
    "terminal/kill": hosted_terminals.kill,
    "terminal/release": hosted_terminals.release,
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
        params = fields(request.params)
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
