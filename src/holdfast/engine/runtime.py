"""Agent loop: a model step, the tool calls it requests, the next step, until it requests none.

Has no access to sessions, the store or any surface. Writes nothing itself: it emits drafts.
Cancelling the coroutine interrupts the turn at any point.
"""

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.domain.calls import Call, is_open
from holdfast.domain.drafts import Draft, MessageDraft, Outcome, ToolsFound, notice_draft
from holdfast.domain.events import Failure, FailureCode, StepEnded, StepFailed
from holdfast.domain.ids import CallId, MessageId, SessionId, uuid7
from holdfast.domain.messages import (
    Notice,
    NoticeCode,
    Output,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
)
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import StopReason
from holdfast.domain.text import storable
from holdfast.domain.time import microseconds
from holdfast.domain.tools import REMOTE, Effect, ResultCode
from holdfast.engine.cancellation import clear_cancellation, is_cancelled, stop_if_cancelled
from holdfast.engine.model_requests import (
    CUT_BY_BUDGET,
    FILTERED,
    ROUNDS_USED,
    TOOLS_FAIL,
    ModelChain,
    StepResult,
    internal,
)
from holdfast.engine.streaming import AskedCall, ModelAnswer
from holdfast.engine.tool_calls import NOT_AN_OBJECT, answer, dispatch, refuse_call
from holdfast.engine.tool_results import DEEPEST
from holdfast.engine.turn_state import PausedThoughts, TurnState, rounds_of
from holdfast.ports.llm import Failed, FailureKind, Llm, LlmReasoning, StepStop
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput, TurnPausedError
from holdfast.ports.system import Clock, Randomness
from holdfast.ports.tools import Toolbox, ToolWorkspace
from holdfast.services.agents import OUTPUT_SCHEMA, SchemaFault, parse_value, schema_of

logger = logging.getLogger("holdfast.engine")
# This many consecutive rounds without a successful call end the turn.
HOPELESS: Final = 5
# Answers of a turn that are checked against the output schema before the turn fails.
ANSWERS_MOST: Final = 3
_INVALID_TEXT_LONGEST: Final = 2_048
MEDIA_REFUSED: Final = (
    "The provider rejected a request with the attachment above. From now on the "
    "model gets a text instead; attach it again to retry."
)
_CALL_ID: Final = re.compile(r"[!-~]{1,256}")
_OVER_LIMIT: Final = refuse_call(
    ResultCode.LIMIT, "the turn has used all its tool rounds", ResultStatus.SKIPPED
)


class EngineRuntime:
    """Implement the `Runtime` port for agents backed by a language model."""

    writes_first = True

    def __init__(
        self,
        llm: Llm,
        toolbox: Toolbox,
        clock: Clock,
        randomness: Randomness,
        *,
        scrubber: Callable[[], Scrubber] = Scrubber,
    ) -> None:
        """`scrubber` is called for each tool call, because new secrets may have been registered."""
        self._scrubber = scrubber
        self._toolbox = toolbox
        self._clock = clock
        self._randomness = randomness
        self._chain = ModelChain(llm, clock, randomness, self._new_id)
        self._thoughts = PausedThoughts()

    async def run(self, turn: TurnInput, emit: Emit) -> TurnEnd:
        """Run steps until the turn ends; continues after a crash from the recorded state."""
        play = TurnState(turn, emit)
        self._thoughts.give_back(play)
        try:
            return await self._run(play)
        except TurnPausedError:
            self._thoughts.keep(play)
            raise

    async def _run(self, play: TurnState) -> TurnEnd:
        turn = play.turn
        calls = [call for call in turn.calls if is_open(call)]
        while True:
            await self._dispatch(play, calls)
            if ending := _ending(play) or await self._prepare(play):
                return play.end(ending)
            heard = await self._chain.answer(play)
            if isinstance(heard, Outcome):
                return play.end(heard)
            outcome = outcome_of(heard)
            fault = None
            if outcome and outcome.stop_reason is StopReason.STOP:
                heard, fault = _with_output(play, heard)
            calls = [] if outcome else [self._call(play, asked) for asked in heard.answer.calls]
            is_over = bool(calls) and len(rounds_of(play.current)) >= turn.limits.tool_rounds
            play.carry(self._step_drafts(play, heard, calls))
            if is_over:
                play.carry([draft for call in calls for draft in answer(call, _OVER_LIMIT)])
                outcome = Outcome(stop_reason=StopReason.TURN_LIMIT, failure=ROUNDS_USED)
            if fault:
                outcome = _after_fault(play, fault)
            if outcome:
                return play.end(outcome)
            if not _may_start_with_its_intent(calls):
                await play.emit()

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Summarise everything before the last answered turn."""
        return await self._chain.compactor.fold(TurnState(turn), reason="manual")

    async def _dispatch(self, play: TurnState, calls: Sequence[Call]) -> None:
        """Run the calls sequentially; carries the last result, which saves one transaction.

        Everything else is on disk before it takes effect: a question before it is asked, a start
        before the side effect, a result before the next call.
        """
        for place, call in enumerate(calls, start=1):
            # A result is written even after a cancellation, but no further call is started.
            stop_if_cancelled()
            done = await dispatch(self._toolbox, play, call, self._new_id)
            play.carry(answer(call, done))
            if place < len(calls):
                await play.emit()

    async def _prepare(self, play: TurnState) -> Outcome | None:
        """List the tools, and compact the history if it is too long; an outcome ends the turn."""
        is_due = self._chain.compactor.is_due(play)
        # Before any wait, a budget's included: a crash meanwhile would lose the carried results.
        if is_due or play.offers is None or play.cap > 0 or is_cancelled():
            await play.emit()
        # A tool may have swallowed the cancellation; no request is sent after it.
        stop_if_cancelled()
        if play.offers is None:
            try:
                troubles = await self._list_tools(play)
            # No request is open and every call has a result, so the turn can end normally.
            except Exception:  # noqa: BLE001
                return Outcome(stop_reason=StopReason.ERROR, failure=self._unlisted())
            if drafts := (*_found(play), *_unreported(play, troubles)):
                await play.emit(drafts)
        if is_due:
            await play.emit(await self._chain.compactor.fold(play, reason="auto"))
        return None

    async def _list_tools(self, play: TurnState) -> tuple[str, ...]:
        """List the tools of the turn; return which are missing."""
        place = play.turn.place
        if place is None:
            play.offers = ()
            return ()
        play.offers = await clear_cancellation(self._toolbox.offers(place))
        return await clear_cancellation(self._toolbox.troubles(place))

    def _unlisted(self) -> Failure:
        correlation_id = self._new_id()
        logger.exception(
            "The tools of a turn could not be listed (%s)",
            correlation_id,
            extra={"correlation_id": correlation_id},
        )
        return internal(correlation_id)

    def _call(self, play: TurnState, asked: AskedCall) -> Call:
        """Return a call of the model as it will be recorded."""
        place = play.turn.place
        arguments = _arguments(asked.arguments)
        # A provider may repeat an id or use one that cannot be stored; ids are unique in a session.
        # An id that contains a secret would be redacted in the row and no longer match.
        is_fit = _CALL_ID.fullmatch(asked.id) is not None and not self._scrubber().holds(asked.id)
        is_good = is_fit and play.take_call_id(asked.id)
        call_id = asked.id if is_good else f"call_{self._new_id()}"
        return Call(
            id=CallId(call_id),
            session_id=SessionId(""),
            turn=play.turn.turn,
            name=asked.name,
            arguments=arguments,
            effect=self._effect(asked.name, arguments, place),
            idempotency_key=f"{place.session if place else ''}:{call_id}",
        )

    def _effect(self, name: str, arguments: dict[str, Any], place: ToolWorkspace | None) -> Effect:
        # Without a workspace there are no tools, so the call cannot have an effect.
        if place is None:
            return Effect.PURE
        try:
            return self._toolbox.effect(name, arguments, place)
        # The arguments are untrusted; if the tool raises on them, assume the unsafe effect.
        except Exception:
            logger.exception("The effect of %s could not be determined", name)
            return Effect.UNSAFE

    def _step_drafts(
        self, play: TurnState, heard: StepResult, calls: Sequence[Call]
    ) -> tuple[Draft, ...]:
        """Return the drafts that end a step: message, calls and cost."""
        step = heard.started.step
        closing: Draft = (
            StepFailed(step=step, failure=heard.failure)
            if heard.failure
            else StepEnded(
                step=step,
                message_id=heard.started.message_id,
                usage=heard.cost.usage if heard.cost else None,
                microcents=heard.cost.microcents if heard.cost else 0,
                priced=heard.cost.priced if heard.cost else False,
            )
        )
        rows = (*_row(heard), *(_intent(call, heard) for call in calls))
        costs = (heard.cost,) if heard.cost else ()
        rows = self._sealed(play, heard, rows)
        # The end of the step precedes its rows, so a reader knows that they are complete.
        return (*heard.answer.unsent, closing, *_refusal(play, heard), *rows, *costs)

    def _sealed(
        self, play: TurnState, heard: StepResult, rows: tuple[MessageDraft, ...]
    ) -> tuple[MessageDraft, ...]:
        """Remember the reasoning that the provider needs again in this turn, by the first row."""
        said = heard.answer
        if not rows or not (said.reasoning or said.signature):
            return rows
        row_id = rows[0].id or MessageId(self._new_id())
        # Held in memory and for this turn only: a signature is never stored.
        thought = LlmReasoning(
            text=said.reasoning, signature=said.signature, provider=heard.model.provider
        )
        play.thoughts[row_id] = (thought,)
        return (replace(rows[0], id=row_id), *rows[1:])

    def _new_id(self) -> str:
        return uuid7(microseconds(self._clock.now()) // 1000, self._randomness.bits(74))


def _ending(play: TurnState) -> Outcome | None:
    """Return the outcome if the turn ends before another request, else `None`."""
    # A retried call runs as a turn of its own and asks no model.
    if not play.is_spoken_to:
        return Outcome(stop_reason=StopReason.STOP)
    rounds = rounds_of(play.current)
    if len(rounds) >= HOPELESS and not any(rounds[-HOPELESS:]):
        return Outcome(stop_reason=StopReason.ERROR, failure=TOOLS_FAIL)
    return None


def _may_start_with_its_intent(calls: Sequence[Call]) -> bool:
    """Return whether the intent and the start of the first call may be written in one transaction.

    Not for an unsafe call: after a crash in between it could run a second time. Not for a call of
    an MCP server, because planning it has to wait for the server.
    """
    first = calls[0] if calls else None
    return (
        first is not None
        and first.effect is not Effect.UNSAFE
        and not first.name.startswith(REMOTE)
    )


def _refusal(play: TurnState, heard: StepResult) -> tuple[MessageDraft, ...]:
    """Return a notice if the provider accepted a description of media that it refused."""
    if not play.hides_media or heard.failure is not None:
        return ()
    # From here on the notice hides earlier media; later media are sent again.
    play.hides_media = False
    notice = Notice(code=NoticeCode.MEDIA_REFUSED, text=MEDIA_REFUSED)
    return (MessageDraft(role=Role.SYSTEM, parts=(notice,)),)


def _with_output(play: TurnState, heard: StepResult) -> tuple[StepResult, str | None]:
    """Return the result with its value, or what is wrong with it, if the agent has a schema."""
    schema = schema_of(play.turn.agent, OUTPUT_SCHEMA)
    if schema is None:
        return heard, None
    try:
        value = parse_value(heard.answer.text, schema)
    except SchemaFault as fault:
        return heard, str(fault)
    return replace(heard, output=Output(value=value)), None


def _after_fault(play: TurnState, fault: str) -> Outcome | None:
    """Report an answer that does not match; return the outcome if the model is not asked again."""
    text = f"The answer does not match the output schema: {fault}."
    reported = [
        part
        for row in play.current
        for part in row.parts
        if isinstance(part, Notice) and part.code is NoticeCode.OUTPUT_INVALID
    ]
    if len(reported) + 1 >= ANSWERS_MOST:
        message = f"{text} Change the output_schema, the prompt or the model of the agent."
        failure = Failure(code=FailureCode.OUTPUT_INVALID, message=message)
        return Outcome(stop_reason=StopReason.ERROR, failure=failure)
    play.carry([notice_draft(NoticeCode.OUTPUT_INVALID, f"{text} Answer again.")])
    return None


def _row(heard: StepResult) -> tuple[MessageDraft, ...]:
    """Return the assistant message; a step without text and reasoning has none."""
    said = heard.answer
    thought = (Reasoning(text=said.reasoning),) if said.reasoning else ()
    words = (Text(text=said.text),) if said.text else ()
    value = (heard.output,) if heard.output is not None else ()
    parts: tuple[Part, ...] = (*thought, *words, *value)
    if not parts:
        return ()
    started = heard.started
    return (
        MessageDraft(
            id=started.message_id, role=Role.ASSISTANT, parts=parts, model_id=started.model_id
        ),
    )


def _intent(call: Call, heard: StepResult) -> MessageDraft:
    return MessageDraft(
        role=Role.TOOL_CALL,
        parts=(ToolCall(id=call.id, name=call.name, arguments=call.arguments),),
        model_id=heard.started.model_id,
        effect=call.effect,
        idempotency_key=call.idempotency_key,
    )


def _found(play: TurnState) -> tuple[Draft, ...]:
    """Return the MCP tools that the session did not know yet."""
    known = {tool.name for tool in play.turn.tools}
    offered = [tool.name for tool in play.offers or () if tool.name.startswith(REMOTE)]
    fresh = tuple(name for name in offered if name not in known)
    return (ToolsFound(names=fresh),) if fresh else ()


def _unreported(play: TurnState, troubles: Sequence[str]) -> tuple[Draft, ...]:
    """Return notices for unavailable tools, except those already in the history."""
    if not troubles:
        return ()
    reported = {part.text for row in play.rows for part in row.parts if isinstance(part, Notice)}
    return tuple(
        MessageDraft(
            role=Role.SYSTEM, parts=(Notice(code=NoticeCode.MCP_UNAVAILABLE, text=trouble),)
        )
        for trouble in dict.fromkeys(troubles)
        if trouble not in reported
    )


def _is_deep(value: Any, depth: int = 0) -> bool:
    """Return whether a value exceeds the nesting limit of a row."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > DEEPEST or any(_is_deep(each, depth + 1) for each in inner)


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; invalid JSON is stored as text and refused later."""
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
        # Unmodified, inline bytes included: the call that runs must be the call that was requested.
        if isinstance(found, dict) and msgspec.json.encode(found) and not _is_deep(found):
            return found
    except (msgspec.DecodeError, ValueError, RecursionError):
        # The call's result reports it, so that the model can read it.
        pass
    return {NOT_AN_OBJECT: storable(text[:_INVALID_TEXT_LONGEST])}


def outcome_of(heard: StepResult) -> Outcome | None:
    """Return how the turn ends after this step; `None` if tool calls have to run first."""
    end = heard.answer.end
    if isinstance(end, Failed):
        return _failed(heard, end)
    # Checked before the calls: a truncated call must not run as if it were complete.
    if end.reason is StepStop.LENGTH:
        if heard.is_cut_by_budget:
            return Outcome(stop_reason=StopReason.BUDGET, failure=CUT_BY_BUDGET)
        return Outcome(stop_reason=StopReason.LENGTH)
    if end.reason is StepStop.FILTERED:
        return _refusal_outcome(heard.answer)
    return None if heard.answer.calls else Outcome(stop_reason=StopReason.STOP)


def _failed(heard: StepResult, end: Failed) -> Outcome:
    if end.kind is FailureKind.FILTERED:
        return _refusal_outcome(heard.answer)
    if end.kind is FailureKind.CANCELLED:
        return Outcome(stop_reason=StopReason.ABORTED)
    return Outcome(stop_reason=StopReason.ERROR, failure=heard.failure)


def _refusal_outcome(answer: ModelAnswer) -> Outcome:
    return Outcome(stop_reason=StopReason.REFUSAL, failure=None if answer.text else FILTERED)
