"""A turn from step to tools to step: whole batches, each one on disk before anything goes on."""

import pytest

from holdfast.domain.drafts import Draft
from holdfast.domain.events import Channel
from holdfast.domain.messages import Role, Text
from holdfast.domain.models import model_of
from holdfast.domain.tools import Effect, ToolSpec
from holdfast.ports.llm import FailureKind, LlmMessage, LlmReasoning, LlmTool, LlmToolCall, StepStop
from tests.engine.builders import MODEL, Batch, a_row, assistant, call, result, run_turn, user
from tests.engine.scripts import (
    ENDED,
    asks,
    cost,
    delta,
    ended,
    fails,
    good,
    intent,
    looks,
    named,
    said,
    says,
    start,
    started,
)
from tests.engine.stand_ins import ScriptedLlm, Stage, StandInTool, StandInToolbox
from tests.marks import demands

pytestmark = pytest.mark.anyio


@demands("S0-081", "S0-080")
async def test_one_round_is_a_step_a_call_and_another_step() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))

    assert named(await stage.play(stage.turn())) == [
        (started(1, "id1"),),
        (ended(1, "id1"), intent("c1"), cost("id2"), *start("c1")),
        (*good("c1"), started(2, "id3")),
        (delta(2, "id3", "Seen."), ended(2, "id3"), said("id3", "Seen."), cost("id4"), ENDED),
    ]
    assert stage.toolbox.done == ["plan c1", "run c1"]


async def test_nothing_is_waited_for_before_the_first_step_is_written() -> None:
    stage = Stage(ScriptedLlm(says("Never.")))

    class FirstBatchError(Exception):
        pass

    async def write(_: Batch) -> None:
        raise FirstBatchError

    # Stepped by hand: it would return here, and not raise, at the first thing it waited for.
    with pytest.raises(FirstBatchError):
        run_turn(stage.engine, stage.turn(), write).send(None)


@demands("S0-081b")
async def test_two_rounds_with_several_calls_run_one_after_the_other() -> None:
    stage = Stage(ScriptedLlm(looks("c1", "c2", "c3"), looks("c4"), says("Seen.")))

    assert named(await stage.play(stage.turn())) == [
        (started(1, "id1"),),
        (ended(1, "id1"), *map(intent, ("c1", "c2", "c3")), cost("id2"), *start("c1")),
        good("c1"),
        start("c2"),
        good("c2"),
        start("c3"),
        (*good("c3"), started(2, "id3")),
        (ended(2, "id3"), intent("c4"), cost("id4"), *start("c4")),
        (*good("c4"), started(3, "id5")),
        (delta(3, "id5", "Seen."), ended(3, "id5"), said("id5", "Seen."), cost("id6"), ENDED),
    ]
    assert stage.toolbox.done == [
        f"{what} {call_id}" for call_id in ("c1", "c2", "c3", "c4") for what in ("plan", "run")
    ]


@demands("S0-045b")
async def test_each_request_carries_what_was_said_and_found_before() -> None:
    stage = Stage(ScriptedLlm(looks("c1", "c2", text="Let me look."), says("Seen.")))

    await stage.play(stage.turn())

    tools = (LlmTool(name="look", description="looks", parameters={"type": "object"}),)
    hello = LlmMessage(role="user", text="Hello")
    asked = tuple(
        LlmToolCall(id=each, name="look", arguments={"at": each}) for each in ("c1", "c2")
    )
    assert [request.tools for request in stage.llm.requests] == [tools, tools]
    assert [request.ordinal for request in stage.llm.requests] == [1, 2]
    assert [request.messages for request in stage.llm.requests] == [
        (hello,),
        (
            hello,
            LlmMessage(role="assistant", text="Let me look.", calls=asked),
            LlmMessage(role="tool", call_id="c1", name="look", text="look c1"),
            LlmMessage(role="tool", call_id="c2", name="look", text="look c2"),
        ),
    ]


async def test_text_before_calls_is_a_row_of_its_own() -> None:
    stage = Stage(ScriptedLlm(looks("c1", text="Let me look."), says("Seen.")))

    batches = named(await stage.play(stage.turn()))

    assert batches[1] == (
        delta(1, "id1", "Let me look."),
        ended(1, "id1"),
        said("id1", "Let me look."),
        intent("c1"),
        cost("id2"),
        *start("c1"),
    )


async def test_a_model_that_says_stop_and_asks_for_a_call_gets_its_call() -> None:
    script = [*looks("c1")[:-1], *says("")]
    stage = Stage(ScriptedLlm(script, says("Seen.")))

    await stage.play(stage.turn())

    assert stage.toolbox.done == ["plan c1", "run c1"]


def thoughts_of(stage: Stage) -> list[list[tuple[LlmReasoning, ...]]]:
    return [
        [message.reasoning for message in request.messages if message.role == "assistant"]
        for request in stage.llm.requests
    ]


CANARY = "signed-by-the-maker"


def require_no_canary(batches: list[tuple[Draft, ...]]) -> None:
    assert CANARY not in repr(batches)


@demands("S0-045c", "S0-036")
async def test_a_thought_goes_back_to_its_provider_with_its_signature_and_nowhere_else() -> None:
    first = looks("c1", thought="Hm.", signature=CANARY)
    stage = Stage(ScriptedLlm(first, looks("c2"), says("Seen.")))

    batches = await stage.play(stage.turn())

    thought = LlmReasoning(text="Hm.", signature=CANARY, provider="maker")
    assert thoughts_of(stage) == [[], [(thought,)], [(thought,), ()]]
    assert named(batches)[1] == (
        delta(1, "id1", "Hm.", channel=Channel.REASONING),
        ended(1, "id1"),
        said("id1", thought="Hm."),
        intent("c1"),
        cost("id2"),
        *start("c1"),
    )
    require_no_canary(batches)


async def test_a_signature_without_words_goes_back_with_the_words_it_came_with() -> None:
    first = looks("c1", text="Let me look.", signature=CANARY)
    stage = Stage(ScriptedLlm(first, says("Seen.")))

    batches = await stage.play(stage.turn())

    thought = LlmReasoning(text="", signature=CANARY, provider="maker")
    assert thoughts_of(stage) == [[], [(thought,)]]
    require_no_canary(batches)


async def test_a_signature_without_any_words_goes_back_with_the_calls_it_came_with() -> None:
    stage = Stage(ScriptedLlm(looks("c1", "c2", signature=CANARY), says("Seen.")))

    batches = await stage.play(stage.turn())

    thought = LlmReasoning(text="", signature=CANARY, provider="maker")
    assert thoughts_of(stage) == [[], [(thought,)]]
    assert named(batches)[1] == (
        ended(1, "id1"),
        intent("c1", id="id2"),
        intent("c2"),
        cost("id3"),
        *start("c1"),
    )
    require_no_canary(batches)


async def test_no_other_provider_sees_a_thought() -> None:
    first = looks("c1", thought="Hm.", signature=CANARY)
    stage = Stage(ScriptedLlm(first, fails(FailureKind.AUTH), says("Seen.")))

    turn = stage.turn(models=(MODEL, model_of("other:model")))
    batches = await stage.play(turn)

    assert [request.model.provider for request in stage.llm.requests] == ["maker", "maker", "other"]
    assert CANARY in repr(stage.llm.requests[1].messages)
    assert CANARY not in repr(stage.llm.requests[2].messages)
    assert "Hm." not in repr(stage.llm.requests[2].messages)
    require_no_canary(batches)


async def test_no_thought_outlives_its_turn() -> None:
    stage = Stage(ScriptedLlm(looks("c1", thought="Hm.", signature=CANARY), says("Seen.")))
    await stage.play(stage.turn())
    history = [
        user(1, "Hello"),
        call(2, "c1"),
        result(3, "c1", "look c1"),
        assistant(4, "Seen."),
        user(5, "And now?", turn=2),
    ]

    await stage.play(stage.turn(*history, turn=2, ordinal=3))

    assert "Hm." not in repr(stage.llm.requests[-1])
    assert CANARY not in repr(stage.llm.requests[-1])


async def test_a_turn_without_a_place_offers_no_tools_and_knows_none() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))

    batches = await stage.play(stage.turn(workspace=None))

    assert [request.tools for request in stage.llm.requests] == [(), ()]
    assert "There is no tool 'look'." in repr(batches[1])
    assert stage.toolbox.done == []


@pytest.mark.parametrize(
    ("effect", "name"), [(Effect.UNSAFE, "look"), (Effect.PURE, "mcp_server_look")]
)
async def test_a_call_that_is_unsafe_or_a_servers_is_intended_before_it_is_planned(
    effect: Effect, name: str
) -> None:
    toolbox = StandInToolbox({name: StandInTool(effect=effect)})
    stage = Stage(ScriptedLlm(asks(("c1", name, "{}")), says("Seen.")), toolbox)

    batches = named(await stage.play(stage.turn(tools=(ToolSpec(name=name),))))

    assert [[type(draft).__name__ for draft in batch] for batch in batches[1:3]] == [
        ["StepEnded", "MessageDraft", "CostDraft"],
        ["ToolStarted"],
    ]


async def test_an_intent_says_what_running_it_twice_would_do() -> None:
    tools = {effect.value: StandInTool(effect=effect) for effect in Effect}
    calls = [(f"c{number}", name, "{}") for number, name in enumerate([*tools, "none"])]
    stage = Stage(ScriptedLlm(asks(*calls), says("Done.")), StandInToolbox(tools))

    batches = named(await stage.play(stage.turn()))

    effects = [*Effect, Effect.UNSAFE]
    assert batches[1][1:5] == tuple(
        intent(call_id, name, {}, effect=effect)
        for (call_id, name, _), effect in zip(calls, effects, strict=True)
    )


async def test_a_message_that_waits_for_the_next_turn_is_not_part_of_this_one() -> None:
    history = (user(1, "Hello"), user(2, "And then?", turn=2))
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))

    await stage.play(stage.turn(*history))

    assert "And then?" not in repr(stage.llm.requests)


async def test_a_step_that_was_cut_short_has_asked_for_nothing() -> None:
    script = [*looks("c1")[:-1], *says("", reason=StepStop.LENGTH)]
    stage = Stage(ScriptedLlm(script))

    batches = await stage.play(stage.turn())

    assert (len(batches), stage.toolbox.done) == (2, [])


async def test_offers_that_cannot_be_had_end_the_turn_as_data() -> None:
    stage = Stage(ScriptedLlm(says("Never.")))
    stage.toolbox.offering = OSError("a secret")

    [[outcome]] = await stage.play(stage.turn())

    assert "internal" in repr(outcome)
    assert "secret" not in repr(outcome)
    assert stage.llm.requests == []


async def test_an_answer_in_pieces_is_one_row() -> None:
    stage = Stage(ScriptedLlm([*says("a" * 300)[:-1], *says("b" * 30)]))

    batches = named(await stage.play(stage.turn(a_row(1, Role.USER, Text(text="Hello")))))

    assert batches == [
        (started(1, "id1"),),
        (delta(1, "id1", "a" * 300),),
        (
            delta(1, "id1", "b" * 30, offset=300),
            ended(1, "id1"),
            said("id1", "a" * 300 + "b" * 30),
            cost("id2"),
            ENDED,
        ),
    ]
