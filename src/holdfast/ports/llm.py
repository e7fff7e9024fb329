"""Language model port. These are the in-flight types, never stored.

`engine/projection.py` is the only conversion from the durable messages to these.
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


# gc=False, because long sessions cache hundreds of these and JSON values hold no cycles.
class LlmToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """A tool call inside a request."""

    id: str
    name: str
    arguments: Mapping[str, Any]


class LlmReasoning(Struct, frozen=True, kw_only=True):
    """A model's earlier reasoning in this turn; sent only to the provider that signed it."""

    text: str
    signature: str | None = None
    provider: str


class LlmMedia(Struct, frozen=True, kw_only=True):
    """An image, document or audio file, and its position in the text of its message.

    The content is loaded only for the request that sends it.
    """

    ref: str
    mime_type: str
    name: str | None = None
    at: int = 0
    content: bytes = b""


class LlmMessage(Struct, frozen=True, kw_only=True, gc=False):
    """One message of a request: `user`, `assistant` (optionally with calls) or `tool`."""

    role: str
    text: str = ""
    media: tuple[LlmMedia, ...] = ()
    reasoning: tuple[LlmReasoning, ...] = ()
    calls: tuple[LlmToolCall, ...] = ()
    # Of a `tool` message: the call it answers, and whether the call failed.
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False


class LlmTool(Struct, frozen=True, kw_only=True):
    """A tool offered to a model; the parameters are a JSON schema of one object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ToolChoice(StrEnum):
    """Whether a model may, must not or must call a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


class LlmRequest(Struct, frozen=True, kw_only=True):
    """A request to a model; `ordinal` numbers the requests of a session, including retries."""

    model: Model
    system: str | None = None
    messages: tuple[LlmMessage, ...]
    tools: tuple[LlmTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    # The same number after a crash, so that a repeated request can be recognised (idempotency).
    ordinal: int


class LlmTextDelta(Struct, frozen=True, kw_only=True):
    """A chunk of the answer."""

    text: str


class LlmReasoningDelta(Struct, frozen=True, kw_only=True):
    """A chunk of the model's reasoning."""

    text: str


class ReasoningEnded(Struct, frozen=True, kw_only=True):
    """The reasoning is complete; its signature is used only in this turn and by its provider."""

    signature: str | None = None


class CallStarted(Struct, frozen=True, kw_only=True):
    """The model starts a tool call; the id is unique within the session."""

    id: str
    name: str


class CallArguments(Struct, frozen=True, kw_only=True):
    """A chunk of the JSON text of a call's arguments."""

    id: str
    text: str


class CallEnded(Struct, frozen=True, kw_only=True):
    """The call is complete; a truncated call never ends."""

    id: str


class Stopped(Struct, frozen=True, kw_only=True):
    """The model has finished."""

    reason: StepStop
    usage: Usage | None = None


class Failed(Struct, frozen=True, kw_only=True):
    """The provider failed; the message is safe to show.

    `sent` is false if no request was sent: the key is missing, or the model lacks a feature.
    `billed` is false if the provider charges nothing: it was not reached, or it refused the request
    with an error status.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    retry_after: float | None = None
    sent: bool = True
    billed: bool = True


LlmDelta = (
    LlmTextDelta
    | LlmReasoningDelta
    | ReasoningEnded
    | CallStarted
    | CallArguments
    | CallEnded
    | Stopped
    | Failed
)


class Llm(Protocol):
    """A language model."""

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer; failures are deltas, and the last delta is `Stopped` or `Failed`."""
