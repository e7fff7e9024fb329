"""Our own loop: plays a turn by asking a model, and yields drafts. It writes nothing down itself.

It knows no session, no store and no surface; the abort signal is the closing of the generator.
"""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from holdfast.domain.agents import LlmRuntime
from holdfast.domain.costs import Usage, price
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft
from holdfast.domain.events import StepEnded, StepFailed, StepStarted
from holdfast.domain.ids import MessageId, uuid7
from holdfast.domain.messages import Part, Reasoning, Role, Text
from holdfast.domain.models import Model
from holdfast.domain.times import microseconds
from holdfast.engine.kept import KeptProjections
from holdfast.engine.step import Answer, ask
from holdfast.engine.verdicts import verdict
from holdfast.ports import Clock, Failed, FailureKind, Llm, LlmRequest, Randomness, TurnInput

logger = logging.getLogger("holdfast.engine")


class EngineRuntime:
    """A `Runtime` for agents that are a language model."""

    def __init__(self, llm: Llm, clock: Clock, randomness: Randomness) -> None:
        self._llm = llm
        self._clock = clock
        self._randomness = randomness
        self._projections = KeptProjections()

    async def run(self, turn: TurnInput) -> AsyncGenerator[Sequence[Draft], None]:
        """Play the turn: the step's start, its deltas, then everything that ends it at once."""
        model = turn.models[0]
        message_id = MessageId(self._new_id())
        started = StepStarted(step=turn.step, model_id=model.id, message_id=message_id)
        # On disk before the request leaves, so that a crash knows a request may have been sent.
        yield (started,)
        async with aclosing(ask(self._llm, self._request(turn, model), step=turn.step)) as parts:
            async for part in parts:
                yield self._ended(started, model, part) if isinstance(part, Answer) else part

    def _request(self, turn: TurnInput, model: Model) -> LlmRequest:
        runtime = turn.agent.runtime
        settings = runtime if isinstance(runtime, LlmRuntime) else LlmRuntime()
        return LlmRequest(
            model=model,
            system=turn.agent.system_prompt or None,
            messages=self._projections.project(turn.history, turn=turn.turn),
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            reasoning_effort=settings.reasoning_effort,
            ordinal=turn.ordinal,
        )

    def _ended(self, started: StepStarted, model: Model, answer: Answer) -> tuple[Draft, ...]:
        judged = verdict(answer, correlation_id=self._noted(answer))
        cost = _cost(answer, model, request_id=self._new_id())
        closing = (
            StepFailed(step=started.step, failure=judged.failure)
            if judged.failure
            else StepEnded(step=started.step, usage=cost.usage, microcents=cost.microcents)
        )
        return (*answer.unsent, *_row(started, answer), closing, cost, judged.outcome)

    def _noted(self, answer: Answer) -> str | None:
        """Log a failure that nobody classified, and return the id under which it can be found."""
        if not isinstance(answer.end, Failed) or answer.end.kind is not FailureKind.UNKNOWN:
            return None
        correlation_id = self._new_id()
        logger.error(
            "A model request failed for an unknown reason (%s): %s",
            correlation_id,
            answer.end.message,
            exc_info=answer.error,
            extra={"correlation_id": correlation_id},
        )
        return correlation_id

    def _new_id(self) -> str:
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))


def _row(started: StepStarted, answer: Answer) -> tuple[Draft, ...]:
    """Return the assistant's row; a step that said and thought nothing has none."""
    thought = (Reasoning(text=answer.reasoning),) if answer.reasoning else ()
    said = (Text(text=answer.text),) if answer.text else ()
    parts: tuple[Part, ...] = (*thought, *said)
    if not parts:
        return ()
    return (
        MessageDraft(
            id=started.message_id, role=Role.ASSISTANT, parts=parts, model_id=started.model_id
        ),
    )


def _cost(answer: Answer, model: Model, *, request_id: str) -> CostDraft:
    """Return the ledger's entry: failed requests count nothing, silent providers are unpriced."""
    usage = Usage() if isinstance(answer.end, Failed) else answer.end.usage
    draft = CostDraft(request_id=request_id, model_id=model.id, usage=usage)
    if usage is None or model.prices is None:
        return draft
    return CostDraft(
        request_id=request_id,
        model_id=model.id,
        usage=usage,
        microcents=price(usage, model.prices),
        priced=True,
    )
