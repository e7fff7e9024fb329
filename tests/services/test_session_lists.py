"""Listing sessions: filters, orders and cursors that neither repeat nor hide."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, RepoId, SessionId
from holdfast.domain.queries import AgentQuery, SessionOrder, SessionQuery
from holdfast.domain.sessions import Session, SessionRequest, Status
from tests.builders import an_id
from tests.houses import current, open_house
from tests.marks import demands, each_case
from tests.stand_ins import Gate, GatedRuntime, SettableClock, StandInMachine

pytestmark = pytest.mark.anyio


async def _opened(
    house: Holdfast, clock: SettableClock, *requests: SessionRequest
) -> list[Session]:
    """Open sessions a second apart."""
    opened = []
    for request in requests:
        clock.advance(seconds=1)
        opened.append(await house.open(request=request))
    return opened


async def _listed(house: Holdfast, **query: Any) -> list[str]:
    page = await house.sessions.list(SessionQuery(owner=house.owner, **query))
    return [session.id for session in page.items]


@demands("S1-030")
async def test_sessions_are_listed_newest_first_as_they_are_now(
    quiet: Holdfast, clock: SettableClock
) -> None:
    one, two = await _opened(quiet, clock, SessionRequest(), SessionRequest())
    await quiet.send(one.id, "hello")

    page = await quiet.sessions.list(SessionQuery(owner=quiet.owner))

    assert page.items == (two, await current(quiet, one))
    assert page.next_cursor is None


@demands("S1-030")
async def test_sessions_of_one_instant_are_ordered_by_id(quiet: Holdfast) -> None:
    ids = [(await quiet.open()).id for _ in range(5)]

    assert await _listed(quiet) == sorted(ids, reverse=True)


async def test_sessions_may_be_ordered_by_their_last_change(
    quiet: Holdfast, clock: SettableClock
) -> None:
    one, two, three = await _opened(quiet, clock, *[SessionRequest()] * 3)
    clock.advance(seconds=1)
    await quiet.send(two.id, "hello")

    by_change = {"order": SessionOrder.UPDATED_AT}
    assert await _listed(quiet, **by_change) == [two.id, three.id, one.id]
    first = await quiet.sessions.list(SessionQuery(owner=quiet.owner, limit=2, **by_change))
    rest = await quiet.sessions.list(
        SessionQuery(owner=quiet.owner, limit=2, **by_change), cursor=first.next_cursor
    )
    assert [session.id for session in rest.items] == [one.id]


async def test_pages_neither_repeat_nor_hide_what_was_there(
    quiet: Holdfast, clock: SettableClock
) -> None:
    opened = await _opened(quiet, clock, *[SessionRequest()] * 7)
    query = SessionQuery(owner=quiet.owner, limit=3)

    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await quiet.sessions.list(query, cursor=cursor)
        seen += [session.id for session in page.items]
        await _opened(quiet, clock, SessionRequest())
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == [session.id for session in reversed(opened)]


async def test_a_page_that_is_just_full_has_no_next_one(quiet: Holdfast) -> None:
    for _ in range(2):
        await quiet.open()

    assert (await quiet.sessions.list(SessionQuery(owner=quiet.owner, limit=2))).next_cursor is None


async def test_pages_may_be_counted_off_as_well(quiet: Holdfast, clock: SettableClock) -> None:
    opened = await _opened(quiet, clock, *[SessionRequest()] * 3)

    assert await _listed(quiet, offset=1, limit=1) == [opened[1].id]
    assert await _listed(quiet, offset=5) == []


async def test_filters_combine(quiet: Holdfast, clock: SettableClock) -> None:
    agent = await quiet.agents.create(quiet.owner, {"name": "Helper"})
    plain, red, both = await _opened(
        quiet,
        clock,
        SessionRequest(title="Plain"),
        SessionRequest(title="Ärger in RED", tags=("red",)),
        SessionRequest(title="red and blue", tags=("red", "blue")),
    )
    helped = await quiet.open("helper")
    fork = await quiet.sessions.fork(quiet.owner, plain.id)
    await quiet.sessions.close(quiet.owner, red.id)

    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"agent_id": agent.id}, {helped.id}),
        ({"tags": ("red",)}, {red.id, both.id}),
        ({"tags": ("red", "blue")}, {both.id}),
        ({"tags": ("green",)}, set()),
        ({"text": "Red"}, {red.id, both.id}),
        ({"text": "Ä"}, {red.id}),
        ({"text": "%"}, set()),
        ({"forked_from": plain.id}, {fork.id}),
        ({"forked_from": SessionId(an_id(1))}, set()),
        ({"repo_id": RepoId(an_id(1))}, set()),
        ({"statuses": (Status.COMPLETED,)}, {red.id}),
        ({"statuses": (Status.PENDING, Status.COMPLETED), "tags": ("red",)}, {red.id, both.id}),
        ({"statuses": (Status.RUNNING,)}, set()),
    ]
    for query, wanted in cases:
        assert set(await _listed(quiet, **query)) == wanted, query
        count = await quiet.sessions.count(SessionQuery(owner=quiet.owner, limit=1, **query))
        assert count == len(wanted), query


@demands("S1-033", "S1-033b")
async def test_sessions_of_one_repository_keep_order_and_pages(
    quiet: Holdfast, clock: SettableClock, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)
    bound = SessionRequest(repo_id=repo.id)
    one, _, two = await _opened(quiet, clock, bound, SessionRequest(), bound)

    assert await _listed(quiet, repo_id=repo.id) == [two.id, one.id]
    assert await _listed(quiet, repo_id=repo.id, limit=1) == [two.id]


async def test_the_count_is_that_of_all_pages(quiet: Holdfast, clock: SettableClock) -> None:
    await _opened(quiet, clock, *[SessionRequest()] * 3)

    query = SessionQuery(owner=quiet.owner, limit=1, offset=2)
    assert await quiet.sessions.count(query) == 3


@each_case("limit", [0, -5, 1_001])
async def test_a_page_has_one_to_a_thousand_sessions(quiet: Holdfast, limit: int) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.sessions.list(SessionQuery(owner=quiet.owner, limit=limit))

    assert caught.value.code is Code.INVALID_LIMIT


async def _cursor(house: Holdfast, clock: SettableClock) -> str:
    await _opened(house, clock, *[SessionRequest()] * 2)
    page = await house.sessions.list(SessionQuery(owner=house.owner, limit=1))
    assert page.next_cursor is not None
    return page.next_cursor


async def test_a_cursor_works_with_another_limit(quiet: Holdfast, clock: SettableClock) -> None:
    cursor = await _cursor(quiet, clock)

    page = await quiet.sessions.list(SessionQuery(owner=quiet.owner, limit=9), cursor=cursor)

    assert len(page.items) == 1


@each_case(
    "query",
    [
        SessionQuery(owner=Owner("stranger")),
        SessionQuery(owner=Owner("local"), text="x"),
        SessionQuery(owner=Owner("local"), order=SessionOrder.UPDATED_AT),
        SessionQuery(owner=Owner("local"), statuses=(Status.IDLE,)),
    ],
)
async def test_a_cursor_of_another_listing_is_refused(
    quiet: Holdfast, clock: SettableClock, query: SessionQuery
) -> None:
    cursor = await _cursor(quiet, clock)

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.list(query, cursor=cursor)

    assert caught.value.code is Code.INVALID_CURSOR


@each_case(
    "damage",
    [
        lambda _: "",
        lambda _: "nonsense",
        lambda _: "ä",
        lambda _: "####",
        lambda _: "W10",
        lambda cursor: cursor[:-4],
        lambda cursor: cursor.swapcase(),
        lambda cursor: cursor + "AAAA",
    ],
)
async def test_a_damaged_cursor_is_refused(
    quiet: Holdfast, clock: SettableClock, damage: Any
) -> None:
    cursor = await _cursor(quiet, clock)

    with pytest.raises(Invalid) as caught:
        await quiet.sessions.list(SessionQuery(owner=quiet.owner), cursor=damage(cursor))

    assert caught.value.code is Code.INVALID_CURSOR


async def test_a_cursor_of_agents_is_none_of_sessions(quiet: Holdfast) -> None:
    for name in ("One", "Two"):
        await quiet.agents.create(quiet.owner, {"name": name})
    agents = await quiet.agents.list(AgentQuery(owner=quiet.owner, limit=1))

    with pytest.raises(Invalid):
        await quiet.sessions.list(SessionQuery(owner=quiet.owner), cursor=agents.next_cursor)


async def test_running_is_shown_only_while_somebody_alive_runs_it(
    home: Path, outside: Environment, machine: StandInMachine
) -> None:
    gate, theirs = Gate(), StandInMachine("second")
    beside = replace(outside, machine=theirs)
    async with (
        open_house(home, GatedRuntime([gate]), outside=outside) as house,
        open_holdfast(home, outside=beside, scope=RunScope.NONE) as watcher,
    ):
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        async def shown() -> set[Status]:
            listed = await watcher.sessions.list(SessionQuery(owner=watcher.owner))
            overview = await watcher.session_views.get(watcher.owner, session.id)
            one = await current(watcher, session)
            return {listed.items[0].status, one.status, overview.session.status}

        assert await shown() == {Status.RUNNING}
        theirs.dead.add(machine.holder())
        assert await shown() == {Status.IDLE}
