"""The seed's own clients, word for word over MCP: record, update, take up again, restore."""

from typing import Any

import pytest

from holdfast.mcp.server import TOOLS
from holdfast.mcp.tool_types import arguments_of, input_schema
from holdfast.observations.model import SessionFields
from tests.marks import demands
from tests.mcp.clients import Client

pytestmark = pytest.mark.anyio

RECORDED: dict[str, Any] = {
    "session_id": "abc123",
    "actions": [
        {
            "type": "create_feature_unit",
            "result": "success",
            "details": {"feature_unit_id": "FU-061"},
            "timestamp": "2025-12-31T11:15:00.000Z",
        },
        {"type": "run_tests", "result": "passed", "timestamp": "2025-12-31T11:30:00.000Z"},
    ],
    "checkpoints": [{"name": "spec_complete", "timestamp": "2025-12-31T11:15:00.000Z"}],
    "outcomes": [{"type": "feature_unit_created", "id": "FU-061"}],
    "duration": 3600,
    "started_at": "2025-12-31T11:00:00.000Z",
    "ended_at": "2025-12-31T12:00:00.000Z",
}
UPDATED: dict[str, Any] = {
    "session_id": "abc123",
    "actions": [
        {"type": "create_feature_unit", "result": "success"},
        {"type": "run_tests", "result": "passed"},
        {"type": "commit", "result": "success"},
    ],
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00.000Z"},
        {"name": "committed", "timestamp": "2025-12-31T11:45:00.000Z"},
    ],
    "started_at": "2025-12-31T11:00:00.000Z",
}


@demands("S3-100", "S3-100b", "S3-103")
async def test_a_recorded_session_returns_its_entity_and_a_count_of_one(client: Client) -> None:
    told = await client.tool("submit_agent_session", **RECORDED)

    assert (told.form["entity_id"], told.form["observation_count"]) == (
        "ent_31ed4722e1f7ffa6ea9a9ed8",
        1,
    )
    # The seed's own example says `passed`, which is odd and no fault.
    assert [each["code"] for each in told.form["warnings"]] == ["NONSTANDARD_RESULT"]


@demands("S3-074b")
async def test_an_update_adds_a_checkpoint_and_loses_nothing(client: Client) -> None:
    first = await client.tool("submit_agent_session", **RECORDED)
    second = await client.tool("submit_agent_session", **UPDATED)
    shown = (await client.tool("query_agent_history", session_id="abc123")).form["snapshot"]

    assert second.form["entity_id"] == first.form["entity_id"]
    assert second.form["observation_count"] == 2
    assert [each["name"] for each in shown["checkpoints"]] == ["spec_complete", "committed"]
    assert [each["type"] for each in shown["actions"]] == [
        "create_feature_unit",
        "run_tests",
        "commit",
    ]
    assert shown["actions"][0]["details"] == {"feature_unit_id": "FU-061"}
    assert (shown["duration"], shown["outcomes"]) == (3600, RECORDED["outcomes"])


@demands(
    "S3-108e", "S3-106b", "S3-106c", "S3-072", "S3-108", "S3-112b", "S3-108b", "S3-108d", "S3-108f"
)
async def test_the_last_session_is_taken_up_at_its_last_checkpoint(client: Client) -> None:
    kept = {"name": "tests_passing", "timestamp": "2025-12-31T11:30:00Z", "state": {"n": 42}}
    await client.tool("submit_agent_session", **RECORDED)
    await client.tool("submit_agent_session", **(UPDATED | {"checkpoints": [kept]}))
    # As the seed's client does: the newest session, its last checkpoint, unguarded.
    newest = {"limit": 1, "order_by": "started_at", "order": "desc"}
    sessions = (await client.tool("query_agent_history", **newest)).words
    snapshot = sessions[0]["snapshot"]
    last = snapshot["checkpoints"][len(snapshot["checkpoints"]) - 1]
    found = await client.tool(
        "restore_checkpoint", session_id=snapshot["session_id"], name=last["name"]
    )

    assert (found.form["name"], found.form["state"]) == ("tests_passing", {"n": 42})


@demands("S3-095", "S3-091")
async def test_a_timeline_of_what_was_worked_on_shows_the_session(client: Client) -> None:
    await client.tool("submit_agent_session", **RECORDED)
    dates = {"start_date": "2025-12-01", "end_date": "2026-01-31"}
    found = await client.tool("query_entity_timeline", entity_id="FU-061", **dates)
    earlier = await client.tool(
        "query_entity_timeline", entity_id="FU-061", **(dates | {"end_date": "2025-12-30"})
    )

    assert [(each["timestamp"][:10], each["description"]) for each in found.form["events"]] == [
        ("2025-12-31", "Session abc123 started"),
        ("2025-12-31", "Checkpoint: spec_complete"),
        ("2025-12-31", "Session abc123 ended"),
    ]
    assert earlier.form["events"] == []


@demands("S3-001m", "S3-154")
def test_the_schema_of_the_tool_is_the_table_that_judges() -> None:
    schema = TOOLS["submit_agent_session"].input_schema()
    judged = input_schema(arguments_of(SessionFields), is_open=True)

    assert schema["required"] == judged["required"]
    # No document to extract from, and no model to ask: what is told is all there is.
    assert set(schema["properties"]) == {*judged["properties"], "idempotency_key"}
    assert {name: schema["properties"][name] for name in judged["properties"]} == judged[
        "properties"
    ]
