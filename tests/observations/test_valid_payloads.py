"""The door of the observation log: what of a session is accepted, and how the rest is refused."""

import json
from typing import Any

import pytest
from hypothesis import given

from holdfast.domain.errors import Code, Invalid
from holdfast.observations.claims import (
    BYTES_MOST,
    CORRECTABLE,
    accept_correction,
    accept_deletion,
    accept_payload,
)
from holdfast.observations.issues import WarningCode
from tests.domain.strategies import JSON
from tests.marks import demands, each_case
from tests.observations.claims import COMPLETE, MINIMAL, SESSION, UPDATE, a_payload, issues_of

ACTION = {"type": "run_tests", "result": "success"}
CHECKPOINT = {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z"}


@demands(
    "S3-001",
    "S3-001i",
    "S3-001j",
    "S3-001k",
    "S3-001d",
    "S3-001e",
    "S3-001f",
    "S3-001h",
    "S3-002b",
    "S3-002c",
    "S3-002e",
    "S3-002h",
    "S3-002i",
)
@each_case("payload", [MINIMAL, COMPLETE, UPDATE])
def test_the_payloads_of_the_seed_are_accepted(payload: dict[str, Any]) -> None:
    told = accept_payload(SESSION, payload)

    assert (told.entity_type, told.key, told.fields) == (SESSION, "abc123", payload)


def test_what_is_accepted_is_kept_in_its_canonical_form() -> None:
    told = accept_payload(SESSION, a_payload(duration=3600.0))

    assert told.content == (
        b'{"actions":[{"result":"success","type":"create_feature_unit"}],"duration":3600,'
        b'"session_id":"abc123","started_at":"2025-12-31T11:00:00Z"}'
    )
    assert json.dumps(told.fields["duration"]) == "3600"


def test_the_hash_of_the_minimal_payload_is_that_of_its_canonical_form() -> None:
    told = accept_payload(SESSION, dict(MINIMAL))

    assert told.content_hash == "6b3ae90e760788a70594e7cba07bd2fec49c123c75d89d662f68a50cf3657750"


@demands("S3-020", "S3-024", "S3-001l")
def test_an_empty_list_of_actions_is_refused_with_the_seeds_words() -> None:
    with pytest.raises(Invalid) as refused:
        accept_payload(SESSION, a_payload(actions=[]))

    body = refused.value.body()
    issues = body["details"].pop("issues")
    assert refused.value.code is Code.SCHEMA_VALIDATION_FAILED
    assert json.dumps(body["details"], separators=(",", ":")) == (
        '{"field":"actions","value":[],"expected":"min_length: 1",'
        '"message":"Actions array must have at least 1 item"}'
    )
    assert issues == [body["details"]]
    assert body["message"] == (
        "Actions array must have at least 1 item. To record a start, send one action such as "
        '{"type":"session_start","result":"success"}.'
    )


@demands(
    "S3-001b",
    "S3-001c",
    "S3-001d",
    "S3-001e",
    "S3-001f",
    "S3-001g",
    "S3-001h",
    "S3-001n",
    "S3-001o",
    "S3-001p",
    "S3-001q",
    "S3-001r",
    "S3-002",
    "S3-002b",
    "S3-002c",
    "S3-002d",
    "S3-002e",
    "S3-002f",
    "S3-002g",
    "S3-002h",
    "S3-002i",
    "S3-002j",
    "S3-006",
    "S3-001m",
)
@each_case(
    ("changes", "field", "expected"),
    [
        ({"session_id": "abcd"}, "session_id", "min_length: 5"),
        ({"session_id": "x" * 513}, "session_id", "max_length: 512"),
        ({"session_id": 12345}, "session_id", "type: string"),
        ({"session_id": None}, "session_id", "required"),
        ({"session_id": " abc123"}, "session_id", "no_surrounding_whitespace"),
        ({"session_id": "abc123\u00a0"}, "session_id", "no_surrounding_whitespace"),
        ({"session_id": "abc\x00123"}, "session_id", "no_control_characters"),
        ({"session_id": "abc\x85123"}, "session_id", "no_control_characters"),
        ({"session_id": "abc\ud800123"}, "session_id", "pattern: well-formed Unicode"),
        ({"actions": None}, "actions", "required"),
        ({"actions": {}}, "actions", "type: array"),
        ({"actions": []}, "actions", "min_length: 1"),
        ({"actions": [ACTION] * 10_001}, "actions", "max_length: 10000"),
        ({"actions": ["run"]}, "actions[0]", "type: object"),
        ({"actions": [None]}, "actions[0]", "type: object"),
        ({"actions": [ACTION, {"result": "success"}]}, "actions[1].type", "required"),
        ({"actions": [{"type": "run_tests"}]}, "actions[0].result", "required"),
        ({"actions": [ACTION | {"type": None}]}, "actions[0].type", "required"),
        ({"actions": [ACTION | {"type": " "}]}, "actions[0].type", "min_length: 1"),
        ({"actions": [ACTION | {"result": ""}]}, "actions[0].result", "min_length: 1"),
        ({"actions": [ACTION | {"result": "x" * 513}]}, "actions[0].result", "max_length: 512"),
        ({"actions": [ACTION | {"result": True}]}, "actions[0].result", "type: string"),
        ({"actions": [ACTION | {"details": []}]}, "actions[0].details", "type: object"),
        ({"actions": [ACTION | {"timestamp": 1}]}, "actions[0].timestamp", "type: string"),
        ({"actions": [ACTION | {"timestamp": "now"}]}, "actions[0].timestamp", "format: iso_8601"),
        ({"checkpoints": {}}, "checkpoints", "type: array"),
        ({"checkpoints": [CHECKPOINT] * 1_001}, "checkpoints", "max_length: 1000"),
        ({"checkpoints": [{"name": "a"}]}, "checkpoints[0].timestamp", "required"),
        ({"checkpoints": [{"timestamp": "2025-12-31"}]}, "checkpoints[0].name", "required"),
        ({"checkpoints": [CHECKPOINT | {"name": 5}]}, "checkpoints[0].name", "type: string"),
        ({"checkpoints": [CHECKPOINT | {"state": "x"}]}, "checkpoints[0].state", "type: object"),
        ({"outcomes": "done"}, "outcomes", "type: array"),
        ({"outcomes": [{"type": "x"}] * 1_001}, "outcomes", "max_length: 1000"),
        ({"outcomes": [{}]}, "outcomes[0].type", "required"),
        ({"outcomes": [{"type": "x", "id": 61}]}, "outcomes[0].id", "type: string"),
        ({"outcomes": [{"type": "x", "details": 1}]}, "outcomes[0].details", "type: object"),
        ({"duration": 0}, "duration", "positive"),
        ({"duration": -1}, "duration", "positive"),
        ({"duration": True}, "duration", "type: number"),
        ({"duration": "60"}, "duration", "type: number"),
        ({"duration": float("inf")}, "duration", "finite"),
        ({"duration": float("nan")}, "duration", "finite"),
        ({"duration": 10**1000}, "duration", "finite"),
        ({"started_at": None}, "started_at", "required"),
        ({"started_at": "yesterday"}, "started_at", "format: iso_8601"),
        ({"started_at": 1767000000}, "started_at", "type: string"),
        ({"ended_at": "2025-12-31T10:59:59.999Z"}, "ended_at", "gte: started_at"),
        ({"ended_at": "2025-12-31T12:59:59.9999+02:00"}, "ended_at", "gte: started_at"),
        ({"ended_at": "later"}, "ended_at", "format: iso_8601"),
        ({"_deleted": True}, "_deleted", "not_reserved"),
        ({"note": "x" * 65_537}, "note", "max_length: 65536"),
        ({"note": {"x": ["\udfff"]}}, "note.x[0]", "pattern: well-formed Unicode"),
        ({"note": {"\udfff": 1}}, "note.\ufffd", "pattern: well-formed Unicode"),
        ({"note": object()}, "note", "type: string|number|array|object"),
        ({"note": {5: 1}}, "note.5", "type: string|number|array|object"),
    ],
)
def test_a_violated_rule_is_one_issue(changes: dict[str, Any], field: str, expected: str) -> None:
    assert issues_of(a_payload(**changes)) == [(field, expected)]


@demands("S3-001b", "S3-001c", "S3-001g")
@each_case("name", ["session_id", "actions", "started_at"])
def test_what_is_required_and_missing_is_one_issue(name: str) -> None:
    payload = {key: value for key, value in MINIMAL.items() if key != name}

    assert issues_of(payload) == [(name, "required")]


@each_case("payload", [None, [], "x", 5, True])
def test_what_is_no_object_is_refused_as_a_whole(payload: Any) -> None:
    assert issues_of(payload) == [("", "type: object")]


def test_issues_stand_in_the_order_of_the_schema_and_of_the_items() -> None:
    payload = {
        "zzz": float("nan"),
        "_own": 1,
        "ended_at": "x",
        "duration": 0,
        "outcomes": [{}],
        "checkpoints": [{"state": {"b": float("inf")}}, {}],
        "actions": [{}, ACTION, {"details": {"\ud800": 1}}],
        "session_id": "abc",
    }

    assert [field for field, _ in issues_of(payload)] == [
        "session_id",
        "actions[0].type",
        "actions[0].result",
        "actions[2].type",
        "actions[2].result",
        "actions[2].details.\ufffd",
        "checkpoints[0].name",
        "checkpoints[0].timestamp",
        "checkpoints[0].state.b",
        "checkpoints[1].name",
        "checkpoints[1].timestamp",
        "outcomes[0].type",
        "duration",
        "started_at",
        "ended_at",
        "_own",
        "zzz",
    ]


def test_at_most_fifty_issues_are_told() -> None:
    issues = issues_of(a_payload(actions=[{}] * 100))

    assert len(issues) == 50
    assert issues[-1] == ("actions[24].result", "required")


@demands("S3-001h", "S3-001p", "S3-001r", "S3-001g", "S3-006")
@each_case(
    "changes",
    [
        {"session_id": "Abc 12-ü"},
        {"session_id": "x" * 512},
        {"session_id": "😀😀😀😀😀"},
        {"actions": [ACTION | {"details": None, "timestamp": None, "extra": [1]}]},
        {"checkpoints": [], "outcomes": []},
        {"checkpoints": [CHECKPOINT | {"state": None}]},
        {"outcomes": [{"type": "x", "id": None, "details": None}]},
        {"outcomes": [{"type": "x", "id": "", "details": {}}]},
        {"duration": 0.001},
        {"duration": 10**999},
        {"ended_at": "2025-12-31T11:00:00.000999Z"},
        {"ended_at": "2025-12-31T13:00:00+02:00"},
        {"duration": None, "ended_at": None, "checkpoints": None, "outcomes": None},
        {"note": "x" * 65_536},
    ],
)
def test_what_the_rules_allow_is_accepted(changes: dict[str, Any]) -> None:
    payload = a_payload(**changes)

    assert accept_payload(SESSION, payload).fields == payload


@demands("S3-004", "S3-004b", "S3-002k")
def test_types_and_names_are_open_vocabularies() -> None:
    common = ["create_feature_unit", "run_tests", "commit", "deploy", "validate", "analyze"]
    names = ["spec_complete", "tests_passing", "committed", "deployed", "validated", "whatever"]
    payload = a_payload(
        actions=[{"type": each, "result": "failure"} for each in [*common, "document", "dance"]],
        checkpoints=[{"name": each, "timestamp": "2025-12-31T11:00:00Z"} for each in names],
        outcomes=[{"type": "anything"}],
    )

    assert accept_payload(SESSION, payload).warnings == ()


@demands("S3-011b")
def test_the_seeds_object_for_a_new_session_is_refused_with_how_to_record_a_start() -> None:
    with pytest.raises(Invalid, match="To record a start, send one action"):
        accept_payload(SESSION, {"session_id": "abc123", "actions": [], "checkpoints": []})


@demands("S3-011")
def test_a_start_is_recorded_with_one_action() -> None:
    start = [{"type": "session_start", "result": "success"}]

    assert accept_payload(SESSION, a_payload(actions=start)).warnings == ()


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_payload_may_be_thirty_two_levels_deep() -> None:
    # The payload is the first level.
    assert issues_of(a_payload(note=_nested(31))) == []
    assert issues_of(a_payload(note=_nested(32))) == [("note" + "[0]" * 31, "max_depth: 32")]
    assert issues_of(a_payload(note=_nested(5_000))) == [("note" + "[0]" * 31, "max_depth: 32")]


def test_a_payload_may_have_a_mebibyte() -> None:
    size = len(accept_payload(SESSION, a_payload(note=[])).content)
    texts = ["x" * 65_000] * 16
    room = BYTES_MOST - size - sum(len(each) + 3 for each in texts) - 2

    assert len(accept_payload(SESSION, a_payload(note=[*texts, "y" * room])).content) == BYTES_MOST
    assert issues_of(a_payload(note=[*texts, "y" * (room + 1)])) == [("", "max_bytes: 1048576")]


@given(JSON)
def test_whatever_is_sent_is_accepted_or_refused(payload: Any) -> None:
    assert issues_of(payload) != []
    assert isinstance(issues_of(a_payload(note=payload, actions=payload)), list)


@each_case(
    ("field", "value", "codes"),
    [
        ("actions", [{"type": "run", "result": "odd"}], [WarningCode.NONSTANDARD_RESULT]),
        ("checkpoints", [CHECKPOINT], []),
        ("outcomes", [], []),
        ("duration", None, [WarningCode.NULL_CLEARED_FIELD]),
        ("duration", 5, []),
        ("started_at", "2025-12-31", [WarningCode.TIMESTAMP_ASSUMED_UTC]),
        ("ended_at", None, [WarningCode.NULL_CLEARED_FIELD]),
    ],
)
def test_a_correction_is_judged_like_a_submission_of_its_field(
    field: str, value: Any, codes: list[WarningCode]
) -> None:
    told = accept_correction("abc123", field, value)

    assert (told.key, told.fields) == ("abc123", {field: value})
    assert [warning.code for warning in told.warnings] == codes


@each_case(
    ("arguments", "field", "expected"),
    [
        (("abcd", "duration", 5), "session_id", "min_length: 5"),
        (("abc123", "session_id", "abc124"), "field", f"one of: {', '.join(CORRECTABLE)}"),
        (("abc123", "title", "x"), "field", f"one of: {', '.join(CORRECTABLE)}"),
        (("abc123", None, "x"), "field", f"one of: {', '.join(CORRECTABLE)}"),
        (("abc123", "actions", []), "actions", "min_length: 1"),
        (("abc123", "actions", None), "actions", "required"),
        (("abc123", "checkpoints", None), "checkpoints", "required"),
        (("abc123", "outcomes", [{}]), "outcomes[0].type", "required"),
        (("abc123", "started_at", None), "started_at", "required"),
        (("abc123", "duration", 0), "duration", "positive"),
    ],
)
def test_a_correction_that_violates_a_rule_is_refused(
    arguments: tuple[Any, Any, Any], field: str, expected: str
) -> None:
    with pytest.raises(Invalid) as refused:
        accept_correction(*arguments)

    assert (refused.value.details["field"], refused.value.details["expected"]) == (field, expected)


def test_corrections_and_deletions_may_say_why() -> None:
    corrected = accept_correction("abc123", "duration", 5, reason="typo")
    deleted = accept_deletion("abc123", is_deleted=True, reason="private")
    restored = accept_deletion("abc123", is_deleted=False)

    assert corrected.fields == {"duration": 5, "reason": "typo"}
    assert corrected.warnings == ()
    assert deleted.fields == {"_deleted": True, "reason": "private"}
    assert restored.fields == {"_deleted": False}


@pytest.mark.parametrize("reason", [5, "x" * 513])
def test_a_reason_is_a_short_text(reason: Any) -> None:
    with pytest.raises(Invalid) as refused:
        accept_deletion("abc123", is_deleted=True, reason=reason)

    assert refused.value.details["field"] == "reason"
