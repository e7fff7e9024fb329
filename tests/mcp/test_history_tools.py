"""Observed history over MCP: told, corrected, deleted, restored and read, over each transport."""

from typing import Any

import pytest

from tests.marks import demands, each_case
from tests.mcp.clients import Client
from tests.mcp.payloads import ABC, COMPLETE, MINIMAL, UNIT

pytestmark = pytest.mark.anyio


async def test_a_submission_answers_with_its_entity(client: Client) -> None:
    first = await client.tool("submit_agent_session", **MINIMAL)
    again = await client.tool("submit_agent_session", **MINIMAL)
    more = await client.tool("submit_agent_session", **COMPLETE)

    assert first.form == {
        "entity_id": ABC,
        "observation_count": 1,
        "observation_id": "obs_4f6122a30d2ef3d0db94b0a3c8b1430a",
        "action": "created",
        "deduplicated": False,
        "warnings": [],
    }
    assert again.form == first.form | {"action": "matched", "deduplicated": True}
    assert (more.form["entity_id"], more.form["observation_count"]) == (ABC, 2)
    assert first.words == first.form


@demands("S3-020", "S3-024", "S3-001m", "S3-001l")
async def test_a_rejection_is_the_envelope_and_writes_nothing(client: Client) -> None:
    refused = await client.tool("submit_agent_session", **(MINIMAL | {"actions": []}))
    fault = {
        "field": "actions",
        "value": [],
        "expected": "min_length: 1",
        "message": "Actions array must have at least 1 item",
    }

    assert refused.error == "schema_validation_failed"
    assert refused.form["details"] == fault | {"issues": [fault]}
    assert refused.words == refused.form
    assert (await client.tool("query_agent_history")).words == []


async def test_a_key_makes_a_submission_one_thing(client: Client) -> None:
    first = await client.tool("submit_agent_session", **MINIMAL, idempotency_key="k1")
    again = await client.tool("submit_agent_session", **MINIMAL, idempotency_key="k1")
    other = await client.tool("submit_agent_session", **COMPLETE, idempotency_key="k1")
    odd = await client.tool("submit_agent_session", **MINIMAL, idempotency_key="")

    assert again.form["observation_id"] == first.form["observation_id"]
    assert again.form["deduplicated"] is True
    assert other.error == "idempotency_mismatch"
    assert odd.error == "schema_validation_failed"


async def test_what_is_odd_is_a_warning_and_unknown_keys_are_kept(client: Client) -> None:
    odd = MINIMAL | {"mood": "good", "owner": "eve", "ended_at": None}
    told = await client.tool("submit_agent_session", **odd)
    shown = await client.tool("query_agent_history", session_id="abc123")

    codes = [(each["code"], each["field"]) for each in told.form["warnings"]]
    assert codes == [
        ("NULL_CLEARED_FIELD", "ended_at"),
        ("UNKNOWN_FIELD", "mood"),
        ("UNKNOWN_FIELD", "owner"),
    ]
    assert "mood" not in shown.form["snapshot"]
    assert shown.form["observations"][0]["fields"] == odd
    assert shown.form["observations"][0]["owner"] == "local"


@demands("S3-105c", "S3-105d")
async def test_one_session_is_shown_with_its_history(client: Client) -> None:
    await client.tool("submit_agent_session", **COMPLETE)
    shown = await client.tool("query_agent_history", session_id="abc123")

    assert shown.words == shown.form
    assert {name: shown.form[name] for name in ("entity_id", "entity_type", "schema_version")} == {
        "entity_id": ABC,
        "entity_type": "agent_session",
        "schema_version": "v1",
    }
    assert shown.form["snapshot"] == COMPLETE
    assert (shown.form["observation_count"], shown.form["observations_total"]) == (1, 1)
    assert (shown.form["hosted"], shown.form["warnings"]) == (False, [])
    assert set(shown.form["provenance"]) == set(COMPLETE)
    unknown = await client.tool("query_agent_history", session_id="never")
    assert unknown.error == "entity_not_found"


@demands("S3-105b")
async def test_a_list_is_an_array_in_words_and_a_page_as_a_form(client: Client) -> None:
    for number in range(3):
        later = {"session_id": f"s-{number:04}", "started_at": f"2025-12-1{number}"}
        await client.tool("submit_agent_session", **(MINIMAL | later))
    listed = await client.tool("query_agent_history", limit=2, order="asc")
    rest = await client.tool(
        "query_agent_history", limit=2, order="asc", cursor=listed.form["next_cursor"]
    )
    behind = await client.tool("query_agent_history", offset=2, order="asc")
    foreign = await client.tool("query_agent_history", limit=3, cursor=listed.form["next_cursor"])

    names = [each["snapshot"]["session_id"] for each in (*listed.words, *rest.words)]
    assert names == ["s-0000", "s-0001", "s-0002"]
    assert listed.words == listed.form["sessions"]
    assert (listed.form["total"], rest.form["total"], rest.form["next_cursor"]) == (3, 3, None)
    assert [each["snapshot"]["session_id"] for each in behind.words] == ["s-0002"]
    assert foreign.error == "invalid_cursor"


@each_case(
    ("arguments", "error"),
    [
        ({"limit": 0}, "invalid_limit"),
        ({"limit": 501}, "invalid_limit"),
        ({"offset": 2001}, "invalid_limit"),
        ({"limit": "10"}, "schema_validation_failed"),
        ({"order": "sideways"}, "schema_validation_failed"),
        ({"order_by": "owner"}, "schema_validation_failed"),
        ({"at": "yesterday"}, "schema_validation_failed"),
        ({"owner": "eve"}, "schema_validation_failed"),
        ({"cursor": "x"}, "invalid_cursor"),
        ({"session_id": 7}, "schema_validation_failed"),
    ],
)
async def test_a_wrong_argument_is_refused_by_its_name(
    client: Client, arguments: dict[str, Any], error: str
) -> None:
    assert (await client.tool("query_agent_history", **arguments)).error == error


async def test_a_timeline_is_told_by_id_and_by_outcome(client: Client) -> None:
    await client.tool("submit_agent_session", **COMPLETE)
    own = await client.tool("query_entity_timeline", entity_id=ABC)
    related = await client.tool("query_entity_timeline", entity_id="FU-061")
    some = await client.tool(
        "query_entity_timeline", entity_id=ABC, event_types=["CheckpointReached"]
    )
    none = await client.tool("query_entity_timeline", entity_id="FU-999")
    page = await client.tool("query_entity_timeline", entity_id=ABC, limit=1)

    assert [(each["id"], each["event_type"]) for each in own.form["events"]] == [
        ("tle_e7ed093ab338bab70ae0835e", "SessionStarted"),
        ("tle_9b54bdb56286bef34e866588", "CheckpointReached"),
        ("tle_4f30490bd2f7ba7e8756009b", "SessionEnded"),
    ]
    assert [each["id"] for each in related.form["events"]] == [
        each["id"] for each in own.form["events"]
    ]
    assert all(each["related_to"] == ["FU-061"] for each in related.form["events"])
    assert [each["event_type"] for each in some.form["events"]] == ["CheckpointReached"]
    assert some.form["events"][0]["details"] == {"name": "spec_complete", "has_state": True}
    assert none.form == {"events": [], "total": 0, "next_cursor": None}
    assert (page.form["total"], page.form["next_cursor"] is None) == (3, False)
    wrong = await client.tool("query_entity_timeline", entity_id=ABC, event_types=["Nothing"])
    assert wrong.error == "schema_validation_failed"


async def test_a_checkpoint_gives_its_state_back(client: Client) -> None:
    await client.tool("submit_agent_session", **COMPLETE)
    found = await client.tool("restore_checkpoint", session_id="abc123", name="spec_complete")
    lost = await client.tool("restore_checkpoint", session_id="abc123", name="nope")

    assert {**found.form, "provenance": []} == {
        "session_id": "abc123",
        "name": "spec_complete",
        "timestamp": "2025-12-31T11:15:00Z",
        "state": {"spec": "done", "files": ["a.py"]},
        "has_state": True,
        "provenance": [],
    }
    assert lost.error == "checkpoint_not_found"
    assert lost.form["message"] == "Checkpoint nope not found in session abc123"
    assert lost.form["details"] == {"available": ["spec_complete"]}


async def test_a_correction_outweighs_what_is_told_later(client: Client) -> None:
    await client.tool("submit_agent_session", **COMPLETE)
    told = await client.tool(
        "correct", session_id="abc123", field="duration", value=60, reason="the clock was wrong"
    )
    await client.tool("submit_agent_session", **(COMPLETE | {"duration": 7200}))
    shown = await client.tool("query_agent_history", session_id="abc123")
    cleared = await client.tool("correct", session_id="abc123", field="ended_at", value=None)
    after = await client.tool("query_agent_history", session_id="abc123")
    wrong = await client.tool("correct", session_id="abc123", field="session_id", value="other")
    absent = await client.tool("correct", session_id="abc123", field="duration")

    assert told.form["observation_count"] == 2
    assert shown.form["snapshot"]["duration"] == 60
    assert cleared.is_error is False
    assert "ended_at" not in after.form["snapshot"]
    assert wrong.error == absent.error == "schema_validation_failed"
    assert absent.form["details"]["expected"] == "required"


async def test_a_deleted_history_is_gone_until_it_is_restored(client: Client) -> None:
    await client.tool("submit_agent_session", **COMPLETE)
    gone = await client.tool("delete_agent_session", session_id="abc123", reason="a mistake")
    lost = await client.tool("query_agent_history", session_id="abc123")
    listed = await client.tool("query_agent_history")
    back = await client.tool("restore_agent_session", session_id="abc123")
    found = await client.tool("query_agent_history", session_id="abc123")
    never = await client.tool("delete_agent_session", session_id="never")

    assert (gone.form["entity_id"], gone.form["deleted"]) == (ABC, True)
    assert set(gone.form) == {"entity_id", "observation_id", "deleted"}
    assert (lost.error, listed.words) == ("entity_not_found", [])
    assert (back.form["deleted"], found.form["snapshot"]) == (False, COMPLETE)
    assert never.error == "entity_not_found"


async def test_claims_are_listed_as_they_were_made(client: Client) -> None:
    await client.tool("submit_agent_session", **MINIMAL)
    await client.tool("submit_agent_session", **COMPLETE)
    page = await client.tool("list_observations", session_id="abc123", limit=1)
    rest = await client.tool(
        "list_observations", session_id="abc123", limit=1, cursor=page.form["next_cursor"]
    )

    assert (page.form["total"], rest.form["next_cursor"]) == (2, None)
    (newest,), (oldest,) = page.form["observations"], rest.form["observations"]
    assert (newest["ordinal"], newest["fields"]) == (2, COMPLETE)
    assert oldest | {"observed_at": "", "created_at": "", "source": ""} == {
        "id": "obs_4f6122a30d2ef3d0db94b0a3c8b1430a",
        "owner": "local",
        "entity_type": "agent_session",
        "entity_id": ABC,
        "session_key": "abc123",
        "ordinal": 1,
        "fields": MINIMAL,
        "content_hash": "6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750",
        "kind": "submit",
        "priority": 100,
        "source": "",
        "observed_at": "",
        "created_at": "",
        "idempotency_key": None,
    }


async def test_entities_are_submitted_and_found_by_what_they_hold(client: Client) -> None:
    made = await client.tool("submit_entity", entity_type="feature_unit", fields=UNIT)
    wrong = await client.tool(
        "submit_entity", entity_type="feature_unit", fields=UNIT | {"status": "x"}
    )
    session = await client.tool("submit_entity", entity_type="agent_session", fields=MINIMAL)
    found = await client.tool(
        "query_entities", entity_type="feature_unit", filters={"status": "planning"}
    )
    other = await client.tool(
        "query_entities", entity_type="feature_unit", filters={"status": "deployed"}
    )
    odd = await client.tool(
        "query_entities", entity_type="feature_unit", filters={"a": {"like": 1}}
    )

    assert made.form["entity_id"] == "ent_0d066099de6edd63f03ad189"
    assert wrong.error == session.error == odd.error == "schema_validation_failed"
    assert [each["snapshot"]["id"] for each in found.form["entities"]] == ["FU-061"]
    assert found.form["entities"][0]["snapshot"] == UNIT
    assert (found.form["total"], other.form["entities"]) == (1, [])
