"""How lists of sessions are read: by an index, and without touching a single message."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.sessions import Status
from holdfast.store.sessions import count_sql, page_sql
from holdfast.store.sqlite.store import SqliteStore
from tests.builders import AGENT_ID, AT, REPO_ID, SESSION_ID, a_session
from tests.houses import raw
from tests.marks import demands

pytestmark = pytest.mark.anyio

QUERIES: dict[str, dict[str, Any]] = {
    "all": {},
    "a page after a cursor": {"before": (AT + timedelta(1), SESSION_ID)},
    "by agent": {"agent_id": AGENT_ID},
    "by repository": {"repo_id": REPO_ID},
    "by status": {"statuses": (Status.IDLE, Status.PENDING)},
    "by tag": {"tags": ("a", "b")},
    "by title": {"text": "x"},
    "by parent": {"forked_from": SESSION_ID},
    "by last change": {"order": SessionOrder.UPDATED_AT},
}


@demands("S1-031b")
@pytest.mark.parametrize("filters", QUERIES.values(), ids=list(QUERIES))
@pytest.mark.parametrize("statement", [page_sql, count_sql])
async def test_a_list_of_sessions_reads_no_message_row(
    store: SqliteStore, home: Path, statement: Any, filters: dict[str, Any]
) -> None:
    sql, parameters = statement(SessionQuery(owner=a_session().owner, **filters))

    plan = _plan(home, sql, parameters)

    read = {words[1] for words in map(str.split, plan) if words[0] in {"SCAN", "SEARCH"}}
    own = {"s", "o", "p", "g", "c", "sessions", "openings", "children"}
    assert read <= own | {"json_each", "CONSTANT"}
    assert "s" in read


async def test_the_newest_sessions_are_found_without_sorting(
    store: SqliteStore, home: Path
) -> None:
    sql, parameters = page_sql(SessionQuery(owner=a_session().owner, limit=20))

    plan = _plan(home, sql, parameters)

    assert plan[0] == "SEARCH s USING INDEX sessions_by_time (owner=?)"
    assert not [line for line in plan if "TEMP B-TREE" in line]


def _plan(home: Path, sql: str, parameters: dict[str, Any]) -> list[str]:
    with raw(home) as connection:
        connection.create_scalar_function("casefold", str.casefold, 1)
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
