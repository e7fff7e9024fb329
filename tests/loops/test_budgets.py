"""The budget of a session, as loops of the user meet it, and the texts of their failures."""

from pathlib import Path

import pytest

from holdfast import (
    ApprovalRequested,
    ApprovalState,
    Budget,
    Code,
    Decision,
    Event,
    Holdfast,
    LimitReached,
    OnExceed,
    Session,
    SessionRequest,
    StopReason,
    Turn,
    TurnEnded,
    TurnFailed,
    Usage,
    open_holdfast,
)
from holdfast.domain.models import Model, Prices
from tests.houses import current, news_until, payloads, played
from tests.new_homes import furnish
from tests.tooled import a_config

pytestmark = pytest.mark.anyio

# A token costs a hundredth of a cent.
PRICES = Prices(input=10_000_000_000, output=10_000_000_000)
TOKEN = 10_000
MODEL = "scripted:model"


@pytest.fixture(autouse=True)
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give scripted models a price, as the tables give one to those of providers."""

    def prices_of(model: Model) -> Prices | None:
        return PRICES if model.provider == "scripted" else None

    monkeypatch.setattr("holdfast.llm.router.prices_of", prices_of)


def with_budget(tokens: int, on_exceed: OnExceed = OnExceed.FAIL) -> SessionRequest:
    return SessionRequest(budget=Budget(microcents=tokens * TOKEN, on_exceed=on_exceed))


async def spend(turn: Turn, tokens: int = 100) -> None:
    await turn.say("spent", usage=Usage(output=tokens), model=MODEL)


async def last_end(hf: Holdfast, session: Session) -> TurnEnded:
    ends = [
        each.payload
        async for each in hf.follow(session.id, until_settled=True)
        if isinstance(each, Event) and isinstance(each.payload, TurnEnded)
    ]
    return ends[-1]


async def test_a_used_up_budget_ends_a_turn_where_it_is_checked(home: Path) -> None:
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open(request=with_budget(100))

        async def act() -> None:
            async with hf.turn(session.id, "Spend") as turn:
                await turn.check_budget()
                await spend(turn)
                await turn.check_budget()

        with pytest.raises(LimitReached) as refused:
            await act()
        ended = await last_end(hf, session)
        # Entering is a check, too.
        with pytest.raises(LimitReached):
            async with hf.turn(session.id, "More"):
                raise AssertionError
        after = await current(hf, session)

    assert refused.value.code is Code.BUDGET_EXCEEDED
    assert ended.stop_reason is StopReason.BUDGET
    assert ended.failure is not None
    assert ended.failure.code == "budget_exceeded"
    assert (after.settled, after.last_stop) == (2, StopReason.BUDGET)


async def test_a_step_that_names_its_model_runs_only_if_an_answer_fits(home: Path) -> None:
    ran: list[str] = []

    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open(request=with_budget(1_000))

        async def act() -> None:
            async with hf.turn(session.id, "Ask") as turn:
                await turn.step("free", ran.append, "free")
                await turn.step("ask", ran.append, "ask", model=MODEL)

        with pytest.raises(LimitReached, match=r"its budget is \$0\.1000"):
            await act()

    assert ran == ["free"]


async def test_a_loop_goes_on_when_its_budget_was_raised(home: Path) -> None:
    runs: list[int] = []

    async def plan(turn: Turn) -> str:
        runs.append(turn.number)
        await spend(turn)
        await turn.check_budget()
        return "done"

    async with open_holdfast(config=a_config(home)) as hf:
        hf.runtime("planner")(plan)
        session = await hf.open("planner", with_budget(100, OnExceed.PAUSE))
        await hf.send(session.id, "Go")
        news = payloads(await news_until(hf, session.id, ApprovalRequested))
        (asked,) = [each for each in news if isinstance(each, ApprovalRequested)]
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        await hf.approvals.answer(hf.owner, session.id, asked.approval_id, yes)
        rows = await played(hf, session.id)
        after = await current(hf, session)

    assert [row.text for row in rows[1:]] == ["spent", "done"]
    assert (after.last_stop, after.microcents) == (StopReason.STOP, 100 * TOKEN)
    assert runs == [1]


async def test_what_was_paid_is_not_checked_again_by_a_replay(home: Path) -> None:
    async def act(hf: Holdfast, session: Session, *, dies: bool) -> None:
        async with hf.turn(session.id, "Spend", id="0a3d7c62-6c55-4b0e-9c0f-1d2b6a1f4c11") as turn:
            await turn.check_budget()
            await spend(turn)
            if dies:
                raise SystemExit

    config = a_config(home)
    async with open_holdfast(config=config) as hf:
        session = await hf.open(request=with_budget(100))
        with pytest.raises(SystemExit):
            await act(hf, session, dies=True)
    async with open_holdfast(config=config) as hf:
        await act(hf, session, dies=False)
        after = await current(hf, session)

    assert (after.last_stop, after.microcents) == (StopReason.STOP, 100 * TOKEN)


async def test_a_loop_chooses_the_text_of_its_failure(home: Path) -> None:
    async def plan(turn: Turn) -> str:
        raise TurnFailed(f"There is no room for {turn.prompt}.")

    async with open_holdfast(furnish(home)) as hf:
        hf.runtime("planner")(plan)
        loop, held = await hf.open("planner"), await hf.open()
        await hf.send(loop.id, "Ada")
        with pytest.raises(TurnFailed):
            async with hf.turn(held.id, "Ben") as turn:
                await plan(turn)
        ends = [await last_end(hf, loop), await last_end(hf, held)]

    found = [(each.stop_reason, each.failure) for each in ends]
    assert [stop for stop, _ in found] == [StopReason.ERROR] * 2
    assert [failure and failure.code for _, failure in found] == ["loop_failed"] * 2
    assert [failure and failure.message for _, failure in found] == [
        "There is no room for Ada.",
        "There is no room for Ben.",
    ]
