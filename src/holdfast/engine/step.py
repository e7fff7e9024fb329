"""One step: one request to one model, heard to its end. `verdicts.py` decides what it means."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.ids import MessageId
from holdfast.domain.texts import storable
from holdfast.engine.coalesce import Gathered, Piece, coalesce
from holdfast.ports import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    Llm,
    LlmRequest,
    ReasoningEnded,
    Stopped,
)

# Nobody means more than this: such an answer is a fault, and it would fill memory and disk.
CALLS_MOST: Final = 128
LONGEST: Final = 4 << 20
_NAME_LONGEST: Final = 256


class AskedCall(Struct, frozen=True, kw_only=True):
    """A call that the model asked for in full; `arguments` is the JSON text as it came."""

    id: str
    name: str
    arguments: str


class Answer(Struct, frozen=True, kw_only=True):
    """What a step came to; `unsent` are the deltas that arrived together with its end.

    `calls` are those that were complete, `error` is what the adapter raised, if it did.
    """

    text: str = ""
    reasoning: str = ""
    signature: str | None = None
    calls: tuple[AskedCall, ...] = ()
    end: Stopped | Failed
    unsent: tuple[StepDelta, ...] = ()
    error: Exception | None = None


async def ask(
    llm: Llm, request: LlmRequest, *, step: int, message_id: MessageId | None = None
) -> AsyncGenerator[tuple[StepDelta, ...] | Answer, None]:
    """Yield batches of deltas while the model speaks, and last the `Answer`; nothing is raised."""
    hearing = _Hearing(step, message_id)
    try:
        async with aclosing(coalesce(llm.stream(request))) as gathered:
            async for items in gathered:
                deltas = hearing.hear(items)
                # What comes with the end is written with the end: one transaction less.
                if deltas and hearing.end is None:
                    yield deltas
                if hearing.has_enough:
                    break
    # Whatever an adapter raises is a failure of this step, never of the turn's caller.
    except Exception as error:  # noqa: BLE001
        hearing.fail(error)
    yield hearing.answer()


_BROKEN_OFF = Failed(
    kind=FailureKind.UNAVAILABLE, message="The provider's answer broke off before its end."
)
_ENDLESS = Failed(
    kind=FailureKind.UNAVAILABLE,
    message="The provider's answer was longer than 4 MiB, or asked for more than 128 calls.",
)
_RAISED = Failed(kind=FailureKind.UNKNOWN, message="The provider's adapter raised an error.")


class _Hearing:
    """What has been heard of one step."""

    def __init__(self, step: int, message_id: MessageId | None) -> None:
        self.end: Stopped | Failed | None = None
        self.has_enough = False
        self._step = step
        self._message_id = message_id
        self._size = 0
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._calls: list[AskedCall] = []
        self._signature: str | None = None
        self._unsent: tuple[StepDelta, ...] = ()
        self._error: Exception | None = None

    def hear(self, items: Sequence[Gathered]) -> tuple[StepDelta, ...]:
        """Take in what was gathered and return its text as deltas."""
        deltas: list[StepDelta] = []
        for item in items:
            if self._is_too_much(item):
                self.end, self.has_enough = _ENDLESS, True
                break
            match item:
                case Piece():
                    deltas.append(self._delta(item))
                case CallStarted():
                    self._open[item.id] = item, []
                case CallArguments():
                    # Nothing is not gathered: there may be no end of it.
                    self._open[item.id][1].extend(filter(None, [item.text]))
                case CallEnded():
                    self._complete(item.id)
                case ReasoningEnded():
                    self._signature = item.signature
                case Stopped():
                    self.end = item
                case Failed():
                    self.end = _with_a_time_to_wait(item)
        if self.end is not None:
            self._unsent = tuple(deltas)
        return tuple(deltas)

    def fail(self, error: Exception) -> None:
        """Note that the adapter raised; what it said before stays, a whole answer included."""
        if self.end is None:
            self.end = _RAISED
            self._error = error

    def answer(self) -> Answer:
        """Return what the step came to."""
        return Answer(
            text="".join(self._texts[Channel.TEXT]),
            reasoning="".join(self._texts[Channel.REASONING]),
            signature=self._signature,
            calls=tuple(self._calls),
            end=self.end or _BROKEN_OFF,
            unsent=self._unsent,
            error=self._error,
        )

    def _is_too_much(self, item: Gathered) -> bool:
        if isinstance(item, Piece | CallArguments):
            self._size += len(item.text)
        asked = len(self._open) + len(self._calls)
        return self._size > LONGEST or (isinstance(item, CallStarted) and asked >= CALLS_MOST)

    def _complete(self, call_id: str) -> None:
        begun, pieces = self._open.pop(call_id)
        name = storable(begun.name[:_NAME_LONGEST])
        self._calls.append(AskedCall(id=begun.id, name=name, arguments="".join(pieces)))

    def _delta(self, piece: Piece) -> StepDelta:
        self._texts[piece.channel].append(piece.text)
        return StepDelta(
            step=self._step,
            message_id=self._message_id,
            channel=piece.channel,
            offset=piece.offset,
            text=piece.text,
        )


def _with_a_time_to_wait(failed: Failed) -> Failed:
    """Return the failure without a time to wait that is none."""
    wait = failed.retry_after
    return failed if wait is None or 0 < wait < inf else replace(failed, retry_after=None)
