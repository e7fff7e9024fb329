"""What providers stream, as our deltas: one table of answers, spoken by each of them."""

import asyncio
import base64
import json
from itertools import chain

import pytest
from msgspec.structs import replace

from holdfast.domain.costs import Usage
from holdfast.llm.translation import CALLS_MOST
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
)
from tests.llm.builders import a_request, called, heard, said
from tests.llm.dialects import (
    CANDIDATES,
    CHAT,
    MESSAGES,
    RESPONSES,
    Call,
    Dialect,
    Saying,
    Thought,
)
from tests.llm.fake_providers import FakeProvider, Reply
from tests.llm.provider_requests import answer, asking
from tests.marks import each_case

pytestmark = pytest.mark.anyio

# Google sends arguments whole.
IN_PIECES = [CHAT, RESPONSES, MESSAGES]

LOOK = Call("call_a", "look", ('{"at":', '"the sky"}'))
WAIT = Call("call_b", "wait", ())

SAYINGS = {
    "text in pieces": Saying(text=("Good ", "day", "!")),
    "one call": Saying(calls=(LOOK,), stop=StepStop.TOOL_USE),
    "text and two calls": Saying(
        text=("I look.",),
        calls=(LOOK, WAIT),
        stop=StepStop.TOOL_USE,
        usage=Usage(input=1, output=2),
    ),
    "thinking, text and a call": Saying(
        thoughts=(Thought(("Hm, ", "well."), "signed"),),
        text=("I look.",),
        calls=(LOOK,),
        stop=StepStop.TOOL_USE,
    ),
    "cut off": Saying(text=("Once upon a ",), stop=StepStop.LENGTH),
    "refused": Saying(text=("I ",), stop=StepStop.FILTERED),
    "nothing at all": Saying(),
    "usage by class": Saying(
        text=("So.",), usage=Usage(input=10, output=20, cache_read=300, reasoning=7)
    ),
    "no usage": Saying(text=("So.",), usage=None),
}


def deltas_of(saying: Saying, dialect: Dialect) -> list[LlmDelta]:
    """Return what should be heard, seal aside."""
    found: list[LlmDelta] = []
    for thought in saying.thoughts:
        found += [LlmReasoningDelta(text=piece) for piece in thought.pieces]
    found += [LlmTextDelta(text=piece) for piece in saying.text]
    for call in saying.calls:
        found.append(CallStarted(id=call.id, name=call.name))
        pieces = call.pieces if dialect in IN_PIECES else ("".join(call.pieces),)
        found += [CallArguments(id=call.id, text=piece) for piece in pieces if piece]
    for call in saying.calls:
        # A call without arguments has an empty object of them.
        found += [] if call.pieces else [CallArguments(id=call.id, text="{}")]
        found.append(CallEnded(id=call.id))
    return [*found, Stopped(reason=saying.stop, usage=saying.usage)]


def unsealed(deltas: list[LlmDelta]) -> list[LlmDelta]:
    return [delta for delta in deltas if not isinstance(delta, ReasoningEnded)]


@each_case("name", SAYINGS)
async def test_an_answer_is_heard_as_it_was_said(
    fake: FakeProvider, dialect: Dialect, name: str
) -> None:
    saying = SAYINGS[name]

    deltas = await answer(fake, dialect, dialect.reply(saying))

    assert unsealed(deltas) == deltas_of(saying, dialect)
    # Without thinking there is nothing to seal.
    assert saying.thoughts or deltas == unsealed(deltas)


@pytest.mark.parametrize("dialect", [RESPONSES], ids=lambda each: each.provider)
async def test_an_answer_that_comes_byte_by_byte_is_the_same(
    fake: FakeProvider, dialect: Dialect
) -> None:
    saying = SAYINGS["thinking, text and a call"]
    trickle = [bytes([byte]) for byte in b"".join(dialect.stream(saying))]

    deltas = await answer(fake, dialect, Reply(trickle))

    assert unsealed(deltas) == deltas_of(saying, dialect)


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_text_is_heard_while_the_rest_is_still_to_come(
    fake: FakeProvider, dialect: Dialect
) -> None:
    gate = asyncio.Event()
    fake.replies.append(Reply(dialect.stream(Saying(text=("Good ", "day"))), gate=gate))

    async with asking(fake, dialect) as vendors:
        stream = vendors.stream(a_request(said("Hi"), model=dialect.model))
        first = await anext(stream)
        gate.set()
        rest = [delta async for delta in stream]

    assert [first, *rest][:2] == [LlmTextDelta(text="Good "), LlmTextDelta(text="day")]


@each_case("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda each: each.provider)
async def test_what_was_written_into_the_cache_is_told_apart(
    fake: FakeProvider, dialect: Dialect
) -> None:
    usage = Usage(input=10, output=20, cache_read=300, cache_write=40, reasoning=7)

    deltas = await answer(fake, dialect, dialect.reply(Saying(text=("So.",), usage=usage)))

    assert deltas[-1] == Stopped(reason=StepStop.STOP, usage=usage)


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_malformed_arguments_are_passed_on_as_they_came(
    fake: FakeProvider, dialect: Dialect
) -> None:
    saying = Saying(calls=(Call("call_a", "look", ('{"at": ', "the sky")),), stop=StepStop.TOOL_USE)

    deltas = await answer(fake, dialect, dialect.reply(saying))

    assert unsealed(deltas) == deltas_of(saying, dialect)


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_call_that_was_cut_off_never_ends(fake: FakeProvider, dialect: Dialect) -> None:
    cut = Call("call_b", "wait", ('{"for',))
    saying = Saying(calls=(LOOK, cut), stop=StepStop.LENGTH)

    deltas = await answer(fake, dialect, dialect.reply(saying))

    assert [delta for delta in deltas if isinstance(delta, CallEnded)] == [CallEnded(id="call_a")]
    assert deltas[-1] == Stopped(reason=StepStop.LENGTH, usage=saying.usage)


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_call_that_was_whole_before_the_limit_ends(
    fake: FakeProvider, dialect: Dialect
) -> None:
    saying = Saying(calls=(LOOK,), stop=StepStop.LENGTH)

    deltas = await answer(fake, dialect, dialect.reply(saying))

    assert unsealed(deltas) == deltas_of(saying, dialect)


async def test_arguments_of_several_calls_may_come_mixed(fake: FakeProvider) -> None:
    first, second = (
        {"index": index, "id": f"call_{index}", "type": "function", "function": {"name": "look"}}
        for index in (0, 1)
    )
    chunks = [
        [first, second],
        [{"index": 0, "function": {"arguments": '{"at":'}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
        [{"index": 0, "function": {"arguments": "1}"}}],
    ]
    pieces = [chat_chunk({"tool_calls": calls}) for calls in chunks]

    deltas = await answer(fake, CHAT, Reply([*pieces, chat_chunk({}, "tool_calls")]))

    assert deltas == [
        CallStarted(id="call_0", name="look"),
        CallStarted(id="call_1", name="look"),
        CallArguments(id="call_0", text='{"at":'),
        CallArguments(id="call_1", text="{}"),
        CallArguments(id="call_0", text="1}"),
        CallEnded(id="call_0"),
        CallEnded(id="call_1"),
        Stopped(reason=StepStop.TOOL_USE),
    ]


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
@each_case(
    "given",
    ["", "call_before", "twice", "a b", "x" * 65, "call:1"],
    ids=["none", "of an earlier call", "of the other call", "a space", "too long", "a colon"],
)
async def test_a_call_without_a_good_id_of_its_own_gets_one(
    fake: FakeProvider, dialect: Dialect, given: str
) -> None:
    calls = (Call("twice", "look", ("{}",)), Call(given, "look", ("{}",)))
    request = a_request(
        said("Hi"), *called("call_before", result="fine"), model=dialect.model, ordinal=7
    )
    reply = dialect.reply(Saying(calls=calls, stop=StepStop.TOOL_USE))

    deltas = await answer(fake, dialect, reply, request)

    assert [delta.id for delta in deltas if isinstance(delta, CallEnded)] == ["twice", "call_7_2"]


async def test_a_redacted_thought_is_not_heard_and_yet_kept(fake: FakeProvider) -> None:
    saying = Saying(thoughts=(Thought((), "redacted"),), text=("So.",))

    deltas = await answer(fake, MESSAGES, MESSAGES.reply(saying))

    assert unsealed(deltas) == deltas_of(saying, MESSAGES)
    assert any(isinstance(delta, ReasoningEnded) for delta in deltas)


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_more_calls_than_anybody_would_run_are_a_failure(
    fake: FakeProvider, dialect: Dialect
) -> None:
    calls = tuple(Call(f"call_{number}", "look", ("{}",)) for number in range(CALLS_MOST + 1))

    deltas = await answer(fake, dialect, dialect.reply(Saying(calls=calls)))

    assert deltas[-1] == Failed(
        kind=FailureKind.UNAVAILABLE,
        message=f"{dialect.provider} sent more than 1000 tool calls at once.",
    )
    assert not any(isinstance(delta, CallEnded | Stopped) for delta in deltas)


async def test_a_call_that_google_could_not_finish_is_a_failure(fake: FakeProvider) -> None:
    *pieces, _ = CANDIDATES.stream(Saying(text=("I look.",)))
    candidate = {"content": {"parts": []}, "finishReason": "MALFORMED_FUNCTION_CALL"}
    end = f"data: {json.dumps({'candidates': [candidate]})}\n\n".encode()

    deltas = await answer(fake, CANDIDATES, Reply([*pieces, end]))

    assert deltas == [
        LlmTextDelta(text="I look."),
        Failed(
            kind=FailureKind.UNAVAILABLE,
            message="The answer of google ended before it was complete.",
        ),
    ]


async def test_a_prompt_that_google_blocks_is_filtered(fake: FakeProvider) -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "gemini-2.5-flash"}

    deltas = await answer(fake, CANDIDATES, Reply([f"data: {json.dumps(blocked)}\n\n".encode()]))

    assert deltas == [Stopped(reason=StepStop.FILTERED)]


async def test_a_refusal_of_openai_is_filtered(fake: FakeProvider) -> None:
    pieces = [chat_chunk({"refusal": "I will not."}), chat_chunk({}, "stop")]

    assert await answer(fake, CHAT, Reply(pieces)) == [Stopped(reason=StepStop.FILTERED)]


async def test_a_signature_on_a_text_of_google_is_kept(fake: FakeProvider) -> None:
    signature = base64.b64encode(b"signed").decode()
    part = {"text": "So.", "thoughtSignature": signature}
    candidate = {"content": {"parts": [part]}, "finishReason": "STOP"}
    told = f"data: {json.dumps({'candidates': [candidate]})}\n\n".encode()

    deltas = await answer(fake, CANDIDATES, Reply([told]))

    sealed = [delta.signature for delta in deltas if isinstance(delta, ReasoningEnded)]
    assert signature in (sealed[0] or "")


async def test_every_answer_of_a_session_has_ids_of_its_own(fake: FakeProvider) -> None:
    reply = CANDIDATES.reply(Saying(calls=(Call("", "look"), Call("", "look"))))
    ids = []

    async with asking(fake, CANDIDATES) as vendors:
        for ordinal in (1, 2):
            fake.replies.append(reply)
            request = replace(a_request(said("Hi"), model=CANDIDATES.model), ordinal=ordinal)
            deltas = await heard(vendors, request)
            ids.append([delta.id for delta in deltas if isinstance(delta, CallStarted)])

    assert list(chain(*ids)) == ["call_1_1", "call_1_2", "call_2_1", "call_2_2"]


def chat_chunk(delta: object, finish_reason: str | None = None) -> bytes:
    """Return one chunk of a chat completion."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode()
