"""Lists of agents, and the agent that is always there."""

import asyncio
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.agents import (
    Agent,
    AgentStatus,
)
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.queries import AgentQuery
from holdfast.services.agents import BUILT_IN
from tests.marks import each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


async def _made(house: Holdfast, **fields: Any) -> Agent:
    return await house.agents.create(house.owner, {"name": "Helper", **fields})


async def _listed(house: Holdfast, **query: Any) -> list[str]:
    page = await house.agents.list(AgentQuery(owner=house.owner, **query))
    return [agent.slug for agent in page.items]


async def test_agents_are_listed_newest_first_without_the_archived(
    quiet: Holdfast, clock: SettableClock
) -> None:
    for slug, tags, name in (
        ("one", ("red",), "Erste Ärztin"),
        ("two", ("red", "blue"), "Second"),
        ("three", (), "Third"),
    ):
        clock.advance(seconds=1)
        await _made(quiet, slug=slug, tags=tags, name=name)
    await quiet.agents.archive(quiet.owner, "three")

    assert await _listed(quiet) == ["two", "one"]
    assert await _listed(quiet, status=None) == ["three", "two", "one"]
    assert await _listed(quiet, status=AgentStatus.ARCHIVED) == ["three"]
    assert await _listed(quiet, tags=("red",)) == ["two", "one"]
    assert await _listed(quiet, tags=("red",), limit=1) == ["two"]
    assert await _listed(quiet, tags=("red", "blue")) == ["two"]
    assert await _listed(quiet, text="SEC") == ["two"]
    assert await _listed(quiet, text="Ä") == ["one"]
    assert await _listed(quiet, text="ON") == ["two", "one"]
    assert await _listed(quiet, text="%") == []


async def test_pages_of_agents_follow_on_from_each_other(
    quiet: Holdfast, clock: SettableClock
) -> None:
    for number in range(5):
        clock.advance(seconds=number % 2)
        await _made(quiet, slug=f"agent-{number}")
    everything = await _listed(quiet)

    query = AgentQuery(owner=quiet.owner, limit=2)
    first = await quiet.agents.list(query)
    second = await quiet.agents.list(query, cursor=first.next_cursor)
    third = await quiet.agents.list(query, cursor=second.next_cursor)

    seen = [agent.slug for page in (first, second, third) for agent in page.items]
    assert (seen, third.next_cursor) == (everything, None)
    with pytest.raises(Invalid) as caught:
        await quiet.agents.list(AgentQuery(owner=STRANGER), cursor=first.next_cursor)
    assert caught.value.code is Code.INVALID_CURSOR


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_a_page_has_one_to_a_thousand_agents(quiet: Holdfast, limit: int) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.agents.list(AgentQuery(owner=quiet.owner, limit=limit))

    assert caught.value.code is Code.INVALID_LIMIT


@each_case("text", ["a\x00b", "\ud800", "x" * 1_001])
async def test_text_that_nothing_could_hold_is_refused(quiet: Holdfast, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.agents.list(AgentQuery(owner=quiet.owner, text=text))

    assert caught.value.code is Code.INVALID_TEXT


async def test_the_built_in_agent_is_made_once_for_each_owner(quiet: Holdfast) -> None:
    asked = [quiet.agents.get(quiet.owner, BUILT_IN) for _ in range(5)]

    mine = {agent.id for agent in await asyncio.gather(*asked)}
    theirs = await quiet.agents.get(STRANGER, BUILT_IN)

    assert len(mine) == 1
    assert theirs.id not in mine
    assert await _listed(quiet) == ["holdfast"]
