"""What is done to a session is done to the sessions it has started."""

import asyncio
from pathlib import Path

import pytest

from holdfast import LocalHoldfast, Session
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.sessions import OnBusy, Status, StopReason
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.workflows.session_export import ExportFormat
from tests.children.test_invoke import (
    a_house,
    an_agent,
    asked,
    begun,
    children_of,
    results,
    waits_for_child,
)
from tests.houses import current, played
from tests.tooled import a_config, outcomes, says

pytestmark = pytest.mark.anyio


async def a_family(house: LocalHoldfast) -> list[Session]:
    """Return a session, its child at wait and its grandchild at work."""
    await an_agent(house, "lead", asked("middle"), says("done"), starts=["middle"])
    await an_agent(house, "middle", asked("slow"), says("done"), starts=["slow"])
    await an_agent(house, "slow", says("late", delay_ms=60_000))
    session = await begun(house)
    await waits_for_child(house, session)
    (middle,) = await children_of(house, session)
    await waits_for_child(house, middle)
    (slow,) = await children_of(house, middle)
    return [session, middle, slow]


async def test_an_interrupt_goes_down_the_tree(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        stopped = await house.sessions.interrupt(house.owner, family[0].id)
        now = [await current(house, each) for each in family]
        calls = [(await house.calls.list(house.owner, each.id)).items for each in family]

    assert stopped.turn == 1
    assert [each.last_stop for each in now] == [StopReason.ABORTED] * 3
    assert [each.status for each in now] == [Status.IDLE] * 3
    assert [[call.state for call in each] for each in calls] == [["finished"], ["finished"], []]


async def test_a_message_that_interrupts_stops_the_tree(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        await house.send(family[0].id, "Stop", on_busy=OnBusy.INTERRUPT)
        now = [await current(house, each) for each in family[1:]]

    assert [each.last_stop for each in now] == [StopReason.ABORTED] * 2


async def test_an_interrupt_of_a_child_fails_the_call_of_its_parent(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        await house.sessions.interrupt(house.owner, family[1].id)
        rows = await played(house, family[0].id)
        slow = await current(house, family[2])

    assert outcomes(rows) == ["invoke_agent error/child_failed"]
    assert slow.last_stop is StopReason.ABORTED


async def test_closing_goes_down_the_tree(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        await house.sessions.close(house.owner, family[0].id, status=Status.CANCELLED)
        now = [await current(house, each) for each in family]

    assert [each.status for each in now] == [Status.CANCELLED] * 3


async def test_deleting_a_parent_needs_a_word_about_its_children(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        await house.sessions.interrupt(house.owner, family[0].id)
        with pytest.raises(Conflict) as refused:
            await house.sessions.delete(house.owner, family[0].id)
        gone = await house.sessions.delete(house.owner, family[1].id, policy=DeletePolicy.DETACH)
        alone = await current(house, family[2])
        await house.sessions.delete(house.owner, family[0].id)

    assert refused.value.code is Code.SESSION_HAS_CHILDREN
    assert refused.value.details == {"children": [family[1].id]}
    assert gone == (family[1].id,)
    assert alone.parent is None


async def test_a_parent_is_deleted_with_all_below(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        gone = await house.sessions.delete(house.owner, family[0].id, policy=DeletePolicy.CASCADE)

    assert gone == tuple(each.id for each in reversed(family))


async def test_a_child_that_is_deleted_fails_the_call_and_stays_deleted(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        family = await a_family(house)
        await house.sessions.delete(house.owner, family[1].id, policy=DeletePolicy.CASCADE)
        rows = await played(house, family[0].id)
        opened = await children_of(house, family[0])

    (result,) = results(rows)
    assert outcomes(rows) == ["invoke_agent error/child_failed"]
    assert result.result["session_id"] == family[1].id
    assert opened == []


async def test_an_interrupted_parent_opens_no_child(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("slow"), says("done"), starts=["slow"])
        await an_agent(house, "slow", says("late", delay_ms=60_000))
        for pause in (0.0, 0.001, 0.002, 0.004, 0.008, 0.016):
            session = await begun(house)
            await asyncio.sleep(pause)
            await house.sessions.interrupt(house.owner, session.id)
            await asyncio.sleep(0.05)
            for child in await children_of(house, session):
                assert child.settled == child.turn


async def test_an_export_notes_the_tree(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", asked("helper"), says("done"), starts=["helper"])
        await an_agent(house, "helper", says("ok"))
        session = await begun(house)
        await played(house, session.id)
        (child,) = await children_of(house, session)
        files = [
            (await house.exports.export(house.owner, each.id, ExportFormat.MARKDOWN)).content
            for each in (session, child)
        ]

    above, below = [file.decode().splitlines()[2] for file in files]
    assert above == f"_It has started the sessions {child.id}._"
    assert below == f"_Started by the session {session.id} by the call c1._"
