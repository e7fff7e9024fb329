"""Search: what was acknowledged is found, by whom it belongs to, and nothing else is."""

import asyncio
import base64
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from holdfast.api import Holdfast
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.ids import CallId, Owner, RepoId, SessionId
from holdfast.domain.messages import ResultStatus, Role, Text, ToolCall, ToolResult
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.search.query import Backlog, Hit, SearchQuery, SearchRebuild, Terms
from holdfast.search.service import SEARCHING_MOST, Snippet, snippet
from holdfast.services.session_lifecycle import DeletePolicy
from tests.builders import AT, an_id
from tests.marks import each_case
from tests.observations.claims import FEATURE_UNIT
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

STRANGER = Owner("stranger")


@pytest.fixture(params=["tail", "index"])
async def house(quiet: Holdfast, request: pytest.FixtureRequest) -> Holdfast:
    """Search what was just written, and what the index has taken up before each question."""
    if request.param == "index":
        find = quiet.search.find

        async def indexed(*given: object, **named: object) -> object:
            await quiet.store.write(lambda tx: tx.search.catch_up(1_000))
            return await find(*given, **named)  # type: ignore[arg-type]

        quiet.search.find = indexed  # type: ignore[method-assign,assignment]
    return quiet


async def found(house: Holdfast, text: str, **filters: object) -> list[Hit]:
    query = SearchQuery(text=text, **filters)  # type: ignore[arg-type]
    return list((await house.search.find(house.owner, query)).items)


async def numbers(house: Holdfast, text: str, **filters: object) -> list[int | None]:
    return [hit.message_sequence for hit in await found(house, text, **filters)]


async def all_pages(house: Holdfast, text: str) -> list[list[int | None]]:
    pages: list[list[int | None]] = []
    cursor = None
    while cursor is not None or not pages:
        page = await house.search.find(house.owner, SearchQuery(text=text), cursor=cursor)
        pages.append([hit.message_sequence for hit in page.items])
        cursor = page.next_cursor
    return pages


async def said(house: Holdfast, *texts: str, **request: object) -> Session:
    session = await house.open(request=SessionRequest(**request))  # type: ignore[arg-type]
    for text in texts:
        await house.send(session.id, text)
    return session


async def test_what_was_acknowledged_is_found(house: Holdfast) -> None:
    session = await house.open()
    message = await house.send(session.id, "The tide is high.")

    (hit,) = await found(house, "TIDE")

    assert hit == Hit(
        session_id=session.id,
        agent_id=session.agent_id,
        message_id=message.id,
        message_sequence=1,
        turn=1,
        role=Role.USER,
        snippet="The [tide] is high.",
        score=0.25,
        created_at=message.created_at,
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tide", [3, 2, 1]),
        ("tide low", [2]),
        ('"high tide"', [3]),
        ("tide -high", [2]),
        ('tide -"high tide"', [2, 1]),
        ("tid*", [3, 2, 1]),
        ("東京", [4]),
        ("京東", []),
        ("RESUME", [5]),
        ("nowhere", []),
        ("---", []),
        ('"unfinished tide', []),
        ("tide AND high", []),
        ("tide OR NOT NEAR( * : ^", []),
    ],
)
async def test_the_query_language_is_understood(
    house: Holdfast, query: str, expected: list[int]
) -> None:
    await said(house, "The tide is high.", "A low tide", "high tide", "東京に住む", "Mein Résumé")

    assert await numbers(house, query) == expected


async def test_tools_are_found_by_name_arguments_and_results(house: Holdfast) -> None:
    session = await house.open()
    call = ToolCall(id=CallId("c"), name="find_text", arguments={"pattern": ["needle"]})
    result = ToolResult(
        call_id=CallId("c"), name="", status=ResultStatus.OK, result={"file": "haystack.txt"}
    )
    for role, part in ((Role.TOOL_CALL, call), (Role.TOOL_RESULT, result)):
        draft = MessageDraft(role=role, parts=(part,))
        await house.messages.record(house.owner, session.id, draft)
    await house.send(session.id, "find_text needle haystack")

    assert await numbers(house, "needle") == [3, 1]
    assert await numbers(house, "haystack.txt") == [2]
    assert await numbers(house, '"find text"') == [3, 2, 1]
    assert await numbers(house, "needle", tool="find_text") == [1]
    assert await numbers(house, "find", tool="find") == []
    assert await numbers(house, "needle", role=Role.USER) == [3]
    assert await numbers(house, "find", role=Role.TOOL_RESULT) == [2]


async def test_titles_are_found_as_they_are_now(house: Holdfast) -> None:
    session = await said(house, title="A first title")

    (hit,) = await found(house, "first title")
    await house.sessions.update(house.owner, session.id, {"title": "Another one"})

    assert (hit.session_id, hit.message_id, hit.role) == (session.id, None, None)
    assert hit.snippet == "A [first] [title]"
    assert await found(house, "first") == []
    assert [each.snippet for each in await found(house, "another")] == ["[Another] one"]
    assert await found(house, "another", role=Role.USER) == []
    await house.sessions.update(house.owner, session.id, {"title": None})
    assert await found(house, "another") == []


async def test_observations_are_found_until_their_entity_is_deleted(house: Holdfast) -> None:
    claim = {
        "session_id": "far-away",
        "started_at": "2026-01-02T03:04:05Z",
        "actions": [{"type": "moved_lighthouse", "result": "success"}],
    }
    submitted = await house.observations.submit(house.owner, claim)

    (hit,) = await found(house, "lighthouse")

    assert (hit.session_id, hit.observation_id) == ("far-away", submitted.observation_id)
    assert (hit.agent_id, hit.message_id, hit.role) == (None, None, None)
    assert hit.snippet == "success moved_[lighthouse] far-away 2026-01-02T03:04:05Z"
    assert len(await found(house, "lighthouse", session_id="far-away")) == 1
    assert await found(house, "lighthouse", role=Role.USER) == []
    await house.observations.delete(house.owner, "far-away")
    assert await found(house, "lighthouse") == []


async def test_filters_combine(house: Holdfast, clock: SettableClock, tmp_path: Path) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
    other = await house.agents.create(house.owner, {"name": "Other"})
    one = await said(house, "tide")
    clock.advance(days=2)
    two = await house.open("other", SessionRequest(repo_id=repo.id))
    await house.send(two.id, "tide")

    async def sessions(**filters: object) -> list[str | None]:
        return [hit.session_id for hit in await found(house, "tide", **filters)]

    assert await sessions() == [two.id, one.id]
    assert await sessions(agent="other") == await sessions(agent=other.id) == [two.id]
    assert await sessions(agent="holdfast") == [one.id]
    assert await sessions(agent=an_id(99)) == []
    assert await sessions(repo_id=repo.id) == [two.id]
    assert await sessions(repo_id=RepoId(an_id(99))) == []
    assert await sessions(session_id=one.id) == [one.id]
    assert await sessions(session_id=SessionId(an_id(99))) == []
    assert await sessions(since=AT + timedelta(days=1)) == [two.id]
    assert await sessions(until=AT + timedelta(days=1)) == [one.id]
    assert await sessions(since=AT + timedelta(days=1), until=AT + timedelta(days=1)) == []
    assert await sessions(since=AT + timedelta(days=3), until=AT) == []
    assert await sessions(agent="holdfast", repo_id=repo.id) == []
    with pytest.raises(HoldfastError) as caught:
        await sessions(agent="nobody")
    assert caught.value.code is Code.AGENT_NOT_FOUND


async def test_a_time_is_exact(house: Holdfast, clock: SettableClock) -> None:
    session = await said(house, "tide")
    (message,) = await house.read(session.id)
    at = message.created_at

    assert await numbers(house, "tide", since=at) == [1]
    assert await numbers(house, "tide", since=at + timedelta(microseconds=1)) == []
    assert await numbers(house, "tide", until=at) == []
    assert await numbers(house, "tide", until=at + timedelta(microseconds=1)) == [1]


async def test_what_a_fork_inherits_is_found_once_and_as_its_own_where_it_is_asked_for(
    house: Holdfast,
) -> None:
    parent = await said(house, "inherited tide", "left tide")
    fork = await house.sessions.fork(house.owner, parent.id, at=1)
    await house.send(fork.id, "own tide")

    everywhere = await found(house, "tide")
    of_fork = await found(house, "tide", session_id=fork.id)

    assert [(hit.session_id, hit.message_sequence) for hit in everywhere] == [
        (fork.id, 2),
        (parent.id, 2),
        (parent.id, 1),
    ]
    assert [(hit.session_id, hit.snippet) for hit in of_fork] == [
        (fork.id, "own [tide]"),
        (fork.id, "inherited [tide]"),
    ]
    await house.sessions.delete(house.owner, parent.id, policy=DeletePolicy.DETACH)
    assert [(hit.session_id, hit.snippet) for hit in await found(house, "tide")] == [
        (fork.id, "own [tide]"),
        (fork.id, "inherited [tide]"),
    ]


async def test_pages_follow_each_other_whatever_comes_in_between(house: Holdfast) -> None:
    session = await said(house, *(f"tide {number}" for number in range(5)))
    query = SearchQuery(text="tide", limit=2)
    seen: list[int | None] = []
    cursor = None
    while True:
        page = await house.search.find(house.owner, query, cursor=cursor)
        seen += [hit.message_sequence for hit in page.items]
        await house.send(session.id, "another tide")
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == [5, 4, 3, 2, 1]


async def test_a_cursor_belongs_to_its_owner_and_its_query(quiet: Holdfast) -> None:
    await said(quiet, "tide", "tide")
    query = SearchQuery(text="tide", limit=1)
    cursor = (await quiet.search.find(quiet.owner, query)).next_cursor

    for owner, wanted, given in (
        (STRANGER, query, cursor),
        (quiet.owner, SearchQuery(text="tides", limit=1), cursor),
        (quiet.owner, query, "nonsense"),
    ):
        with pytest.raises(HoldfastError) as caught:
            await quiet.search.find(owner, wanted, cursor=given)
        assert caught.value.code is Code.INVALID_CURSOR


async def test_somebody_elses_words_are_not_there(house: Holdfast) -> None:
    session = await said(house, "a private tide", title="private")

    for filters in ({}, {"session_id": session.id}, {"agent": session.agent_id}):
        query = SearchQuery(text="private", **filters)
        page = await house.search.find(STRANGER, query)
        never = await house.search.find(STRANGER, SearchQuery(text="never", **filters))
        assert page == never


async def test_a_deleted_session_is_found_no_more(house: Holdfast) -> None:
    session = await said(house, "tide", title="Of the tide")
    kept = await said(house, "tide")
    assert len(await found(house, "tide")) == 3

    await house.sessions.delete(house.owner, session.id)

    assert [hit.session_id for hit in await found(house, "tide")] == [kept.id]


async def test_an_index_that_is_made_anew_is_the_same(quiet: Holdfast) -> None:
    await said(quiet, *(f"tide {number} of the sea" for number in range(50)), title="Tides")
    await quiet.observations.submit_entity(quiet.owner, "feature_unit", FEATURE_UNIT)
    await quiet.search.rebuild()
    before = await quiet.store.read(lambda tx: tx.search.sum())

    rebuilt = await quiet.search.rebuild()

    assert rebuilt == SearchRebuild(documents=52)
    assert await quiet.store.read(lambda tx: tx.search.sum()) == before


@pytest.mark.parametrize("most", [Backlog(3, 1 << 30), Backlog(1 << 30, 3)])
async def test_much_that_waits_is_indexed_before_it_is_searched(
    quiet: Holdfast, most: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.search.service.BACKLOG_MOST", most)
    await said(quiet, *(["tide"] * 5))

    assert len(await found(quiet, "tide")) == 5
    assert (await quiet.store.read(lambda tx: tx.search.backlog())).documents == 0


@each_case(
    ("waiting", "together"),
    [(Backlog(10, 0), 512), (Backlog(10_000, 1 << 20), 512), (Backlog(60, 60 << 20), 1)],
)
def test_a_transaction_takes_about_a_mebibyte(waiting: Backlog, together: int) -> None:
    assert waiting.together == together


async def test_snippets_of_long_texts_are_cut_beside_the_loop(quiet: Holdfast) -> None:
    await said(quiet, f"{'much ' * 100_000}tide")
    threads: set[int] = set()

    def cut(text: str, terms: Terms) -> Snippet:
        threads.add(threading.get_ident())
        return snippet(text, terms)

    with patch("holdfast.search.service.snippet", cut):
        (hit,) = await found(quiet, "tide")

    assert hit.snippet.endswith("[tide]")
    assert threads.isdisjoint({threading.get_ident()})


async def test_a_cursor_to_nowhere_is_refused(quiet: Holdfast) -> None:
    await said(quiet, "tide", "tide")
    query = SearchQuery(text="tide", limit=1)
    cursor = (await quiet.search.find(quiet.owner, query)).next_cursor
    assert cursor is not None
    mark, _, name = json.loads(base64.urlsafe_b64decode(cursor + "=="))
    forged = base64.urlsafe_b64encode(json.dumps([mark, 1 << 70, name]).encode()).decode()

    with pytest.raises(HoldfastError) as caught:
        await quiet.search.find(quiet.owner, query, cursor=forged)
    assert caught.value.code is Code.INVALID_CURSOR


async def test_a_page_that_took_many_looks_goes_on_behind_them(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.search.tables.CANDIDATES_MOST", 2)
    await said(quiet, "high tide", *(["tide high"] * 4))
    await quiet.store.write(lambda tx: tx.search.catch_up(1_000))

    assert await all_pages(quiet, '"high tide"') == [[], [], [1]]


@pytest.mark.parametrize(
    ("limit", "text", "pages"),
    [
        ("FOUND_MOST", "tide", [[6, 5], [4, 3], [2, 1], []]),
        ("CHECKED_MOST", '"high tide"', [[], [], [1], []]),
    ],
)
async def test_a_page_of_long_texts_ends_before_it_fills_the_memory(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch, limit: str, text: str, pages: list[list[int]]
) -> None:
    monkeypatch.setattr(f"holdfast.search.tables.{limit}", 15_000)
    filler = "long " * 2_000
    await said(quiet, f"high tide {filler}", *([f"tide high {filler}"] * 5))
    await quiet.store.write(lambda tx: tx.search.catch_up(1_000))

    assert await all_pages(quiet, text) == pages


async def test_few_searches_hold_texts_at_a_time(quiet: Holdfast) -> None:
    await said(quiet, "tide")
    running, most = 0, 0
    read = quiet.store.read

    async def counted(work: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        try:
            return await read(work)
        finally:
            running -= 1

    with (
        patch.object(quiet.search, "_catch_up", AsyncMock()),
        patch.object(quiet.search._store, "read", counted),
    ):
        hits = await asyncio.gather(*(found(quiet, "tide") for _ in range(20)))

    assert [len(each) for each in hits] == [1] * 20
    assert most == SEARCHING_MOST


async def test_drafts_of_several_texts_are_one_document(house: Holdfast) -> None:
    session = await house.open()
    parts = (Text(text="high"), Text(text="tide"))
    draft = MessageDraft(role=Role.ASSISTANT, parts=parts)
    await house.messages.record(house.owner, session.id, draft)

    assert await numbers(house, "tide high") == [1]
