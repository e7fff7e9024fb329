"""The turn as the engine plays it, with a list as journal: whole batches, compared as values."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.agents import AcpRuntime, LlmRuntime, ReasoningEffort
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, MessageDraft, Outcome
from holdfast.domain.events import (
    Channel,
    Failure,
    FailureCode,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
)
from holdfast.domain.ids import MessageId
from holdfast.domain.messages import Media, Reasoning, Role, Text
from holdfast.domain.models import OFFLINE, Model, Prices, model_of
from holdfast.domain.sessions import Selection, SessionContext, StopReason
from holdfast.engine.model_requests import CODES
from holdfast.llm.router import ModelRouter
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    Llm,
    LlmDelta,
    LlmMessage,
    LlmReasoningDelta,
    LlmRequest,
    LlmTextDelta,
    StepStop,
    Stopped,
)
from tests.engine.builders import (
    Batch,
    ListedLlm,
    StalledLlm,
    a_row,
    a_turn,
    an_agent,
    an_engine,
    assistant,
    played,
    run_turn,
    the_id,
    user,
)
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

PRICED = msgspec.structs.replace(
    model_of("maker:model"), prices=Prices(input=1_000_000, output=2_000_000)
)
MODEL = model_of("maker:model")
SAY = LlmTextDelta(text="Half")
STOP = Stopped(reason=StepStop.STOP, usage=Usage(input=3, output=2))
# Reserved when the step starts: its pieces, its end and its row all name it.
ROW = MessageId(the_id(1))


def started(model: Model = MODEL) -> StepStarted:
    return StepStarted(step=1, model_id=model.id, model=model.ref, message_id=ROW)


def delta(text: str, offset: int = 0, channel: Channel = Channel.TEXT) -> StepDelta:
    return StepDelta(step=1, message_id=ROW, channel=channel, offset=offset, text=text)


def row(*parts: Text | Reasoning, model: Model = MODEL) -> MessageDraft:
    return MessageDraft(id=ROW, role=Role.ASSISTANT, parts=parts, model_id=model.id)


def cost(usage: Usage | None, *, number: int = 2, model: Model = MODEL) -> CostDraft:
    return CostDraft(request_id=the_id(number), model_id=model.id, usage=usage)


HALF = row(Text(text="Half"))


async def test_a_scripted_answer_becomes_a_start_pieces_and_one_end(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"reasoning": "well", "text": "Good day."}]')
    model = model_of(f"scripted:{script}")

    usage = Usage(input=1, output=3, reasoning=1)
    assert await played(ModelRouter(), a_turn(user(1, "Hello"), model=model)) == [
        (started(model),),
        (
            delta("well", channel=Channel.REASONING),
            delta("Good day."),
            StepEnded(step=1, message_id=ROW, usage=usage),
            row(Reasoning(text="well"), Text(text="Good day."), model=model),
            cost(usage, model=model),
            Outcome(stop_reason=StopReason.STOP),
        ),
    ]


async def test_a_long_answer_is_written_down_while_it_comes(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(f"- {{text: {'x' * 500}, chunks: 5}}")
    model = model_of(f"scripted:{script}")

    batches = await played(ModelRouter(), a_turn(model=model))

    assert batches == [
        (started(model),),
        (delta("x" * 300),),
        (
            delta("x" * 200, offset=300),
            StepEnded(step=1, message_id=ROW, usage=Usage(input=1, output=1)),
            row(Text(text="x" * 500), model=model),
            cost(Usage(input=1, output=1), model=model),
            Outcome(stop_reason=StopReason.STOP),
        ),
    ]


async def test_the_offline_model_answers_through_the_same_door() -> None:
    model = model_of(OFFLINE)
    history = (user(1, "hi"), assistant(2, "Hello!"), user(3, "What is 2+2?", turn=2))

    assert await played(ModelRouter(), a_turn(*history, model=model, turn=2, ordinal=2)) == [
        (started(model),),
        (
            delta("2+2 = 4"),
            StepEnded(step=1, message_id=ROW, usage=Usage(input=5, output=3)),
            row(Text(text="2+2 = 4"), model=model),
            cost(Usage(input=5, output=3), model=model),
            Outcome(stop_reason=StopReason.STOP),
        ),
    ]


@demands("S2-020", "S2-020f", "S2-020h", "S2-020i")
async def test_the_request_carries_the_agent_and_the_conversation() -> None:
    llm = ListedLlm(STOP)
    settings = LlmRuntime(temperature=0.5, max_tokens=9, reasoning_effort=ReasoningEffort.LOW)
    agent = an_agent(settings, system_prompt="Be kind.")

    await played(llm, a_turn(user(1, "Hello"), model=MODEL, agent=agent, ordinal=7))

    assert llm.requests == [
        LlmRequest(
            model=MODEL,
            system="Be kind.",
            messages=(LlmMessage(role="user", text="Hello"),),
            temperature=0.5,
            max_tokens=9,
            reasoning_effort=ReasoningEffort.LOW,
            ordinal=7,
        )
    ]


@demands("S0-006b", "S0-006c")
async def test_the_first_message_says_what_is_open_in_the_editor() -> None:
    llm = ListedLlm(STOP)
    context = SessionContext(
        working_dir="/work",
        active_file="src/app.py",
        selection=Selection(file="src/\nold.py", start_line=3, end_line=7),
    )
    picture = Media(mime_type="image/png", ref="media://sha256-" + "0" * 64)
    first = a_row(1, Role.USER, Text(text="Look: "), picture)
    rows = (first, assistant(2, "Yes"), user(3, "Again", turn=2))

    await played(llm, a_turn(*rows, model=MODEL, context=context, turn=2))

    start = (
        "(In the user's editor the active file is src/app.py and selected are lines 3 to 7 of "
        "src/ old.py.)\n\nLook: "
    )
    shown = "[attached: image/png; its content is not shown]"
    assert llm.requests[0].system is None
    assert [each.text for each in llm.requests[0].messages] == [f"{start}\n{shown}", "Yes", "Again"]


async def test_an_agent_without_settings_asks_for_none() -> None:
    llm = ListedLlm(STOP)

    await played(llm, a_turn(model=MODEL, agent=an_agent(AcpRuntime(command="x"))))

    assert llm.requests == [
        LlmRequest(model=MODEL, messages=(LlmMessage(role="user", text="Hello"),), ordinal=1)
    ]


async def test_an_answer_without_text_leaves_no_row() -> None:
    assert await played(ListedLlm(STOP), a_turn(model=MODEL)) == [
        (started(),),
        (
            StepEnded(step=1, message_id=ROW, usage=STOP.usage),
            cost(STOP.usage),
            Outcome(stop_reason=StopReason.STOP),
        ),
    ]


async def test_thoughts_without_text_are_kept() -> None:
    llm = ListedLlm(LlmReasoningDelta(text="hm"), STOP)

    batches = await played(llm, a_turn(model=MODEL))

    assert batches[-1][:3] == (
        delta("hm", channel=Channel.REASONING),
        StepEnded(step=1, message_id=ROW, usage=STOP.usage),
        row(Reasoning(text="hm")),
    )


async def test_a_priced_model_costs_what_its_tokens_cost() -> None:
    batches = await played(ListedLlm(STOP), a_turn(model=PRICED))

    assert batches[-1] == (
        StepEnded(step=1, message_id=ROW, usage=STOP.usage, microcents=7, priced=True),
        CostDraft(
            request_id=the_id(2), model_id=PRICED.id, usage=STOP.usage, microcents=7, priced=True
        ),
        Outcome(stop_reason=StopReason.STOP),
    )


async def test_a_provider_that_tells_no_usage_is_a_success_without_a_price() -> None:
    llm = ListedLlm(SAY, Stopped(reason=StepStop.STOP))

    assert (await played(llm, a_turn(model=PRICED)))[-1] == (
        delta("Half"),
        StepEnded(step=1, message_id=ROW),
        row(Text(text="Half"), model=PRICED),
        cost(None, model=PRICED),
        Outcome(stop_reason=StopReason.STOP),
    )


CALL = (
    CallStarted(id="c", name="look"),
    CallArguments(id="c", text="{}"),
    CallEnded(id="c"),
)
REFUSED = Failure(
    code=FailureCode.CONTENT_FILTER,
    message="The provider refused to answer. Rephrase the message.",
)


@each_case(
    ("before", "reason", "outcome"),
    [
        ((SAY,), StepStop.LENGTH, Outcome(stop_reason=StopReason.LENGTH)),
        ((SAY, CALL[0]), StepStop.LENGTH, Outcome(stop_reason=StopReason.LENGTH)),
        ((SAY, *CALL), StepStop.LENGTH, Outcome(stop_reason=StopReason.LENGTH)),
        ((SAY,), StepStop.FILTERED, Outcome(stop_reason=StopReason.REFUSAL)),
        ((), StepStop.FILTERED, Outcome(stop_reason=StopReason.REFUSAL, failure=REFUSED)),
        ((SAY,), StepStop.TOOL_USE, Outcome(stop_reason=StopReason.STOP)),
    ],
)
async def test_why_a_model_stopped_decides_how_the_turn_ends(
    before: tuple[LlmTextDelta | CallStarted, ...], reason: StepStop, outcome: Outcome
) -> None:
    llm = ListedLlm(*before, Stopped(reason=reason, usage=Usage(output=1)))

    assert await played(llm, a_turn(model=MODEL)) == [
        (started(),),
        (
            *((delta("Half"),) if SAY in before else ()),
            StepEnded(step=1, message_id=ROW, usage=Usage(output=1)),
            *((HALF,) if SAY in before else ()),
            cost(Usage(output=1)),
            outcome,
        ),
    ]


async def test_a_tool_use_without_a_call_and_without_text_is_a_failure() -> None:
    failure = Failure(
        code=FailureCode.PROVIDER_UNAVAILABLE,
        message="The provider announced a tool call but sent none. Send a message to try again.",
    )
    llm = ListedLlm(Stopped(reason=StepStop.TOOL_USE, usage=Usage(input=1)))

    assert (await played(llm, a_turn(model=MODEL)))[-1] == (
        StepFailed(step=1, failure=failure),
        cost(Usage(input=1)),
        Outcome(stop_reason=StopReason.ERROR, failure=failure),
    )


@pytest.mark.parametrize(
    ("failed", "code", "message"),
    [
        (
            Failed(kind=FailureKind.RATE_LIMIT, message="Too fast."),
            FailureCode.PROVIDER_RATE_LIMIT,
            "Too fast. Wait a little, then send a message to try again.",
        ),
        (
            Failed(kind=FailureKind.RATE_LIMIT, message="Too fast.", retry_after=2.1),
            FailureCode.PROVIDER_RATE_LIMIT,
            "Too fast. Wait 3 s, then send a message to try again.",
        ),
        (
            Failed(kind=FailureKind.UNAVAILABLE, message="It is down."),
            FailureCode.PROVIDER_UNAVAILABLE,
            "It is down. Send a message to try again.",
        ),
        (
            Failed(kind=FailureKind.AUTH, message="Set a key."),
            FailureCode.PROVIDER_AUTH,
            "Set a key.",
        ),
        (
            Failed(kind=FailureKind.TOO_LONG, message="It is too long."),
            FailureCode.CONTEXT_OVERFLOW,
            "It is too long. Open a new session, or fork this one at an earlier message.",
        ),
        (
            Failed(kind=FailureKind.BAD_REQUEST, message="Correct it."),
            FailureCode.INVALID_REQUEST,
            "Correct it.",
        ),
    ],
)
@pytest.mark.parametrize("before", [(), (SAY,)])
async def test_a_failure_ends_the_turn_with_its_code_and_keeps_the_text(
    before: tuple[LlmTextDelta, ...], failed: Failed, code: FailureCode, message: str
) -> None:
    failure = Failure(code=code, message=message)

    assert await played(ListedLlm(*before, failed), a_turn(model=MODEL)) == [
        (started(),),
        (
            *((delta("Half"),) if before else ()),
            StepFailed(step=1, failure=failure),
            *((HALF,) if before else ()),
            cost(Usage()),
            Outcome(stop_reason=StopReason.ERROR, failure=failure),
        ),
    ]


@pytest.mark.parametrize(("before", "failure"), [((SAY,), None), ((), REFUSED)])
async def test_a_filtered_request_is_a_refusal(
    before: tuple[LlmTextDelta, ...], failure: Failure | None
) -> None:
    failed = Failed(kind=FailureKind.FILTERED, message="The provider refused to answer.")

    assert (await played(ListedLlm(*before, failed), a_turn(model=MODEL)))[-1] == (
        *((delta("Half"),) if before else ()),
        StepFailed(step=1, failure=REFUSED),
        *((HALF,) if before else ()),
        cost(Usage()),
        Outcome(stop_reason=StopReason.REFUSAL, failure=failure),
    )


async def test_a_cancelled_request_is_an_aborted_turn() -> None:
    failure = Failure(
        code=FailureCode.INTERRUPTED, message="It was cancelled. Send a message to continue."
    )
    llm = ListedLlm(Failed(kind=FailureKind.CANCELLED, message="It was cancelled."))

    assert (await played(llm, a_turn(model=MODEL)))[-1] == (
        StepFailed(step=1, failure=failure),
        cost(Usage()),
        Outcome(stop_reason=StopReason.ABORTED),
    )


def test_every_kind_of_failure_has_a_code() -> None:
    assert set(CODES) == set(FailureKind)


async def test_a_stream_that_breaks_off_is_unavailable() -> None:
    failure = Failure(
        code=FailureCode.PROVIDER_UNAVAILABLE,
        message="The provider's answer ended before it was complete. Send a message to try again.",
    )

    assert await played(ListedLlm(SAY), a_turn(model=MODEL)) == [
        (started(),),
        (delta("Half"),),
        (
            StepFailed(step=1, failure=failure),
            HALF,
            cost(Usage()),
            Outcome(stop_reason=StopReason.ERROR, failure=failure),
        ),
    ]


def internal(number: int) -> Failure:
    return Failure(
        code=FailureCode.INTERNAL,
        message="Internal error in Holdfast during a model request; see the log under this id.",
        correlation_id=the_id(number),
    )


@pytest.mark.parametrize(
    "llm",
    [
        ListedLlm(SAY, KeyError("a secret")),
        ListedLlm(SAY, CallEnded(id="never started"), STOP),
    ],
)
async def test_an_exception_of_the_adapter_is_internal_and_only_the_log_knows_it(
    llm: Llm, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="holdfast.engine"):
        batches = await played(llm, a_turn(model=MODEL))

    assert [draft for batch in batches for draft in batch][-4:] == [
        StepFailed(step=1, failure=internal(2)),
        HALF,
        cost(Usage(), number=3),
        Outcome(stop_reason=StopReason.ERROR, failure=internal(2)),
    ]
    [record] = caplog.records
    assert record.exc_info is not None
    assert (record.exc_info[0], getattr(record, "correlation_id", None)) == (KeyError, the_id(2))


async def test_a_provider_that_cannot_even_be_asked_is_internal_too() -> None:
    class Broken:
        def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
            raise RuntimeError("no")

    batches = await played(Broken(), a_turn(model=MODEL))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.ERROR, failure=internal(2))


async def test_a_failure_the_adapter_does_not_know_is_internal_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = ListedLlm(Failed(kind=FailureKind.UNKNOWN, message="Something odd."))

    batches = await played(llm, a_turn(model=MODEL))

    assert batches[-1] == (
        StepFailed(step=1, failure=internal(2)),
        cost(Usage(), number=3),
        Outcome(stop_reason=StopReason.ERROR, failure=internal(2)),
    )
    assert [record.getMessage() for record in caplog.records] == [
        f"A model request failed for an unknown reason ({the_id(2)}): Something odd."
    ]


async def test_a_faulty_script_found_by_the_request_fails_the_turn_as_data(tmp_path: Path) -> None:
    model = model_of(f"scripted:{tmp_path}/none.yaml")

    failure = Failure(
        code=FailureCode.INVALID_REQUEST,
        message=f"The script {tmp_path}/none.yaml: it cannot be read (No such file or directory). "
        "Correct the file or choose another model.",
    )
    assert (await played(ModelRouter(), a_turn(model=model)))[-1] == (
        StepFailed(step=1, failure=failure),
        cost(Usage(), model=model),
        Outcome(stop_reason=StopReason.ERROR, failure=failure),
    )


@demands("S0-045")
async def test_nothing_is_asked_before_the_start_is_written_down() -> None:
    llm = ListedLlm(STOP)
    asked: list[int] = []

    async def write(_: Batch) -> None:
        # Time enough for a request that does not wait.
        await asyncio.sleep(0.01)
        asked.append(len(llm.requests))

    await run_turn(an_engine(llm), a_turn(model=MODEL), write)

    assert asked == [0, 1]


async def test_cancelling_the_turn_closes_the_provider_s_stream() -> None:
    llm = StalledLlm(SAY)
    written: list[Batch] = []
    is_heard = asyncio.Event()

    async def write(batch: Batch) -> None:
        written.append(batch)
        if batch == (delta("Half"),):
            is_heard.set()

    task = asyncio.create_task(run_turn(an_engine(llm), a_turn(model=MODEL), write))
    await is_heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert written == [(started(),), (delta("Half"),)]
    assert llm.closed == 2


class WriteRefusedError(Exception):
    """What a journal raises that cannot write."""


async def test_a_failed_write_of_deltas_is_not_taken_for_a_failure_of_the_provider() -> None:
    llm = StalledLlm(SAY)

    async def write(batch: Batch) -> None:
        if batch == (delta("Half"),):
            raise WriteRefusedError

    with pytest.raises(WriteRefusedError):
        await run_turn(an_engine(llm), a_turn(model=MODEL), write)

    assert llm.closed == 2


async def test_a_provider_that_stumbles_after_its_last_word_has_answered() -> None:
    class Clumsy:
        async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
            try:
                yield SAY
                yield STOP
            finally:
                raise OSError("could not close")

    batches = await played(Clumsy(), a_turn(model=MODEL))

    assert batches[-1] == (
        delta("Half"),
        StepEnded(step=1, message_id=ROW, usage=STOP.usage),
        HALF,
        cost(STOP.usage),
        Outcome(stop_reason=StopReason.STOP),
    )
