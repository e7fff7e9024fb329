"""What was spent, added up in whole numbers: every sum is that of the sessions themselves."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.costs import CostEntry, CostGroup, CostQuery, CostReport, CostSum, Usage
from holdfast.domain.drafts import CostDraft
from holdfast.domain.errors import Code, HoldfastError, Invalid
from holdfast.domain.ids import AgentId, ModelId, Owner, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.ports.store import Tx
from tests.builders import AT, an_id
from tests.houses import House, open_house, played, raw
from tests.stand_ins import GatedRuntime, SettableClock, an_answer

pytestmark = pytest.mark.anyio

ONE, TWO = ModelId(an_id(1)), ModelId(an_id(2))
USED = Usage(input=10, output=5, cache_read=3, cache_write=2, reasoning=1)


def a_request(number: int, model: ModelId = ONE, **changes: Any) -> CostDraft:
    """Return what a request came to: as many micro-cents as its number says."""
    fields: dict[str, Any] = {"usage": USED, "microcents": number, "priced": True} | changes
    return CostDraft(request_id=an_id(200 + number), model_id=model, **fields)


PLAYS = (
    [(a_request(1), a_request(2, TWO)), an_answer("a")],
    [(a_request(4, TWO, priced=False, microcents=0),), an_answer("b")],
    [(a_request(8, is_aside=True, usage=None),), an_answer("c")],
)


@pytest.fixture
async def house(home: Path, outside: Environment, clock: SettableClock) -> AsyncIterator[House]:
    """Spend in two sessions of two agents, on two days."""
    async with open_house(home, GatedRuntime(*PLAYS), outside=outside) as house:
        await house.agents.create(house.owner, {"name": "Other"})
        for agent, days in (("holdfast", 0), ("other", 1), ("other", 0)):
            clock.advance(days=days, seconds=1)
            session = await house.open(agent, SessionRequest(title=f"{agent} {days}"))
            await house.send(session.id, "hello")
            await played(house, session.id)
        yield house


async def _sessions(house: House) -> list[Session]:
    page = await house.sessions.list(SessionQuery(owner=house.owner))
    return list(reversed(page.items))


async def _report(house: House, **query: Any) -> CostReport:
    return await house.costs.report(CostQuery(owner=house.owner, **query))


async def _entries(tx: Tx, session: Session) -> list[CostEntry]:
    head = await tx.sessions.state(session.owner, session.id)
    assert head is not None
    return await tx.costs.of_session(head)


def _told(report: CostReport) -> dict[str, tuple[int, int, int]]:
    return {
        each.key: (each.requests, each.microcents, each.unpriced_requests) for each in report.groups
    }


async def test_costs_are_grouped_by_whatever_is_asked(house: House) -> None:
    one, two, three = await _sessions(house)
    first, second = AT.date().isoformat(), (AT + timedelta(days=1)).date().isoformat()

    told = {group: _told(await _report(house, group_by=group)) for group in CostGroup}

    assert told == {
        CostGroup.MODEL: {ONE: (2, 9, 0), TWO: (2, 2, 1)},
        CostGroup.AGENT: {one.agent_id: (2, 3, 0), two.agent_id: (2, 8, 1)},
        CostGroup.SESSION: {one.id: (2, 3, 0), two.id: (1, 0, 1), three.id: (1, 8, 0)},
        CostGroup.DAY: {first: (2, 3, 0), second: (2, 8, 1)},
    }


async def test_groups_are_named_as_people_know_them(house: House) -> None:
    named = {
        group: sorted(
            {each.name for each in (await _report(house, group_by=group)).groups}, key=str
        )
        for group in CostGroup
    }

    assert named == {
        CostGroup.MODEL: [None],
        CostGroup.AGENT: ["holdfast", "other"],
        CostGroup.SESSION: ["holdfast 0", "other 0", "other 1"],
        CostGroup.DAY: [None],
    }


@pytest.mark.parametrize("group", CostGroup)
async def test_the_total_is_that_of_all_sessions(house: House, group: CostGroup) -> None:
    sessions = await _sessions(house)

    report = await _report(house, group_by=group)

    assert report.total == CostSum(
        key="",
        requests=4,
        usage=USED + USED + USED,
        microcents=sum(session.microcents for session in sessions),
        unpriced_requests=1,
    )
    assert [each.key for each in report.groups] == sorted(each.key for each in report.groups)
    spent = (report.total.usage.input, report.total.usage.output)
    assert spent == (
        sum(session.usage.input for session in sessions),
        sum(session.usage.output for session in sessions),
    )


async def test_each_session_has_what_its_row_says(house: House) -> None:
    report = await _report(house, group_by=CostGroup.SESSION)

    assert {each.key: each.microcents for each in report.groups} == {
        session.id: session.microcents for session in await _sessions(house)
    }


async def test_filters_combine(house: House) -> None:
    one, two, three = await _sessions(house)
    later = AT + timedelta(days=1)

    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"session_id": one.id}, {one.id}),
        ({"agent_id": two.agent_id}, {two.id, three.id}),
        ({"session_id": one.id, "agent_id": two.agent_id}, set()),
        ({"since": later}, {two.id, three.id}),
        ({"until": later}, {one.id}),
        ({"session_id": three.id, "since": later}, {three.id}),
        ({"session_id": one.id, "since": later}, set()),
        ({"session_id": SessionId(an_id(9))}, set()),
        ({"agent_id": AgentId(an_id(9))}, set()),
    ]
    for query, wanted in cases:
        report = await _report(house, group_by=CostGroup.SESSION, **query)
        assert {each.key for each in report.groups} == wanted, query
        assert report.total.microcents == sum(each.microcents for each in report.groups)


async def test_bounds_are_from_and_before(house: House) -> None:
    first = (await _sessions(house))[0]
    entries = await house.store.read(lambda tx: _entries(tx, first))

    at = entries[1].at
    assert (await _report(house, until=at)).total.requests == 1
    assert (await _report(house, since=at)).total.requests == 3


async def test_somebody_else_has_spent_nothing(house: House) -> None:
    one, *_ = await _sessions(house)

    for query in ({}, {"session_id": one.id}, {"agent_id": one.agent_id}):
        asked = CostQuery(owner=Owner("stranger"), **query)
        report = await house.costs.report(asked)
        assert report == CostReport(groups=(), total=CostSum(key=""))


@pytest.mark.parametrize("field", ["since", "until"])
async def test_a_bound_without_a_time_zone_is_refused(house: House, field: str) -> None:
    naive = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)

    with pytest.raises(Invalid) as caught:
        await _report(house, **{field: naive})

    assert (caught.value.code, caught.value.details) == (Code.INVALID_FILTER, {"field": field})


@pytest.mark.usefixtures("plain")
async def test_a_damaged_entry_is_refused_and_never_added_up(house: House, home: Path) -> None:
    with raw(home) as connection:
        connection.execute("UPDATE costs SET microcents = 7 WHERE microcents = 8")

    for group in CostGroup:
        with pytest.raises(HoldfastError) as caught:
            await _report(house, group_by=group)
        assert caught.value.code is Code.CORRUPT_ROW


async def test_a_long_ledger_is_read_in_pages(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await _report(house)

    for size in (1, 2, 3, 4):
        monkeypatch.setattr("holdfast.store.costs.PAGE", size)
        assert await _report(house) == whole


async def test_sessions_are_asked_for_together_and_those_that_are_gone_left_out(
    house: House,
) -> None:
    one, two, _ = await _sessions(house)
    fresh = await house.open()
    wanted = [one.id, two.id, fresh.id, SessionId(an_id(9))]

    spent = await house.costs.of_sessions(house.owner, wanted)

    assert {key: (each.key, each.requests, each.microcents) for key, each in spent.items()} == {
        one.id: (one.id, 2, 3),
        two.id: (two.id, 1, 0),
        fresh.id: (fresh.id, 0, 0),
    }
    assert await house.costs.of_sessions(Owner("stranger"), wanted) == {}
