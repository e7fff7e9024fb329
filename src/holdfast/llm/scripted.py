"""`scripted:FILE`, a model whose answers come from a file: for tests, demonstrations and docs.

It streams, counts and fails like a provider, and needs neither key nor network. The form of the
file is the business of `scripts.py`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from typing import Final

import msgspec

from holdfast.domain.costs import Usage
from holdfast.domain.errors import Invalid
from holdfast.domain.models import Model
from holdfast.llm.scripts import Script, ScriptedError, ScriptedStep, fault, read_script
from holdfast.llm.words import counted, pieces, words
from holdfast.ports import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmRequest,
    ReasoningDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
    TextDelta,
)

_KEPT_MOST: Final = 64
_Stamp = tuple[int, int, int]


class Scripted:
    """Plays scripts; a file is read again only when it has changed."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[_Stamp | None, Script]] = {}

    def check(self, model: Model) -> None:
        """Refuse a script that cannot be read or breaks a rule, naming file and place."""
        self._load(model.name)

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the step that answers the request; a faulty script is a `bad_request`."""
        name = request.model.name
        try:
            script = self._recall(name)
            if script is None:
                # A large file takes seconds to parse, and other sessions must not wait for it.
                script = await asyncio.to_thread(self._load, name)
            step = _chosen(script, request)
        except Invalid as error:
            yield Failed(kind=FailureKind.BAD_REQUEST, message=error.message)
            return
        if step.delay_ms:
            await asyncio.sleep(step.delay_ms / 1000)
        for delta in _deltas(step, request):
            yield delta

    def _recall(self, name: str) -> Script | None:
        stamp, script = self._kept.get(name, (None, None))
        return script if stamp is not None and stamp == _stamp(name) else None

    def _load(self, name: str) -> Script:
        # Taken before reading: a file that changes meanwhile is read again next time.
        stamp = _stamp(name)
        script = read_script(name)
        # All at once: whoever plays more scripts than this plays each of them once.
        if len(self._kept) >= _KEPT_MOST:
            self._kept.clear()
        self._kept[name] = stamp, script
        return script


def _stamp(name: str) -> _Stamp | None:
    try:
        seen = os.stat(name)
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _chosen(script: Script, request: LlmRequest) -> ScriptedStep:
    # Rules answer what the user said; after a tool result the conversation has moved on.
    newest = request.messages[-1] if request.messages else None
    if newest is not None and newest.role == "user" and (step := script.rule_for(newest.text)):
        return step
    if step := script.step_for(request.ordinal):
        return step
    problem = f"it has no step left for request {request.ordinal} of the session"
    raise fault(request.model.name, f"step {request.ordinal}", problem)


def _deltas(step: ScriptedStep, request: LlmRequest) -> Iterator[LlmDelta]:
    for word in words(step.reasoning):
        yield ReasoningDelta(text=word)
    if step.reasoning:
        yield ReasoningEnded()
    for piece in pieces(step.text, step.chunks) if step.chunks else words(step.text):
        yield TextDelta(text=piece)
    yield from _calls(step, request)
    yield _end(step, request)


def _calls(step: ScriptedStep, request: LlmRequest) -> Iterator[LlmDelta]:
    has_names = any(call.id is not None for call in step.tool_calls)
    said = request.messages if has_names else ()
    taken = {call.id for message in said for call in message.calls}
    for number, call in enumerate(step.tool_calls, start=1):
        made = f"call_{request.ordinal}_{number}"
        # A repeated step repeats its ids, and a session must not.
        call_id = made if call.id is None or call.id in taken else call.id
        taken.add(call_id)
        yield CallStarted(id=call_id, name=call.name)
        yield CallArguments(id=call_id, text=_argument_text(call.arguments))
        yield CallEnded(id=call_id)


def _end(step: ScriptedStep, request: LlmRequest) -> LlmDelta:
    if step.error is not None:
        given = step.error
        error = given if isinstance(given, ScriptedError) else ScriptedError(kind=given)
        return Failed(
            kind=error.kind,
            message=f"The script answers this request with the failure {error.kind}.",
            status=error.status,
            retry_after=error.retry_after,
        )
    reason = StepStop.TOOL_USE if step.tool_calls else StepStop.STOP
    return Stopped(reason=reason, usage=_usage(step, request))


def _usage(step: ScriptedStep, request: LlmRequest) -> Usage:
    if step.usage is not None:
        return msgspec.convert(step.usage, Usage, from_attributes=True)
    arguments = [_argument_text(call.arguments) for call in step.tool_calls]
    return counted(request, output=" ".join([step.text, *arguments]), reasoning=step.reasoning)


def _argument_text(arguments: dict[str, object] | str) -> str:
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
