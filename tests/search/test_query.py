"""What can be searched for, and what is refused."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.search.query import SearchQuery, require_query
from tests.marks import each_case


@each_case(
    ("fields", "code", "field"),
    [
        ({"text": ""}, Code.INVALID_QUERY, "text"),
        ({"text": "x" * 401}, Code.INVALID_QUERY, "text"),
        ({"text": "a\x00b"}, Code.INVALID_QUERY, "text"),
        ({"text": "\ud800"}, Code.INVALID_QUERY, "text"),
        ({"text": "a", "tool": "\x00"}, Code.INVALID_QUERY, "tool"),
        ({"text": "a", "since": datetime(2026, 1, 1)}, Code.INVALID_FILTER, "since"),
        ({"text": "a", "until": datetime(2026, 1, 1)}, Code.INVALID_FILTER, "until"),
        ({"text": "a", "limit": 0}, Code.INVALID_LIMIT, "limit"),
        ({"text": "a", "limit": 101}, Code.INVALID_LIMIT, "limit"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(
    fields: dict[str, Any], code: Code, field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        require_query(SearchQuery(**fields))

    assert (caught.value.code, caught.value.details["field"]) == (code, field)


def test_everything_else_can_be() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    query = SearchQuery(text="x" * 400, tool="t", agent="a", since=at, until=at, limit=100)

    assert require_query(query) is query
