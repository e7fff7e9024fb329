"""The budget of a session covers what it has started."""

from pathlib import Path

import pytest

from holdfast import Budget
from holdfast.domain.models import Model, Prices
from holdfast.domain.sessions import OnExceed, StopReason
from tests.children.test_invoke import a_house, an_agent, asked, begun, children_of
from tests.houses import current, played
from tests.tooled import a_config, outcomes, says

pytestmark = pytest.mark.anyio

# A token costs a hundredth of a cent; a request is bounded by some thousand tokens.
PRICES = Prices(input=10_000_000_000, output=10_000_000_000)
TOKEN = 10_000
COSTLY = {"usage": {"input": 6_000, "output": 10}}


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give scripted models a price, as the tables give one to those of providers."""

    def prices_of(model: Model) -> Prices | None:
        return PRICES if model.provider == "scripted" else None

    monkeypatch.setattr("holdfast.llm.router.prices_of", prices_of)


@pytest.mark.usefixtures("priced")
async def test_children_spend_from_the_budget_of_their_parent(home: Path) -> None:
    """Each child alone would fit; the tree does not."""
    budget = Budget(microcents=20_000 * TOKEN, on_exceed=OnExceed.FAIL)
    async with a_house(a_config(home)) as house:
        calls = [asked("helper", f"c{number}") for number in range(4)]
        await an_agent(house, "lead", *calls, says("done"), starts=["helper"])
        await an_agent(house, "helper", says("ok", **COSTLY))
        session = await begun(house, budget=budget)
        rows = await played(house, session.id)
        family = [await current(house, session), *await children_of(house, session)]

    spent = sum(each.microcents for each in family)
    # The request that would have passed the budget was not sent, in the child or the parent.
    assert spent <= budget.microcents
    assert family[0].last_stop is StopReason.BUDGET or "error" in " ".join(outcomes(rows))
    assert 2 <= sum(each.microcents > 0 for each in family[1:]) <= 3


@pytest.mark.usefixtures("priced")
async def test_a_child_is_stopped_by_what_its_parent_has_spent(home: Path) -> None:
    """The same child with the same budget of its own is answered below a parent that has more."""
    ends = []
    async with a_house(a_config(home)) as house:
        steps = asked("helper") | COSTLY, says("done")
        await an_agent(house, "lead", *steps, starts=["helper"])
        await an_agent(house, "helper", says("ok"))
        for tokens in (8_000, 40_000):
            budget = Budget(microcents=tokens * TOKEN, on_exceed=OnExceed.FAIL)
            session = await begun(house, budget=budget)
            rows = await played(house, session.id)
            (child,) = await children_of(house, session)
            ends.append((outcomes(rows)[0], child.last_stop, child.microcents > 0))

    assert ends == [
        ("invoke_agent error/child_failed", StopReason.BUDGET, False),
        ("invoke_agent ok", StopReason.STOP, True),
    ]


@pytest.mark.usefixtures("priced")
async def test_without_a_budget_nothing_is_stopped(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"), starts=["helper"])
        await an_agent(house, "helper", says("ok", **COSTLY))
        session = await begun(house)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["invoke_agent ok"]
