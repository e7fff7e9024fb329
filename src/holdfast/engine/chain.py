"""Asking the chain of models until one of them has answered.

Every attempt is a step with a start and an end. Once something of an answer was heard, nobody
else is asked: what the reader has seen is the answer.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.drafts import CostDraft, Draft, Outcome, Summary
from holdfast.domain.events import Failure, StepFailed, StepStarted
from holdfast.domain.ids import MessageId
from holdfast.domain.models import Model
from holdfast.domain.sessions import StopReason
from holdfast.engine.attachments import REFUSED, attached, holds_media, in_words
from holdfast.engine.budgets import (
    Need,
    charge,
    is_capped,
    is_cut_by_budget,
    need_of,
    output_limit,
)
from holdfast.engine.compaction import Compactor
from holdfast.engine.failures import EMPTY_TOOL_USE, failure_of, internal
from holdfast.engine.fallback import Course, chain_of, pause
from holdfast.engine.governor import afford
from holdfast.engine.kept import KeptProjections
from holdfast.engine.play import Play
from holdfast.engine.step import Answer, ask
from holdfast.ports import (
    Clock,
    Failed,
    FailureKind,
    Llm,
    LlmMessage,
    LlmRequest,
    Randomness,
    StepStop,
)

logger = logging.getLogger("holdfast.engine")

Batch = Sequence[Draft]
_LUCK_BITS: Final = 30


class Heard(Struct, frozen=True, kw_only=True):
    """What a step came to, whom it was asked of, and what it cost if a request has left."""

    started: StepStarted
    model: Model
    answer: Answer
    cost: CostDraft | None
    failure: Failure | None = None
    # Whether the budget has decided how long the answer could be.
    is_cut_by_budget: bool = False


# What a provider says to a picture it does not take, or that makes the request too large.
_PERHAPS_MEDIA: Final = frozenset({FailureKind.BAD_REQUEST, FailureKind.TOO_LONG})


class Chain:
    """Asks models for all turns of this process; remembers which providers want to be spared."""

    def __init__(
        self, llm: Llm, clock: Clock, randomness: Randomness, new_id: Callable[[], str]
    ) -> None:
        self._llm = llm
        self._clock = clock
        self._randomness = randomness
        self._new_id = new_id
        self.compactor = Compactor(llm, new_id)
        self._projections = KeptProjections()
        self._spared: dict[str, int] = {}

    async def answer(self, play: Play) -> AsyncGenerator[Batch | Heard, None]:
        """Yield batches, and last what was heard.

        A batch that ends with an `Outcome` ends the turn; then nothing was heard.
        """
        course = Course(chain_of(play.turn.models, play.settings))
        while True:
            heard: Heard | None = None
            async with aclosing(self._attempt(play, course.entry.model)) as parts:
                async for part in parts:
                    if isinstance(part, Heard):
                        heard = part
                    else:
                        yield part
            failed = _failed_unheard(heard)
            if heard is None or failed is None:
                break
            # Once only: what was folded cannot be folded again.
            is_wanted = play.turn.limits.compact_threshold is not None
            if is_wanted and failed.kind is FailureKind.TOO_LONG and self.compactor.can_fold(play):
                yield await self._shortened(play, heard)
                continue
            # Once only: the next request names them in words; if that helps, the record says so.
            if failed.sent and failed.kind in _PERHAPS_MEDIA and play.shows_media:
                play.hides_media = True
                yield _closed(heard, heard.model)
                continue
            attempt = course.attempt
            if not course.turn(failed):
                heard = _stuck(heard, course.verdict(failed))
                break
            yield _closed(heard, course.entry.model)
            # Only the same model is given time; another one is asked at once.
            if course.attempt > attempt:
                await asyncio.sleep(self._pause(failed, attempt, play))
        if heard is not None:
            yield heard

    async def _shortened(self, play: Play, heard: Heard) -> Batch:
        """Close a step that was too long, and fold the past; if that fails the turn is over."""
        folded = await self.compactor.fold(play, reason="auto", unwritten=1 if heard.cost else 0)
        closed = (*_closed(heard, heard.model), *folded)
        if any(isinstance(draft, Summary) for draft in folded):
            return closed
        return (*closed, Outcome(stop_reason=StopReason.ERROR, failure=heard.failure))

    async def _attempt(self, play: Play, model: Model) -> AsyncGenerator[Batch | Heard, None]:
        """Ask one model once, if the budget agrees, for no more than the budget can pay."""
        need = await self._need(play, model)
        async with aclosing(afford(play, need, self._new_id)) as batches:
            async for drafts in batches:
                yield drafts
                if isinstance(drafts[-1], Outcome):
                    return
        started = StepStarted(
            step=play.step,
            model_id=model.id,
            model=model.ref,
            message_id=MessageId(self._new_id()),
        )
        play.step += 1
        # On disk before the request leaves, so that a crash knows a request may have been sent.
        yield (started,)
        need = replace(need, output=output_limit(play, need))
        if spared := self._left(model):
            yield self._judged(play, need, started, Answer(end=spared))
            return
        asking = ask(
            self._llm,
            replace(await self._request(play, model), max_tokens=need.output),
            step=started.step,
            message_id=started.message_id,
        )
        async with aclosing(asking) as parts:
            async for part in parts:
                yield self._judged(play, need, started, part) if isinstance(part, Answer) else part

    async def _need(self, play: Play, model: Model) -> Need:
        """Return what the next request takes at most; nobody has to know without a budget."""
        if not is_capped(play):
            return Need(model=model, input=0, output=play.settings.max_tokens)
        # The request is not kept: a person may be asked for money first, and it may hold media.
        return need_of(play, await self._request(play, model))

    async def _request(self, play: Play, model: Model) -> LlmRequest:
        settings = play.settings
        thoughts = {
            row: tuple(each for each in said if each.provider == model.provider)
            for row, said in play.thoughts.items()
        }
        projected = self._projections.project(
            play.rows,
            turn=play.turn.turn,
            window=play.turn.limits.max_messages,
            thoughts=thoughts,
        )
        return LlmRequest(
            model=model,
            system=play.turn.agent.system_prompt or None,
            messages=await _with_media(play, model, projected),
            tools=play.offers or (),
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            reasoning_effort=settings.reasoning_effort,
            ordinal=play.ordinal,
        )

    def _judged(self, play: Play, need: Need, started: StepStarted, answer: Answer) -> Heard:
        end, asked, model = answer.end, answer, need.model
        failure = None
        if isinstance(end, Failed):
            failure = self._failure(answer, end)
            if end.kind is FailureKind.RATE_LIMIT and end.sent and end.retry_after:
                self._spared[model.provider] = self._clock.boot_ms() + int(end.retry_after * 1000)
        elif end.reason is StepStop.TOOL_USE and not answer.calls and not answer.text:
            failure = EMPTY_TOOL_USE
            answer = replace(
                answer, end=Failed(kind=FailureKind.UNAVAILABLE, message=failure.message)
            )
        # Of what was asked: an answer that is judged a failure has cost what it has cost.
        return Heard(
            started=started,
            model=model,
            answer=answer,
            cost=charge(play, need, asked, self._new_id()),
            failure=failure,
            is_cut_by_budget=is_cut_by_budget(play, need),
        )

    def _failure(self, answer: Answer, end: Failed) -> Failure:
        if end.kind is not FailureKind.UNKNOWN:
            return failure_of(end)
        correlation_id = self._new_id()
        logger.error(
            "A model request failed for an unknown reason (%s): %s",
            correlation_id,
            end.message,
            exc_info=answer.error,
            extra={"correlation_id": correlation_id},
        )
        return internal(correlation_id)

    def _left(self, model: Model) -> Failed | None:
        """Return why a provider is not asked now: it wanted to be spared until later."""
        left = (self._spared.get(model.provider, 0) - self._clock.boot_ms()) / 1000
        if left <= 0:
            return None
        return Failed(
            kind=FailureKind.RATE_LIMIT,
            message=f"{model.provider} wanted to be left alone for a while.",
            retry_after=left,
            sent=False,
        )

    def _pause(self, failed: Failed, attempt: int, play: Play) -> float:
        luck = self._randomness.bits(_LUCK_BITS) / (1 << _LUCK_BITS)
        return pause(failed, attempt=attempt, luck=luck, settings=play.settings)


async def _with_media(
    play: Play, model: Model, messages: tuple[LlmMessage, ...]
) -> tuple[LlmMessage, ...]:
    """Return the messages with what is attached to them, or with words in its place."""
    play.shows_media = holds_media(messages)
    if not play.shows_media:
        return messages
    if play.hides_media:
        messages = in_words(messages, why=REFUSED)
    else:
        messages = await attached(messages, play.turn.shelf, model.intake)
    play.shows_media = holds_media(messages)
    return messages


def _failed_unheard(heard: Heard | None) -> Failed | None:
    """Return the failure of a step of which nothing was heard; only then somebody else is asked."""
    if heard is None or heard.answer.text or heard.answer.reasoning:
        return None
    end = heard.answer.end
    return end if isinstance(end, Failed) else None


def _stuck(heard: Heard, verdict: Failed) -> Heard:
    """Return the end of the chain, told by the failure that decides."""
    return heard if verdict is heard.answer.end else replace(heard, failure=failure_of(verdict))


def _closed(heard: Heard, following: Model) -> tuple[Draft, ...]:
    """Return the end of a step after which another model, or the same one again, is asked."""
    if heard.failure is None:
        return ()
    failed = StepFailed(step=heard.started.step, failure=heard.failure, next_model_id=following.id)
    return (failed, heard.cost) if heard.cost else (failed,)
