"""R40, at the seam of the models: whatever a provider does is told as one answer or one failure.

What a turn makes of a failure is the other half, and the engine's.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest

from holdfast.ports.llm import Failed, FailureKind, LlmDelta, LlmTextDelta, StepStop, Stopped
from tests.llm.builders import a_request, heard, said
from tests.llm.conftest import few_authorities
from tests.llm.dialects import CANARY, CHAT, DIALECTS, Call, Dialect, Saying, Thought
from tests.llm.fake_providers import FakeProvider, Reply, a_provider, refusing
from tests.llm.provider_requests import KEY, answer, asking
from tests.marks import proves
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

# Used by pytest, which finds it by its name here.
__all__ = ["few_authorities"]

SAYING = Saying(
    thoughts=(Thought(("Hm, ", "well."), "c2lnbmVk"),),
    text=("Good ", "day", " to you"),
    calls=(Call("call_a", "look", ('{"at": ', '"the sky"}')), Call("call_b", "unknown_tool")),
    stop=StepStop.TOOL_USE,
)
ERROR = {"error": {"message": CANARY, "type": "some_error", "code": 500, "status": "INTERNAL"}}

Fault = Callable[[Dialect, random.Random], Reply]


def _cut(end: str) -> Fault:
    def cut(dialect: Dialect, luck: random.Random) -> Reply:
        whole = b"".join(dialect.stream(SAYING))
        return Reply([whole[: luck.randrange(len(whole))]], end=end)

    return cut


def _flipped(dialect: Dialect, luck: random.Random) -> Reply:
    whole = bytearray(b"".join(dialect.stream(SAYING)))
    for _ in range(luck.randint(1, 8)):
        whole[luck.randrange(len(whole))] = luck.randrange(256)
    return Reply([bytes(whole)])


def _shuffled(dialect: Dialect, luck: random.Random) -> Reply:
    pieces = dialect.stream(SAYING)
    luck.shuffle(pieces)
    return Reply(pieces)


def _doubled(dialect: Dialect, luck: random.Random) -> Reply:
    pieces = dialect.stream(SAYING)
    place = luck.randrange(len(pieces))
    return Reply([*pieces[:place], *pieces[place : place + 3] * 2, *pieces[place:]])


def _noise(_: Dialect, luck: random.Random) -> Reply:
    return Reply([luck.randbytes(luck.randint(1, 4_000))])


def _many_calls(dialect: Dialect, _: random.Random) -> Reply:
    calls = tuple(Call(f"call_{number}", "look", ("{}",)) for number in range(100_000))
    return Reply([b"".join(dialect.stream(Saying(calls=calls)))])


def _status(status: int, *headers: tuple[str, str]) -> Fault:
    return lambda _, __: refusing(status, ERROR, *headers)


FAULTS: dict[str, Fault] = {
    "429": _status(429, ("retry-after", "3")),
    "429 with nonsense": _status(429, ("retry-after", "soon")),
    "500": _status(500),
    "529": _status(529),
    "401": _status(401),
    "an answer that is cut": _cut("cut"),
    "an answer without its end": _cut("whole"),
    "a reset": _cut("reset"),
    "empty": lambda _, __: Reply(()),
    "flipped bytes": _flipped,
    "events in disorder": _shuffled,
    "events twice": _doubled,
    "noise": _noise,
    "100,000 calls": _many_calls,
}


@proves("R40")
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
async def test_every_fault_is_told_once_and_nothing_is_raised(
    dialect: Dialect, name: str, luck: random.Random, sized: Sized
) -> None:
    async with a_provider() as fake:
        for _ in range(sized(test=1, torture=5, release=20)):
            deltas = await answer(fake, dialect, FAULTS[name](dialect, luck))

            assert_told_once(deltas)
            assert CANARY not in str(deltas)
            assert KEY not in str(deltas)
        assert len(fake.received) == sized(test=1, torture=5, release=20), "it was sent again"


@proves("R40")
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("429", {FailureKind.RATE_LIMIT}),
        ("500", {FailureKind.UNAVAILABLE}),
        ("529", {FailureKind.UNAVAILABLE}),
        ("401", {FailureKind.AUTH}),
        ("a reset", {FailureKind.UNAVAILABLE}),
        ("empty", {FailureKind.UNAVAILABLE}),
        ("noise", {FailureKind.UNAVAILABLE, FailureKind.UNKNOWN}),
    ],
)
async def test_the_fault_is_told_by_its_kind(
    name: str, kinds: set[FailureKind], luck: random.Random
) -> None:
    async with a_provider() as fake:
        for dialect in DIALECTS:
            told = (await answer(fake, dialect, FAULTS[name](dialect, luck)))[-1]

            assert isinstance(told, Failed)
            assert told.kind in kinds


@proves("R40")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
async def test_a_provider_that_sends_byte_by_byte_can_be_left_at_any_byte(
    dialect: Dialect, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    whole = b"".join(dialect.stream(SAYING))
    heard_of = 0
    async with a_provider() as fake:
        for _ in range(sized(test=3, torture=30)):
            fake.left.clear()
            heard_of += await left_in_the_middle(fake, dialect, whole, luck)

    tell(f"{dialect.provider} was left after {heard_of} deltas in all")
    assert heard_of


async def left_in_the_middle(
    fake: FakeProvider, dialect: Dialect, whole: bytes, luck: random.Random
) -> int:
    """Listen to some of an answer that never ends, go away, and return how much was heard."""
    never, enough = asyncio.Event(), luck.randint(1, 4)
    most = len(whole) - luck.randrange(1, 40)
    trickle = [whole[place : place + 1] for place in range(most)]
    fake.replies.append(Reply([*trickle, b" "], gate=never))
    async with asking(fake, dialect) as vendors:
        request = a_request(said("Hi"), model=dialect.model)
        async with aclosing(vendors.stream(request)) as stream:
            number = 0
            async for _ in stream:
                number += 1
                if number == enough:
                    break
        await asyncio.wait_for(fake.left.wait(), timeout=PATIENCE)
    return number


@proves("R40")
async def test_the_faults_would_be_seen_if_there_were_none(luck: random.Random) -> None:
    async with a_provider() as fake:
        for dialect in DIALECTS:
            deltas = await answer(fake, dialect, dialect.reply(SAYING))

            assert isinstance(deltas[-1], Stopped)
            assert [each.text for each in deltas if isinstance(each, LlmTextDelta)] == [
                *SAYING.text
            ]


@proves("R40")
async def test_faults_of_one_answer_do_not_reach_another(luck: random.Random, sized: Sized) -> None:
    names = [name for name in FAULTS if name != "100,000 calls"]
    async with a_provider() as fake, asking(fake, CHAT) as vendors:
        for _ in range(sized(test=20, torture=200)):
            faulty = luck.random() < 0.5
            fault = FAULTS[luck.choice(names)]
            fake.replies.append(fault(CHAT, luck) if faulty else CHAT.reply(SAYING))
            deltas = await heard(vendors, a_request(said("Hi"), model=CHAT.model))

            assert_told_once(deltas)
            assert faulty or isinstance(deltas[-1], Stopped)


def assert_told_once(deltas: Sequence[LlmDelta]) -> None:
    """Hold that an answer has one end, and that it comes last."""
    ends = [place for place, each in enumerate(deltas) if isinstance(each, Stopped | Failed)]

    assert ends == [len(deltas) - 1]
