"""Searching over HTTP: hits as every surface shows them, and nothing but the owner's."""

from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import quote

import pytest

from holdfast import Holdfast
from tests.builders import AT, an_id
from tests.http.v1.client import Visitor, refusal, visiting
from tests.marks import each_case

pytestmark = pytest.mark.anyio


@pytest.fixture
async def visitor(quiet: Holdfast) -> AsyncIterator[Visitor]:
    """Visit a house in which nothing is played."""
    async with visiting(quiet) as somebody:
        yield somebody


async def test_a_hit_tells_where_the_words_stand(visitor: Visitor) -> None:
    session = await visitor.session()
    message = await visitor.say(session, "The tide is high.")

    answer = await visitor.get("/v1/search?q=TIDE")

    assert (answer.status, answer.document) == (
        200,
        {
            "data": [
                {
                    "session_id": session["id"],
                    "agent_id": session["agent_id"],
                    "message_id": message["id"],
                    "message_sequence": 1,
                    "turn": 1,
                    "role": "user",
                    "snippet": "The [tide] is high.",
                    "score": 0.25,
                    "created_at": message["created_at"],
                    "observation_id": None,
                }
            ],
            "next_cursor": None,
        },
    )


async def test_filters_are_those_of_every_surface(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.say(session, "The tide is high.")
    later = quote((AT + timedelta(days=1)).isoformat())

    async def count(query: str) -> int:
        return len((await visitor.get(f"/v1/search?q=tide&{query}")).document["data"])

    assert await count(f"session_id={session['id']}") == 1
    assert await count(f"session_id={session['id'].upper()}") == 1
    assert await count(f"session_id={an_id(9)}") == 0
    assert await count(f"agent_id={session['agent_id']}") == 1
    assert await count("agent_id=helper") == 1
    assert await count(f"agent_id={an_id(9)}") == 0
    assert await count(f"repo_id={an_id(9)}") == 0
    assert await count("role=user") == 1
    assert await count("role=assistant") == 0
    assert await count("tool=find_text") == 0
    assert await count(f"to={later}") == 1
    assert await count(f"from={later}") == 0


async def test_pages_are_followed_by_their_cursor(visitor: Visitor) -> None:
    session = await visitor.session()
    for _ in range(3):
        await visitor.say(session, "tide")

    first = (await visitor.get("/v1/search?q=tide&limit=2")).document
    cursor = first["next_cursor"]
    second = (await visitor.get(f"/v1/search?q=tide&limit=2&cursor={cursor}")).document
    foreign = await visitor.get(f"/v1/search?q=tides&limit=2&cursor={cursor}")

    pages = [[hit["message_sequence"] for hit in page["data"]] for page in (first, second)]
    assert pages == [[3, 2], [1]]
    assert second["next_cursor"] is None
    assert refusal(foreign)[:2] == (400, "invalid_query")


@each_case(
    "query",
    [
        *("", "q=", "q=" + "x" * 401, "q=a&limit=0", "q=a&limit=101", "q=a&role=king"),
        *("q=a&from=2026-01-01", "q=a&from=2026-01-01T00:00:00", "q=a%00", "q=a&unknown=1"),
    ],
)
async def test_what_is_no_query_is_refused(visitor: Visitor, query: str) -> None:
    assert refusal(await visitor.get(f"/v1/search?{query}"))[:2] == (400, "invalid_query")


@each_case(
    "text",
    ['"', "' OR 1=1 --", "words:tide", "NEAR(a b", "tide AND", "*", "a*b*c", "^tide", "{a b}: c"],
)
async def test_nothing_that_is_typed_is_an_error(visitor: Visitor, text: str) -> None:
    answer = await visitor.get(f"/v1/search?q={quote(text)}")

    assert (answer.status, answer.document) == (200, {"data": [], "next_cursor": None})


async def test_an_agent_that_nobody_has_is_told(visitor: Visitor) -> None:
    told = refusal(await visitor.get("/v1/search?q=tide&agent_id=nobody"))

    assert told[:2] == (404, "agent_not_found")
