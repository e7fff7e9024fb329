"""What agents say, as parameters of `session/update`, and what a translator makes of it."""

from collections.abc import Callable
from itertools import count
from typing import Any, Final

from holdfast.acp.client.agent_state import AgentState
from holdfast.acp.client.output_steps import TurnFacts
from holdfast.acp.client.translator import Translator
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
from holdfast.domain.ids import CallId, MessageId, ModelId
from holdfast.domain.messages import (
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect
from holdfast.ports.runtime import TurnEnd

MODEL: Final = ModelId("model-1")
STOP: Final = Outcome(stop_reason=StopReason.STOP)
END_TURN: Final = {"stopReason": "end_turn"}

Params = dict[str, Any]


def update(kind: str, /, **fields: Any) -> Params:
    """Return an update of a kind."""
    return {"sessionId": "s", "update": {"sessionUpdate": kind, **fields}}


def say(text: str, **fields: Any) -> Params:
    """Return a piece of an answer."""
    return update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def think(text: str, **fields: Any) -> Params:
    """Return a piece of a thought."""
    return update("agent_thought_chunk", content={"type": "text", "text": text}, **fields)


def tool(call_id: Any, **fields: Any) -> Params:
    """Return the announcement of a call."""
    return update("tool_call", toolCallId=call_id, **fields)


def tool_update(call_id: Any, **fields: Any) -> Params:
    """Return what is new about a call."""
    return update("tool_call_update", toolCallId=call_id, **fields)


def words(*texts: str) -> list[dict[str, Any]]:
    """Return texts as the content of a call."""
    return [{"type": "content", "content": {"type": "text", "text": text}} for text in texts]


def plan(*texts: str) -> Params:
    """Return a plan of steps that nobody has begun."""
    return update("plan", entries=[{"content": text} for text in texts])


def numbered() -> Callable[[], str]:
    """Return a maker of ids: id-1, id-2 and so on."""
    numbers = count(1)
    return lambda: f"id-{next(numbers)}"


def a_ground(**changes: Any) -> TurnFacts:
    """Return what is known of the first turn of session `S`."""
    known: dict[str, Any] = {"session": "S", "turn": 1, "step": 1, "model_id": MODEL}
    return TurnFacts(**(known | changes))


def a_translator(agent_state: AgentState | None = None, **changes: Any) -> Translator:
    """Return a translator that has heard nothing yet."""
    return Translator(
        a_ground(**changes), agent_state=agent_state or AgentState(), new_id=numbered()
    )


def heard(*updates: Params, reply: Any = END_TURN, **changes: Any) -> list[Draft]:
    """Return all drafts of a turn, each update a tenth of a second after the one before."""
    translator = a_translator(**changes)
    drafts: list[Draft] = []
    for number, params in enumerate(updates):
        now = number / 10
        if translator.deadline is not None and translator.deadline <= now:
            drafts += translator.flush(now=now)
        drafts += translator.update(params, now=now)
    end = translator.end(reply)
    return [*drafts, *end.drafts, end.outcome]


def turn_end(*drafts: Draft) -> TurnEnd:
    """Return the end of a turn from its drafts, of which the outcome is the last."""
    *before, outcome = drafts
    assert isinstance(outcome, Outcome)
    return TurnEnd(outcome=outcome, drafts=tuple(before))


def started(step: int, message: str) -> StepStarted:
    """Return the start of a step."""
    return StepStarted(step=step, model_id=MODEL, message_id=MessageId(message))


def delta(step: int, message: str, text: str, offset: int = 0) -> StepDelta:
    """Return a piece of text."""
    return StepDelta(
        step=step,
        message_id=MessageId(message),
        channel=Channel.TEXT,
        offset=offset,
        text=text,
    )


def thought(step: int, message: str, text: str, offset: int = 0) -> StepDelta:
    """Return a piece of a thought."""
    return StepDelta(
        step=step,
        message_id=MessageId(message),
        channel=Channel.REASONING,
        offset=offset,
        text=text,
    )


def stepped(step: int, message: str) -> StepEnded:
    """Return the end of a step."""
    return StepEnded(step=step, message_id=MessageId(message))


def row(message: str, *parts: Part | str) -> MessageDraft:
    """Return an assistant's row; texts stand for themselves."""
    whole = tuple(Text(text=part) if isinstance(part, str) else part for part in parts)
    return MessageDraft(id=MessageId(message), role=Role.ASSISTANT, parts=whole, model_id=MODEL)


def said(step: int, message: str, text: str) -> tuple[Draft, ...]:
    """Return a whole step that is one piece of text."""
    return (
        started(step, message),
        delta(step, message, text),
        stepped(step, message),
        row(message, text),
    )


def silent(step: int, message: str) -> tuple[Draft, ...]:
    """Return a step that only calls."""
    return started(step, message), stepped(step, message)


def called(
    call_id: str,
    name: str,
    arguments: dict[str, Any],
    effect: Effect = Effect.UNSAFE,
    **fields: Any,
) -> tuple[Draft, ...]:
    """Return the beginning of a call."""
    part = ToolCall(id=CallId(call_id), name=name, arguments=arguments, **fields)
    intent = MessageDraft(role=Role.TOOL_CALL, parts=(part,), model_id=MODEL, effect=effect)
    return intent, ToolStarted(call_id=CallId(call_id), name=name, arguments=arguments)


def returned(
    call_id: str,
    name: str,
    status: ResultStatus = ResultStatus.OK,
    result: Any = None,
    error: tuple[str, str] | None = None,
) -> tuple[Draft, ...]:
    """Return the end of a call."""
    failure = ToolError(code=error[0], message=error[1]) if error else None
    part = ToolResult(
        call_id=CallId(call_id), name=name, status=status, result=result, error=failure
    )
    ended = ToolEnded(
        call_id=CallId(call_id), name=name, status=status, result=result, failure=failure
    )
    return ended, MessageDraft(role=Role.TOOL_RESULT, parts=(part,))


def cost(usage: Usage | None = None, **fields: Any) -> CostDraft:
    """Return the turn's one entry in the ledger."""
    return CostDraft(request_id="acp:S:1", model_id=MODEL, usage=usage, **fields)
