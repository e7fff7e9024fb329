"""Observed history over HTTP: told, read as of any moment, corrected, hidden and shown again."""

import json
from typing import Any

import pytest

from holdfast.domain.tokens import Scope
from holdfast.observations.claims import START_HINT
from tests.http.asgi import Answer
from tests.http.v1.client import Visitor, refusal
from tests.marks import each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

MINIMAL = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "started_at": "2025-12-31T11:00:00Z",
}
WHOLE = {
    **MINIMAL,
    "checkpoints": [
        {
            "name": "spec_complete",
            "timestamp": "2025-12-31T11:15:00Z",
            "state": {"spec": "ready"},
        }
    ],
    "outcomes": [{"type": "feature_unit", "id": "FU-061"}],
    "ended_at": "2025-12-31T12:00:00Z",
    "duration": 3600,
}
ENTITY = "ent_31ed4722e1f7ffa6ea9a9ed8"
FIRST = "obs_4f6122a30d2ef3d0db94b0a3c8b1430a"


async def test_what_is_submitted_is_known(visitor: Visitor) -> None:
    told = await visitor.post("/v1/history", MINIMAL, user_agent="tester/1")
    found = (await visitor.get("/v1/history/abc123")).document
    (claim,) = found.pop("observations")

    assert (told.status, told.headers["location"]) == (201, "/v1/history/abc123")
    assert told.document == {
        "entity_id": ENTITY,
        "observation_id": FIRST,
        "observation_count": 1,
        "action": "created",
        "deduplicated": False,
        "warnings": [],
    }
    assert found == {
        "entity_id": ENTITY,
        "entity_type": "agent_session",
        "schema_version": "v1",
        "snapshot": {**MINIMAL, "checkpoints": [], "outcomes": []},
        "provenance": {
            "session_id": [FIRST],
            "actions": [FIRST],
            "checkpoints": [],
            "outcomes": [],
            "started_at": [FIRST],
        },
        "provenance_items": {"actions": [[FIRST]], "checkpoints": [], "outcomes": []},
        "observation_count": 1,
        "last_observation_at": claim["observed_at"],
        "hosted": False,
        "warnings": [],
        "observations_total": 1,
    }
    assert claim == {
        "id": FIRST,
        "owner": "local",
        "entity_type": "agent_session",
        "entity_id": ENTITY,
        "session_key": "abc123",
        "ordinal": 1,
        "fields": MINIMAL,
        "content_hash": "6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750",
        "kind": "submit",
        "priority": 100,
        "source": "tester/1",
        "observed_at": claim["created_at"],
        "created_at": claim["created_at"],
        "idempotency_key": None,
    }


async def test_the_same_again_is_answered_and_not_written(visitor: Visitor) -> None:
    await visitor.post("/v1/history", MINIMAL)
    again = await visitor.post("/v1/history", MINIMAL)

    assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
    assert (again.document["deduplicated"], again.document["observation_count"]) == (True, 1)
    assert again.document["observation_id"] == FIRST


async def test_a_key_is_taken_from_the_body_or_the_header(visitor: Visitor) -> None:
    first = await visitor.post("/v1/history", {**MINIMAL, "idempotency_key": "k"})
    await visitor.post("/v1/history", WHOLE)
    again = await visitor.post("/v1/history", MINIMAL, idempotency_key="k")
    both = await visitor.post(
        "/v1/history", {**MINIMAL, "idempotency_key": "k"}, idempotency_key="k"
    )
    other = await visitor.post(
        "/v1/history", {**MINIMAL, "session_id": "other"}, idempotency_key="k"
    )
    torn = await visitor.post(
        "/v1/history", {**MINIMAL, "idempotency_key": "a"}, idempotency_key="b"
    )
    wrong = await visitor.post("/v1/history", {**MINIMAL, "idempotency_key": "x" * 201})
    spaced = await visitor.post("/v1/history", MINIMAL, idempotency_key="a b")
    claims = (await visitor.get("/v1/history/abc123/observations")).document

    assert first.document["observation_id"] == FIRST
    for repeated in (again, both):
        assert (repeated.status, repeated.document["observation_id"]) == (200, FIRST)
    assert refusal(other) == (409, "idempotency_mismatch")
    assert refusal(torn) == (400, "invalid_body")
    assert refusal(wrong) == (400, "schema_validation_failed")
    assert wrong.document["details"]["field"] == "idempotency_key"
    assert spaced.document["details"]["expected"] == "pattern: [!-~]{1,200}"
    assert [each["idempotency_key"] for each in claims["data"]] == [None, "k"]
    assert "idempotency_key" not in claims["data"][1]["fields"]


async def test_the_rejection_is_the_seeds_byte_for_byte(visitor: Visitor) -> None:
    answer = await visitor.post("/v1/history", {**MINIMAL, "actions": []})

    told = (
        '{"field":"actions","value":[],"expected":"min_length: 1",'
        '"message":"Actions array must have at least 1 item"'
    )
    assert refusal(answer) == (400, "schema_validation_failed")
    assert answer.body.decode().startswith('{"error":"schema_validation_failed",')
    assert f'"details":{told},"issues":[{told}}}]}}}}' in answer.body.decode()
    assert START_HINT in answer.document["message"]
    assert refusal(await visitor.get("/v1/history/abc123")) == (404, "entity_not_found")


@each_case(
    ("raw", "field", "expected"),
    [
        (b"[]", "", "type: object"),
        (b"{", "", "type: object"),
        (b"\xff", "", "type: object"),
        (b"[" * 100_000, "", "max_depth: 32"),
        (b'{"session_id":"abc123","session_id":"abc124"}', "session_id", "unique_keys"),
        (b'{"session_id":"abc123","duration":NaN}', "duration", "finite"),
        (b'{"a":[' + b"[]," * 600_000 + b"0]}", "", "max_bytes: 1048576"),
        (b'{"session_id":"abcd"}', "session_id", "min_length: 5"),
    ],
)
async def test_what_is_no_submission_is_refused_by_its_place(
    visitor: Visitor, raw: bytes, field: str, expected: str
) -> None:
    answer = await visitor.post("/v1/history", raw)

    assert refusal(answer) == (400, "schema_validation_failed")
    issues = answer.document["details"]["issues"]
    assert (field, expected) in [(each["field"], each["expected"]) for each in issues]


async def test_a_large_submission_is_judged_like_a_small_one(visitor: Visitor) -> None:
    actions = [{"type": "step", "result": "success", "details": {"n": n}} for n in range(3_000)]
    told = await visitor.post("/v1/history", {**MINIMAL, "actions": actions})
    bad = await visitor.post("/v1/history", {**MINIMAL, "actions": [*actions, {"type": "x"}]})
    found = await visitor.get("/v1/history/abc123", accept_encoding="gzip")

    assert told.status == 201
    assert bad.document["details"]["field"] == "actions[3000].result"
    assert found.headers["content-encoding"] == "gzip"


async def test_a_body_is_json_and_not_compressed(visitor: Visitor) -> None:
    for headers in ({"content_type": "text/plain"}, {"content_encoding": "gzip"}):
        answer = await visitor.post("/v1/history", MINIMAL, **headers)
        assert refusal(answer) == (400, "invalid_body")


async def test_sessions_are_listed_in_order_and_page_by_page(visitor: Visitor) -> None:
    for number in range(1, 4):
        at = f"2025-12-{30 - number}T11:00:00Z"
        await visitor.post(
            "/v1/history", {**MINIMAL, "session_id": f"sess{number}", "started_at": at}
        )

    newest = await listed(visitor, "?limit=2")
    rest = await listed(visitor, f"?limit=2&cursor={newest['next_cursor']}")
    oldest = await listed(visitor, "?order=asc&order_by=session_id&offset=1")
    foreign = await visitor.get(f"/v1/history?limit=2&order=asc&cursor={newest['next_cursor']}")

    assert names(newest) == ["sess1", "sess2"]
    assert (names(rest), rest["next_cursor"], rest["total"]) == (["sess3"], None, 3)
    assert names(oldest) == ["sess2", "sess3"]
    assert refusal(foreign) == (400, "invalid_cursor")
    both = f"?limit=2&offset=1&cursor={newest['next_cursor']}"
    assert refusal(await visitor.get(f"/v1/history{both}")) == (400, "invalid_input")
    for query in ("limit=0", "limit=501", "offset=2001", "order=up", "order_by=x", "x=1"):
        assert refusal(await visitor.get(f"/v1/history?{query}")) == (400, "invalid_query")


async def test_the_past_is_as_it_was(visitor: Visitor, clock: SettableClock) -> None:
    before = clock.now().isoformat().replace("+00:00", "Z")
    clock.advance(seconds=10)
    await visitor.post("/v1/history", MINIMAL)
    between = clock.now().isoformat().replace("+00:00", "Z")
    clock.advance(seconds=10)
    await visitor.post("/v1/history", WHOLE)

    then = (await visitor.get(f"/v1/history/abc123?at={between}")).document
    early = (await visitor.get(f"/v1/history/abc123?at_ingested={before}")).document
    past = await listed(visitor, f"?at={between}")
    bad = await visitor.get("/v1/history/abc123?at=yesterday")

    assert (then["snapshot"]["checkpoints"], then["observations_total"]) == ([], 1)
    assert (early["snapshot"], early["observation_count"]) == ({}, 0)
    assert [each["observation_count"] for each in past["data"]] == [1]
    assert refusal(bad) == (400, "schema_validation_failed")
    assert bad.document["details"]["field"] == "at"
    assert refusal(await visitor.get("/v1/history/nobody?at=2025-01-01")) == (
        404,
        "entity_not_found",
    )


async def test_a_correction_outweighs_what_is_said_later(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    body = {"field": "ended_at", "value": None, "reason": "It still runs.", "idempotency_key": "c"}
    done = await visitor.post("/v1/history/abc123/correct", body)
    again = await visitor.post("/v1/history/abc123/correct", body)
    await visitor.post("/v1/history", {**WHOLE, "duration": 5})
    found = (await visitor.get("/v1/history/abc123")).document

    assert (done.status, again.status) == (201, 200)
    assert done.headers["location"] == "/v1/history/abc123"
    assert "ended_at" not in found["snapshot"]
    assert [each["kind"] for each in found["observations"]] == ["submit", "correction", "submit"]


@each_case(
    ("body", "field", "expected"),
    [
        ({"field": "ended_at"}, "value", "required"),
        ({"value": 1}, "field", "required"),
        ({"field": "duration", "value": 0}, "duration", "positive"),
        (
            {"field": "session_id", "value": "other"},
            "field",
            "one of: actions, checkpoints, outcomes, duration, started_at, ended_at",
        ),
        (
            {"field": "duration", "value": 1, "priority": 5},
            "priority",
            "one of: field, value, reason, idempotency_key",
        ),
        ([], "", "type: object"),
    ],
)
async def test_a_correction_that_cannot_be_is_refused_by_its_place(
    visitor: Visitor, body: Any, field: str, expected: str
) -> None:
    await visitor.post("/v1/history", MINIMAL)
    answer = await visitor.post("/v1/history/abc123/correct", body)

    assert refusal(answer) == (400, "schema_validation_failed")
    assert answer.document["details"]["field"] == field
    assert answer.document["details"]["expected"] == expected


async def test_history_is_hidden_and_shown_again(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    gone = await visitor.delete("/v1/history/abc123?reason=private&idempotency_key=d")
    hidden = await visitor.get("/v1/history/abc123")
    told = await visitor.post("/v1/history", {**WHOLE, "duration": 3601})
    back = await visitor.post("/v1/history/abc123/restore", {"reason": "asked for"})

    assert (gone.status, gone.document["deleted"]) == (200, True)
    assert gone.document["entity_id"] == ENTITY
    assert refusal(hidden) == (404, "entity_not_found")
    assert [each["code"] for each in told.document["warnings"]] == ["ENTITY_DELETED"]
    assert back.document == {
        "entity_id": ENTITY,
        "observation_id": back.document["observation_id"],
        "deleted": False,
    }
    assert (await visitor.get("/v1/history/abc123")).status == 200
    torn = await visitor.ask(
        "DELETE", "/v1/history/abc123?idempotency_key=a", headers={"idempotency_key": "b"}
    )
    assert refusal(torn) == (400, "invalid_query")


async def test_a_restoration_needs_no_body(visitor: Visitor) -> None:
    await visitor.post("/v1/history", MINIMAL)
    await visitor.delete("/v1/history/abc123")
    back = await visitor.post("/v1/history/abc123/restore")
    odd = await visitor.post("/v1/history/abc123/restore", {"reason": 5})

    assert (back.status, back.document["deleted"]) == (200, False)
    assert refusal(odd) == (400, "schema_validation_failed")


async def test_a_checkpoint_is_found_by_its_name(visitor: Visitor) -> None:
    later = {"name": "spec/complete", "timestamp": "2025-12-31T11:45:00Z"}
    await visitor.post("/v1/history", {**WHOLE, "checkpoints": [*WHOLE["checkpoints"], later]})  # type: ignore[misc]

    found = await visitor.get("/v1/history/abc123/checkpoints/spec_complete")
    bare = await visitor.asked("GET", "/v1/history/abc123/checkpoints/spec%2Fcomplete")
    missing = await visitor.get("/v1/history/abc123/checkpoints/x")
    wrong = await visitor.get("/v1/history/abc123/checkpoints/spec_complete?timestamp=2025-12-30")

    assert found.document == {
        "session_id": "abc123",
        "name": "spec_complete",
        "timestamp": "2025-12-31T11:15:00Z",
        "state": {"spec": "ready"},
        "has_state": True,
        "provenance": found.document["provenance"],
    }
    assert (bare.document["state"], bare.document["has_state"]) == (None, False)
    assert refusal(missing) == (404, "checkpoint_not_found")
    assert missing.document["message"] == "Checkpoint x not found in session abc123"
    assert missing.document["details"] == {"available": ["spec_complete", "spec/complete"]}
    assert refusal(wrong) == (404, "checkpoint_not_found")


async def test_claims_are_listed_newest_first(visitor: Visitor, clock: SettableClock) -> None:
    for number in range(3):
        clock.advance(seconds=1)
        await visitor.post("/v1/history", {**MINIMAL, "duration": number + 1})

    page = (await visitor.get("/v1/history/abc123/observations?limit=2")).document
    cursor = page["next_cursor"]
    rest = (await visitor.get(f"/v1/history/abc123/observations?cursor={cursor}")).document

    assert [each["ordinal"] for each in page["data"]] == [3, 2]
    assert [each["ordinal"] for each in rest["data"]] == [1]
    assert (rest["total"], rest["next_cursor"]) == (3, None)
    bad = await visitor.get("/v1/history/abc123/observations?cursor=x")
    assert refusal(bad) == (400, "invalid_cursor")


async def test_claims_are_listed_by_when_they_were_observed(
    visitor: Visitor, clock: SettableClock
) -> None:
    times = []
    for number in range(4):
        clock.advance(days=1)
        times.append(clock.now().date().isoformat())
        await visitor.post("/v1/history", {**MINIMAL, "duration": number + 1})
    place = f"/v1/history/abc123/observations?from={times[0]}&to={times[2]}&limit=2"

    page = (await visitor.get(place)).document
    rest = (await visitor.get(f"{place}&cursor={page['next_cursor']}")).document
    other = await visitor.get(f"{place}&to={times[3]}&cursor={page['next_cursor']}")
    wrong = await visitor.get("/v1/history/abc123/observations?from=soon")

    assert [each["ordinal"] for each in (*page["data"], *rest["data"])] == [3, 2, 1]
    assert (page["total"], rest["total"], rest["next_cursor"]) == (3, 3, None)
    assert other.status == 400
    assert (refusal(wrong), wrong.document["details"]["field"]) == (
        (400, "schema_validation_failed"),
        "from",
    )


async def test_what_did_not_change_is_not_sent_again(visitor: Visitor) -> None:
    await visitor.post("/v1/history", WHOLE)
    for path in ("/v1/history/abc123", "/v1/history/abc123/checkpoints/spec_complete"):
        first = await visitor.get(path)
        again = await visitor.get(path, if_none_match=first.headers["etag"])
        assert (again.status, again.body) == (304, b"")


async def test_any_session_id_has_a_place(visitor: Visitor) -> None:
    for name in ("a/b?c#d", "séance 1", "%2F%2F%2F", "....."):
        told = await visitor.post("/v1/history", {**MINIMAL, "session_id": name})
        found = await visitor.asked("GET", told.headers["location"])
        assert found.document["snapshot"]["session_id"] == name


async def test_numbers_keep_their_size(visitor: Visitor) -> None:
    large = 2**80 + 1
    raw = json.dumps(
        {**MINIMAL, "actions": [{"type": "a", "result": "b", "details": {"n": large}}]}
    )
    await visitor.post("/v1/history", raw.encode())

    found = (await visitor.get("/v1/history/abc123")).document
    assert found["snapshot"]["actions"][0]["details"] == {"n": large}


async def test_each_owner_has_a_history_of_their_own(visitor: Visitor) -> None:
    other = await visitor.as_("somebody")
    await visitor.post("/v1/history", WHOLE)
    theirs = await other.post("/v1/history", MINIMAL, idempotency_key="k")
    mine = await visitor.post(
        "/v1/history", {**MINIMAL, "session_id": "other"}, idempotency_key="k"
    )

    assert (theirs.status, mine.status) == (201, 201)
    assert theirs.document["entity_id"] != ENTITY
    found = (await other.get("/v1/history/abc123")).document
    assert found["snapshot"]["checkpoints"] == []
    assert names(await listed(other)) == ["abc123"]
    cursor = (await listed(visitor, "?limit=1"))["next_cursor"]
    assert refusal(await other.get(f"/v1/history?limit=1&cursor={cursor}")) == (
        400,
        "invalid_cursor",
    )
    foreign, missing = await other.get("/v1/history/other"), await other.get("/v1/history/nobody")
    assert (foreign.status, foreign.body) == (missing.status, missing.body)


async def test_whoever_may_only_read_writes_nothing(visitor: Visitor) -> None:
    reader = await visitor.as_("local", Scope.READ)

    assert refusal(await reader.post("/v1/history", MINIMAL)) == (403, "forbidden")
    assert (await reader.get("/v1/history")).document == {
        "data": [],
        "total": 0,
        "next_cursor": None,
    }


async def listed(visitor: Visitor, query: str = "") -> dict[str, Any]:
    answer: Answer = await visitor.get(f"/v1/history{query}")
    assert answer.status == 200, answer.body
    document: dict[str, Any] = answer.document
    return document


def names(page: dict[str, Any]) -> list[str]:
    return [each["snapshot"]["session_id"] for each in page["data"]]
