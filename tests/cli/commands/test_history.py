"""`holdfast history …`: telling and reading what agents did, at a terminal and in pipes."""

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Cli
from tests.marks import each_case

SESSION: dict[str, Any] = {
    "session_id": "abc123",
    "actions": [{"type": "create_feature_unit", "result": "success"}],
    "checkpoints": [
        {"name": "spec_complete", "timestamp": "2025-12-31T11:15:00Z", "state": {"spec": "ready"}}
    ],
    "outcomes": [{"type": "feature_unit", "id": "FU-061"}],
    "started_at": "2025-12-31T11:00:00Z",
    "ended_at": "2025-12-31T12:00:00Z",
    "duration": 3600,
}
ENTITY = "ent_31ed4722e1f7ffa6ea9a9ed8"
UNIT = {
    "id": "FU-061",
    "description": "Sessions are written down",
    "status": "planning",
    "created_at": "2025-12-30T11:20:00Z",
    "updated_at": "2025-12-31T11:20:00Z",
}


def submitted(cli: Cli, **changes: Any) -> Any:
    return cli("history", "submit", "--json", stdin=json.dumps({**SESSION, **changes})).document


def test_what_is_submitted_is_shown(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    file.write_text(json.dumps(SESSION))
    told = cli("history", "submit", str(file))
    again = cli("history", "submit", "-", stdin=json.dumps(SESSION))
    shown = cli("history", "query", "abc123")
    document = cli("history", "query", "abc123", "--json").document

    (claim,) = document["observations"]
    assert told.out == f"{ENTITY}: observation 1, {claim['id']}\n"
    assert again.out == f"{ENTITY}: already known, {claim['id']}\n"
    assert shown.out == (
        "session       abc123\n"
        f"entity        {ENTITY}\n"
        "started       2025-12-31T11:00:00Z\n"
        "ended         2025-12-31T12:00:00Z\n"
        "duration      3600 s\n"
        "observations  1\n"
        "ACTION\tRESULT\tWHEN\n"
        "create_feature_unit\tsuccess\t-\n"
        "CHECKPOINT\tREACHED\n"
        "spec_complete\t2025-12-31T11:15:00Z\n"
        "OUTCOME\tID\n"
        "feature_unit\tFU-061\n"
    )
    assert document["snapshot"] == SESSION
    assert (claim["source"], claim["kind"]) == ("holdfast", "submit")


def test_a_bad_document_is_refused_with_every_fault(cli: Cli, tmp_path: Path) -> None:
    bad = json.dumps({"session_id": "abc", "actions": []})
    plain = cli("history", "submit", stdin=bad)
    told = cli("history", "submit", "--json", stdin=bad)
    torn = cli("history", "submit", stdin="{")
    missing = cli("history", "submit", str(tmp_path / "nothing.json"))
    large = cli("history", "submit", stdin=" " * (8 << 20) + "{}")

    assert (plain.code, plain.out) == (2, "")
    assert plain.err.splitlines() == [
        "also: Actions array must have at least 1 item",
        "also: started_at is required",
        "holdfast: session_id must have at least 5 characters.",
    ]
    assert told.code == 2
    assert told.error["error"] == "schema_validation_failed"
    assert [each["field"] for each in told.error["details"]["issues"]] == [
        "session_id",
        "actions",
        "started_at",
    ]
    assert (torn.code, "not JSON" in torn.err) == (2, True)
    assert (missing.code, "cannot be read" in missing.err) == (4, True)
    assert (large.code, "8 MiB" in large.err) == (2, True)


def test_odd_things_are_told_on_the_side(cli: Cli) -> None:
    ran = cli("history", "submit", stdin=json.dumps({**SESSION, "duration": 5}))

    assert (ran.code, ran.err.startswith("warning: duration")) == (0, True)


def test_a_key_is_taken_from_the_line_or_the_document(cli: Cli) -> None:
    first = submitted(cli, idempotency_key="k")
    submitted(cli, duration=None)
    again = cli("history", "submit", "--idempotency-key", "k", "--json", stdin=json.dumps(SESSION))
    other = cli(
        "history", "submit", "--idempotency-key", "k", stdin=json.dumps({**SESSION, "duration": 1})
    )

    assert again.document["observation_id"] == first["observation_id"]
    assert again.document["deduplicated"] is True
    assert (other.code, "another key" in other.err) == (5, True)


def test_what_is_left_of_a_session_that_was_deleted_began_when_it_was_first_spoken_of(
    cli: Cli,
) -> None:
    cli("chat", "hello")
    (session,) = cli("sessions", "list", "--json").document["data"]
    cli("history", "correct", session["id"], "duration", "5")
    (claim,) = cli("history", "observations", session["id"], "--json").document["data"]
    cli("sessions", "delete", session["id"], "--yes")

    table, one = cli("history", "query"), cli("history", "query", session["id"])

    began = claim["observed_at"]
    assert (table.code, table.out.splitlines()[1]) == (0, f"{session['id']}\t{began}\t-\t0\t0\t-")
    assert (one.code, f"started       {began}" in one.out.splitlines()) == (0, True)


def test_sessions_are_listed_with_all_filters(cli: Cli) -> None:
    for number in range(3):
        submitted(cli, session_id=f"sess{number}", started_at=f"2025-12-2{number}")

    table = cli("history", "query", "--limit", "2")
    page = cli("history", "query", "--limit", "2", "--json").document
    rest = cli(
        "history", "query", "--limit", "2", "--cursor", page["next_cursor"], "--json"
    ).document
    order = cli("history", "query", "--order-by", "session_id", "--order", "asc", "--offset", "1")
    past = cli("history", "query", "--at", "2020-01-01", "--json").document
    early = cli("history", "query", "sess1", "--at-ingested", "2020-01-01")

    assert table.out.splitlines()[1:] == [
        "sess2\t2025-12-22\t2025-12-31T12:00:00Z\t1\t1\t-",
        "sess1\t2025-12-21\t2025-12-31T12:00:00Z\t1\t1\t-",
    ]
    assert (page["total"], [each["snapshot"]["session_id"] for each in rest["data"]]) == (
        3,
        ["sess0"],
    )
    assert [line.split("\t")[0] for line in order.out.splitlines()] == ["SESSION", "sess1", "sess2"]
    assert past == {"data": [], "total": 0, "next_cursor": None}
    assert early.out == "Nothing was recorded at that time.\n"


@each_case(
    ("words", "code"),
    [
        (("query", "--order-by", "x"), 2),
        (("query", "--order", "up"), 2),
        (("query", "--limit", "0"), 2),
        (("query", "--offset", "2001"), 2),
        (("query", "--at", "yesterday"), 2),
        (("query", "--cursor", "x"), 2),
        (("query", "nobody"), 4),
        (("observations", "nobody"), 4),
        (("checkpoint", "nobody", "x"), 4),
        (("correct", "nobody", "duration", "1"), 4),
        (("correct", "abc123", "session_id", "other"), 2),
        (("delete", "nobody"), 4),
        (("restore", "nobody"), 4),
        (("entities", "x"), 2),
        (("entities", "release", "--filters", "{"), 2),
        (("entities", "release", "--filters", "[]"), 2),
        (("submit-entity", "agent_session"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_what_cannot_be_is_refused(cli: Cli, words: tuple[str, ...], code: int) -> None:
    assert cli("history", *words).code == code


def test_nothing_is_told_in_words(cli: Cli) -> None:
    assert "holdfast history submit" in cli("history", "query").err
    assert "submit-entity" in cli("history", "entities", "release").err


def test_a_field_is_corrected_and_history_hidden_and_shown(cli: Cli) -> None:
    submitted(cli)
    corrected = cli("history", "correct", "abc123", "ended_at", "2025-12-31T13:00:00Z")
    cleared = cli(
        "history", "correct", "abc123", "duration", "null", "--reason", "unknown", "--json"
    )
    snapshot = cli("history", "query", "abc123", "--json").document["snapshot"]
    hidden = cli("history", "delete", "abc123", "--reason", "private")
    missing = cli("history", "query", "abc123")
    shown = cli("history", "restore", "abc123", "--json").document
    words = cli("history", "restore", "abc123")

    assert corrected.out.startswith(f"{ENTITY}: observation 2, obs_")
    assert cleared.document["observation_count"] == 3
    assert (snapshot["ended_at"], "duration" in snapshot) == ("2025-12-31T13:00:00Z", False)
    assert hidden.out == "Hidden; `holdfast history restore` shows it again.\n"
    assert missing.code == 4
    assert (shown["entity_id"], shown["deleted"]) == (ENTITY, False)
    assert words.out == "Restored.\n"


def test_claims_and_checkpoints_are_read(cli: Cli) -> None:
    submitted(cli)
    submitted(cli, checkpoints=[{"name": "bare", "timestamp": "2025-12-31T11:30:00Z"}])
    claims = cli("history", "observations", "abc123")
    page = cli("history", "observations", "abc123", "--limit", "1", "--json").document
    state = cli("history", "checkpoint", "abc123", "spec_complete")
    bare = cli("history", "checkpoint", "abc123", "bare")
    document = cli("history", "checkpoint", "abc123", "spec_complete", "--json").document
    missing = cli("history", "checkpoint", "abc123", "x", "--json")

    rows = [line.split("\t") for line in claims.out.splitlines()]
    assert rows[0] == ["OBSERVATION", "NUMBER", "KIND", "OBSERVED", "SOURCE"]
    assert [row[1:3] for row in rows[1:]] == [["2", "submit"], ["1", "submit"]]
    assert (page["total"], len(page["data"])) == (2, 1)
    assert (state.out, bare.out) == (
        '{"spec":"ready"}\n',
        "The checkpoint has no resume information.\n",
    )
    assert (document["has_state"], document["timestamp"]) == (True, "2025-12-31T11:15:00Z")
    assert missing.error["message"] == "Checkpoint x not found in session abc123"


def test_entities_are_told_and_listed(cli: Cli) -> None:
    told = cli("history", "submit-entity", "feature_unit", stdin=json.dumps(UNIT))
    bad = cli("history", "submit-entity", "feature_unit", stdin="{}")
    table = cli("history", "entities", "feature_unit", "--filters", '{"status":"planning"}')
    none = cli("history", "entities", "feature_unit", "--filters", '{"status":"x"}', "--json")

    assert told.out.startswith("ent_0d066099de6edd63f03ad189: observation 1")
    assert (bad.code, "also: description is required" in bad.err) == (2, True)
    assert table.out == (
        "ENTITY\tSTATUS\tWHAT\n"
        "ent_0d066099de6edd63f03ad189\tplanning\tFU-061 Sessions are written down\n"
    )
    assert none.document == {"data": [], "total": 0, "next_cursor": None}


def test_a_session_of_ours_has_a_history_without_being_told(cli: Cli, chatted: str) -> None:
    shown = cli("history", "query", chatted)
    document = cli("history", "query", chatted, "--json").document

    assert "hosted        yes" in shown.out
    assert (document["hosted"], document["observation_count"]) == (True, 0)
    assert document["snapshot"]["actions"][0]["type"] == "session_opened"
