"""Whether a person is asked before a function runs: its own rule, its effect and the mode."""

import logging
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast import Ask, Effect, SessionRequest, open_holdfast, tool
from holdfast.domain.approvals import ApprovalMode, ApprovalScope, ApprovalState
from holdfast.domain.events import ApprovalRequested, Event, TurnEnded
from holdfast.domain.tools import ToolClass
from holdfast.functions import calls
from tests.functions.stage import scripted, sent
from tests.houses import played
from tests.tooled import a_config, answer, asks, call, outcomes, question, says

pytestmark = pytest.mark.anyio

RUN, ASKED, REFUSED = "run ok", "asked", "run denied/rejected"
MODES = list(ApprovalMode)
# One row for each rule and effect; the columns are the modes deny, ask, edits, auto.
TABLE: dict[tuple[str, str], tuple[str, str, str, str]] = {
    ("auto", "pure"): (RUN, RUN, RUN, RUN),
    ("auto", "idempotent"): (REFUSED, RUN, RUN, RUN),
    ("auto", "unsafe"): (REFUSED, RUN, RUN, RUN),
    ("ask", "pure"): (REFUSED, ASKED, ASKED, ASKED),
    ("ask", "idempotent"): (REFUSED, ASKED, ASKED, ASKED),
    ("ask", "unsafe"): (REFUSED, ASKED, ASKED, ASKED),
    ("deny", "pure"): (REFUSED, REFUSED, REFUSED, REFUSED),
    ("deny", "unsafe"): (REFUSED, REFUSED, REFUSED, REFUSED),
    ("mode", "pure"): (RUN, RUN, RUN, RUN),
    ("mode", "unsafe"): (REFUSED, ASKED, ASKED, RUN),
}


def a_tool(approval: Any, effect: Any = "unsafe", **rules: Any) -> Any:
    @tool(approval=approval, effect=effect, **rules)
    async def run(order: str = "") -> str:
        """Run."""
        return order

    return run


async def fate(hf: Any, session: Any) -> str:
    """Return how the call came out, or that its question waits."""
    async for item in hf.follow(session.id):
        if isinstance(item, Event) and isinstance(item.payload, ApprovalRequested):
            return ASKED
        if isinstance(item, Event) and isinstance(item.payload, TurnEnded):
            break
    return outcomes(await hf.read(session.id))[0]


async def test_the_table_of_rules_effects_and_modes_holds(home: Path) -> None:
    config = scripted(home, call("run"))
    found = {}
    async with open_holdfast(config=config) as hf:
        for (row, expected), (at, mode) in product(TABLE.items(), enumerate(MODES)):
            request = SessionRequest(approval=mode)
            session = await hf.open(request=request, tools=[a_tool(*row)])
            await hf.send(session.id, "go")
            found[row, mode] = (await fate(hf, session), expected[at])
    assert [key for key, (got, wanted) in found.items() if got != wanted] == []
    assert len(found) == 40


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda _: "auto", RUN),
        (lambda _: "ask", ASKED),
        (lambda _: Ask("Really?"), ASKED),
        (lambda _: "deny", REFUSED),
        (lambda _: "perhaps", REFUSED),
        (lambda _: None, REFUSED),
        (lambda arguments: arguments["missing"], REFUSED),
        (lambda arguments: "ask" if arguments["order"] == "17" else "deny", ASKED),
    ],
)
async def test_a_function_decides_about_its_arguments(home: Path, rule: Any, expected: str) -> None:
    async with sent(scripted(home, call("run", order="17")), a_tool(rule)) as (hf, session):
        assert await fate(hf, session) == expected


async def test_a_rule_that_raises_is_in_the_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(_: dict[str, Any]) -> Any:
        raise ValueError("no idea")

    with caplog.at_level(logging.ERROR):
        async with sent(scripted(home, call("run")), a_tool(rule)) as (hf, session):
            assert await fate(hf, session) == REFUSED
    assert "the approval of run could not be decided" in caplog.text


async def test_a_rule_that_takes_too_long_denies(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "APPROVAL_SECONDS", 0.05)
    let_go = threading.Event()

    def rule(_: dict[str, Any]) -> Any:
        let_go.wait(10)
        return "auto"

    async with sent(scripted(home, call("run")), a_tool(rule)) as (hf, session):
        assert await fate(hf, session) == REFUSED
        let_go.set()


async def test_a_question_shows_the_whole_call_below_the_tools_own_words(home: Path) -> None:
    rule = a_tool(lambda arguments: Ask(f"Refund order {arguments['order']}?"))
    async with sent(scripted(home, call("run", order="17")), rule) as (hf, session):
        asked = await question(hf, session)
        assert asked.question.tool_class is ToolClass.FUNCTION
        assert asked.question.question.splitlines() == [
            *("Refund order 17?", "Call the function run with the arguments"),
            *("  {", '    "order": "17"', "  }"),
        ]
        await answer(hf, asked)
        assert outcomes(await played(hf, session.id)) == ["run ok"]


@pytest.mark.parametrize("effect", list(Effect))
async def test_only_what_may_run_twice_can_be_allowed_for_the_session(
    home: Path, effect: Effect
) -> None:
    steps = [asks(call("run", order=str(number))) for number in range(2)]
    config = a_config(home, *steps, says("done"), approval=ApprovalMode.AUTO)
    async with sent(config, a_tool("ask", effect)) as (hf, session):
        asked = await question(hf, session)
        is_offered = asked.question.memory is not None
        scope = ApprovalScope.SESSION if is_offered else ApprovalScope.ONCE
        await answer(hf, asked, scope=scope)
        if not is_offered:
            await answer(hf, await question(hf, session, number=2))
        assert outcomes(await played(hf, session.id)) == ["run ok", "run ok"]
    assert is_offered is (effect is not Effect.UNSAFE)


async def test_a_changed_tool_is_asked_about_anew(home: Path) -> None:
    config = scripted(home, call("run", order="17"))
    first, second = a_tool("ask"), a_tool("ask", version="2")
    async with open_holdfast(config=config, tools=[first]) as hf:
        await hf.agents.create(hf.owner, {"name": "Runner", "tools": ["run"]})
        session = await hf.open("runner")
        await hf.send(session.id, "go")
        old = await question(hf, session)
    async with open_holdfast(config=config, tools=[second]) as hf:
        new = await question(hf, session, number=2)
        assert new.question.digest != old.question.digest
        await answer(hf, new)
        assert outcomes(await played(hf, session.id)) == ["run ok"]
        states = [each.state for each in (await hf.approvals.list(hf.owner, session.id)).items]
    assert states == [ApprovalState.EXPIRED, ApprovalState.ALLOWED]


async def test_an_open_call_that_no_longer_fits_names_the_reason(home: Path) -> None:
    config = scripted(home, call("run", order="17"))

    @tool(name="run", approval="ask")
    def changed(order: int) -> int:
        """Run."""
        return order

    async with open_holdfast(config=config, tools=[a_tool("ask")]) as hf:
        await hf.agents.create(hf.owner, {"name": "Runner", "tools": ["run"]})
        session = await hf.open("runner")
        await hf.send(session.id, "go")
        await question(hf, session)
    async with open_holdfast(config=config, tools=[changed]) as hf:
        rows = await played(hf, session.id)
    assert outcomes(rows) == ["run error/invalid_arguments"]
    assert "The tool has changed since this call was requested." in str(rows)


async def test_a_denied_question_runs_nothing(home: Path) -> None:
    async with sent(scripted(home, call("run")), a_tool("ask")) as (hf, session):
        await answer(hf, await question(hf, session), ApprovalState.DENIED)
        assert outcomes(await played(hf, session.id)) == [REFUSED]
