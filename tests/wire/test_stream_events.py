"""The dialect of `--json` streams."""

from typing import Any, get_args

from holdfast.domain.calls import Settlement
from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    CallSettled,
    Channel,
    Failure,
    FailureCode,
    Gap,
    MessageAppended,
    MessageWithdrawn,
    Payload,
    PlanChanged,
    SessionClosed,
    SessionCompacted,
    SessionExported,
    SessionForked,
    SessionObserved,
    SessionOpened,
    SessionResumed,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolProgressed,
    ToolRequested,
    ToolStarted,
    TurnContinued,
    TurnEnded,
    TurnPaused,
    TurnStarted,
    ZoneArchived,
)
from holdfast.domain.ids import ApprovalId, CallId, MessageId, ModelId, SessionId
from holdfast.domain.messages import PlanStep, ResultStatus, Role, ToolError
from holdfast.domain.sessions import Selection, Status, StopReason
from holdfast.domain.tools import Effect, FsTier, ToolClass
from holdfast.domain.waits import WaitReason
from holdfast.wire.stream_events import RESERVED, STOPS, TABLE, StreamVocabulary, gap_line
from tests.builders import AT, MODEL_ID, SESSION_ID, a_context, an_event, an_id
from tests.marks import demands, each_case

OTHER_MODEL = ModelId(an_id(50))
ROW = MessageId(an_id(51))
CALL = CallId("call_1")

OF_EACH: tuple[tuple[Payload, str, dict[str, Any]], ...] = (
    (
        SessionOpened(
            agent="helper",
            context=a_context(
                git_ref="main@0123456789ab",
                active_file="a.py",
                selection=Selection(file="a.py", start_line=1, end_line=2),
                fs_scope_tier=FsTier.PROJECT,
                variables={"snake_case": "a_b"},
            ),
        ),
        "session:started",
        {
            "agentRef": "helper",
            "model": "offline:holdfast",
            "context": {
                "workingDir": "/desk",
                "gitRef": "main@0123456789ab",
                "activeFile": "a.py",
                "selection": {"file": "a.py", "startLine": 1, "endLine": 2},
                "fsScopeTier": "project",
                "variables": {"snake_case": "a_b"},
            },
        },
    ),
    (SessionResumed(), "holdfast:session.resumed", {"turn": 1}),
    (
        SessionClosed(status=Status.COMPLETED, reason="done"),
        "holdfast:session.closed",
        {"turn": 1, "status": "completed", "reason": "done"},
    ),
    (SessionClosed(status=Status.CANCELLED, reason="why"), "session:cancelled", {"reason": "why"}),
    (SessionClosed(status=Status.CANCELLED), "session:cancelled", {}),
    (
        SessionForked(target=SessionId(an_id(52)), sequence=3),
        "holdfast:session.forked",
        {"turn": 1, "target": an_id(52), "sequence": 3},
    ),
    (
        SessionCompacted(
            message_id=ROW,
            kept=2,
            dropped_through=7,
            reason="manual",
            summary="So far.",
            usage=Usage(input=3, output=4),
        ),
        "session:compacted",
        {
            "messageId": ROW,
            "keptMessageCount": 2,
            "droppedThrough": 7,
            "reason": "manual",
            "summary": "So far.",
            "tokensUsed": {"input": 3, "output": 4},
        },
    ),
    (SessionExported(target="a.yaml"), "session:exported", {"workflowPath": "a.yaml"}),
    (
        SessionObserved(target="x"),
        "holdfast:session.observed",
        {"turn": 1, "target": "x"},
    ),
    (TurnStarted(), "session:turn_started", {"turn": 1}),
    (
        TurnEnded(stop_reason=StopReason.STOP, usage=Usage(input=3, output=4), microcents=5),
        "session:turn_completed",
        {
            "turn": 1,
            "stopReason": "stop",
            "tokensUsed": {"input": 3, "output": 4, "model": "offline:holdfast"},
            "costMicrocents": 5,
        },
    ),
    (
        StepStarted(step=1, model_id=MODEL_ID, model="offline:holdfast", message_id=ROW),
        "holdfast:step.started",
        {
            "turn": 1,
            "step": 1,
            "modelId": MODEL_ID,
            "model": "offline:holdfast",
            "messageId": ROW,
            "bound": 0,
        },
    ),
    (
        StepDelta(step=1, message_id=ROW, channel=Channel.TEXT, offset=0, text="\x1b[31mhi"),
        "agent:token",
        {"nodeId": "helper", "token": "\x1b[31mhi", "model": "offline:holdfast", "turn": 1},
    ),
    (
        StepDelta(step=1, message_id=ROW, channel=Channel.REASONING, offset=0, text="hm"),
        "agent:reasoning",
        {"nodeId": "helper", "text": "hm", "model": "offline:holdfast", "turn": 1},
    ),
    (
        StepEnded(
            step=1, message_id=ROW, usage=Usage(input=3, output=4), microcents=5, priced=True
        ),
        "cost:updated",
        {
            "nodeId": "helper",
            "model": "offline:holdfast",
            "inputTokens": 3,
            "outputTokens": 4,
            "costMicrocents": 5,
            "cumulativeCostMicrocents": 5,
            "attemptNumber": 1,
            "priced": True,
        },
    ),
    (
        StepFailed(
            step=1, failure=Failure(code=FailureCode.INTERNAL, message="m", correlation_id="c")
        ),
        "holdfast:step.failed",
        {
            "turn": 1,
            "step": 1,
            "failure": {"code": "internal", "message": "m", "correlationId": "c"},
        },
    ),
    (
        MessageAppended(message_id=ROW, role=Role.USER, sequence=1),
        "holdfast:message.appended",
        {"turn": 1, "messageId": ROW, "role": "user", "sequence": 1},
    ),
    (
        ToolStarted(call_id=CALL, name="read_file", arguments={"path": "a", "long": "x" * 3000}),
        "agent:tool_call",
        {
            "nodeId": "helper",
            "callId": "call_1",
            "toolId": "read_file",
            "toolInput": {"path": "a", "long": "x" * 512 + "…"},
            "model": "offline:holdfast",
        },
    ),
    (
        ToolEnded(call_id=CALL, name="read_file", status=ResultStatus.OK, result={"a": "b\nc"}),
        "agent:tool_result",
        {
            "nodeId": "helper",
            "callId": "call_1",
            "toolId": "read_file",
            "success": True,
            "status": "ok",
            "outputSummary": '{"a":"b\\nc"}',
        },
    ),
    (
        ToolEnded(
            call_id=CALL,
            name="read_file",
            status=ResultStatus.UNKNOWN,
            failure=ToolError(code="unknown", message="outcome unknown\n" + "x" * 400),
        ),
        "agent:tool_result",
        {
            "nodeId": "helper",
            "callId": "call_1",
            "toolId": "read_file",
            "success": False,
            "status": "unknown",
            "code": "unknown",
            "outputSummary": "outcome unknown " + "x" * 283 + "…",
        },
    ),
    (
        CallSettled(call_id=CALL, how=Settlement.SKIPPED, by="ada"),
        "holdfast:call.settled",
        {"turn": 1, "callId": "call_1", "how": "skipped", "by": "ada"},
    ),
    (
        ApprovalRequested(
            approval_id=ApprovalId(an_id(4)),
            call_id=CALL,
            tool="write_file",
            tool_class=ToolClass.SENSITIVE_WRITE,
            question="May I?",
            preview={"path": "Makefile"},
        ),
        "agent:approval_requested",
        {
            "nodeId": "helper",
            "approvalId": an_id(4),
            "callId": "call_1",
            "toolId": "write_file",
            "action": "write",
            "preview": {"path": "Makefile"},
            "question": "May I?",
        },
    ),
    (
        ApprovalAnswered(approval_id=ApprovalId(an_id(4)), decision="allowed", by="ada"),
        "holdfast:approval.answered",
        {"turn": 1, "approvalId": an_id(4), "decision": "allowed", "scope": "once", "by": "ada"},
    ),
    (
        PlanChanged(steps=(PlanStep(text="look"),)),
        "holdfast:plan.changed",
        {"turn": 1, "steps": [{"text": "look", "priority": "medium", "status": "pending"}]},
    ),
    (
        ToolProgressed(call_id=CALL, text="half", fraction=0.5),
        "holdfast:tool.progressed",
        {"turn": 1, "callId": "call_1", "text": "half", "fraction": 0.5},
    ),
    (
        TurnPaused(
            reason=WaitReason.APPROVAL,
            text="The turn waits for the approval of write_file.",
            call_ids=(CALL,),
            approval_id=ApprovalId(an_id(4)),
        ),
        "holdfast:turn.paused",
        {
            "turn": 1,
            "reason": "approval",
            "text": "The turn waits for the approval of write_file.",
            "needs": [],
            "callIds": ["call_1"],
            "approvalId": an_id(4),
            "children": [],
        },
    ),
    (
        MessageWithdrawn(message_id=MessageId("m"), count=2, reason="pop"),
        "holdfast:message.withdrawn",
        {"turn": 1, "messageId": "m", "count": 2, "reason": "pop"},
    ),
    (
        TurnContinued(reason=WaitReason.APPROVAL),
        "holdfast:turn.continued",
        {"turn": 1, "reason": "approval"},
    ),
    (
        ToolRequested(
            call_id=CallId("c1"),
            name="refund",
            arguments={"order": "17"},
            effect=Effect.UNSAFE,
            deadline_at=AT,
        ),
        "holdfast:tool.requested",
        {
            "turn": 1,
            "callId": "c1",
            "name": "refund",
            "arguments": {"order": "17"},
            "effect": "unsafe",
            "attempt": 1,
            "deadlineAt": "2026-01-02T03:04:05.678901Z",
        },
    ),
    (
        ToolProgressed(call_id=CallId("c1"), text="2 of 5", fraction=0.4),
        "holdfast:tool.progressed",
        {"turn": 1, "callId": "c1", "text": "2 of 5", "fraction": 0.4},
    ),
    (ZoneArchived(zone="a:current"), "holdfast:zone.archived", {"turn": 1, "zone": "a:current"}),
)


def a_dialect() -> StreamVocabulary:
    """Return the dialect of a new session of the agent `helper`."""
    return StreamVocabulary("helper", {MODEL_ID: "offline:holdfast"}, "offline:holdfast")


@demands("S0-303")
def test_the_dialect_has_a_word_for_every_event() -> None:
    assert set(TABLE) == set(get_args(Payload))
    assert {type(payload) for payload, _, _ in OF_EACH} == set(get_args(Payload))


@each_case(("payload", "word", "data"), OF_EACH, ids=[type(each[0]).__name__ for each in OF_EACH])
@demands("S0-300")
def test_an_event_is_its_envelope_and_its_data(
    payload: Payload, word: str, data: dict[str, Any]
) -> None:
    line = a_dialect().line(an_event(payload, turn=1, sequence=7))

    assert line == {
        "type": word,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "sequenceNumber": 7,
        "sessionId": SESSION_ID,
        **data,
    }


@demands("S0-137")
def test_reserved_names_are_never_sent() -> None:
    sent = {a_dialect().line(an_event(payload))["type"] for payload, _, _ in OF_EACH}

    assert len(RESERVED) == 3
    assert sent & RESERVED == set()


def test_every_stop_reason_has_a_word() -> None:
    assert set(STOPS) == set(StopReason)
    assert {word for word, _ in STOPS.values()} == {
        "stop",
        "length",
        "content_filter",
        "aborted",
        "error",
    }


@each_case(
    ("ended", "word", "error"),
    [
        (TurnEnded(stop_reason=StopReason.ABORTED), "aborted", None),
        (
            TurnEnded(stop_reason=StopReason.TURN_LIMIT),
            "error",
            {
                "code": "turn_limit",
                "message": "The turn ended with turn_limit.",
                "retryable": False,
            },
        ),
        (
            TurnEnded(
                stop_reason=StopReason.ERROR,
                failure=Failure(
                    code=FailureCode.PROVIDER_UNAVAILABLE, message="down", correlation_id="c1"
                ),
            ),
            "error",
            {
                "code": "provider_unavailable",
                "message": "down",
                "retryable": True,
                "correlationId": "c1",
            },
        ),
    ],
)
@demands("S0-304")
def test_a_turn_that_failed_says_why(ended: TurnEnded, word: str, error: object) -> None:
    line = a_dialect().line(an_event(ended))

    assert (line["stopReason"], line.get("error")) == (word, error)


@each_case(("name", "told"), [("maker:other", "maker:other"), ("", OTHER_MODEL)])
def test_the_model_of_a_step_goes_with_what_follows(name: str, told: str) -> None:
    dialect = a_dialect()
    dialect.note(StepStarted(step=1, model_id=OTHER_MODEL, model=name, message_id=ROW))

    line = dialect.line(
        an_event(StepDelta(step=1, channel=Channel.TEXT, offset=0, text="x"), turn=1)
    )

    assert line["model"] == told


def test_costs_add_up_and_attempts_are_counted() -> None:
    dialect = a_dialect()
    failure = Failure(code=FailureCode.PROVIDER_UNAVAILABLE, message="down")
    steps: list[Payload] = [
        TurnStarted(),
        StepStarted(step=1, model_id=MODEL_ID, message_id=ROW),
        StepFailed(step=1, failure=failure),
        StepStarted(step=2, model_id=MODEL_ID, message_id=ROW),
        StepEnded(step=2, microcents=3),
        StepStarted(step=3, model_id=MODEL_ID, message_id=ROW),
        StepEnded(step=3, microcents=4),
    ]

    lines = [dialect.line(an_event(payload)) for payload in steps]

    told = [
        (line["attemptNumber"], line["cumulativeCostMicrocents"], line["inputTokens"])
        for line in lines
        if line["type"] == "cost:updated"
    ]
    assert told == [(2, 3, 0), (1, 7, 0)]


@demands("S0-302")
def test_numbers_that_will_not_come_are_covered() -> None:
    assert gap_line(Gap(from_sequence=3, to_sequence=9), SESSION_ID, AT) == {
        "type": "holdfast:gap",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "sequenceNumber": 9,
        "sessionId": SESSION_ID,
        "from": 3,
        "to": 9,
        "reason": "pruned",
        "resync": "messages",
    }
