"""R57: what providers charge stays within the budget, whatever they answer.

The providers are a real socket that speaks all four wire formats. It charges one token for each
byte of text that it is sent, at the dearest price of the model, and writes as many tokens as the
request allows. Where a request allows any number it writes 64,000.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Session, SessionRequest, open_holdfast
from holdfast.config import Config
from holdfast.domain.costs import Usage, price
from holdfast.domain.errors import HoldfastError
from holdfast.domain.models import Prices, model_of
from holdfast.domain.sessions import Budget, OnExceed, SessionContext, StopReason
from holdfast.engine import model_requests
from holdfast.engine import model_requests as engine_model_requests
from holdfast.engine.budget import Need
from holdfast.engine.turn_state import TurnState
from holdfast.llm.router import prices_of
from holdfast.ports.llm import StepStop
from tests.houses import current, played
from tests.llm.conftest import few_authorities
from tests.llm.dialects import (
    CANDIDATES,
    CHAT,
    DIALECTS,
    MESSAGES,
    RESPONSES,
    Call,
    Dialect,
    Saying,
)
from tests.llm.fake_providers import FakeProvider, Received, Reply, a_provider, refusing
from tests.marks import demands, proves
from tests.torture.conftest import Sized, Tell

pytestmark = pytest.mark.slow

# Reading every authority for each house would be most of the time.
__all__ = ["few_authorities"]

UNLIMITED = 64_000
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")
LOOK = Call("", "read_file", ('{"path": "a.txt"}',))
KEYS = ("OPENAI", "ANTHROPIC", "GEMINI")
ADDRESSES = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")
# Words that tokenizers make few tokens of, and those that they make many of.
WORDS = ("hello ", "ünïcödé ", "漢字", "😀", "Zm9vYmFy", "\\x00", '{"a": [1, 2]} ', "\n\t")


@dataclass
class Till:
    """Answers in four wire formats, and adds up what it charges in micro-cents."""

    luck: random.Random
    # How often of a hundred a request is refused, breaks off, or is answered without a usage.
    faults: int = 0
    # How often an answer is as long as it may be.
    greed: float = 1.0
    # Holds every answer back before its last piece.
    gate: asyncio.Event | None = None
    charged: int = 0
    limits: list[int | None] = field(default_factory=list)

    def answer(self, request: Received) -> Reply:
        """Write as much as is allowed, and charge for it."""
        dialect = spoken(request)
        prices = prices_of(model_of(dialect.model))
        assert prices is not None
        limit = limit_of(request.body)
        self.limits.append(limit)
        asked = sum(len(text.encode()) for text in texts_in(request.body))
        if self.gate is not None:
            return self._unfinished(dialect, asked, prices)
        if self.luck.randrange(100) < self.faults:
            return self._fault(dialect, asked, prices)
        # Half of the output is thought; nobody sees it, and it is charged as the other half.
        written = limit or UNLIMITED
        if self.luck.random() >= self.greed:
            written = self.luck.randint(1, min(written, 200))
        usage = Usage(input=asked, output=written, reasoning=written // 2)
        if dialect is not CANDIDATES and prices.cache_write > prices.input:
            usage = Usage(cache_write=asked, output=written, reasoning=written // 2)
        self.charged += price(usage, prices)
        if self.luck.random() < 0.5:
            return dialect.reply(Saying(calls=(LOOK,), stop=StepStop.TOOL_USE, usage=usage))
        stop = self.luck.choice((StepStop.STOP, StepStop.LENGTH))
        return dialect.reply(Saying(text=("Well. " * 20,), stop=stop, usage=usage))

    def _fault(self, dialect: Dialect, asked: int, prices: Prices) -> Reply:
        match self.luck.choice(("refused", "broken", "silent", "uncounted")):
            case "refused":
                return refusing(500, {"error": {"message": "no", "type": "some_error"}})
            case "broken":
                pieces = dialect.stream(Saying(text=("Go", "od", " day")))
                reply = Reply(pieces[: len(pieces) // 2 + 1], end="cut")
            case "silent":
                reply = Reply((), end="cut")
            case _:
                reply = dialect.reply(Saying(text=("Good day",), usage=None))
        # Everything that was allowed: most of it was reasoning, which is not sent.
        output = self.limits[-1] or UNLIMITED
        self.charged += price(Usage(input=asked, output=output), prices)
        return reply

    def _unfinished(self, dialect: Dialect, asked: int, prices: Prices) -> Reply:
        output = self.limits[-1] or UNLIMITED
        self.charged += price(Usage(input=asked, output=output), prices)
        return Reply(dialect.stream(Saying(text=("Go", "od", " day"))), gate=self.gate)


def spoken(request: Received) -> Dialect:
    """Return the wire format of a request, told by its path."""
    path = request.path.partition("?")[0]
    endings = {"/chat/completions": CHAT, "/responses": RESPONSES, "/messages": MESSAGES}
    return next((each for ending, each in endings.items() if path.endswith(ending)), CANDIDATES)


def limit_of(body: dict[str, Any]) -> int | None:
    settings = body.get("generationConfig", body)
    found = [settings[name] for name in LIMITS if settings.get(name) is not None]
    assert len(found) <= 1, found
    return found[0] if found else None


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text of a body, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


@asynccontextmanager
async def charging(
    home: Path, till: Till, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Holdfast, FakeProvider]]:
    """Open a house all of whose providers are the till."""
    config = Config(home=home)
    async with only_provider(till, monkeypatch) as fake, open_holdfast(config=config) as house:
        yield house, fake


@asynccontextmanager
async def only_provider(till: Till, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeProvider]:
    """Serve the till as every provider of this process and of its children."""
    async with a_provider() as fake:
        fake.answer = till.answer
        for name in ADDRESSES:
            monkeypatch.setenv(name, fake.url)
        for name in KEYS:
            monkeypatch.setenv(f"HOLDFAST_{name}_API_KEY", "sk-0123456789abcdef")
            monkeypatch.setenv(f"{name}_API_KEY", "sk-0123456789abcdef")
        yield fake


async def begun(
    house: Holdfast, desk: Path, budget: Budget, *models: str, max_tokens: int | None = None
) -> Session:
    retry = {"max": 2, "backoff": "linear", "backoff_ms": 1}
    asker = {
        "name": "Asker",
        "runtime": {"type": "llm", "retry": retry, "max_tokens": max_tokens},
        "models": list(models),
        "tools": ["read_file"],
        "grant": None,
    }
    agent = await house.agents.create(house.owner, asker)
    context = SessionContext(working_dir=str(desk))
    return await house.open(agent.slug, SessionRequest(context=context, budget=budget))


async def spend(house: Holdfast, session: Session, luck: random.Random) -> None:
    """Send until the budget says no, and fold the past now and then."""
    for _ in range(12):
        text = "".join(luck.choices(WORDS, k=luck.randint(1, 400)))
        await house.send(session.id, text)
        await played(house, session.id)
        if (await current(house, session)).last_stop is StopReason.BUDGET:
            return
        if luck.random() < 0.3:
            with suppress(HoldfastError):
                await house.compactions.compact(house.owner, session.id)


@proves("R57")
@demands("S0-120")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
def test_what_providers_charge_stays_within_the_budget(
    dialect: Dialect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    luck: random.Random,
    sized: Sized,
    tell: Tell,
) -> None:
    rounds = sized(quick=1, test=2, torture=20, release=100)
    (tmp_path / "a.txt").write_text("hello\n")
    told = []

    async def tried(number: int) -> None:
        till = Till(luck, faults=20 if number % 2 else 0, greed=luck.choice((0.0, 0.2, 1.0)))
        # From two cents to fifty; from the second round on another model is there to fall back on.
        budget = Budget(microcents=luck.randint(2, 50) * 1_000_000, on_exceed=OnExceed.FAIL)
        others = [each.model for each in DIALECTS if each is not dialect]
        models = [dialect.model, *luck.sample(others, number % 2)]
        async with charging(tmp_path / f"home-{number}", till, monkeypatch) as (house, _):
            session = await begun(house, tmp_path, budget, *models)
            await spend(house, session, luck)
            counted = (await current(house, session)).microcents
        told.append((till.charged, budget.microcents, len(till.limits)))
        assert till.charged <= budget.microcents, (models, till.limits)
        assert counted <= budget.microcents
        assert None not in till.limits

    for number in range(rounds):
        asyncio.run(tried(number))
    requests = sum(each for *_, each in told)
    most = max(charged / budget for charged, budget, _ in told)
    tell(f"{rounds} budgets, {requests} requests, at most {most:.0%} of a budget charged")
    # A budget that nothing was sent under would prove nothing.
    assert requests >= rounds


@proves("R57")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
def test_without_an_output_limit_the_same_providers_charge_more(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: random.Random
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    budget = Budget(microcents=5_000_000, on_exceed=OnExceed.FAIL)
    till = Till(luck)

    def unlimited(_: TurnState, need: Need) -> int | None:
        return need.output

    monkeypatch.setattr(model_requests, "output_limit", unlimited)
    monkeypatch.setattr(engine_model_requests, "output_limit", unlimited)

    async def tried() -> None:
        async with charging(tmp_path / "home", till, monkeypatch) as (house, _):
            session = await begun(house, tmp_path, budget, dialect.model)
            await spend(house, session, luck)

    asyncio.run(tried())

    assert till.charged > budget.microcents


# Sends a message to a session, and waits until its turns have ended.
SENDER = """
import asyncio, sys
from holdfast import open_holdfast
from holdfast.config import Config
from pathlib import Path
from tests.houses import played

async def main(home, session_id):
    async with open_holdfast(config=Config(home=Path(home))) as house:
        await house.send(session_id, "Go on.")
        await played(house, session_id)

asyncio.run(main(*sys.argv[1:]))
"""
STOPPED = Budget(microcents=8_000_000, on_exceed=OnExceed.FAIL)


@proves("R57")
@demands("S0-120")
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.provider)
def test_requests_that_are_interrupted_stay_within_the_budget(
    dialect: Dialect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: random.Random
) -> None:
    till = Till(luck, gate=asyncio.Event())

    async def tried() -> None:
        async with charging(tmp_path / "home", till, monkeypatch) as (house, fake):
            session = await begun(house, tmp_path, STOPPED, dialect.model, max_tokens=4_000)
            while len(fake.received) < 20:
                fake.arrived.clear()
                await house.send(session.id, "Go on.")
                ended = asyncio.create_task(played(house, session.id))
                arrived = asyncio.create_task(fake.arrived.wait())
                await asyncio.wait({ended, arrived}, return_when=asyncio.FIRST_COMPLETED)
                if not fake.arrived.is_set():
                    break
                await house.sessions.interrupt(house.owner, session.id)
                await ended
            spent = await current(house, session)
            sums = await house.costs.of_sessions(house.owner, [session.id])
        assert till.limits
        assert till.charged <= spent.microcents <= STOPPED.microcents
        assert sums[session.id].estimated_requests == len(till.limits)
        assert sums[session.id].is_upper_bound
        assert spent.last_stop is StopReason.BUDGET

    asyncio.run(tried())


@proves("R57")
@demands("S0-120")
def test_requests_that_die_with_their_process_stay_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, luck: random.Random
) -> None:
    till = Till(luck, gate=asyncio.Event())
    home = tmp_path / "home"

    async def killed(session: Session, fake: FakeProvider) -> bool:
        """Kill a process in the middle of its request; `False` if it ended without one."""
        fake.arrived.clear()
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", SENDER, home, session.id)
        arrived = asyncio.create_task(fake.arrived.wait())
        ended = asyncio.create_task(child.wait())
        async with asyncio.timeout(60):
            await asyncio.wait({ended, arrived}, return_when=asyncio.FIRST_COMPLETED)
        if child.returncode is None:
            child.kill()
        await ended
        arrived.cancel()
        return fake.arrived.is_set()

    async def tried() -> None:
        config = Config(home=home)
        async with only_provider(till, monkeypatch) as fake:
            async with open_holdfast(config=config) as house:
                session = await begun(house, tmp_path, STOPPED, MESSAGES.model, max_tokens=1_200)
            while await killed(session, fake) and len(till.limits) < 8:
                pass
            async with open_holdfast(config=config) as house:
                await played(house, session.id)
                spent = await current(house, session)
        assert len(till.limits) > 1
        assert till.charged <= spent.microcents <= STOPPED.microcents

    asyncio.run(tried())
