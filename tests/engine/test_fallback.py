"""Which model is asked next, and when: decided by the kind of failure, on a clock that jumps."""

import asyncio
from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, ModelChoice, Retry
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, Outcome
from holdfast.domain.events import Failure, FailureCode, StepFailed, StepStarted
from holdfast.domain.models import Model, model_of
from holdfast.domain.sessions import StopReason
from holdfast.engine.model_requests import WITHOUT_RETRY, FallbackDecision, chain_of, pause
from holdfast.ports.llm import (
    Failed,
    FailureKind,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
    StepStop,
    Stopped,
)
from tests.engine.builders import CountingRandomness, an_agent
from tests.engine.scripts import (
    ENDED,
    USAGE,
    cost,
    delta,
    ended,
    fails,
    looks,
    named,
    said,
    says,
    started,
)
from tests.engine.stand_ins import LoopClock, ScriptedLlm, Stage
from tests.engine.virtual_time import VIRTUAL_TIME
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

FIRST, SECOND = model_of("maker:first"), model_of("maker:second")
THIRD = model_of("other:third")
CHAIN = (FIRST, SECOND, THIRD)


@pytest.fixture
def anyio_backend() -> Any:
    return VIRTUAL_TIME


class Lucky(CountingRandomness):
    """Randomness whose every throw of thirty bits is the same."""

    def __init__(self, luck: float = 0.5) -> None:
        super().__init__()
        self._luck = luck

    def bits(self, count: int) -> int:
        return int(self._luck * (1 << 30)) if count == 30 else super().bits(count)


class TimedLlm(ScriptedLlm):
    """Notes at which second of the loop it was asked."""

    def __init__(self, *scripts: Sequence[LlmDelta | BaseException]) -> None:
        super().__init__(*scripts)
        self.times: list[float] = []

    def stream(self, request: Any) -> Any:
        self.times.append(round(asyncio.get_running_loop().time(), 3))
        return super().stream(request)


def a_stage(*scripts: Sequence[LlmDelta | BaseException], luck: float = 0.5) -> Stage:
    return Stage(TimedLlm(*scripts), clock=LoopClock(), randomness=Lucky(luck))


def times(stage: Stage) -> list[float]:
    assert isinstance(stage.llm, TimedLlm)
    return stage.llm.times


def asked(stage: Stage) -> list[str]:
    return [request.model.name for request in stage.llm.requests]


def agent_with(*attempts: int | None, retry: Retry | None = None) -> Any:
    """An agent whose chain is ours, with these attempts for each entry."""
    models = tuple(
        ModelChoice(model_id=model.id, max_attempts=most)
        for model, most in zip(CHAIN, attempts, strict=False)
    )
    return an_agent(LlmRuntime(models=models, retry=retry))


def drafts_of(batches: Sequence[Sequence[Draft]], kind: type) -> list[Any]:
    return [draft for batch in batches for draft in batch if isinstance(draft, kind)]


CODES = {
    FailureKind.RATE_LIMIT: FailureCode.PROVIDER_RATE_LIMIT,
    FailureKind.UNAVAILABLE: FailureCode.PROVIDER_UNAVAILABLE,
    FailureKind.AUTH: FailureCode.PROVIDER_AUTH,
    FailureKind.TOO_LONG: FailureCode.CONTEXT_OVERFLOW,
    FailureKind.BAD_REQUEST: FailureCode.INVALID_REQUEST,
    FailureKind.FILTERED: FailureCode.CONTENT_FILTER,
    FailureKind.CANCELLED: FailureCode.INTERRUPTED,
    FailureKind.UNKNOWN: FailureCode.INTERNAL,
}
PATHS = {
    FailureKind.RATE_LIMIT: ["first", "first", "second", "second", "third", "third"],
    FailureKind.UNAVAILABLE: ["first", "first", "second", "second", "third", "third"],
    FailureKind.AUTH: ["first", "third"],
    FailureKind.TOO_LONG: ["first"],
    FailureKind.BAD_REQUEST: ["first"],
    FailureKind.FILTERED: ["first"],
    FailureKind.CANCELLED: ["first"],
    FailureKind.UNKNOWN: ["first"],
}


def test_the_tables_are_total() -> None:
    assert set(PATHS) == set(CODES) == set(WITHOUT_RETRY) == set(FailureKind)
    assert set(WITHOUT_RETRY.values()) == set(FallbackDecision) - {FallbackDecision.AGAIN}


@demands("S0-100")
@each_case("kind", FailureKind)
async def test_the_kind_of_failure_alone_decides_whom_to_ask(kind: FailureKind) -> None:
    stage = a_stage(fails(kind))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert asked(stage) == PATHS[kind]
    steps = drafts_of(batches, StepStarted)
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    failures = drafts_of(batches, StepFailed)
    assert [each.failure.code for each in failures] == [CODES[kind]] * len(steps)
    following = [step.model_id for step in steps[1:]]
    assert [each.next_model_id for each in failures] == [*following, None]


@each_case("kind", FailureKind)
async def test_every_request_that_was_sent_is_one_entry_of_zero_tokens(kind: FailureKind) -> None:
    stage = a_stage(fails(kind))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    costs = drafts_of(batches, CostDraft)
    assert [each.model_id for each in costs] == [each.model.id for each in stage.llm.requests]
    assert [each.usage for each in costs] == [Usage()] * len(costs)
    assert len({each.request_id for each in costs}) == len(costs)
    assert [request.ordinal for request in stage.llm.requests] == list(range(1, len(costs) + 1))


async def test_a_second_attempt_that_succeeds_is_the_answer() -> None:
    stage = a_stage(fails(), says("At last."))

    batches = await stage.play(stage.turn(models=(FIRST,), agent=agent_with()))

    failure = Failure(
        code=FailureCode.PROVIDER_UNAVAILABLE, message="It failed. Send a message to try again."
    )
    assert named(batches) == [
        (started(1, "id1", FIRST),),
        (
            StepFailed(step=1, failure=failure, next_model_id=FIRST.id),
            cost("id2", Usage(), FIRST),
        ),
        (started(2, "id3", FIRST),),
        (
            delta(2, "id3", "At last."),
            ended(2, "id3"),
            said("id3", "At last.", model=FIRST),
            cost("id4", USAGE, FIRST),
            ENDED,
        ),
    ]


@each_case(
    ("attempts", "retry", "path"),
    [
        ((), None, ["first"] * 2 + ["second"] * 2 + ["third"] * 2),
        ((1, 1, 1), None, ["first", "second", "third"]),
        ((3, None, 1), None, ["first"] * 3 + ["second"] * 2 + ["third"]),
        ((3, 4, 1), Retry(max=1), ["first"] + ["second"] * 4 + ["third"]),
        ((), Retry(max=3), ["first"] * 3 + ["second"] * 2 + ["third"] * 2),
        (
            (),
            Retry(max=3, retry_on=("unavailable",)),
            ["first"] * 3 + ["second"] * 2 + ["third"] * 2,
        ),
        (
            (),
            Retry(max=3, retry_on=("rate_limit", "provider_unavailable")),
            ["first"] * 3 + ["second"] * 2 + ["third"] * 2,
        ),
        ((), Retry(max=3, retry_on=("rate_limit",)), ["first"] + ["second"] * 2 + ["third"] * 2),
        ((), Retry(max=3, retry_on=("later",)), ["first"] + ["second"] * 2 + ["third"] * 2),
    ],
)
async def test_each_entry_has_its_own_attempts(
    attempts: tuple[int | None, ...], retry: Retry | None, path: list[str]
) -> None:
    stage = a_stage(fails())

    await stage.play(stage.turn(models=CHAIN, agent=agent_with(*attempts, retry=retry)))

    assert asked(stage) == path


async def test_pauses_double_up_to_fifteen_seconds_and_luck_shortens_them() -> None:
    stage = a_stage(fails(), luck=0.5)

    agent = agent_with(retry=Retry(max=8))
    await stage.play(stage.turn(models=(FIRST, THIRD), agent=agent))

    # Half of 0.5, 1, 2, 4, 8, 15, 15; then another model at once, and half of 0.5 again.
    assert times(stage) == [0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.25, 22.75, 22.75, 23.0]


@pytest.mark.parametrize(("luck", "second"), [(0.0, 0.0), (1 - 2**-30, 0.5)])
async def test_the_first_pause_lies_between_nothing_and_half_a_second(
    luck: float, second: float
) -> None:
    stage = a_stage(fails(), luck=luck)

    await stage.play(stage.turn(models=(FIRST,), agent=agent_with()))

    assert times(stage) == [0, second]


@each_case(
    ("retry", "pauses"),
    [
        (Retry(max=4, backoff="linear"), [0.5, 1.0, 1.5]),
        (Retry(max=4, backoff="linear", backoff_ms=100), [0.1, 0.2, 0.3]),
        (Retry(max=4, backoff_ms=100), [0.1, 0.2, 0.4]),
        (Retry(max=4, backoff_ms=60_000), [15.0, 15.0, 15.0]),
        (Retry(max=4, backoff="linear", backoff_ms=60_000), [15.0, 15.0, 15.0]),
        (None, [0.5, 1.0, 2.0]),
    ],
)
def test_an_agent_may_set_how_pauses_grow(retry: Retry | None, pauses: list[float]) -> None:
    settings = LlmRuntime(retry=retry)
    failed = Failed(kind=FailureKind.UNAVAILABLE, message="")

    assert pauses == [
        pytest.approx(pause(failed, attempt=attempt, luck=1.0, settings=settings))
        for attempt in (1, 2, 3)
    ]


def test_many_attempts_do_not_overflow_a_pause() -> None:
    failed = Failed(kind=FailureKind.UNAVAILABLE, message="")

    assert pause(failed, attempt=1_000_000, luck=1.0, settings=LlmRuntime()) == 15.0


async def test_a_provider_is_not_asked_sooner_than_it_wants() -> None:
    stage = a_stage(fails(FailureKind.RATE_LIMIT, retry_after=14.5), says("Yes."), luck=0.0)

    await stage.play(stage.turn(models=(FIRST,), agent=agent_with()))

    assert times(stage) == [0, 14.5]


@pytest.mark.parametrize("kind", [FailureKind.RATE_LIMIT, FailureKind.UNAVAILABLE])
async def test_a_provider_that_wants_more_than_fifteen_seconds_is_left_for_another(
    kind: FailureKind,
) -> None:
    stage = a_stage(fails(kind, retry_after=15.1), says("Yes."))

    batches = await stage.play(stage.turn(models=(FIRST, THIRD), agent=agent_with()))

    assert (asked(stage), times(stage)) == (["first", "third"], [0, 0])
    assert batches[-1][-1] == ENDED


@pytest.mark.parametrize("wait", [nan, inf, -inf, -3.0, 0.0])
async def test_a_time_to_wait_that_is_none_is_not_waited_for(wait: float) -> None:
    stage = a_stage(fails(FailureKind.RATE_LIMIT, retry_after=wait))

    batches = await stage.play(stage.turn(models=(FIRST,), agent=agent_with()))

    assert times(stage) == [0, 0.25]
    assert batches[-1][-1].failure.message == (  # type: ignore[union-attr]
        "It failed. Wait a little, then send a message to try again."
    )


async def test_a_provider_that_asked_for_time_is_skipped_by_its_other_models_and_turns() -> None:
    limited = fails(FailureKind.RATE_LIMIT, retry_after=20.0)
    stage = a_stage(limited, says("Third."), says("Third."), says("First."))
    turn = stage.turn(models=CHAIN, agent=agent_with())

    first = await stage.play(turn)

    # The second model is of the same provider: nothing was sent, nothing was paid.
    assert asked(stage) == ["first", "third"]
    skip = Failure(
        code=FailureCode.PROVIDER_RATE_LIMIT,
        message="maker wanted to be left alone for a while. "
        "Wait 20 s, then send a message to try again.",
    )
    assert (StepFailed(step=2, failure=skip, next_model_id=THIRD.id),) in first
    stage.paper.batches = []
    await asyncio.sleep(19.9)
    await stage.play(replace(turn, ordinal=3))
    assert asked(stage)[2:] == ["third"]
    await asyncio.sleep(0.2)
    stage.paper.batches = []
    await stage.play(replace(turn, ordinal=4))
    assert asked(stage)[3:] == ["first"]


async def test_a_provider_alone_that_asked_for_time_fails_the_next_turn_at_once() -> None:
    stage = a_stage(fails(FailureKind.RATE_LIMIT, retry_after=30.0))
    turn = stage.turn(models=(FIRST,), agent=agent_with())
    await stage.play(turn)
    stage.paper.batches = []

    batches = named(await stage.play(replace(turn, ordinal=2)))

    skip = Failure(
        code=FailureCode.PROVIDER_RATE_LIMIT,
        message="maker wanted to be left alone for a while. "
        "Wait 30 s, then send a message to try again.",
    )
    assert batches == [
        (started(1, "id1", FIRST),),
        (
            StepFailed(step=1, failure=skip),
            Outcome(stop_reason=StopReason.ERROR, failure=skip),
        ),
    ]
    assert len(stage.llm.requests) == 1


def unsent(kind: FailureKind, message: str) -> list[LlmDelta]:
    return [Failed(kind=kind, message=message, sent=False)]


class ByModel(TimedLlm):
    """Answers each model in its own way, however often it is asked."""

    def __init__(self, scripts: dict[str, list[LlmDelta]]) -> None:
        super().__init__([])
        self._by_model = scripts

    def stream(self, request: Any) -> Any:
        self._scripts = (self._by_model[request.model.name],)
        return super().stream(request)


def staged(**scripts: list[LlmDelta]) -> Stage:
    return Stage(ByModel(scripts), clock=LoopClock(), randomness=Lucky())


async def test_an_entry_without_a_key_is_skipped_with_its_provider_and_costs_nothing() -> None:
    stage = staged(first=unsent(FailureKind.AUTH, "Set a key."), third=says("Yes."))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert asked(stage) == ["first", "third"]
    failure = Failure(code=FailureCode.PROVIDER_AUTH, message="Set a key.")
    assert batches[1] == (StepFailed(step=1, failure=failure, next_model_id=THIRD.id),)
    assert [each.model_id for each in drafts_of(batches, CostDraft)] == [THIRD.id]


async def test_an_entry_that_lacks_what_is_needed_is_skipped_without_an_attempt() -> None:
    lacks = unsent(FailureKind.BAD_REQUEST, "It knows no tools.")
    stage = staged(first=lacks, second=says("Yes."), third=[])

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert (asked(stage), times(stage)) == (["first", "second"], [0, 0])
    assert batches[-1][-1] == ENDED


async def test_where_all_are_skipped_the_first_skip_tells_why() -> None:
    stage = staged(
        first=unsent(FailureKind.BAD_REQUEST, "It knows no tools."),
        second=unsent(FailureKind.UNAVAILABLE, "It is gone."),
        third=unsent(FailureKind.AUTH, "Set a key."),
    )

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    why = Failure(code=FailureCode.INVALID_REQUEST, message="It knows no tools.")
    assert batches[-1] == (
        StepFailed(step=3, failure=why),
        Outcome(stop_reason=StopReason.ERROR, failure=why),
    )
    assert drafts_of(batches, CostDraft) == []


async def test_where_one_was_asked_the_last_failure_tells_why() -> None:
    stage = staged(
        first=unsent(FailureKind.UNAVAILABLE, "It is gone."),
        second=fails(),
        third=fails(FailureKind.BAD_REQUEST),
    )

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with(1, 1, 1)))

    why = Failure(code=FailureCode.INVALID_REQUEST, message="It failed.")
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.ERROR, failure=why)


@pytest.mark.parametrize("word", [LlmTextDelta(text="Half"), LlmReasoningDelta(text="Half")])
@pytest.mark.parametrize("kind", FailureKind)
async def test_once_a_word_was_heard_nobody_else_is_asked(
    kind: FailureKind, word: LlmDelta
) -> None:
    stage = a_stage([word, *fails(kind)], says("Never."))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert asked(stage) == ["first"]
    assert "Half" in repr(batches[-1])
    outcome = batches[-1][-1]
    assert isinstance(outcome, Outcome)
    assert outcome.stop_reason is not StopReason.STOP


async def test_a_call_that_was_heard_before_the_failure_is_no_word() -> None:
    broken = [*looks("c1")[:-1], *fails()]
    stage = a_stage(broken, says("Yes."))

    batches = await stage.play(stage.turn(models=(FIRST,), agent=agent_with()))

    assert (asked(stage), batches[-1][-1]) == (["first", "first"], ENDED)
    assert stage.toolbox.done == []


async def test_a_text_that_looks_like_an_error_is_an_answer() -> None:
    stage = a_stage(says("Error 429: rate limit exceeded, retry after 5 s"))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert (asked(stage), batches[-1][-1]) == (["first"], ENDED)


async def test_an_announced_call_that_never_came_is_tried_elsewhere() -> None:
    empty: list[LlmDelta] = [Stopped(reason=StepStop.TOOL_USE, usage=USAGE)]
    stage = a_stage(empty, empty, says("Yes."))

    batches = await stage.play(stage.turn(models=(FIRST, THIRD), agent=agent_with()))

    assert asked(stage) == ["first", "first", "third"]
    # It was answered, so it has cost what it has cost.
    assert [each.usage for each in drafts_of(batches, CostDraft)] == [USAGE] * 3


async def test_what_an_adapter_raises_is_not_tried_again() -> None:
    stage = a_stage([RuntimeError("no")], says("Never."))

    batches = await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert asked(stage) == ["first"]
    assert batches[-1][-1].failure.code is FailureCode.INTERNAL  # type: ignore[union-attr]


async def test_each_step_of_a_turn_begins_at_the_first_model_again() -> None:
    stage = a_stage(fails(FailureKind.AUTH), looks("c1"), says("Seen."))

    await stage.play(stage.turn(models=CHAIN, agent=agent_with()))

    assert asked(stage) == ["first", "third", "first"]


def entries(models: tuple[Model, ...], settings: LlmRuntime) -> list[tuple[str, int]]:
    return [(each.model.name, each.attempts) for each in chain_of(models, settings)]


def test_a_model_that_the_agent_does_not_name_has_the_usual_attempts() -> None:
    choices = (ModelChoice(model_id=SECOND.id, max_attempts=5),)
    settings = LlmRuntime(models=choices)

    assert entries((FIRST, SECOND), settings) == [("first", 2), ("second", 5)]
