"""Language models as the engine asks them. These are the in-flight types, never stored.

`engine/projection.py` is the only bridge from the durable messages to these.
"""

from collections.abc import AsyncGenerator, Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from holdfast.domain.agents import ReasoningEffort
from holdfast.domain.costs import Usage
from holdfast.domain.models import Model


class FailureKind(StrEnum):
    """How a provider failed; decides what is tried next."""

    RATE_LIMIT = "rate_limit"
    UNAVAILABLE = "unavailable"
    AUTH = "auth"
    TOO_LONG = "too_long"
    BAD_REQUEST = "bad_request"
    FILTERED = "filtered"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class StepStop(StrEnum):
    """Why a model stopped."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_USE = "tool_use"
    FILTERED = "filtered"


# Kept by the hundred for each long session, and made of JSON, so the collector need not look.
class LlmToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """A call inside a request."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class LlmReasoning(Struct, frozen=True, kw_only=True):
    """What a model thought earlier in this turn; only the provider that signed it may see it."""

    text: str
    signature: str | None = None
    provider: str


class LlmMedia(Struct, frozen=True, kw_only=True):
    """A picture, a document or a sound, and where in the text of its message it stands.

    The content is fetched for the one request that it leaves with.
    """

    ref: str
    mime_type: str
    name: str | None = None
    at: int = 0
    content: bytes = b""


class LlmMessage(Struct, frozen=True, kw_only=True, gc=False):
    """One message of a request: `user`, `assistant` (perhaps with calls) or `tool`."""

    role: str
    text: str = ""
    media: tuple[LlmMedia, ...] = ()
    reasoning: tuple[LlmReasoning, ...] = ()
    calls: tuple[LlmToolCall, ...] = ()
    # Of a `tool` message: which call it answers, and whether the call went wrong.
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False


class LlmTool(Struct, frozen=True, kw_only=True):
    """A tool as a model is offered it; the parameters are a JSON schema of one object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ToolChoice(StrEnum):
    """Whether a model may, must not or must ask for a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class LlmRequest(Struct, frozen=True, kw_only=True):
    """What a model is asked; `ordinal` numbers the requests of a session, retries included."""

    model: Model
    system: str | None = None
    messages: tuple[LlmMessage, ...]
    tools: tuple[LlmTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    # The same number after a crash, so that a request that is repeated can be recognised.
    ordinal: int


class TextDelta(Struct, frozen=True, kw_only=True):
    """A piece of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True, kw_only=True):
    """A piece of the model's thinking."""

    text: str


class ReasoningEnded(Struct, frozen=True, kw_only=True):
    """The thinking is over; a signature stays inside the turn and with its provider."""

    signature: str | None = None


class CallStarted(Struct, frozen=True, kw_only=True):
    """The model begins to ask for a tool; the id is unique within the session."""

    id: str
    name: str


class CallArguments(Struct, frozen=True, kw_only=True):
    """A piece of the JSON text of a call's arguments."""

    id: str
    text: str


class CallEnded(Struct, frozen=True, kw_only=True):
    """The call is complete; one that was cut off never ends."""

    id: str


class Stopped(Struct, frozen=True, kw_only=True):
    """The model has finished."""

    reason: StepStop
    usage: Usage | None = None


class Failed(Struct, frozen=True, kw_only=True):
    """The provider failed; the message is safe to show.

    Not `sent` means that no request has left: there was no key, or the model lacks what is needed.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after: float | None = None
    sent: bool = True


LlmDelta = (
    TextDelta
    | ReasoningDelta
    | ReasoningEnded
    | CallStarted
    | CallArguments
    | CallEnded
    | Stopped
    | Failed
)


class Llm(Protocol):
    """A model to ask."""

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer; failures are deltas, and the last delta is `Stopped` or `Failed`."""
