"""Timelines and entities over HTTP: what happened to what, and what is known of it."""

from typing import Any

import pytest

from tests.http.v1.client import Visitor, refusal
from tests.http.v1.test_history import ENTITY, MINIMAL, WHOLE
from tests.marks import each_case

pytestmark = pytest.mark.anyio

DECISION = {
    "decision": "Use SQLite by default",
    "rationale": "Nothing has to be installed.",
    "timestamp": "2025-12-31T11:20:00Z",
    "context": {"session_id": "abc123"},
}
UNIT = {
    "id": "FU-061",
    "description": "Sessions are written down",
    "status": "planning",
    "created_at": "2025-12-30T11:20:00Z",
    "updated_at": "2025-12-31T11:20:00Z",
}


async def test_a_session_has_a_timeline(visitor: Visitor) -> None:
    told = (await visitor.post("/v1/history", WHOLE)).document
    found = (await visitor.get("/v1/timeline?entity_id=abc123")).document

    assert (found["total"], found["next_cursor"]) == (3, None)
    assert [each["id"] for each in found["data"]] == [
        "tle_e7ed093ab338bab70ae0835e",
        "tle_9b54bdb56286bef34e866588",
        "tle_4f30490bd2f7ba7e8756009b",
    ]
    assert found["data"][1] == {
        "id": "tle_9b54bdb56286bef34e866588",
        "timestamp": "2025-12-31T11:15:00.000Z",
        "event_type": "CheckpointReached",
        "description": "Checkpoint: spec_complete",
        "entity_id": ENTITY,
        "entity_type": "agent_session",
        "session_id": "abc123",
        "source_field": "checkpoints",
        "provenance": [told["observation_id"]],
        "details": {"name": "spec_complete", "has_state": True},
    }
    assert "details" not in found["data"][0]
    assert (await visitor.get(f"/v1/timeline?entity_id={ENTITY}")).document == found


async def test_a_timeline_is_read_in_parts_and_by_kinds(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    place = "/v1/timeline?entity_id=FU-061"

    first = (await visitor.get(f"{place}&limit=2")).document
    rest = (await visitor.get(f"{place}&limit=2&cursor={first['next_cursor']}")).document
    kinds = (
        await visitor.get(f"{place}&event_types=SessionStarted&event_types=SessionEnded")
    ).document
    late = (
        await visitor.get(f"{place}&start_date=2025-12-31T11:10:00Z&end_date=2025-12-31")
    ).document

    assert kinds_of(first) == ["SessionStarted", "CheckpointReached"]
    assert [each["related_to"] for each in first["data"]] == [["FU-061"]] * 2
    assert (kinds_of(rest), rest["next_cursor"]) == (["SessionEnded"], None)
    assert kinds_of(kinds) == ["SessionStarted", "SessionEnded"]
    assert kinds_of(late) == ["CheckpointReached", "SessionEnded"]


@each_case(
    ("query", "code"),
    [
        ("", "invalid_query"),
        ("entity_id=", "invalid_query"),
        ("entity_id=a&event_types=x", "invalid_query"),
        ("entity_id=a&limit=0", "invalid_query"),
        ("entity_id=a&start_date=x", "schema_validation_failed"),
        ("entity_id=a&start_date=2025-01-02&end_date=2025-01-01", "schema_validation_failed"),
        ("entity_id=a&cursor=x", "invalid_cursor"),
        ("entity_id=a&session_id=b", "invalid_query"),
        ("session_id=a&from=2025-01-01&start_date=2025-01-01", "invalid_query"),
        ("session_id=a&from=2025-01-02&to=2025-01-01", "schema_validation_failed"),
    ],
)
async def test_a_question_that_cannot_be_is_refused(
    visitor: Visitor, query: str, code: str
) -> None:
    assert refusal(await visitor.get(f"/v1/timeline?{query}")) == (400, code)


async def test_a_timeline_takes_the_names_of_the_other_lists(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    window = "2025-12-31T11:10:00Z", "2025-12-31"

    by_entity = await visitor.get(
        f"/v1/timeline?entity_id=abc123&start_date={window[0]}&end_date={window[1]}"
    )
    by_session = await visitor.get(
        f"/v1/timeline?session_id=abc123&from={window[0]}&to={window[1]}"
    )
    wrong = await visitor.get("/v1/timeline?session_id=abc123&from=soon")

    assert by_session.document == by_entity.document
    assert kinds_of(by_session.document) == ["CheckpointReached", "SessionEnded"]
    assert refusal(wrong) == (400, "schema_validation_failed")
    assert wrong.document["details"]["field"] == "from"


async def test_entities_are_listed_by_session_and_by_time(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    for fields in (UNIT, {**UNIT, "id": "FU-062"}):
        await visitor.post("/v1/entities", {"entity_type": "feature_unit", "fields": fields})
    for session in ("abc123", "never-reported"):
        context = {**DECISION, "decision": session, "context": {"session_id": session}}
        await visitor.post("/v1/entities", {"entity_type": "agent_decision", "fields": context})

    async def listed(query: str) -> list[str]:
        found = await entities(visitor, query)
        names = ("id", "decision", "session_id")
        assert found["total"] == len(found["data"])
        return [
            each["snapshot"][name]
            for each in found["data"]
            for name in names
            if name in each["snapshot"]
        ]

    units, decisions = "entity_type=feature_unit", "entity_type=agent_decision"
    assert await listed(f"{units}&session_id=abc123") == ["FU-061"]
    assert await listed(f"{decisions}&session_id=abc123") == ["abc123"]
    assert await listed(f"{decisions}&session_id=never-reported") == ["never-reported"]
    assert await listed(f"{decisions}&session_id=nobody") == []
    assert await listed("entity_type=agent_session&session_id=abc123") == ["abc123"]
    assert len(await listed(f"{units}&from=2020-01-01&to=2999-01-01")) == 2
    assert await listed(f"{units}&to=2020-01-01") == []
    assert refusal(await visitor.get(f"/v1/entities?{units}&to=x")) == (
        400,
        "schema_validation_failed",
    )


async def test_what_nobody_knows_has_an_empty_timeline(visitor: Visitor) -> None:
    found = await visitor.get("/v1/timeline?entity_id=nobody")

    assert found.document == {"data": [], "total": 0, "next_cursor": None}


async def test_entities_are_submitted_and_listed_by_what_is_known(visitor: Visitor) -> None:
    body = {"entity_type": "agent_decision", "fields": DECISION, "idempotency_key": "d"}
    told = await visitor.post("/v1/entities", body)
    again = await visitor.post("/v1/entities", body)
    for status in ("planning", "completed"):
        fields = {**UNIT, "status": status}
        await visitor.post("/v1/entities", {"entity_type": "feature_unit", "fields": fields})

    units = await entities(visitor, "entity_type=feature_unit")
    done = await entities(visitor, 'entity_type=feature_unit&filters={"status":"completed"}')
    none = await entities(visitor, 'entity_type=feature_unit&filters={"status":"planning"}')
    timeline = (await visitor.get("/v1/timeline?entity_id=FU-061")).document

    assert (told.status, again.status) == (201, 200)
    assert told.document["entity_id"] == "ent_f40e96b591389422f2855c55"
    assert (await visitor.asked("GET", told.headers["location"])).document["total"] == 1
    assert [each["snapshot"] for each in units["data"]] == [{**UNIT, "status": "completed"}]
    assert (done["total"], none["total"]) == (1, 0)
    assert kinds_of(timeline) == ["StatusChanged", "StatusChanged"]


@each_case(
    ("body", "field", "expected"),
    [
        (
            {"entity_type": "agent_session", "fields": MINIMAL},
            "entity_type",
            "one of: feature_unit, release, agent_decision, validation_result",
        ),
        ({"entity_type": "feature_unit"}, "fields", "required"),
        ({"entity_type": "feature_unit", "fields": []}, "", "type: object"),
        (
            {"entity_type": "feature_unit", "fields": {**UNIT, "id": "x"}},
            "id",
            "pattern: FU-[0-9]+",
        ),
    ],
)
async def test_an_entity_that_cannot_be_is_refused_by_its_place(
    visitor: Visitor, body: dict[str, Any], field: str, expected: str
) -> None:
    answer = await visitor.post("/v1/entities", body)

    assert refusal(answer) == (400, "schema_validation_failed")
    details = answer.document["details"]
    assert (details["field"], details["expected"]) == (field, expected)


@each_case(
    ("query", "code"),
    [
        ("", "invalid_query"),
        ("entity_type=x", "invalid_query"),
        ("entity_type=release&filters={", "invalid_query"),
        ("entity_type=release&filters=[]", "schema_validation_failed"),
        ('entity_type=release&filters={"status":{"like":"x"}}', "schema_validation_failed"),
        ("entity_type=release&cursor=x", "invalid_cursor"),
    ],
)
async def test_a_listing_that_cannot_be_is_refused(visitor: Visitor, query: str, code: str) -> None:
    assert refusal(await visitor.get(f"/v1/entities?{query}")) == (400, code)


async def entities(visitor: Visitor, query: str) -> dict[str, Any]:
    answer = await visitor.get(f"/v1/entities?{query}")
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.document
    return document


def kinds_of(page: dict[str, Any]) -> list[str]:
    return [each["event_type"] for each in page["data"]]
