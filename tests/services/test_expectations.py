"""Changing something only if it is still as its reader believes, and purging what nobody needs."""

import pytest

from holdfast.api import Holdfast
from holdfast.domain.agents import Agent
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.queries import AgentQuery
from holdfast.domain.sessions import Session
from tests.houses import current
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio


async def test_a_session_is_changed_only_as_it_is_expected(quiet: Holdfast) -> None:
    session = await quiet.open()
    seen: list[Session] = []

    def as_read(stored: Session) -> bool:
        seen.append(stored)
        return stored == session

    changed = await quiet.sessions.update(
        quiet.owner, session.id, {"title": "one"}, expected=as_read
    )
    with pytest.raises(Conflict) as caught:
        await quiet.sessions.update(quiet.owner, session.id, {"title": "two"}, expected=as_read)

    assert caught.value.code is Code.STALE_ETAG
    assert seen == [session, changed]
    assert await current(quiet, session) == changed


async def test_an_agent_is_changed_only_as_it_is_expected(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    def as_read(stored: Agent) -> bool:
        return stored == agent

    changed = await quiet.agents.update(quiet.owner, agent.id, {"name": "one"}, expected=as_read)
    with pytest.raises(Conflict) as caught:
        await quiet.agents.update(quiet.owner, agent.id, {"name": "two"}, expected=as_read)

    assert caught.value.code is Code.STALE_ETAG
    assert await quiet.agents.get(quiet.owner, agent.id) == changed


async def test_a_change_of_a_session_moves_its_time_and_no_change_does_not(
    quiet: Holdfast, clock: SettableClock
) -> None:
    session = await quiet.open()
    clock.advance(minutes=1)

    changed = await quiet.sessions.update(quiet.owner, session.id, {"tags": ("a",)})
    clock.advance(minutes=1)
    for nothing in ({}, {"tags": ("a",)}, {"title": None}):
        assert await quiet.sessions.update(quiet.owner, session.id, nothing) == changed

    assert changed.updated_at > session.updated_at
    assert changed.last_event == session.last_event


async def _archived(house: Holdfast) -> Agent:
    await house.agents.create(house.owner, {"name": "Helper"})
    return await house.agents.archive(house.owner, "helper")


async def test_an_archived_agent_without_sessions_can_be_purged(quiet: Holdfast) -> None:
    agent = await _archived(quiet)

    await quiet.agents.purge(quiet.owner, agent.id)

    with pytest.raises(NotFound):
        await quiet.agents.get(quiet.owner, agent.id)
    everyone = AgentQuery(owner=quiet.owner, status=None)
    assert (await quiet.agents.list(everyone)).items == ()
    # Its slug is free again.
    assert (await quiet.agents.create(quiet.owner, {"name": "Helper"})).slug == "helper"


async def test_an_active_agent_is_not_purged(quiet: Holdfast) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})

    with pytest.raises(Conflict) as caught:
        await quiet.agents.purge(quiet.owner, agent.id)

    assert caught.value.code is Code.AGENT_IN_USE
    assert await quiet.agents.get(quiet.owner, agent.id) == agent


async def test_an_agent_with_sessions_is_not_purged(quiet: Holdfast) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Helper"})
    session = await quiet.open("helper")
    agent = await quiet.agents.archive(quiet.owner, "helper")

    with pytest.raises(Conflict) as caught:
        await quiet.agents.purge(quiet.owner, "helper")
    assert caught.value.code is Code.AGENT_IN_USE
    assert await quiet.agents.get(quiet.owner, agent.id) == agent

    await quiet.sessions.delete(quiet.owner, session.id)
    await quiet.agents.purge(quiet.owner, "helper")
