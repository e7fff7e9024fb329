"""Costs over HTTP: whole numbers, and every sum is that of its parts."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.app import Environment
from tests.http.v1.client import A_STRANGER, Visitor, refusal, visiting
from tests.marks import each_case
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio

USAGE = {"input": 10, "output": 5, "cache_read": 3, "reasoning": 2}


async def test_costs_add_up_to_what_the_sessions_say(home: Path, outside: Environment) -> None:
    config = a_config(home, says("a", usage=USAGE, repeat=10))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        one, two = await visitor.session(), await visitor.session()
        await visitor.told(one, "hello")
        await visitor.told(one, "again")
        await visitor.told(two, "hello")
        by_session = (await visitor.get("/v1/costs?group_by=session")).document
        by_day = (await visitor.get("/v1/costs?group_by=day")).document
        by_model = (await visitor.get("/v1/costs")).document
        of_one = (await visitor.get(f"/v1/costs?session_id={one['id'].upper()}")).document
        before = (await visitor.get("/v1/costs?to=2026-01-01T00:00:00Z")).document
        since = (await visitor.get("/v1/costs?from=2026-01-01T00:00:00Z")).document
        shown = [(await visitor.get(f"/v1/sessions/{each['id']}")).document for each in (one, two)]

    def tokens(count: int) -> dict[str, int]:
        return {
            "input_tokens": 10 * count,
            "cached_input_tokens": 3 * count,
            "output_tokens": 5 * count,
            "reasoning_tokens": 2 * count,
        }

    total: dict[str, Any] = by_model["total"]
    assert total["requests"] == 3
    assert total["usage"] == tokens(3)
    assert {each["key"]: each["usage"] for each in by_session["data"]} == {
        one["id"]: tokens(2),
        two["id"]: tokens(1),
    }
    assert [each["usage"] for each in shown] == [tokens(2), tokens(1)]
    assert [each["key"] for each in by_day["data"]] == ["2026-01-02"]
    assert by_day["total"] == by_session["total"] == since["total"] == total
    assert of_one["total"]["requests"] == 2
    assert before == {
        "data": [],
        "total": {
            "requests": 0,
            "usage": tokens(0),
            "cost_microcents": 0,
            "unpriced_requests": 0,
            "estimated_requests": 0,
        },
        "next_cursor": None,
    }


async def test_what_has_no_price_is_counted_apart(home: Path, outside: Environment) -> None:
    config = a_config(home, says("a", usage=USAGE))
    async with open_holdfast(config=config, outside=outside) as house, visiting(house) as visitor:
        session = await visitor.session()
        await visitor.told(session, "hello")
        total = (await visitor.get("/v1/costs")).document["total"]
        shown = (await visitor.get(f"/v1/sessions/{session['id']}")).document

    assert (total["cost_microcents"], total["unpriced_requests"]) == (0, 1)
    assert shown["cost"] == {"microcents": None, "priced": False}


async def test_another_owner_has_spent_nothing(visitor: Visitor) -> None:
    session = await visitor.session()
    await visitor.told(session, "hello")
    other = await visitor.as_("somebody")

    for query in ("", f"?session_id={session['id']}", f"?agent_id={A_STRANGER}"):
        assert (await other.get(f"/v1/costs{query}")).document["data"] == []


@each_case(
    "query", ["group_by=colour", "from=yesterday", "from=2026-01-01T00:00:00", "session_id=x"]
)
async def test_a_query_that_is_not_right_is_refused(visitor: Visitor, query: str) -> None:
    assert refusal(await visitor.get(f"/v1/costs?{query}")) == (400, "invalid_query")
