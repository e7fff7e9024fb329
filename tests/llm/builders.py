"""Requests with defaults, and how the tests of models hear an answer."""

from pathlib import Path

from holdfast.domain.models import model_of
from holdfast.ports.llm import Llm, LlmDelta, LlmMessage, LlmRequest, LlmToolCall


def said(text: str) -> LlmMessage:
    """What a user said."""
    return LlmMessage(role="user", text=text)


def answered(text: str) -> LlmMessage:
    """What the model answered."""
    return LlmMessage(role="assistant", text=text)


def called(call_id: str, *, result: str) -> tuple[LlmMessage, LlmMessage]:
    """A tool call and its result."""
    call = LlmToolCall(id=call_id, name="look", arguments={})
    return (
        LlmMessage(role="assistant", calls=(call,)),
        LlmMessage(role="tool", call_id=call_id, text=result),
    )


def a_request(
    *messages: LlmMessage, model: str, ordinal: int = 1, system: str | None = None
) -> LlmRequest:
    """A request to a model by `provider:name`."""
    return LlmRequest(model=model_of(model), messages=messages, ordinal=ordinal, system=system)


def a_script(folder: Path, content: str, name: str = "script.yaml") -> str:
    """Write a script and return the model that plays it."""
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return f"scripted:{path}"


async def heard(llm: Llm, request: LlmRequest) -> list[LlmDelta]:
    """Hear a model to its end."""
    return [delta async for delta in llm.stream(request)]
