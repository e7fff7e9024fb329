"""Queries of observed history have their limits."""

from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.observations.model import EntityType
from holdfast.observations.queries import EntityQuery, HistoryQuery, TimelineQuery
from tests.marks import each_case


def test_what_is_usual_is_the_default() -> None:
    query = HistoryQuery()

    assert (query.limit, query.offset, query.order_by, query.order) == (
        100,
        0,
        "started_at",
        "desc",
    )
    assert HistoryQuery(limit=500, offset=2_000).limit == 500


@each_case(
    ("query", "wish"),
    [
        (HistoryQuery, {"limit": 0}),
        (HistoryQuery, {"limit": 501}),
        (HistoryQuery, {"offset": -1}),
        (HistoryQuery, {"offset": 2_001}),
        (EntityQuery, {"entity_type": EntityType.RELEASE, "limit": 0}),
        (TimelineQuery, {"limit": 501}),
    ],
)
def test_a_page_has_its_limits(query: Any, wish: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        query(**wish)

    assert caught.value.code is Code.INVALID_LIMIT
