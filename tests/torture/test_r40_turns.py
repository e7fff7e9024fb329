"""R40, as a whole turn sees it: whatever a provider does becomes an answer or a failure as data.

The providers are real sockets. The session goes on after each fault, and what a cap stops is
never sent.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Session, SessionRequest, open_holdfast
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.costs import Usage
from holdfast.domain.events import StepDelta, StepFailed, TurnEnded
from holdfast.domain.sessions import Budget, OnExceed, SessionContext, Status, StopReason
from holdfast.ports.llm import StepStop
from tests.houses import current, news_until, payloads, played
from tests.llm.conftest import few_authorities
from tests.llm.dialects import CHAT, Call, Saying
from tests.llm.fake_providers import FakeProvider, Reply, a_provider, refusing
from tests.marks import proves
from tests.tooled import answer, ledger, outcomes, question
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

# Reading every authority for each house would be most of the time.
__all__ = ["few_authorities"]

GOOD = Saying(text=("Good ", "day."))
ERROR = {"error": {"message": "no", "type": "some_error"}}


def says(*text: str) -> Reply:
    return CHAT.reply(Saying(text=text))


def calls(*asked: Call) -> Reply:
    return CHAT.reply(Saying(calls=asked, stop=StepStop.TOOL_USE))


def status(code: int, *headers: tuple[str, str]) -> Reply:
    return refusing(code, ERROR, *headers)


def cut(pieces: int, end: str) -> Reply:
    """Break an answer off after so many pieces."""
    return Reply(CHAT.stream(GOOD)[:pieces], end=end)


LATER = ("retry-after", "60")
LOOK = Call("call_a", "read_file", ('{"path": "a.txt"}',))


@dataclass(frozen=True)
class Fault:
    """What the first and the second provider do, and what has to come of it."""

    name: str
    first: Sequence[Reply]
    second: Sequence[Reply] = ()
    stop: StopReason = StopReason.STOP
    code: str | None = None
    text: str = "Good day."
    told: Sequence[str] = ()


def many_calls() -> Reply:
    asked = tuple(Call(f"call_{number}", "read_file", ("{}",)) for number in range(100_000))
    return Reply([b"".join(CHAT.stream(Saying(calls=asked, stop=StepStop.TOOL_USE)))])


def faults() -> list[Fault]:
    """Return everything that a provider does to us; each is made anew."""
    good = CHAT.reply(GOOD)
    return [
        Fault("429, then another", [status(429, LATER)], [good]),
        Fault(
            "429 everywhere",
            [status(429), status(429)],
            [status(429), status(429)],
            StopReason.ERROR,
            "provider_rate_limit",
        ),
        Fault("500, then well", [status(500), good]),
        Fault("500 twice, then another", [status(500), status(500)], [good]),
        Fault(
            "500 everywhere",
            [status(500), status(500)],
            [status(503), status(529)],
            StopReason.ERROR,
            "provider_unavailable",
        ),
        Fault("a reset, then well", [cut(1, "reset"), good]),
        Fault(
            "a reset in mid-answer",
            [cut(2, "reset")],
            [],
            StopReason.ERROR,
            "provider_unavailable",
            "Good ",
        ),
        Fault("empty, then another", [Reply(()), Reply(())], [good]),
        Fault("401, then another", [status(401)], [good]),
        Fault("400", [status(400)], [], StopReason.ERROR, "invalid_request"),
        Fault(
            "a bad call",
            [calls(Call("call_a", "read_file", ("{not json",))), good],
            told=("read_file error/invalid_arguments",),
        ),
        Fault(
            "an unknown tool",
            [calls(Call("call_a", "no_such_tool", ("{}",))), good],
            told=("no_such_tool error/unknown_tool",),
        ),
        Fault("100,000 calls, then another", [many_calls(), many_calls()], [good]),
        Fault("a filter", [CHAT.reply(Saying(stop=StepStop.FILTERED))], [], StopReason.REFUSAL),
    ]


@asynccontextmanager
async def two_providers(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[FakeProvider, FakeProvider]]:
    """Listen as two providers that need no key."""
    async with a_provider() as first, a_provider() as second:
        monkeypatch.setenv("VLLM_BASE_URL", first.url)
        monkeypatch.setenv("OLLAMA_BASE_URL", second.url)
        yield first, second


async def an_agent(house: Holdfast, **fields: Any) -> str:
    """Make an agent that asks the one, then the other, and does not wait long between."""
    runtime = {"type": "llm", "retry": {"max": 2, "backoff": "linear", "backoff_ms": 1}}
    made = await house.agents.create(
        house.owner,
        {
            "name": "Asker",
            "runtime": runtime,
            "models": ["vllm:one", "ollama:two"],
            "tools": ["read_file"],
            "grant": None,
            **fields,
        },
    )
    return made.slug


async def begun(house: Holdfast, desk: Path, agent: str, **request: Any) -> Session:
    context = SessionContext(working_dir=str(desk))
    session = await house.open(agent, SessionRequest(context=context, **request))
    await house.send(session.id, "Hello?")
    return session


async def suffered(
    house: Holdfast, desk: Path, agent: str, fault: Fault, fakes: Sequence[FakeProvider]
) -> int:
    """Have a turn meet a fault; return how many requests it took."""
    first, second = fakes
    before = len(first.received) + len(second.received)
    first.replies[:], second.replies[:] = fault.first, fault.second
    session = await begun(house, desk, agent)
    ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
    rows = await house.read(session.id)
    sent = len(first.received) + len(second.received) - before

    assert ended.stop_reason is fault.stop, (fault.name, ended)
    # Without a word a filter is told as a failure, too; it is no error of the turn.
    code = fault.code or ("content_filter" if fault.stop is StopReason.REFUSAL else None)
    assert (ended.failure.code if ended.failure else None) == code, fault.name
    assert outcomes(rows) == list(fault.told), fault.name
    said = [row.text for row in rows if row.role == "assistant"]
    wanted = fault.text if fault.stop is StopReason.STOP or "mid-answer" in fault.name else ""
    assert said == ([wanted] if wanted else []), fault.name
    # Every reply was fetched once, and every request is in the ledger.
    assert sent == len(fault.first) + len(fault.second), fault.name
    assert len(await ledger(house, session)) == sent, fault.name
    await goes_on(house, session, first, second)
    return sent


async def goes_on(house: Holdfast, session: Session, *fakes: FakeProvider) -> None:
    """Hold that the next message is answered as if nothing had been."""
    for fake in fakes:
        fake.replies[:] = [says("And on.")]
    await house.send(session.id, "Again?")
    rows = await played(house, session.id)
    now = await current(house, session)
    assert (rows[-1].text, now.status) == ("And on.", Status.IDLE)


@proves("R40")
def test_every_fault_is_an_answer_or_a_failure_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sized: Sized, tell: Tell
) -> None:
    rounds = sized(test=1, torture=5, release=20)

    async def tried() -> Counter[str]:
        counts: Counter[str] = Counter()
        async with two_providers(monkeypatch) as fakes:
            for number in range(rounds):
                # A house of its own: a provider that wants to be spared is spared by the process.
                for place, fault in enumerate(faults()):
                    home = tmp_path / f"{number}-{place}"
                    async with open_holdfast(config=Config(home=home)) as house:
                        agent = await an_agent(house)
                        counts["requests"] += await suffered(house, tmp_path, agent, fault, fakes)
                        counts["faults"] += 1
        return counts

    (tmp_path / "a.txt").write_text("hello\n")
    counts = asyncio.run(tried())

    tell(f"{counts['faults']} faults in {counts['requests']} requests, each told as data")
    assert counts["faults"] == 14 * rounds


@proves("R40")
def test_a_provider_that_trickles_can_be_left_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: random.Random
) -> None:
    async def tried() -> tuple[StopReason | None, str]:
        never = asyncio.Event()
        whole = b"".join(CHAT.stream(Saying(text=("Word by word. ",) * 50)))
        most = luck.randrange(len(whole) // 2, len(whole) - 60)
        trickle = [whole[at : at + 1] for at in range(most)]
        async with two_providers(monkeypatch) as (first, _):
            first.replies.append(Reply([*trickle, b" "], gate=never))
            async with open_holdfast(config=Config(home=tmp_path / "home")) as house:
                session = await begun(house, tmp_path, await an_agent(house))
                await news_until(house, session.id, StepDelta)
                await house.sessions.interrupt(house.owner, session.id)
                async with asyncio.timeout(20):
                    await first.left.wait()
                rows = await house.read(session.id)
                kept = "".join(row.text for row in rows if row.role == "assistant")
                stopped = (await current(house, session)).last_stop
                await goes_on(house, session, first)
                return stopped, kept

    stopped, kept = asyncio.run(tried())

    assert stopped is StopReason.ABORTED
    assert kept
    assert ("Word by word. " * 50).startswith(kept)


@proves("R40")
def test_a_provider_that_wants_to_be_spared_is_not_asked_again_by_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tried() -> tuple[int, int, list[str]]:
        async with two_providers(monkeypatch) as (first, second):
            first.replies[:] = [status(429, LATER)]
            second.replies[:] = [says("One."), says("Two.")]
            async with open_holdfast(config=Config(home=tmp_path / "home")) as house:
                session = await begun(house, tmp_path, await an_agent(house))
                await played(house, session.id)
                await house.send(session.id, "Again?")
                await played(house, session.id)
                page = await house.events.list(house.owner, session.id)
                failed = [
                    str(each.failure.code)
                    for each in payloads(list(page.items))
                    if isinstance(each, StepFailed)
                ]
            return len(first.received), len(second.received), failed

    assert asyncio.run(tried()) == (1, 2, ["provider_rate_limit"] * 2)


class Capped:
    """A house whose provider counts what reaches it."""

    def __init__(self, house: Holdfast, fake: FakeProvider, desk: Path) -> None:
        self.house = house
        self.fake = fake
        self.desk = desk

    async def stopped(self, session: Session) -> StopReason | None:
        await played(self.house, session.id)
        return (await current(self.house, session)).last_stop


@asynccontextmanager
async def capped(
    home: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Capped]:
    """Open a house with a provider whose models have a price."""
    async with a_provider() as fake:
        monkeypatch.setenv("OPENAI_BASE_URL", fake.url)
        monkeypatch.setenv("HOLDFAST_OPENAI_API_KEY", "sk-0123456789abcdef")
        fake.replies[:] = [calls(LOOK) for _ in range(40)]
        config = Config(home=home, default_model="openai:gpt-4.1", **settings)
        async with open_holdfast(config=config) as house:
            yield Capped(house, fake, home.parent)


async def turns(one: Capped) -> int:
    """Send past the cap of turns."""
    one.fake.replies[:] = [says("One.")] * 9
    session = await begun(one.house, one.desk, "holdfast", turn_cap=2)
    await played(one.house, session.id)
    for _ in range(3):
        await one.house.send(session.id, "More?")
        stop = await one.stopped(session)
    assert stop is StopReason.TURN_LIMIT
    return 2


async def rounds(one: Capped) -> int:
    """Ask for tools for ever."""
    session = await begun(one.house, one.desk, "holdfast")
    assert await one.stopped(session) is StopReason.TURN_LIMIT
    return 17


async def hopeless(one: Capped) -> int:
    """Ask for tools that never work."""
    one.fake.replies[:] = [calls(Call("call_a", "no_such_tool", ("{}",))) for _ in range(40)]
    session = await begun(one.house, one.desk, "holdfast")
    assert await one.stopped(session) is StopReason.ERROR
    return 5


async def poor(one: Capped) -> int:
    """Have no money."""
    budget = Budget(microcents=1, on_exceed=OnExceed.FAIL)
    session = await begun(one.house, one.desk, "holdfast", budget=budget)
    assert await one.stopped(session) is StopReason.BUDGET
    return 0


async def refused(one: Capped) -> int:
    """Ask for money, and get none."""
    session = await begun(one.house, one.desk, "holdfast", budget=Budget(microcents=1))
    asked = await question(one.house, session)
    assert one.fake.connections == 0
    await answer(one.house, asked, ApprovalState.DENIED)
    assert await one.stopped(session) is StopReason.BUDGET
    return 0


async def granted(one: Capped) -> int:
    """Ask for money, and get enough for one request and not for two."""
    dear = Saying(calls=(LOOK,), stop=StepStop.TOOL_USE, usage=Usage(input=5_000, output=1_000))
    one.fake.replies[:] = [CHAT.reply(dear), says("One.")]
    # About 3.3 cents for the longest answer: allowed once, it is enough until something was spent.
    budget = Budget(microcents=1_660_000)
    session = await begun(one.house, one.desk, "holdfast", budget=budget)
    await answer(one.house, await question(one.house, session))
    second = await question(one.house, session, number=2)
    assert len(one.fake.received) == 1
    await answer(one.house, second, ApprovalState.DENIED)
    assert await one.stopped(session) is StopReason.BUDGET
    return 1


CAPS: dict[str, Callable[[Capped], Any]] = {
    "turns": turns,
    "rounds": rounds,
    "hopeless": hopeless,
    "poor": poor,
    "refused": refused,
    "granted": granted,
}


@proves("R40")
@pytest.mark.parametrize("cap", CAPS.values(), ids=list(CAPS))
def test_what_a_cap_stops_is_never_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cap: Callable[[Capped], Any]
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")

    async def tried() -> tuple[int, int]:
        async with capped(tmp_path / "home", monkeypatch) as one:
            expected = await cap(one)
            return len(one.fake.received), expected

    sent, expected = asyncio.run(tried())

    assert sent == expected


@proves("R40")
def test_the_provider_would_count_what_no_cap_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")

    async def tried() -> int:
        async with capped(tmp_path / "home", monkeypatch, max_tool_rounds=30) as one:
            session = await begun(one.house, one.desk, "holdfast")
            await one.stopped(session)
            return len(one.fake.received)

    assert asyncio.run(tried()) == 31
