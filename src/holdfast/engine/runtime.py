"""Agent loop: a model step, the tool calls it requests, the next step, until it requests none.

Has no access to sessions, the store or any surface. Writes nothing itself: it emits drafts.
Cancelling the coroutine interrupts the turn at any point.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
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
from holdfast.domain.tools import REMOTE, Effect, ResultCode
from holdfast.engine.model_requests import (
    CUT_BY_BUDGET,
    FILTERED,
    ROUNDS_USED,
    TOOLS_FAIL,
    ModelChain,
    StepResult,
    internal_failure,
)
from holdfast.engine.parallel_calls import dispatch_together, group_calls
from holdfast.engine.streaming import AskedCall, ModelAnswer
from holdfast.engine.tool_calls import NOT_AN_OBJECT, answer, dispatch, refuse_call
from holdfast.engine.tool_results import DEEPEST
from holdfast.engine.turn_state import PausedThoughts, TurnState, rounds_of
from holdfast.ports.llm import Failed, FailureKind, Llm, LlmReasoning, StepStop
from holdfast.ports.runtime import Emit, TurnEnd, TurnInput, TurnPausedError
from holdfast.ports.system import Clock, Randomness
from holdfast.ports.tools import Toolbox, ToolWorkspace
from holdfast.services.agents import SchemaFault, parse_value

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
_name: Final = attrgetter("name")
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
        state = TurnState(turn, emit)
        self._thoughts.give_back(state)
        calls = list(filter(is_open, turn.calls))
        # Always set, because this is a coroutine.
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        try:
            while True:
                # Group after group. The last result is carried, which saves one transaction;
                # everything else is on disk before it takes effect: a question before it is asked,
                # a start before the side effect, a result before the next group.
                groups = group_calls(self._toolbox, state, calls)
                for place, group in enumerate(groups, start=1):
                    # A tool may have swallowed the cancellation. A result is written even after it,
                    # but no further call is started.
                    if task.cancelling():
                        raise asyncio.CancelledError
                    if len(group) > 1:
                        await dispatch_together(self._toolbox, state, group, self._new_id)
                        continue
                    done = await dispatch(self._toolbox, state, group[0], self._new_id)
                    state.carry(answer(group[0], done))
                    if place < len(groups):
                        await state.emit()
                if ending := _ending(state) or await self._prepare(state, task):
                    return state.end(ending)
                heard = await self._chain.ask(state, turn.models[0])
                if isinstance(heard, StepResult) and isinstance(heard.answer.end, Failed):
                    heard = await self._chain.fall_back(state, heard)
                if isinstance(heard, Outcome):
                    return state.end(heard)
                outcome, calls = self._end_step(state, heard)
                if outcome:
                    return state.end(outcome)
                if not _may_start_with_its_intent(calls):
                    await state.emit()
        except TurnPausedError:
            self._thoughts.keep(state)
            raise

    async def compact(self, turn: TurnInput) -> Sequence[Draft]:
        """Summarise everything before the last answered turn."""
        return await self._chain.compactor.fold(TurnState(turn), reason="manual")

    async def _prepare(self, state: TurnState, task: "asyncio.Task[Any]") -> Outcome | None:
        """List the tools, and compact the history if it is too long; an outcome ends the turn."""
        is_due = self._chain.compactor.is_due(state)
        is_over = task.cancelling() > 0
        # Before any wait, a budget's included: a crash meanwhile would lose the carried results.
        if state.carried and (is_due or state.offers is None or state.cap > 0 or is_over):
            await state.emit()
        # As above: no request is sent after it.
        if is_over:
            raise asyncio.CancelledError
        if state.offers is None:
            try:
                found = await self._list_tools(state)
            except asyncio.CancelledError:
                if task.cancelling():
                    raise
                return Outcome(stop_reason=StopReason.ERROR, failure=self._listing_failure())
            # No request is open and every call has a result, so the turn can end normally.
            except Exception:  # noqa: BLE001
                return Outcome(stop_reason=StopReason.ERROR, failure=self._listing_failure())
            if found:
                await state.emit(found)
        if is_due:
            await state.emit(await self._chain.compactor.fold(state, reason="auto"))
        return None

    async def _list_tools(self, state: TurnState) -> list[Draft]:
        """List the tools of the turn; return what the session did not know yet.

        These are tools of MCP servers, and notices for those that are missing.
        """
        state.offers, place = (), state.turn.workspace
        if place is None:
            return []
        offers = await self._toolbox.offers(place)
        troubles = await self._toolbox.troubles(place)
        state.offers = offers
        drafts: list[Draft] = []
        known, fresh = set(map(_name, state.turn.tools)), []
        for tool in offers:
            if tool.name.startswith(REMOTE) and tool.name not in known:
                fresh.append(tool.name)
        if fresh:
            drafts.append(ToolsFound(names=tuple(fresh)))
        if troubles:
            parts = [part for row in state.rows for part in row.parts]
            reported = {part.text for part in parts if isinstance(part, Notice)}
            drafts += [
                notice_draft(NoticeCode.MCP_UNAVAILABLE, trouble)
                for trouble in dict.fromkeys(troubles)
                if trouble not in reported
            ]
        return drafts

    def _listing_failure(self) -> Failure:
        correlation_id = self._new_id()
        logger.exception(
            "The tools of a turn could not be listed (%s)",
            correlation_id,
            extra={"correlation_id": correlation_id},
        )
        return internal_failure(correlation_id)

    def _call(self, state: TurnState, asked: AskedCall) -> Call:
        """Return a call of the model as it will be recorded."""
        place = state.turn.workspace
        arguments = _arguments(asked.arguments)
        # A provider may repeat an id or use one that cannot be stored; ids are unique in a session.
        # An id that contains a secret would be redacted in the row and no longer match.
        is_fit = _CALL_ID.fullmatch(asked.id) is not None and not self._scrubber().holds(asked.id)
        is_good = is_fit and state.take_call_id(asked.id)
        call_id = asked.id if is_good else f"call_{self._new_id()}"
        return Call(
            id=CallId(call_id),
            session_id=SessionId(""),
            turn=state.turn.turn,
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

    def _end_step(self, state: TurnState, heard: StepResult) -> tuple[Outcome | None, list[Call]]:
        """Carry what ends a step; return how the turn ends, or the calls that have to run."""
        outcome, fault = outcome_of(heard), None
        calls: list[Call] = []
        if outcome is None:
            for asked in heard.answer.calls:
                calls.append(self._call(state, asked))
        elif state.schema is not None and outcome.stop_reason is StopReason.STOP:
            heard, fault = _with_output(heard, state.schema)
        most = state.turn.limits.tool_rounds
        # Counted only when it can matter: a round has at least one row.
        is_over = calls and len(state.current) >= most and len(rounds_of(state.current)) >= most
        state.carry(self._step_drafts(state, heard, calls))
        if is_over:
            state.carry([draft for call in calls for draft in answer(call, _OVER_LIMIT)])
            outcome = Outcome(stop_reason=StopReason.TURN_LIMIT, failure=ROUNDS_USED)
        if fault:
            outcome = _after_fault(state, fault)
        return outcome, calls

    def _step_drafts(
        self, state: TurnState, heard: StepResult, calls: Sequence[Call]
    ) -> list[Draft]:
        """Return the drafts that end a step: message, calls and cost."""
        started, said, cost = heard.started, heard.answer, heard.cost
        drafts: list[Draft] = [*said.unsent]
        # The end of the step precedes its rows, so a reader knows that they are complete.
        if heard.failure is not None:
            drafts.append(StepFailed(step=started.step, failure=heard.failure))
        else:
            drafts.append(
                StepEnded(
                    step=started.step,
                    message_id=started.message_id,
                    usage=cost.usage if cost else None,
                    microcents=cost.microcents if cost else 0,
                    priced=cost.priced if cost else False,
                )
            )
            if state.hides_media:
                # The provider has accepted a description of what it refused. From here on the
                # notice hides earlier media; later media are sent again.
                state.hides_media = False
                drafts.append(notice_draft(NoticeCode.MEDIA_REFUSED, MEDIA_REFUSED))
        rows = _rows(heard, calls)
        if rows and (said.reasoning or said.signature):
            # The provider needs its reasoning again in this turn. Held in memory and for this turn
            # only: a signature is never stored.
            rows[0] = replace(rows[0], id=rows[0].id or MessageId(self._new_id()))
            thought = LlmReasoning(
                text=said.reasoning, signature=said.signature, provider=heard.model.provider
            )
            state.thoughts[rows[0].id or started.message_id] = (thought,)
        drafts += rows
        if cost:
            drafts.append(cost)
        return drafts

    def _new_id(self) -> str:
        return uuid7(int(self._clock.now().timestamp() * 1000), self._randomness.bits(74))


def _ending(state: TurnState) -> Outcome | None:
    """Return the outcome if the turn ends before another request, else `None`."""
    # A retried call runs as a turn of its own and asks no model.
    if not state.is_spoken_to:
        return Outcome(stop_reason=StopReason.STOP)
    # Counted only when it can matter: a round has at least one row.
    rounds = rounds_of(state.current) if len(state.current) >= HOPELESS else ()
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


def _with_output(heard: StepResult, schema: dict[str, Any]) -> tuple[StepResult, str | None]:
    """Return the result with its value, or what is wrong with it."""
    try:
        value = parse_value(heard.answer.text, schema)
    except SchemaFault as fault:
        return heard, str(fault)
    return replace(heard, output=Output(value=value)), None


def _after_fault(state: TurnState, fault: str) -> Outcome | None:
    """Report an answer that does not match; return the outcome if the model is not asked again."""
    text = f"The answer does not match the output schema: {fault}."
    reported = [
        part
        for row in state.current
        for part in row.parts
        if isinstance(part, Notice) and part.code is NoticeCode.OUTPUT_INVALID
    ]
    if len(reported) + 1 >= ANSWERS_MOST:
        message = f"{text} Change the output_schema, the prompt or the model of the agent."
        failure = Failure(code=FailureCode.OUTPUT_INVALID, message=message)
        return Outcome(stop_reason=StopReason.ERROR, failure=failure)
    state.carry([notice_draft(NoticeCode.OUTPUT_INVALID, f"{text} Answer again.")])
    return None


def _rows(heard: StepResult, calls: Sequence[Call]) -> list[MessageDraft]:
    """Return the assistant message and the calls; without text and reasoning only these."""
    said, started = heard.answer, heard.started
    parts: list[Part] = []
    if said.reasoning:
        parts.append(Reasoning(text=said.reasoning))
    if said.text:
        parts.append(Text(text=said.text))
    if heard.output is not None:
        parts.append(heard.output)
    rows: list[MessageDraft] = []
    if parts:
        rows.append(
            MessageDraft(
                id=started.message_id,
                role=Role.ASSISTANT,
                parts=tuple(parts),
                model_id=started.model_id,
            )
        )
    for call in calls:
        rows.append(
            MessageDraft(
                role=Role.TOOL_CALL,
                parts=(ToolCall(id=call.id, name=call.name, arguments=call.arguments),),
                model_id=started.model_id,
                effect=call.effect,
                idempotency_key=call.idempotency_key,
            )
        )
    return rows


def _is_deep(value: Any, depth: int = 0) -> bool:
    """Return whether a value exceeds the nesting limit of a row."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > DEEPEST or any(_is_deep(each, depth + 1) for each in inner)


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; invalid JSON is stored as text and refused later."""
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
        # A value cannot be nested more deeply than its text has brackets.
        is_deep = text.count("[") + text.count("{") > DEEPEST and _is_deep(found)
        # Unmodified, inline bytes included: the call that runs must be the call that was requested.
        if isinstance(found, dict) and msgspec.json.encode(found) and not is_deep:
            return found
    except (msgspec.DecodeError, ValueError, RecursionError):
        # The call's result reports it, so that the model can read it.
        pass
    return {NOT_AN_OBJECT: storable(text[:_INVALID_TEXT_LONGEST])}


def outcome_of(heard: StepResult) -> Outcome | None:
    """Return how the turn ends after this step; `None` if tool calls have to run first."""
    end = heard.answer.end
    if isinstance(end, Failed):
        return _error_outcome(heard, end)
    # Checked before the calls: a truncated call must not run as if it were complete.
    if end.reason is StepStop.LENGTH:
        if heard.is_cut_by_budget:
            return Outcome(stop_reason=StopReason.BUDGET, failure=CUT_BY_BUDGET)
        return Outcome(stop_reason=StopReason.LENGTH)
    if end.reason is StepStop.FILTERED:
        return _refusal_outcome(heard.answer)
    return None if heard.answer.calls else Outcome(stop_reason=StopReason.STOP)


def _error_outcome(heard: StepResult, end: Failed) -> Outcome:
    if end.kind is FailureKind.FILTERED:
        return _refusal_outcome(heard.answer)
    if end.kind is FailureKind.CANCELLED:
        return Outcome(stop_reason=StopReason.ABORTED)
    return Outcome(stop_reason=StopReason.ERROR, failure=heard.failure)


def _refusal_outcome(answer: ModelAnswer) -> Outcome:
    return Outcome(stop_reason=StopReason.REFUSAL, failure=None if answer.text else FILTERED)
