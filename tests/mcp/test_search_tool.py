"""Searching over MCP: what was said and what was observed is found by its words."""

from typing import Any

import pytest

from holdfast import Holdfast, SessionRequest
from tests.marks import each_case
from tests.mcp.clients import Client
from tests.mcp.payloads import COMPLETE

pytestmark = pytest.mark.anyio


async def test_what_was_said_is_found(quiet: Holdfast, client: Client) -> None:
    session = await quiet.open()
    message = await quiet.send(session.id, "The lighthouse keeper counts ships")
    told = await client.tool("search_sessions", query="lighthouse")

    # The first words are the session's title as well.
    (hit,) = [each for each in told.form["hits"] if each["message_id"] is not None]
    assert {**hit, "score": 0, "created_at": "", "snippet": ""} == {
        "session_id": session.id,
        "agent_id": session.agent_id,
        "message_id": message.id,
        "message_sequence": 1,
        "turn": 1,
        "role": "user",
        "observation_id": None,
        "snippet": "",
        "score": 0,
        "created_at": "",
    }
    assert "lighthouse" in hit["snippet"].replace("[", "").replace("]", "")
    assert told.form["next_cursor"] is None
    assert (await client.tool("search_sessions", query="submarine")).form["hits"] == []


async def test_what_was_observed_is_found(client: Client) -> None:
    details = [{"type": "note", "result": "success", "details": {"text": "a rare albatross"}}]
    submitted = await client.tool("submit_agent_session", **(COMPLETE | {"actions": details}))
    (hit,) = (await client.tool("search_sessions", query="albatross")).form["hits"]

    assert hit["observation_id"] == submitted.form["observation_id"]
    assert (hit["session_id"], hit["message_id"], hit["role"]) == ("abc123", None, None)


async def test_pages_go_on_where_they_ended(quiet: Holdfast, client: Client) -> None:
    session = await quiet.open(request=SessionRequest(title="Harbour"))
    for number in range(3):
        await quiet.send(session.id, f"tide number {number}")
    first = (await client.tool("search_sessions", query="tide", limit=2)).form
    rest = await client.tool("search_sessions", query="tide", limit=2, cursor=first["next_cursor"])

    found = [each["message_sequence"] for each in (*first["hits"], *rest.form["hits"])]
    assert sorted(found) == [1, 2, 3]
    assert rest.form["next_cursor"] is None


async def test_filters_narrow_what_is_found(quiet: Holdfast, client: Client) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "a single gull")
    stranger = "0192f0c1-0000-7000-8000-00000000dead"

    assert len((await client.tool("search_sessions", query="gull", role="user")).form["hits"]) == 1
    for filters in (
        {"role": "assistant"},
        {"tool": "shell"},
        {"repo_id": stranger},
        {"agent": stranger},
        {"until": "2001-01-01"},
        {"since": "2999-01-01T00:00:00Z"},
    ):
        found = await client.tool("search_sessions", query="gull", **filters)
        assert found.form["hits"] == [], filters


@each_case(
    ("arguments", "error"),
    [
        ({}, "schema_validation_failed"),
        ({"query": ""}, "schema_validation_failed"),
        ({"query": "x" * 401}, "schema_validation_failed"),
        ({"query": "x", "limit": 101}, "invalid_limit"),
        ({"query": "x", "role": "pirate"}, "schema_validation_failed"),
        ({"query": "x", "since": "soon"}, "schema_validation_failed"),
        ({"query": "x", "cursor": "x"}, "invalid_cursor"),
    ],
)
async def test_what_cannot_be_searched_is_refused(
    client: Client, arguments: dict[str, Any], error: str
) -> None:
    assert (await client.tool("search_sessions", **arguments)).error == error
