"""Sessions with what they cost, counted and paged in one snapshot."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.costs import CostSum, Usage
from holdfast.domain.drafts import CostDraft, Outcome
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import SessionOrder, SessionQuery, StatusFilter
from holdfast.domain.sessions import Session, SessionRequest, Status, StopReason
from holdfast.services.session_views import OverviewPage, SessionOverview
from tests.builders import MODEL_ID, an_id
from tests.houses import House, current, open_house, played
from tests.stand_ins import GatedRuntime, SettableClock, an_answer

pytestmark = pytest.mark.anyio

USED = Usage(input=10, output=5, cache_read=3, cache_write=2, reasoning=1)
PAID = CostDraft(request_id=an_id(300), model_id=MODEL_ID, usage=USED, microcents=7, priced=True)
UNPRICED = CostDraft(request_id=an_id(301), model_id=MODEL_ID, usage=USED)
FAILED = (Outcome(stop_reason=StopReason.ERROR),)


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home whose first turn costs something, and whose second one fails."""
    runtime = GatedRuntime([(PAID, UNPRICED), an_answer("a")], [FAILED])
    async with open_house(home, runtime, outside=outside) as house:
        yield house


async def _played(house: House) -> Session:
    session = await house.open()
    await house.send(session.id, "hello")
    await played(house, session.id)
    return await current(house, session)


async def test_a_session_is_shown_with_its_part_of_the_ledger(house: House) -> None:
    session = await _played(house)

    spent = CostSum(
        key=session.id, requests=2, usage=USED + USED, microcents=7, unpriced_requests=1
    )
    assert await house.session_views.get(house.owner, session.id) == SessionOverview(
        session=session, spent=spent
    )
    assert await house.session_views.list(SessionQuery(owner=house.owner)) == OverviewPage(
        items=(SessionOverview(session=session, spent=spent),)
    )


async def test_a_session_that_asked_nobody_has_spent_nothing(quiet: Holdfast) -> None:
    session = await quiet.open()

    shown = await quiet.session_views.get(quiet.owner, session.id)

    assert shown == SessionOverview(session=session, spent=CostSum(key=session.id))


@pytest.mark.parametrize("owner", ["stranger", "local"])
async def test_a_foreign_session_looks_like_none(quiet: Holdfast, owner: str) -> None:
    session = await quiet.open()
    wanted = session.id if owner == "stranger" else SessionId(an_id(9))

    with pytest.raises(NotFound) as caught:
        await quiet.session_views.get(Owner(owner), wanted)

    assert caught.value.code is Code.SESSION_NOT_FOUND
    assert (await quiet.session_views.list(SessionQuery(owner=Owner("stranger")))).items == ()


async def _ids(house: Holdfast, **query: Any) -> set[str]:
    page = await house.session_views.list(SessionQuery(owner=house.owner, **query), is_counted=True)
    assert page.total == len(page.items)
    return {each.session.id for each in page.items}


async def test_a_status_may_be_wished_for_with_how_the_last_turn_ended(house: House) -> None:
    good, bad = await _played(house), await _played(house)
    fresh = await house.open()
    closed = await house.open()
    await house.sessions.close(house.owner, closed.id)

    def wish(status: Status, has_failed: bool | None = None) -> StatusFilter:
        return StatusFilter(status=status, has_failed=has_failed)

    cases: list[tuple[tuple[StatusFilter, ...], set[str]]] = [
        ((), {good.id, bad.id, fresh.id, closed.id}),
        ((wish(Status.IDLE),), {good.id, bad.id}),
        ((wish(Status.IDLE, True),), {bad.id}),
        ((wish(Status.IDLE, False),), {good.id}),
        ((wish(Status.PENDING, False),), {fresh.id}),
        ((wish(Status.PENDING, True),), set()),
        ((wish(Status.IDLE, False), wish(Status.COMPLETED)), {good.id, closed.id}),
        ((wish(Status.IDLE, True), wish(Status.FAILED)), {bad.id}),
    ]
    for status_filters, wanted in cases:
        assert await _ids(house, status_filters=status_filters) == wanted, status_filters
    both = {"status_filters": (wish(Status.IDLE, True),), "text": "nothing like it"}
    assert await _ids(house, **both) == set()


async def test_only_sessions_with_a_repository_may_be_wished_for(
    quiet: Holdfast, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await quiet.repos.add(quiet.owner, str(tmp_path / "tree"), at_terminal=True)
    await quiet.open()
    bound = await quiet.open(request=SessionRequest(repo_id=repo.id))

    assert await _ids(quiet, is_bound=True) == {bound.id}
    assert await _ids(quiet, is_bound=True, statuses=(Status.IDLE,)) == set()


async def test_titles_are_found_whatever_their_case(quiet: Holdfast) -> None:
    session = await quiet.open(request=SessionRequest(title="Ärger im STRASSENBAU"))
    await quiet.open()

    for text in ("ärger", "straßenbau", "ÄRGER", "Ärger im s"):
        assert await _ids(quiet, text=text) == {session.id}


async def _opened(house: Holdfast, clock: SettableClock, count: int) -> list[str]:
    opened = []
    for _ in range(count):
        clock.advance(seconds=1)
        opened.append((await house.open()).id)
    return opened


async def test_pages_behind_a_session_neither_repeat_nor_hide(
    quiet: Holdfast, clock: SettableClock
) -> None:
    opened = await _opened(quiet, clock, 5)
    query = SessionQuery(owner=quiet.owner, limit=2)

    seen: list[str] = []
    behind: SessionId | None = None
    while True:
        page = await quiet.session_views.list(query, behind=behind, is_counted=True)
        seen += [each.session.id for each in page.items]
        await _opened(quiet, clock, 1)
        if len(page.items) < 2:
            break
        behind = page.items[-1].session.id

    assert seen == list(reversed(opened))


async def test_the_count_is_that_of_all_pages_and_only_where_it_is_wanted(
    quiet: Holdfast, clock: SettableClock
) -> None:
    opened = await _opened(quiet, clock, 3)
    query = SessionQuery(owner=quiet.owner, limit=1)

    counted = await quiet.session_views.list(query, behind=SessionId(opened[1]), is_counted=True)

    assert ([each.session.id for each in counted.items], counted.total) == ([opened[0]], 3)
    assert (await quiet.session_views.list(query)).total is None


async def test_pages_by_the_last_change_go_on_behind_a_session_too(
    quiet: Holdfast, clock: SettableClock
) -> None:
    one, two, three = await _opened(quiet, clock, 3)
    clock.advance(seconds=1)
    await quiet.send(SessionId(one), "hello")
    query = SessionQuery(owner=quiet.owner, order=SessionOrder.UPDATED_AT)

    page = await quiet.session_views.list(query, behind=SessionId(one))

    assert [each.session.id for each in page.items] == [three, two]


@pytest.mark.parametrize("what", ["unknown", "with a cursor", "with an offset"])
async def test_one_place_to_go_on_from_is_enough(
    quiet: Holdfast, clock: SettableClock, what: str
) -> None:
    opened = await _opened(quiet, clock, 2)
    first = await quiet.session_views.list(SessionQuery(owner=quiet.owner, limit=1))
    cursor = first.next_cursor if what == "with a cursor" else None
    query = SessionQuery(owner=quiet.owner, offset=1 if what == "with an offset" else 0)
    behind = SessionId(an_id(9) if what == "unknown" else opened[1])

    with pytest.raises(Invalid) as caught:
        await quiet.session_views.list(query, cursor=cursor, behind=behind)

    assert caught.value.code is Code.INVALID_CURSOR


async def test_a_cursor_leads_on(quiet: Holdfast, clock: SettableClock) -> None:
    opened = await _opened(quiet, clock, 3)
    query = SessionQuery(owner=quiet.owner, limit=2)

    first = await quiet.session_views.list(query)
    rest = await quiet.session_views.list(query, cursor=first.next_cursor)

    assert [each.session.id for each in first.items + rest.items] == list(reversed(opened))
