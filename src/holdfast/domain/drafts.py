"""Drafts: what a runtime yields. The journal pulls them, stamps them and writes them down.

A batch of drafts is one transaction; nothing in a batch counts before all of it is on disk.
"""

from msgspec import Struct

from holdfast.domain.costs import Usage
from holdfast.domain.events import Failure, Payload
from holdfast.domain.ids import MessageId, ModelId
from holdfast.domain.messages import Part, Role
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect


class MessageDraft(Struct, frozen=True, kw_only=True):
    """A row to be written; a tool call also says what running it twice would do."""

    role: Role
    parts: tuple[Part, ...]
    id: MessageId | None = None
    model_id: ModelId | None = None
    effect: Effect | None = None


class CostDraft(Struct, frozen=True, kw_only=True):
    """What a provider request cost; without usage the provider did not say."""

    request_id: str
    model_id: ModelId
    usage: Usage | None = None
    microcents: int = 0
    priced: bool = False


class Outcome(Struct, frozen=True, kw_only=True):
    """The last draft of a turn: how it ended."""

    stop_reason: StopReason
    failure: Failure | None = None


Draft = MessageDraft | CostDraft | Outcome | Payload
