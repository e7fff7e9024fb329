"""What a provider says, and the drafts that are to be written down when it does.

Ids that the engine makes are compared by the order in which they appear: `named` calls them
`id1`, `id2` and so on, and the builders here take those names.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome
from holdfast.domain.events import (
    Channel,
    StepDelta,
    StepEnded,
    StepStarted,
    ToolEnded,
    ToolStarted,
)
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.messages import (
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.models import Model
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
)
from tests.engine.builders import MODEL

USAGE = Usage(input=3, output=2)
ENDED = Outcome(stop_reason=StopReason.STOP)
_MADE = re.compile(r"(call_)?[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def says(
    text: str, *, usage: Usage | None = USAGE, reason: StepStop = StepStop.STOP
) -> list[LlmDelta]:
    """An answer in words."""
    said: list[LlmDelta] = [LlmTextDelta(text=text)] if text else []
    return [*said, Stopped(reason=reason, usage=usage)]


def asks(
    *calls: tuple[str, str, str],
    text: str = "",
    thought: str = "",
    signature: str | None = None,
    usage: Usage | None = USAGE,
) -> list[LlmDelta]:
    """An answer that asks for calls, each as its id, its tool and the text of its arguments."""
    said: list[LlmDelta] = []
    if thought:
        said.append(LlmReasoningDelta(text=thought))
    if thought or signature:
        said.append(ReasoningEnded(signature=signature))
    if text:
        said.append(LlmTextDelta(text=text))
    for call_id, name, arguments in calls:
        said += [
            CallStarted(id=call_id, name=name),
            CallArguments(id=call_id, text=arguments),
            CallEnded(id=call_id),
        ]
    return [*said, Stopped(reason=StepStop.TOOL_USE, usage=usage)]


def looks(*call_ids: str, **more: Any) -> list[LlmDelta]:
    """An answer that asks the tool `look` to be run under these ids."""
    return asks(*((call_id, "look", f'{{"at":"{call_id}"}}') for call_id in call_ids), **more)


def fails(kind: FailureKind = FailureKind.UNAVAILABLE, **more: Any) -> list[LlmDelta]:
    """A failure without a word before it."""
    return [Failed(kind=kind, message="It failed.", **more)]


def named(batches: Sequence[Sequence[Draft]]) -> list[tuple[Any, ...]]:
    """Return the batches with the engine's ids replaced by names in order of appearance."""
    names: dict[str, str] = {}
    return [tuple(_named(draft, names) for draft in batch) for batch in batches]


def _named(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str) and _MADE.fullmatch(value):
        return names.setdefault(value, f"id{len(names) + 1}")
    if isinstance(value, Struct):
        fields = {name: _named(getattr(value, name), names) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple | list):
        return type(value)(_named(each, names) for each in value)
    if isinstance(value, dict):
        return {key: _named(each, names) for key, each in value.items()}
    return value


def started(step: int, message_id: str, model: Model = MODEL) -> StepStarted:
    return StepStarted(
        step=step, model_id=model.id, model=model.ref, message_id=MessageId(message_id)
    )


def delta(
    step: int, message_id: str, text: str, *, offset: int = 0, channel: Channel = Channel.TEXT
) -> StepDelta:
    return StepDelta(
        step=step, message_id=MessageId(message_id), channel=channel, offset=offset, text=text
    )


def said(
    message_id: str, text: str = "", *, thought: str = "", model: Model = MODEL
) -> MessageDraft:
    """The assistant's row."""
    thoughts = (Reasoning(text=thought),) if thought else ()
    words = (Text(text=text),) if text else ()
    return MessageDraft(
        id=MessageId(message_id),
        role=Role.ASSISTANT,
        parts=(*thoughts, *words),
        model_id=model.id,
    )


def ended(step: int, message_id: str, usage: Usage | None = USAGE) -> StepEnded:
    return StepEnded(step=step, message_id=MessageId(message_id), usage=usage)


def cost(request_id: str, usage: Usage | None = USAGE, model: Model = MODEL) -> CostDraft:
    return CostDraft(request_id=request_id, model_id=model.id, usage=usage)


def intent(
    call_id: str,
    name: str = "look",
    arguments: dict[str, Any] | None = None,
    *,
    effect: Effect = Effect.PURE,
    id: str | None = None,
) -> MessageDraft:
    part = ToolCall(
        id=CallId(call_id),
        name=name,
        arguments={"at": call_id} if arguments is None else arguments,
    )
    return MessageDraft(
        id=MessageId(id) if id else None,
        role=Role.TOOL_CALL,
        parts=(part,),
        model_id=MODEL.id,
        effect=effect,
        idempotency_key=f"session:{call_id}",
    )


def start(
    call_id: str, name: str = "look", arguments: dict[str, Any] | None = None
) -> tuple[ToolStarted]:
    shown = {"at": call_id} if arguments is None else arguments
    return (ToolStarted(call_id=CallId(call_id), name=name, arguments=shown),)


def good(call_id: str, result: Any = None, name: str = "look") -> tuple[Draft, ...]:
    """A result, as a row and as news; by default what the stand-in says."""
    found = f"{name} {call_id}" if result is None else result
    return _answer(ToolResult(call_id=CallId(call_id), name=name, status=_OK, result=found))


def bad(
    call_id: str,
    code: ResultCode,
    message: str,
    *,
    status: ResultStatus = ResultStatus.ERROR,
    name: str = "look",
) -> tuple[Draft, ...]:
    """The result of a call that did not go well, or not at all."""
    error = ToolError(code=code, message=message)
    return _answer(ToolResult(call_id=CallId(call_id), name=name, status=status, error=error))


_OK = ResultStatus.OK


def _answer(part: ToolResult) -> tuple[Draft, ...]:
    return (
        ToolEnded(
            call_id=part.call_id,
            name=part.name,
            status=part.status,
            result=part.result,
            failure=part.error,
        ),
        MessageDraft(role=Role.TOOL_RESULT, parts=(part,)),
    )
