"""`invoke_agent`: a session opens another one for a task, waits for it and gets its answer."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, LocalHoldfast, RunScope, Session, Status, open_holdfast
from holdfast.children.model import ChildRequest
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, HoldfastError, Invalid
from holdfast.domain.events import TurnPaused
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, Role, ToolResult
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Budget, SessionContext, SessionRequest, is_paused
from holdfast.domain.tools import FsTier, Grant
from holdfast.domain.waits import Wait, WaitReason
from holdfast.engine.projection import project
from tests.houses import current, head_of, played
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, asks, call, outcomes, says

pytestmark = pytest.mark.anyio


def asked(agent: str, call_id: str = "c1", task: str = "Look it up", **more: Any) -> dict[str, Any]:
    return asks(call("invoke_agent", call_id, agent=agent, task=task, **more))


@asynccontextmanager
async def a_house(config: Config, **more: Any) -> AsyncIterator[LocalHoldfast]:
    async with asyncio.timeout(PATIENCE), open_holdfast(config=config, **more) as house:
        yield house


async def an_agent(
    house: LocalHoldfast, slug: str, *steps: dict[str, Any], starts: Iterable[str] = (), **more: Any
) -> None:
    """Create an agent with a script of its own, which may start other agents."""
    file = house.config.home.parent / f"{slug}.json"
    await asyncio.to_thread(file.write_bytes, msgspec.json.encode(list(steps)))
    tools = [{"name": "invoke_agent", "agents": list(starts)}] if starts else []
    fields = {"name": slug, "slug": slug, "tools": tools, "models": [f"scripted:{file}"]}
    await house.agents.create(house.owner, fields | more)


async def begun(house: Holdfast, agent: str = "lead", **request: Any) -> Session:
    session = await house.open(agent, SessionRequest(**request))
    await house.send(session.id, "go")
    return session


async def children_of(house: Holdfast, session: Session) -> list[Session]:
    found = (await house.sessions.list(SessionQuery(owner=house.owner))).items
    return [each for each in found if each.parent and each.parent.session_id == session.id]


async def waits_for_child(
    house: Holdfast, session: Session, *, other_than: Wait | None = None
) -> Session:
    """Wait until the turn of a session is paused for a child."""
    while True:
        now = await current(house, session)
        waiting = now.waiting
        if waiting is not None and waiting.reason is WaitReason.CHILD and waiting != other_than:
            return now
        await asyncio.sleep(0.005)


def results(rows: Iterable[Message]) -> list[ToolResult]:
    return [part for row in rows for part in row.parts if isinstance(part, ToolResult)]


@demands("S0-160")
async def test_the_answer_of_a_child_is_the_result_of_the_call(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(
            house, "lead", asked("helper", title="Find"), says("done"), starts=["helper"]
        )
        await an_agent(house, "helper", says("It is 17."))
        session = await begun(house)
        rows = await played(house, session.id)
        (child,) = await children_of(house, session)
        parent = await current(house, session)
        task = await house.read(child.id)

    (result,) = results(rows)
    assert result.result == {"session_id": child.id, "stop_reason": "stop", "text": "It is 17."}
    assert rows[-1].text == "done"
    assert child.parent is not None
    assert (child.parent.session_id, child.parent.call_id) == (session.id, "c1")
    assert (parent.children, child.children, parent.parent) == (1, 0, None)
    assert (child.title, child.agent.slug) == ("Find", "helper")
    assert [(row.role, row.text) for row in task] == [
        (Role.USER, "Look it up"),
        (Role.ASSISTANT, "It is 17."),
    ]


async def test_with_one_place_three_levels_finish(home: Path) -> None:
    async with a_house(a_config(home, turns_at_a_time=1)) as house:
        await an_agent(house, "lead", asked("one"), says("lead done"), starts=["one"])
        await an_agent(house, "one", asked("two"), says("one done"), starts=["two"])
        await an_agent(house, "two", asked("three"), says("two done"), starts=["three"])
        await an_agent(house, "three", asked("lead"), says("three done"), starts=["lead"])
        session = await begun(house)
        rows = await played(house, session.id)
        family = [session]
        while below := await children_of(house, family[-1]):
            family += below
        ends = [(await house.read(each.id))[-1].text for each in family]
        last = results(await house.read(family[-1].id))

    assert outcomes(rows) == ["invoke_agent ok"]
    assert ends == ["lead done", "one done", "two done", "three done"]
    # An agent that starts itself counts as a level like any other.
    assert [each.error and each.error.code for each in last] == ["limit"]


async def test_a_quick_child_does_not_pause_its_parent(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that needs the only slot for a child of its own while the parent waits."""
    monkeypatch.setattr("holdfast.children.service._PATIENCE", 2 * PATIENCE)
    async with a_house(a_config(home, turns_at_a_time=1)) as house:
        both = (call("invoke_agent", f"c-{name}", agent=name, task="go") for name in ("one", "two"))
        await an_agent(house, "lead", asks(*both), says("lead done"), starts=["one", "two"])
        await an_agent(house, "one", says("one done"))
        await an_agent(house, "two", asked("three"), says("two done"), starts=["three"])
        await an_agent(house, "three", says("three done"))
        session = await begun(house)
        rows = await played(house, session.id)
        family = [session, *await children_of(house, session)]
        seen = [
            type(event.payload)
            for each in family
            for event in (await house.events.list(house.owner, each.id)).items
        ]

    assert outcomes(rows) == ["invoke_agent ok"] * 2
    assert (len(family), TurnPaused in seen) == (3, False)


async def test_the_turn_of_a_child_begins_with_its_session(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", says("done"))
        await an_agent(house, "helper", says("ok", delay_ms=100))
        session = await house.open("lead")
        request = ChildRequest(agent="helper", task="go")
        child = await house.children.spawn(house.owner, session.id, request)
        await played(house, child.id)

    assert child.status is Status.RUNNING


async def test_a_waiting_parent_has_no_place_and_no_lease(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("slow"), says("done"), starts=["slow"])
        await an_agent(house, "slow", says("late", delay_ms=500))
        session = await begun(house)
        waiting = await waits_for_child(house, session)
        head = await head_of(house, session)
        (child,) = await children_of(house, session)
        # A message that arrives meanwhile is for the next turn, and takes nothing over.
        await house.send(session.id, "and then?")
        again = await current(house, session)
        rows = await played(house, session.id)
        calls = (await house.calls.list(house.owner, session.id)).items

    assert is_paused(head)
    assert waiting.waiting is not None
    assert (waiting.waiting.call_ids, waiting.waiting.children) == (("c1",), (child.id,))
    assert again.waiting == waiting.waiting
    assert outcomes(rows) == ["invoke_agent ok"]
    assert len(calls) == 1


async def test_powers_are_those_that_both_have(home: Path, tmp_path: Path) -> None:
    wide = Grant(fs=FsTier.FULL, commands=("ls", "make"), domains=("a.example", "b.example"))
    config = a_config(home, approval=ApprovalMode.AUTO)
    async with a_house(config) as house:
        grant = Grant(fs=FsTier.PROJECT, commands=("ls", "cat"), domains=("b.example",))
        steps = asked("helper"), says("done")
        await an_agent(house, "lead", *steps, starts=["helper"], grant=grant)
        await an_agent(house, "helper", says("ok"), grant=wide)
        context = SessionContext(working_dir=str(tmp_path), fs_scope_tier=FsTier.PROJECT)
        budget = Budget(microcents=500)
        session = await begun(house, approval=ApprovalMode.EDITS, budget=budget, context=context)
        await played(house, session.id)
        (child,) = await children_of(house, session)

    assert child.grant == Grant(fs=FsTier.PROJECT, commands=("ls",), domains=("b.example",))
    assert child.approval is ApprovalMode.EDITS
    assert child.budget == budget
    assert child.context.working_dir == str(tmp_path)


async def test_a_private_folder_is_not_shared(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"), starts=["helper"])
        await an_agent(house, "helper", says("ok"))
        session = await begun(house)
        await played(house, session.id)
        (child,) = await children_of(house, session)

    assert child.context.working_dir != session.context.working_dir
    assert child.id in child.context.working_dir


@pytest.mark.parametrize(
    ("step", "outcome"),
    [
        (asked("other"), "denied/not_granted"),
        (asked("missing"), "error/unavailable"),
        (asked("helper", task=""), "error/invalid_arguments"),
        (asked("helper", budget=3), "error/invalid_arguments"),
        (asked("program"), "error/unavailable"),
    ],
)
async def test_what_cannot_be_started_opens_nothing(
    home: Path, step: dict[str, Any], outcome: str
) -> None:
    async with a_house(a_config(home)) as house:
        starts = ["helper", "missing", "program"]
        await an_agent(house, "lead", step, says("done"), starts=starts)
        await an_agent(house, "helper", says("ok"))
        await an_agent(house, "other", says("ok"))
        program = {"type": "acp", "command": "/bin/true"}
        fields = {"name": "P", "slug": "program", "runtime": program}
        await house.agents.create(house.owner, fields)
        session = await begun(house)
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert outcomes(rows) == [f"invoke_agent {outcome}"]
    assert opened == []


async def test_without_agents_the_tool_is_not_offered(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"))
        await an_agent(house, "helper", says("ok"))
        session = await begun(house)
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert outcomes(rows) == ["invoke_agent error/unknown_tool"]
    assert opened == []


@each_case("agents", ["helper", [1], ["no slug"], ["a"] * 65, {"a": 1}])
async def test_a_bad_list_of_agents_is_refused(home: Path, agents: Any) -> None:
    async with a_house(a_config(home)) as house:
        fields = {"name": "X", "tools": [{"name": "invoke_agent", "agents": agents}]}
        with pytest.raises(Invalid) as refused:
            await house.agents.create(house.owner, fields)
        assert refused.value.code is Code.TOOL_INVALID
        assert (await house.agents.list(_all_agents(house))).items == ()


def _all_agents(house: Holdfast) -> Any:
    from holdfast.domain.queries import AgentQuery

    return AgentQuery(owner=house.owner)


async def test_a_child_that_has_failed_is_a_failed_call(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"), starts=["helper"])
        await an_agent(house, "helper", {"text": "I beg", "error": "auth"})
        session = await begun(house)
        rows = await played(house, session.id)
        (child,) = await children_of(house, session)

    (result,) = results(rows)
    assert outcomes(rows) == ["invoke_agent error/child_failed"]
    assert result.result == {"session_id": child.id, "stop_reason": "error", "text": "I beg"}
    assert result.error is not None
    assert child.id in result.error.message
    assert rows[-1].text == "done"


async def test_a_child_that_is_interrupted_or_closed_fails_its_call(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        steps = asked("slow"), asked("slow", "c2"), says("done")
        await an_agent(house, "lead", *steps, starts=["slow"])
        await an_agent(house, "slow", says("late", delay_ms=60_000))
        session = await begun(house)
        first = await waits_for_child(house, session)
        assert first.waiting is not None
        await house.sessions.interrupt(house.owner, first.waiting.children[0])
        second = await waits_for_child(house, session, other_than=first.waiting)
        assert second.waiting is not None
        await house.sessions.close(house.owner, second.waiting.children[0])
        rows = await played(house, session.id)

    assert outcomes(rows) == ["invoke_agent error/child_failed"] * 2


async def test_no_more_children_than_the_limit(home: Path) -> None:
    config = a_config(home, children_per_session=2)
    async with a_house(config) as house:
        steps = [asked("helper", f"c{number}") for number in range(3)]
        await an_agent(house, "lead", *steps, says("done"), starts=["helper"])
        await an_agent(house, "helper", says("ok"))
        session = await begun(house)
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert outcomes(rows) == [*["invoke_agent ok"] * 2, "invoke_agent error/limit"]
    assert len(opened) == 2


async def test_an_end_that_nobody_waits_for_here_is_found(home: Path) -> None:
    """The next process runs the child, and did not see its parent wait."""
    config = a_config(home)
    async with a_house(config) as house:
        await an_agent(house, "lead", asked("slow"), says("done"), starts=["slow"])
        await an_agent(house, "slow", says("late", delay_ms=300))
        session = await begun(house)
        await waits_for_child(house, session)
    async with a_house(config) as house:
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert outcomes(rows) == ["invoke_agent ok"]
    assert len(opened) == 1
    assert opened[0].settled == 1


async def test_the_value_of_a_child_is_in_the_result(home: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"), starts=["helper"])
        await an_agent(house, "helper", says('{"n": 17}'), output_schema=schema)
        session = await begun(house)
        rows = await played(house, session.id)

    (result,) = results(rows)
    assert result.result["value"] == {"n": 17}


async def test_a_child_of_another_owner_is_not_found(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", says("done"))
        session = await house.open("lead")
    async with a_house(a_config(home), owner="eve") as house:
        await an_agent(house, "helper", says("ok"))
        with pytest.raises(HoldfastError) as refused:
            await house.sessions.get(house.owner, SessionId(session.id))
        assert refused.value.code is Code.SESSION_NOT_FOUND


async def test_a_process_that_runs_only_its_own_turns_runs_their_children(home: Path) -> None:
    async with a_house(a_config(home), scope=RunScope.OWN) as house:
        await an_agent(house, "lead", asked("middle"), says("done"), starts=["middle"])
        await an_agent(house, "middle", asked("last"), says("middle"), starts=["last"])
        await an_agent(house, "last", says("last", delay_ms=50))
        session = await begun(house)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["invoke_agent ok"]


async def test_a_parent_of_another_process_is_continued(home: Path) -> None:
    """One process runs the parent only, and a server that comes later runs the child."""
    config = a_config(home)
    async with a_house(config, scope=RunScope.OWN) as house, a_house(config) as server:
        await an_agent(house, "lead", asked("slow"), says("done"), starts=["slow"])
        await an_agent(house, "slow", says("late", delay_ms=300))
        session = await begun(house)
        await waits_for_child(server, session)
        rows = await played(server, session.id)
        opened = await children_of(server, session)

    assert outcomes(rows) == ["invoke_agent ok"]
    assert len(opened) == 1


async def test_children_of_one_step_work_at_once_and_answer_in_order(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        delays = {"one": 1800, "two": 300, "three": 1000}
        step = asks(
            *(call("invoke_agent", f"c-{name}", agent=name, task=name) for name in delays),
            call("invoke_agent", "c-four", agent="four", task="x"),
        )
        await an_agent(house, "lead", step, says("done"), starts=[*delays])
        for name, delay in delays.items():
            await an_agent(house, name, says(f"from {name}", delay_ms=delay))
        session = await begun(house)
        waiting = (await waits_for_child(house, session)).waiting
        working = len(await children_of(house, session))
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert waiting is not None
    assert waiting.call_ids == ("c-one", "c-two", "c-three")
    assert (working, len(opened)) == (3, 3)
    # On disk as they come; a refused one waits for none of them.
    assert results(rows)[0].call_id == "c-four"
    shown = [each.call_id for each in project(rows, turn=1) if each.role == "tool"]
    assert shown == ["c-one", "c-two", "c-three", "c-four"]
    assert rows[-1].text == "done"
