"""The journal as an observation: what our own record of a session shows without being told."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.domain.calls import CallState, Settlement
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolError,
)
from holdfast.domain.sessions import ForkPoint, Status
from holdfast.domain.time import microseconds, milliseconds
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import accept_correction, accept_payload
from holdfast.observations.hosted_session import RESULTS, SETTLED, HostedSessionView
from holdfast.observations.merge import resolve
from holdfast.observations.model import Entity, Observation, ObservationKind
from tests.builders import (
    SESSION_ID,
    a_call,
    a_message,
    a_session,
    a_tool_call,
    a_tool_result,
    a_transcript,
)
from tests.marks import each_case
from tests.observations.claims import SESSION, entered

OPENED = datetime(2026, 1, 2, 3, 0, 0, 999, tzinfo=UTC)
REFERENCE = f"journal:{SESSION_ID}"


def at(minute: float) -> datetime:
    """Return an instant so many minutes after the session was opened."""
    return OPENED + timedelta(minutes=minute)


def called(minute: float, **changes: Any) -> Message:
    """Return the row of a call."""
    return a_message(
        role=Role.TOOL_CALL, parts=(a_tool_call(**changes),), at=microseconds(at(minute)), turn=2
    )


def answered(minute: float, **changes: Any) -> Message:
    """Return the row of a result."""
    return a_message(
        role=Role.TOOL_RESULT,
        parts=(a_tool_result(**changes),),
        at=microseconds(at(minute)),
        turn=2,
    )


def noticed(minute: float, text: str, code: NoticeCode = NoticeCode.CALL_SETTLED) -> Message:
    """Return a row of our own."""
    notice = Notice(code=code, text=text)
    return a_message(role=Role.SYSTEM, parts=(notice,), at=microseconds(at(minute)), turn=0)


def a_journal(*rows: Message, calls: tuple[Any, ...] = (), **changes: Any) -> HostedSessionView:
    """Return the journal of a session with these rows."""
    written = max([OPENED, *(row.created_at for row in rows), changes.get("finished_at", OPENED)])
    session = a_session(created_at=OPENED, updated_at=written, **changes)
    return HostedSessionView(session=session, messages=a_transcript(*rows), calls=calls)


def shown(journal: HostedSessionView, *claims: Observation, horizon: AsOf = EVERYTHING) -> Entity:
    """Return what is known of a session of ours."""
    return resolve(journal.subject, claims, hosted=journal, horizon=horizon)


def told(
    ordinal: int,
    *,
    minute: float = 60,
    kind: ObservationKind = ObservationKind.SUBMIT,
    **fields: Any,
) -> Observation:
    """Return a claim about the session from outside."""
    payload = {
        "session_id": SESSION_ID,
        "actions": [{"type": "noted", "result": "success"}],
        "started_at": "2026-01-02T04:00:00Z",
        **fields,
    }
    claim = entered(accept_payload(SESSION, payload), ordinal, kind=kind)
    return _at(claim, minute)


def _at(claim: Observation, minute: float) -> Observation:
    return msgspec.structs.replace(
        claim, observed_ms=milliseconds(at(minute).replace(microsecond=0))
    )


def test_a_session_that_was_just_opened_shows_that() -> None:
    journal = a_journal()

    entity = shown(journal)

    assert entity.snapshot == {
        "session_id": SESSION_ID,
        "actions": [
            {"type": "session_opened", "result": "success", "timestamp": "2026-01-02T03:00:00.000Z"}
        ],
        "checkpoints": [],
        "outcomes": [],
        "started_at": "2026-01-02T03:00:00.000Z",
    }
    assert entity.provenance == {
        "session_id": (REFERENCE,),
        "actions": (REFERENCE,),
        "checkpoints": (REFERENCE,),
        "outcomes": (),
        "started_at": (REFERENCE,),
    }
    assert (entity.hosted, entity.observation_count) == (True, 0)
    assert entity.last_observation_at == OPENED.replace(microsecond=0)


def test_every_result_is_an_action_and_shows_neither_arguments_nor_output() -> None:
    failed = ToolError(code="not_found", message="There is no file of that secret name.")
    journal = a_journal(
        a_message("please", at=microseconds(at(1))),
        called(2, arguments={"path": "secret"}),
        answered(3, result="secret"),
        answered(4, call_id="call-2", status=ResultStatus.ERROR, error=failed, result=None),
    )

    actions = shown(journal).snapshot["actions"]

    assert actions[1:] == [
        {
            "type": "read_file",
            "result": "success",
            "details": {"call_id": "call-1", "turn": 2},
            "timestamp": "2026-01-02T03:03:00.000Z",
        },
        {
            "type": "read_file",
            "result": "failure",
            "details": {"call_id": "call-2", "turn": 2, "error": "not_found"},
            "timestamp": "2026-01-02T03:04:00.000Z",
        },
    ]
    assert "secret" not in str(actions)


@each_case("status", ResultStatus)
def test_every_status_has_a_word(status: ResultStatus) -> None:
    journal = a_journal(answered(1, status=status))

    assert shown(journal).snapshot["actions"][1]["result"] == RESULTS[status]
    assert set(RESULTS) == set(ResultStatus)


@each_case("how", Settlement)
def test_a_settled_call_takes_the_place_of_the_unknown_one(how: Settlement) -> None:
    settled = a_call(state=CallState.SETTLED, settlement=how)
    journal = a_journal(
        answered(1, status=ResultStatus.UNKNOWN),
        answered(2, call_id="call-2"),
        noticed(3, "The unknown outcome of read_file (call-1) was settled: it is …"),
        calls=(settled, a_call(id=CallId("call-2"), state=CallState.FINISHED)),
    )

    results = [each["result"] for each in shown(journal).snapshot["actions"]]
    before = shown(journal, horizon=AsOf(at=at(2)))

    assert results == ["success", SETTLED[how], "success"]
    assert SETTLED == {
        # How the retry came out is told by an action of its own.
        Settlement.RETRIED: "unknown",
        Settlement.SKIPPED: "skipped",
        Settlement.MARKED_DONE: "success",
    }
    assert before.snapshot["actions"][1]["result"] == "unknown"


def test_a_call_that_is_unknown_again_reads_unknown() -> None:
    journal = a_journal(
        answered(1, status=ResultStatus.UNKNOWN),
        noticed(2, "The unknown outcome of read_file (call-1) was settled: it will be run again"),
        calls=(a_call(state=CallState.UNKNOWN),),
    )

    assert shown(journal).snapshot["actions"][1]["result"] == "unknown"


def test_a_checkpoint_call_that_ended_well_is_a_checkpoint() -> None:
    state = {"step": 3, "share": 0.5, "whole": 1.0}
    journal = a_journal(
        called(1, name="checkpoint", arguments={"name": "ready", "state": state}),
        answered(2, name="checkpoint"),
        called(3, name="checkpoint", id="call-2", arguments={"name": "bare", "state": None}),
        answered(4, name="checkpoint", call_id="call-2"),
        called(5, name="checkpoint", id="call-3", arguments={"name": "failed"}),
        answered(6, name="checkpoint", call_id="call-3", status=ResultStatus.ERROR),
        called(7, name="checkpoint", id="call-4", arguments={"name": "open"}),
    )

    entity = shown(journal)

    assert entity.snapshot["checkpoints"] == [
        {"name": "ready", "state": state, "timestamp": "2026-01-02T03:01:00.000Z"},
        {"name": "bare", "timestamp": "2026-01-02T03:03:00.000Z"},
    ]
    assert [each["type"] for each in entity.snapshot["actions"]] == [
        "session_opened",
        "checkpoint",
        "checkpoint",
        "checkpoint",
    ]


@each_case(
    "arguments", [{}, {"name": " "}, {"name": 5}, {"name": "a", "state": []}, {"title": "x"}]
)
def test_another_tool_of_that_name_is_no_checkpoint(arguments: dict[str, Any]) -> None:
    journal = a_journal(
        called(1, name="checkpoint", arguments=arguments), answered(2, name="checkpoint")
    )

    assert shown(journal).snapshot["checkpoints"] == []


@each_case("status", [Status.COMPLETED, Status.CANCELLED, Status.FAILED])
def test_a_session_that_has_ended_has_an_end_and_a_duration(status: Status) -> None:
    journal = a_journal(status=status, finished_at=at(1.5))

    entity = shown(journal)

    assert entity.snapshot["ended_at"] == "2026-01-02T03:01:30.000Z"
    assert entity.snapshot["duration"] == 90
    assert entity.provenance["duration"] == (REFERENCE,)
    assert entity.last_observation_at == at(1.5).replace(microsecond=0)


@each_case("status", [Status.PENDING, Status.RUNNING, Status.IDLE])
def test_a_session_that_is_open_again_has_no_end(status: Status) -> None:
    snapshot = shown(a_journal(status=status, finished_at=at(1))).snapshot

    assert "ended_at" not in snapshot
    assert "duration" not in snapshot


def test_a_duration_is_as_exact_as_its_times_and_more_than_nothing() -> None:
    short = a_journal(status=Status.COMPLETED, finished_at=OPENED + timedelta(milliseconds=1))
    none = a_journal(status=Status.COMPLETED, finished_at=OPENED)

    assert shown(short).snapshot["duration"] == 0.001
    assert shown(none).snapshot["ended_at"] == "2026-01-02T03:00:00.000Z"
    assert "duration" not in shown(none).snapshot


def test_the_journal_is_cut_by_when_its_rows_were_written() -> None:
    journal = a_journal(
        called(1, name="checkpoint", arguments={"name": "ready"}),
        answered(2, name="checkpoint"),
        answered(3, call_id="call-2"),
        status=Status.COMPLETED,
        finished_at=at(4),
    )

    seen = [
        shown(journal, horizon=AsOf(at=at(2))),
        shown(journal, horizon=AsOf(at_ingested=at(1))),
    ]

    assert [len(each.snapshot["actions"]) for each in seen] == [2, 1]
    assert [len(each.snapshot["checkpoints"]) for each in seen] == [1, 0]
    assert ["ended_at" in each.snapshot for each in seen] == [False, False]
    assert [each.last_observation_at for each in seen] == [
        at(2).replace(microsecond=0),
        at(1).replace(microsecond=0),
    ]


def test_what_a_fork_inherits_is_not_its_history() -> None:
    journal = a_journal(
        answered(-2),
        answered(1, call_id="call-2"),
        forked_from=ForkPoint(session_id=SESSION_ID, sequence=1),
    )

    actions = shown(journal).snapshot["actions"]

    assert [each.get("details", {}).get("call_id") for each in actions] == [None, "call-2"]


def test_what_is_submitted_joins_what_the_journal_shows() -> None:
    journal = a_journal(answered(1), status=Status.COMPLETED, finished_at=at(90))
    claim = told(1, outcomes=[{"type": "made", "id": "FU-1"}], ended_at="2026-01-02T05:00:00Z")

    entity = shown(journal, claim)

    assert entity.entity_id == claim.entity_id
    assert [each["type"] for each in entity.snapshot["actions"]] == [
        "session_opened",
        "read_file",
        "noted",
    ]
    assert entity.provenance["actions"] == (REFERENCE, claim.id)
    assert entity.provenance["outcomes"] == (claim.id,)
    assert entity.provenance["started_at"] == (REFERENCE,)
    # The session ended after somebody said that it had.
    assert entity.snapshot["ended_at"] == "2026-01-02T04:30:00.000Z"
    assert entity.observation_count == 1


def test_who_speaks_after_the_end_is_heard() -> None:
    journal = a_journal(status=Status.COMPLETED, finished_at=at(30))
    claim = told(1, ended_at="2026-01-02T05:00:00Z", started_at="2026-01-02T02:00:00Z")

    entity = shown(journal, claim)

    assert entity.snapshot["ended_at"] == "2026-01-02T05:00:00Z"
    assert entity.snapshot["started_at"] == "2026-01-02T02:00:00Z"
    assert entity.snapshot["duration"] == 1800
    assert entity.provenance["started_at"] == (claim.id,)


def test_an_import_does_not_outweigh_the_journal_and_a_correction_does() -> None:
    journal = a_journal(status=Status.COMPLETED, finished_at=at(30))
    imported = told(1, kind=ObservationKind.IMPORT, duration=5, started_at="2026-01-01T00:00:00Z")
    corrected = entered(
        accept_correction(SESSION_ID, "duration", 7), 2, kind=ObservationKind.CORRECTION
    )

    assert shown(journal, imported).snapshot["duration"] == 1800
    assert shown(journal, imported).snapshot["started_at"] == "2026-01-02T03:00:00.000Z"
    assert shown(journal, imported, _at(corrected, -5)).snapshot["duration"] == 7
