"""Workers: registered, offered calls, listed, and checked against what agents define."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, tool
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import SessionId
from holdfast.domain.tools import ToolSpec, tool_fields
from holdfast.workers.model import Work, WorkerRequest, find_difference
from tests.marks import each_case
from tests.services.test_client_calls import (
    OK,
    REFUND,
    a_house,
    give,
    refunding,
    requested,
    sent,
)
from tests.tooled import calls_now

pytestmark = pytest.mark.anyio


def a_worker(*tools: Any, **more: Any) -> WorkerRequest:
    specs = tuple(ToolSpec(**tool_fields(each)) for each in tools or ("refund",))
    return WorkerRequest(name="one", tools=specs, **more)


async def registered(house: Holdfast, *tools: Any, **more: Any) -> str:
    return (await house.workers.register(house.owner, a_worker(*tools, **more))).id


async def offered(house: Holdfast, worker: str, **more: Any) -> Work:
    return await house.workers.next(house.owner, worker, **({"wait_s": 0} | more))


def ids(work: Work) -> list[str]:
    return [each.call.id for each in work.calls]


async def test_a_requested_call_is_offered_to_one_worker_and_stays_requested(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        first, second = await registered(house), await registered(house)
        other = await registered(house, "lookup")
        session = await sent(house)
        await requested(house, session)
        found = [ids(await offered(house, each)) for each in (other, first, second, first)]
        states = await calls_now(house, session)
        await give(house, session, OK)

    assert found == [[], ["c1"], [], []]
    assert states == {"c1": CallState.REQUESTED}


async def test_next_waits_for_a_call(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        worker = await registered(house)
        waiting = asyncio.create_task(offered(house, worker, wait_s=20))
        session = await sent(house)
        work = await waiting
        await give(house, session, OK)

    assert ids(work) == ["c1"]


@each_case(("effect", "state"), [("pure", CallState.STARTED), ("unsafe", CallState.REQUESTED)])
async def test_calls_that_may_run_twice_are_claimed_at_once_if_asked(
    home: Path, effect: str, state: CallState
) -> None:
    async with a_house(refunding(home)) as house:
        worker = await registered(house)
        session = await sent(house, effect=effect)
        await requested(house, session)
        (found,) = (await offered(house, worker, claim=True)).calls
        states = await calls_now(house, session)
        await house.sessions.interrupt(house.owner, session.id)

    assert states == {"c1": state}
    assert (found.claim is not None) == (effect == "pure")


async def test_next_extends_claims_and_returns_when_a_call_has_ended(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        worker = await registered(house)
        session = await sent(house, effect="pure")
        await requested(house, session)
        (found,) = (await offered(house, worker, claim=True)).calls
        assert found.claim is not None
        extension = await house.workers.extend(house.owner, worker, [found.claim, "gone"])
        waiting = asyncio.create_task(
            offered(house, worker, wait_s=20, limit=0, claims=[found.claim])
        )
        await asyncio.sleep(0.05)
        await house.sessions.interrupt(house.owner, session.id)
        work = await waiting

    assert found.call.claim is not None
    assert (extension.lost, extension.cancelled) == (("gone",), ())
    assert (work.calls, work.cancelled, work.lost) == ((), ("c1",), ())


async def test_a_worker_may_be_for_some_agents_or_sessions(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await house.agents.create(house.owner, {"name": "Other"})
        await requested(house, session)
        elsewhere = SessionId("0199f8a6-7f3c-7e6b-9c3a-2f1d5b8e4a10")
        wrong = [
            await registered(house, agents=("other",)),
            await registered(house, sessions={"refund": (elsewhere,)}),
        ]
        found = [ids(await offered(house, each)) for each in wrong]
        right = await registered(house, agents=("clerk",), sessions={"refund": (session.id,)})
        found.append(ids(await offered(house, right)))
        await give(house, session, OK)

    assert found == [[], [], ["c1"]]


async def test_another_owner_sees_neither_workers_nor_calls(home: Path) -> None:
    config = refunding(home)
    async with a_house(config) as house, a_house(config, owner="eve") as other:
        worker = await registered(house)
        session = await sent(house)
        await requested(house, session)
        theirs = await registered(other)
        found = ids(await offered(other, theirs))
        listed = [each.id for each in await other.workers.list(other.owner)]
        with pytest.raises(NotFound) as missing:
            await offered(other, worker)
        await give(house, session, OK)

    assert (found, listed) == ([], [theirs])
    assert missing.value.code is Code.WORKER_NOT_FOUND


async def test_workers_are_listed_until_they_are_closed(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        worker = await registered(house, "refund", "lookup")
        (listed,) = await house.workers.list(house.owner)
        await house.workers.close(house.owner, worker)
        after = await house.workers.list(house.owner)

    assert (listed.name, listed.capabilities) == ("one", ("tool:refund", "tool:lookup"))
    assert after == []


async def test_a_process_with_functions_is_announced(home: Path) -> None:
    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        return order

    async with a_house(refunding(home), tools=[refund]) as house:
        while not (found := await house.workers.list(house.owner)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    assert [each.capabilities for each in found] == [("tool:refund",)]


async def test_an_announcement_ends_when_its_holdfast_is_closed(home: Path) -> None:
    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        return order

    config = refunding(home)
    async with a_house(config) as house:
        async with a_house(config, tools=[refund]) as other:
            while not (before := await house.workers.list(house.owner)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # Not this process's: only a Holdfast that is closed takes its own back.
            worker = await registered(other)
        after = await house.workers.list(house.owner)
        # A restart is no typo: the name stays known.
        agent = await house.agents.create(house.owner, {"name": "Paying", "tools": ["refund"]})
        opened = await house.open(agent.slug)

    assert [each.capabilities for each in before] == [("tool:refund",)]
    assert [each.id for each in after] == [worker]
    assert [each.name for each in opened.tools] == ["refund"]


OTHER = REFUND | {"parameters": {"type": "object", "properties": {"order": {"type": "integer"}}}}


async def test_a_tool_that_an_agent_defines_otherwise_is_refused_or_stored(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        agent = await house.agents.create(
            house.owner, {"name": "Clerk", "tools": [REFUND, "git_status"]}
        )
        session = await house.open(agent.slug)
        for request in (a_worker(OTHER), a_worker(OTHER, agents=("clerk",))):
            with pytest.raises(Conflict) as refused:
                await house.workers.register(house.owner, request)
            assert refused.value.code is Code.TOOL_CHANGED
            assert refused.value.details["path"] == "$.parameters.additionalProperties"
        await registered(house, REFUND, agents=("clerk",))
        await registered(house, OTHER, update=True)
        changed = await house.agents.get(house.owner, "clerk")
        with pytest.raises(Conflict) as kept:
            await registered(house, OTHER, update=True, sessions={"refund": (session.id,)})
        with pytest.raises(Invalid):
            await registered(house, REFUND | {"effect": "maybe"})

    assert [each.name for each in changed.tools] == ["refund", "git_status"]
    assert changed.tools[0].parameters == OTHER["parameters"]
    assert kept.value.details["tool"] == "refund"


@each_case(
    ("stored", "given", "path"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {"a": 1.0}, "$.a"),
        ({"a": {"b": [1]}}, {"a": {"b": [2]}}, "$.a.b"),
        ({"a": 1}, {"b": 1}, "$.a"),
        ({}, {"b": None}, "$.b"),
        (True, 1, "$"),
    ],
)
def test_the_first_difference_is_named(stored: Any, given: Any, path: str | None) -> None:
    assert find_difference(stored, given) == path
