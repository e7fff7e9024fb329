"""One step: one request to one model, heard to its end. `verdicts.py` decides what it means."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import Struct

from holdfast.domain.events import Channel, StepDelta
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
    llm: Llm, request: LlmRequest, *, step: int
) -> AsyncGenerator[tuple[StepDelta, ...] | Answer, None]:
    """Yield batches of deltas while the model speaks, and last the `Answer`; nothing is raised."""
    hearing = _Hearing(step)
    try:
        async with aclosing(coalesce(llm.stream(request))) as gathered:
            async for items in gathered:
                deltas = hearing.hear(items)
                # What comes with the end is written with the end: one transaction less.
                if deltas and hearing.end is None:
                    yield deltas
    # Whatever an adapter raises is a failure of this step, never of the turn's caller.
    except Exception as error:  # noqa: BLE001
        hearing.fail(error)
    yield hearing.answer()


_BROKEN_OFF = Failed(
    kind=FailureKind.UNAVAILABLE, message="The provider's answer broke off before its end."
)
_RAISED = Failed(kind=FailureKind.UNKNOWN, message="The provider's adapter raised an error.")


class _Hearing:
    """What has been heard of one step."""

    def __init__(self, step: int) -> None:
        self.end: Stopped | Failed | None = None
        self._step = step
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._calls: list[AskedCall] = []
        self._signature: str | None = None
        self._unsent: tuple[StepDelta, ...] = ()
        self._error: Exception | None = None

    def hear(self, items: Sequence[Gathered]) -> tuple[StepDelta, ...]:
        """Take in what was gathered and return its text as deltas."""
        deltas = tuple(self._delta(item) for item in items if isinstance(item, Piece))
        for item in items:
            match item:
                case CallStarted():
                    self._open[item.id] = item, []
                case CallArguments():
                    self._open[item.id][1].append(item.text)
                case CallEnded():
                    self._complete(item.id)
                case ReasoningEnded():
                    self._signature = item.signature
                case Stopped() | Failed():
                    self.end = item
                    self._unsent = deltas
                case _:
                    pass
        return deltas

    def fail(self, error: Exception) -> None:
        """Note that the adapter raised; what it said before stays."""
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

    def _complete(self, call_id: str) -> None:
        begun, pieces = self._open.pop(call_id)
        self._calls.append(AskedCall(id=begun.id, name=begun.name, arguments="".join(pieces)))

    def _delta(self, piece: Piece) -> StepDelta:
        self._texts[piece.channel].append(piece.text)
        return StepDelta(
            step=self._step, channel=piece.channel, offset=piece.offset, text=piece.text
        )
