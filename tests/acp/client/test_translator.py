"""What updates of somebody else's agent become: the table, case by case, as whole drafts."""

import base64
from typing import Any

import pytest

from holdfast.acp.client.content import RESULT_LARGEST, read_block
from holdfast.acp.client.output_steps import TEXT_LARGEST, TurnFacts
from holdfast.acp.client.stop_reasons import FLOODED, is_unknown_session
from holdfast.acp.client.tool_calls import TrackedCall
from holdfast.acp.client.translator import BYTES_MOST, ENOUGH, UPDATES_MOST, turn_facts
from holdfast.acp.rpc.framing import JsonRpcError
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CallDetails, Draft, MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode, PlanChanged
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Location,
    Media,
    Notice,
    NoticeCode,
    Plan,
    PlanStep,
    Reasoning,
    ResultStatus,
    Role,
    media_handle,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect
from holdfast.ports.tools import CallOutcome
from tests.acp.session_updates import (
    END_TURN,
    MODEL,
    STOP,
    Params,
    a_translator,
    called,
    cost,
    delta,
    heard,
    plan,
    returned,
    row,
    said,
    say,
    silent,
    started,
    stepped,
    think,
    thought,
    tool,
    tool_update,
    turn_end,
    update,
    words,
)
from tests.builders import a_message, a_model, a_tool_call
from tests.engine.builders import a_turn
from tests.marks import demands, each_case

PIXEL = b"\x89PNG\r\n\x1a\n"
IMAGE = {"type": "image", "mimeType": "image/PNG", "data": base64.b64encode(PIXEL).decode()}
SHOWN = Media(mime_type="image/png", ref=media_handle(PIXEL), byte_length=8)
NO_RESULT = ("no_result", "agent reported no result")
UNKNOWN = ("unknown", "outcome unknown: the agent's turn ended while the call ran")


def notice(text: str, code: NoticeCode = NoticeCode.INFORMATION) -> MessageDraft:
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))


def planned(*texts: str) -> tuple[Draft, ...]:
    steps = tuple(PlanStep(text=text) for text in texts)
    return PlanChanged(steps=steps), MessageDraft(role=Role.SYSTEM, parts=(Plan(steps=steps),))


@each_case(
    ("updates", "drafts"),
    [
        pytest.param([], [], id="nothing at all"),
        pytest.param([say("Hi")], [*said(1, "id-1", "Hi")], id="one text"),
        pytest.param(
            [say("He"), say(""), say("llo")],
            [
                started(1, "id-1"),
                delta(1, "id-1", "He"),
                delta(1, "id-1", "llo", 2),
                stepped(1, "id-1"),
                row("id-1", "Hello"),
            ],
            id="an empty chunk is none",
        ),
        pytest.param(
            [think("hm"), say("So.")],
            [
                started(1, "id-1"),
                thought(1, "id-1", "hm"),
                delta(1, "id-1", "So."),
                stepped(1, "id-1"),
                row("id-1", Reasoning(text="hm"), "So."),
            ],
            id="a thought before text is of its step",
        ),
        pytest.param(
            [say("So."), think("hm")],
            [
                *said(1, "id-1", "So."),
                started(2, "id-2"),
                thought(2, "id-2", "hm"),
                stepped(2, "id-2"),
                row("id-2", Reasoning(text="hm")),
            ],
            id="a thought after text begins a step",
        ),
        pytest.param(
            [say("a", messageId="m1"), say("b", messageId="m2"), say("c")],
            [
                *said(1, "id-1", "a"),
                started(2, "id-2"),
                delta(2, "id-2", "b"),
                delta(2, "id-2", "c", 1),
                stepped(2, "id-2"),
                row("id-2", "bc"),
            ],
            id="another message id begins a step",
        ),
        pytest.param(
            [say("a"), say("b", messageId="m1"), say("c", messageId="m1")],
            [
                started(1, "id-1"),
                delta(1, "id-1", "a"),
                delta(1, "id-1", "b", 1),
                delta(1, "id-1", "c", 2),
                stepped(1, "id-1"),
                row("id-1", "abc"),
            ],
            id="a first message id is no other",
        ),
        pytest.param(
            [say("A "), update("agent_message_chunk", content=IMAGE), say(" B")],
            [
                started(1, "id-1"),
                delta(1, "id-1", "A "),
                delta(1, "id-1", " B", 2),
                stepped(1, "id-1"),
                row("id-1", "A ", SHOWN, " B"),
            ],
            id="an image stands between its words",
        ),
        pytest.param(
            [update("agent_message_chunk", content=IMAGE)],
            [started(1, "id-1"), stepped(1, "id-1"), row("id-1", SHOWN)],
            id="an image alone is an answer",
        ),
        pytest.param(
            [update("agent_message_chunk", content={**IMAGE, "data": "%"})],
            [*said(1, "id-1", "[image that cannot be read]")],
            id="an image that is none",
        ),
        pytest.param(
            [update("user_message_chunk", content={"type": "text", "text": "my prompt"})],
            [],
            id="an echo of the prompt",
        ),
        pytest.param(
            [update("craft_update", content={"type": "text", "text": "?"}), update("plan")],
            [],
            id="what nobody knows",
        ),
        pytest.param(
            [plan("a"), plan("a"), plan("a", "b"), plan(), say("x"), plan()],
            [*planned("a"), *planned("a", "b"), *planned(), *said(1, "id-1", "x")],
            id="a plan counts when it is another",
        ),
        pytest.param(
            [say("x"), plan("a"), say("y")],
            [*said(1, "id-1", "x"), *planned("a"), *said(2, "id-2", "y")],
            id="a plan ends a step",
        ),
        pytest.param(
            [update("notice", message="Mind the gap."), update("notice")],
            [notice("Mind the gap.")],
            id="a notice",
        ),
        pytest.param(
            [
                say("x"),
                update("compaction_update", status="in_progress"),
                update(
                    "compaction_update",
                    status="completed",
                    summary=[{"type": "text", "text": "all"}, {"type": "text", "text": "of it"}],
                ),
                say("y"),
            ],
            [
                started(1, "id-1"),
                delta(1, "id-1", "x"),
                notice(
                    "The agent has compacted its context: all\nof it",
                    NoticeCode.AGENT_COMPACTED,
                ),
                delta(1, "id-1", "y", 1),
                stepped(1, "id-1"),
                row("id-1", "xy"),
            ],
            id="a shortened memory",
        ),
    ],
)
def test_what_is_said_becomes_steps_and_rows(updates: list[Params], drafts: list[Draft]) -> None:
    assert heard(*updates) == [*drafts, cost(), STOP]


@each_case(
    ("updates", "drafts"),
    [
        pytest.param(
            [
                say("Let me look."),
                tool(
                    "c1",
                    title="Read a.txt",
                    kind="read",
                    status="in_progress",
                    rawInput={"path": "a.txt"},
                    locations=[{"path": "/w/a.txt", "line": 3}, {"line": 1}, "no"],
                ),
                tool_update("c1", status="completed", content=words("one", "two")),
                say("Done."),
            ],
            [
                *said(1, "id-1", "Let me look."),
                *called(
                    "c1",
                    "read",
                    {"path": "a.txt"},
                    Effect.PURE,
                    title="Read a.txt",
                    kind="read",
                    locations=(Location(path="/w/a.txt", line=3),),
                ),
                *returned("c1", "read", result="one\ntwo"),
                *said(2, "id-2", "Done."),
            ],
            id="a call between two texts",
        ),
        pytest.param(
            [tool_update("c1", name="ls", status="completed", rawOutput={"files": 2})],
            [
                *silent(1, "id-1"),
                *called("c1", "ls", {}),
                *returned("c1", "ls", result={"files": 2}),
            ],
            id="first sight in an update",
        ),
        pytest.param(
            [
                tool("a", kind="execute", rawInput={"n": 1}),
                tool("b", kind="edit", rawInput={"n": 2}),
                tool_update("b", status="completed"),
                tool_update("a", status="completed", rawOutput="out"),
            ],
            [
                *silent(1, "id-1"),
                *called("a", "execute", {"n": 1}, kind="execute"),
                *silent(2, "id-2"),
                *called("b", "edit", {"n": 2}, kind="edit"),
                *returned("b", "edit"),
                *returned("a", "execute", result="out"),
            ],
            id="two at once",
        ),
        pytest.param(
            [
                tool("c1", status="pending", rawInput={}, title="Bash"),
                tool_update("c1", status="in_progress", rawInput={"command": "ls"}),
                tool_update("c1", status="completed", rawOutput=""),
            ],
            [
                *silent(1, "id-1"),
                *called("c1", "Bash", {"command": "ls"}, title="Bash"),
                *returned("c1", "Bash", result=""),
            ],
            id="arguments right behind are the call's",
        ),
        pytest.param(
            [
                tool("c1", status="pending", rawInput={"cwd": "/w"}, title="bash"),
                tool_update("c1", title="ls"),
                tool_update("c1", rawInput={"cwd": "/w", "command": "ls"}),
                tool_update("c1", status="completed", rawOutput="", content=words("a.txt")),
            ],
            [
                *silent(1, "id-1"),
                *called("c1", "other", {"cwd": "/w", "command": "ls"}, title="ls"),
                *returned("c1", "other", result="a.txt"),
            ],
            id="some arguments may come before the others, and an empty output says nothing",
        ),
        pytest.param(
            [
                tool("c1", status="pending", title="Bash"),
                say("Wait"),
                tool_update("c1", rawInput={"command": "l"}),
                tool_update("c1", rawInput={"command": "ls"}),
                tool_update("c1", status="in_progress"),
                tool_update("c1", status="completed"),
            ],
            [
                *silent(1, "id-1"),
                *called("c1", "Bash", {"title": "Bash"}, title="Bash"),
                started(2, "id-2"),
                delta(2, "id-2", "Wait"),
                CallDetails(call_id=CallId("c1"), arguments={"command": "ls"}),
                *returned("c1", "Bash"),
                stepped(2, "id-2"),
                row("id-2", "Wait"),
            ],
            id="arguments that come late are kept with the call",
        ),
        pytest.param(
            [tool("c1", rawInput=["ls"], title="List"), tool_update("c1", status="failed")],
            [
                *silent(1, "id-1"),
                *called("c1", "List", {"title": "List", "rawInput": ["ls"]}, title="List"),
                *returned(
                    "c1",
                    "List",
                    ResultStatus.ERROR,
                    error=("failed", "The agent reported that the call failed."),
                ),
            ],
            id="an input that is no object, and a failure without words",
        ),
        pytest.param(
            [
                tool("c1", rawInput={"n": 1}),
                tool_update("c1", status="failed", content=words("no such file")),
                tool_update("c1", status="completed", rawOutput="yes, there is"),
                tool("c1", status="completed"),
            ],
            [
                *silent(1, "id-1"),
                *called("c1", "other", {"n": 1}),
                *returned(
                    "c1",
                    "other",
                    ResultStatus.ERROR,
                    "no such file",
                    ("failed", "no such file"),
                ),
            ],
            id="a second end is none",
        ),
        pytest.param(
            [
                tool(
                    "c1",
                    kind="edit",
                    rawInput={"n": 1},
                    status="completed",
                    content=[
                        *words("ok"),
                        {"type": "diff", "path": "/w/a", "oldText": None, "newText": "new"},
                        {"type": "terminal", "terminalId": "t-1"},
                        {"type": "content", "content": IMAGE},
                        {"type": "hologram"},
                    ],
                )
            ],
            [
                *silent(1, "id-1"),
                *called("c1", "edit", {"n": 1}, kind="edit"),
                *returned(
                    "c1",
                    "edit",
                    result={
                        "output": "ok",
                        "diffs": [{"path": "/w/a", "old_text": None, "new_text": "new"}],
                        "terminals": ["t-1"],
                        "media": [
                            {"mimeType": "image/png", "ref": media_handle(PIXEL), "byte_length": 8}
                        ],
                    },
                ),
            ],
            id="diffs, terminals and media keep their form",
        ),
        pytest.param(
            [tool("c1", rawInput={"n": 1}), say("I am done.")],
            [
                *silent(1, "id-1"),
                *called("c1", "other", {"n": 1}),
                *said(2, "id-2", "I am done."),
                *returned("c1", "other", error=NO_RESULT),
            ],
            id="a call that never ends",
        ),
        pytest.param(
            [tool("an id\n", rawInput={"n": 1}), tool(7, rawInput={"n": 2}), tool(None)],
            [
                *silent(1, "id-1"),
                *called("call_id-2", "other", {"n": 1}),
                *silent(2, "id-3"),
                *called("7", "other", {"n": 2}),
                *silent(3, "id-4"),
                *called("call_id-5", "other", {}),
                *returned("call_id-2", "other", error=NO_RESULT),
                *returned("7", "other", error=NO_RESULT),
                *returned("call_id-5", "other", error=NO_RESULT),
            ],
            id="ids that no row can hold, numbers, and none",
        ),
    ],
)
def test_a_call_becomes_a_row_a_start_and_one_result(
    updates: list[Params], drafts: list[Draft]
) -> None:
    assert heard(*updates) == [*drafts, cost(), STOP]


def test_a_call_that_has_not_begun_is_announced_after_half_a_second() -> None:
    translator = a_translator()

    first = translator.update(tool("c1", title="Bash"), now=10.0)

    assert (first, translator.deadline) == (silent(1, "id-1"), 10.5)
    assert translator.flush(now=10.4) == ()
    assert translator.update(tool_update("c1", title="Bash ls"), now=10.45) == ()
    assert translator.flush(now=10.5) == called(
        "c1", "other", {"title": "Bash ls"}, title="Bash ls"
    )
    assert translator.deadline is None


def test_an_id_of_an_earlier_turn_is_another_call() -> None:
    drafts = heard(
        tool_update("c1", status="completed", rawOutput="late"),
        tool("c1", rawInput={"n": 1}, status="completed"),
        taken=frozenset({"c1"}),
    )

    assert drafts == [
        *silent(1, "id-1"),
        *called("call_id-2", "other", {"n": 1}),
        *returned("call_id-2", "other"),
        cost(),
        STOP,
    ]


def test_text_is_gathered_for_fifty_milliseconds_or_256_characters() -> None:
    translator = a_translator()

    assert translator.update(say("a"), now=1.0) == (started(1, "id-1"), delta(1, "id-1", "a"))
    assert translator.deadline is None
    assert translator.update(say("b"), now=1.01) == ()
    assert translator.deadline == 1.05
    assert translator.flush(now=1.04) == ()
    assert translator.update(say("c"), now=1.02) == ()
    assert translator.flush(now=1.05) == (delta(1, "id-1", "bc", 1),)
    assert translator.update(say("d" * (ENOUGH - 1)), now=1.06) == ()
    assert translator.update(say("e"), now=1.06) == (delta(1, "id-1", "d" * (ENOUGH - 1) + "e", 3),)
    assert translator.update(say("f"), now=2.0) == (delta(1, "id-1", "f", 3 + ENOUGH),)


def test_text_that_waits_goes_with_whatever_is_written() -> None:
    translator = a_translator()
    translator.update(think("a"), now=1.0)
    translator.update(think("b"), now=1.0)
    translator.update(say("c"), now=1.0)

    assert translator.update(plan("p"), now=1.0) == (
        thought(1, "id-1", "b", 1),
        delta(1, "id-1", "c"),
        stepped(1, "id-1"),
        row("id-1", Reasoning(text="ab"), "c"),
        *planned("p"),
    )


def test_a_character_that_was_cut_in_two_is_whole_again() -> None:
    translator = a_translator()

    first = translator.update(say("x\ud83e"), now=1.0)

    assert first == (started(1, "id-1"), delta(1, "id-1", "x"))
    assert translator.deadline is None
    assert translator.update(say("\udd80y"), now=2.0) == (delta(1, "id-1", "🦀y", 1),)
    assert translator.update(say("\ud83e"), now=3.0) == ()
    assert translator.end(END_TURN) == turn_end(
        delta(1, "id-1", "\ufffd", 3),
        stepped(1, "id-1"),
        row("id-1", "x🦀y\ufffd"),
        cost(),
        STOP,
    )


def test_no_row_is_longer_than_four_mebibytes() -> None:
    drafts = heard(say("x" * 10), say("y" * (2 * TEXT_LARGEST + 1)))

    rows = [draft for draft in drafts if isinstance(draft, MessageDraft)]
    assert [len(each.parts[0].text) for each in rows] == [10, TEXT_LARGEST, TEXT_LARGEST, 1]  # type: ignore[union-attr]


def test_the_bytes_of_media_are_handed_out_once_with_the_batch_that_names_them() -> None:
    translator = a_translator()
    translator.update(update("agent_message_chunk", content=IMAGE), now=1.0)
    kept = read_block(IMAGE)

    assert translator.contents() == [kept]
    assert translator.contents() == []
    content = [{"type": "content", "content": IMAGE}]
    translator.update(tool("c1", status="completed", content=content), now=2.0)
    assert translator.contents() == [kept]


def test_a_result_of_more_than_four_mebibytes_is_cut_and_marked() -> None:
    drafts = heard(tool("c1", status="completed", rawOutput={"out": "x" * RESULT_LARGEST}))

    result = drafts[-3].parts[0].result  # type: ignore[union-attr]
    head = RESULT_LARGEST - 64
    assert result == f'{{"out":"{"x" * (head - 8)}\n[… 74 bytes cut]'


@each_case(
    ("reply", "is_cancelled", "outcome"),
    [
        ({"stopReason": "end_turn"}, False, STOP),
        ({"stopReason": "end_turn"}, True, STOP),
        ({"stopReason": "max_tokens"}, False, Outcome(stop_reason=StopReason.LENGTH)),
        ({"stopReason": "refusal"}, False, Outcome(stop_reason=StopReason.REFUSAL)),
        ({"stopReason": "cancelled"}, True, Outcome(stop_reason=StopReason.ABORTED)),
        (
            {"stopReason": "cancelled"},
            False,
            Outcome(
                stop_reason=StopReason.INTERRUPTED,
                failure=Failure(
                    code=FailureCode.INTERRUPTED,
                    message="The agent cancelled the turn itself; send a message to continue.",
                ),
            ),
        ),
        (
            {"stopReason": "max_turn_requests"},
            False,
            Outcome(
                stop_reason=StopReason.TURN_LIMIT,
                failure=Failure(
                    code=FailureCode.TURN_LIMIT,
                    message="The agent has reached its limit of requests in one turn; "
                    "send a message to continue.",
                ),
            ),
        ),
    ],
)
def test_each_stop_reason_ends_the_turn(
    reply: dict[str, Any], is_cancelled: bool, outcome: Outcome
) -> None:
    assert a_translator().end(reply, is_cancelled=is_cancelled) == turn_end(cost(), outcome)


@each_case(
    ("reply", "agent_state"),
    [
        ({"stopReason": "tired"}, "the unknown reason 'tired'"),
        ({"stopReason": ["end_turn"]}, "no reason"),
        ({}, "no reason"),
        (None, "no reason"),
        ("end_turn", "no reason"),
    ],
)
def test_an_unknown_stop_reason_is_an_end_and_a_notice(reply: Any, agent_state: str) -> None:
    assert a_translator().end(reply) == turn_end(
        cost(),
        notice(f"The agent ended its turn with {agent_state}."),
        STOP,
    )


@each_case(
    ("error", "is_cancelled", "failure"),
    [
        (
            JsonRpcError(-32000, "log in"),
            False,
            (
                FailureCode.AGENT_AUTH_REQUIRED,
                "The agent requires a sign-in (-32000: log in).",
            ),
        ),
        (
            JsonRpcError(-32603, ""),
            False,
            (FailureCode.AGENT_ERROR, "The agent answered with an error (-32603: no message)."),
        ),
        (
            JsonRpcError(-32603, "Internal error", "no provider"),
            False,
            (
                FailureCode.AGENT_ERROR,
                "The agent answered with an error (-32603: Internal error: no provider).",
            ),
        ),
        (
            JsonRpcError(-32603, "Internal error", {"n": 1, "details": "out of luck"}),
            False,
            (
                FailureCode.AGENT_ERROR,
                "The agent answered with an error (-32603: Internal error: out of luck).",
            ),
        ),
        (
            JsonRpcError(-32603, "out of luck", {"message": "out of luck", "reason": 7}),
            False,
            (FailureCode.AGENT_ERROR, "The agent answered with an error (-32603: out of luck)."),
        ),
        (JsonRpcError(-32603, "stopped"), True, None),
        (JsonRpcError(-32800, "cancelled"), False, None),
    ],
)
def test_an_error_ends_the_turn_as_what_it_is(
    error: JsonRpcError, is_cancelled: bool, failure: tuple[FailureCode, str] | None
) -> None:
    outcome = (
        Outcome(stop_reason=StopReason.ABORTED)
        if failure is None
        else Outcome(
            stop_reason=StopReason.ERROR, failure=Failure(code=failure[0], message=failure[1])
        )
    )

    assert a_translator().end_with_error(error, is_cancelled=is_cancelled) == turn_end(
        cost(), outcome
    )


DEATH = Failure(code=FailureCode.AGENT_DIED, message="The agent is gone.")


def test_a_death_keeps_the_text_and_leaves_calls_unknown() -> None:
    translator = a_translator()
    translator.update(tool("c1", rawInput={"n": 1}), now=1.0)
    translator.update(say("As I was say"), now=1.01)
    translator.update(say("ing"), now=1.02)

    assert translator.fail(DEATH) == turn_end(
        delta(2, "id-2", "ing", 12),
        stepped(2, "id-2"),
        row("id-2", "As I was saying"),
        *returned("c1", "other", ResultStatus.UNKNOWN, error=UNKNOWN),
        cost(),
        Outcome(stop_reason=StopReason.ERROR, failure=DEATH),
    )


def test_a_call_that_was_held_back_when_the_agent_died_is_in_the_record() -> None:
    translator = a_translator()
    translator.update(tool("c1"), now=1.0)

    assert translator.fail(DEATH) == turn_end(
        *called("c1", "other", {}),
        *returned("c1", "other", ResultStatus.UNKNOWN, error=UNKNOWN),
        cost(),
        Outcome(stop_reason=StopReason.ERROR, failure=DEATH),
    )


def test_after_the_end_nothing_is_said_but_the_state_goes_on() -> None:
    translator = a_translator()
    ended = translator.end(END_TURN)

    late = [say("x"), think("y"), tool("c1"), plan("p"), update("usage_update", used=7, size=9)]

    assert [translator.update(params, now=1.0) for params in late] == [()] * 5
    assert (translator.end(END_TURN), translator.fail(DEATH)) == (ended, ended)
    assert translator.flush(now=9.0) == ()
    assert translator.deadline is None
    assert (translator.agent_state.used, translator.agent_state.size) == (7, 9)
    assert translator.counts == {"late": 4}


def test_what_became_nothing_is_counted_by_why() -> None:
    translator = a_translator(taken=frozenset({"old"}))
    translator.update(tool("c1", status="completed"), now=0.0)

    for params in (
        None,
        {},
        {"update": {"sessionUpdate": ["plan"]}},
        update("hologram"),
        update("user_message_chunk"),
        tool_update(None),
        tool_update("c1", status="failed"),
        tool_update("old", status="failed"),
        update("plan", entries="none"),
    ):
        assert translator.update(params, now=0.0) == ()
    assert translator.counts == {"unreadable": 5, "unknown": 1, "echo": 1, "ended": 1, "late": 1}


@each_case(
    "params",
    [
        say("x"),
        think("x"),
        plan("x"),
        tool("t1", status="completed", rawOutput="x"),
        tool("t1", status="in_progress", content=words("x")),
    ],
)
def test_more_bytes_than_a_turn_may_hold_are_a_flood(params: Params) -> None:
    full, flooded = a_translator(), a_translator()
    full.update(params, now=0.0, size=BYTES_MOST)
    flooded.update(params, now=0.0, size=BYTES_MOST + 1)
    full.update(tool_update("late", status="in_progress"), now=0.0, size=0)

    assert (full.is_flooded, flooded.is_flooded) == (False, True)


def test_what_a_call_has_brought_counts_once_however_often_it_is_sent() -> None:
    translator = a_translator()
    translator.update(tool("t1", status="in_progress"), now=0.0)
    for _ in range(100):
        content = tool_update("t1", content=words("x"))
        translator.update(content, now=0.0, size=BYTES_MOST // 2)
    assert not translator.is_flooded

    translator.update(tool_update("t1", status="completed"), now=0.0)
    translator.update(tool("t2", status="in_progress"), now=0.0)
    translator.update(tool_update("t2", content=words("x")), now=0.0, size=BYTES_MOST)
    assert not translator.is_flooded

    translator.update(tool("t3", status="in_progress"), now=0.0)
    translator.update(tool_update("t3", content=words("x")), now=0.0, size=1)
    assert translator.is_flooded


def test_news_of_the_state_are_stored_nowhere_and_count_nothing() -> None:
    translator = a_translator()
    translator.update(update("current_mode_update", modeId="m"), now=0.0, size=BYTES_MOST + 1)

    assert not translator.is_flooded


def test_a_cost_that_nobody_can_have_spent_is_told_and_not_counted() -> None:
    usage = update("usage_update", used=5, cost={"amount": 9e15, "currency": "USD"})

    assert heard(usage, usage) == [
        cost(Usage(input=5)),
        notice("The agent reported an invalid cost; it was not counted."),
        STOP,
    ]


def test_more_than_a_hundred_thousand_updates_are_a_flood() -> None:
    translator = a_translator()
    empty = say("")
    for _ in range(UPDATES_MOST):
        translator.update(empty, now=0.0)

    assert not translator.is_flooded
    assert translator.update(say("x"), now=0.0) == ()
    assert translator.is_flooded
    assert translator.fail(FLOODED) == turn_end(
        cost(),
        Outcome(
            stop_reason=StopReason.ERROR,
            failure=Failure(
                code=FailureCode.AGENT_FLOOD,
                message="The agent has sent more than a turn may contain, and was stopped.",
            ),
        ),
    )


def test_a_call_may_be_seen_first_when_permission_is_asked_for() -> None:
    translator = a_translator()
    translator.update(say("May I?"), now=1.0)

    asked = translator.request(
        {"toolCallId": "c1", "kind": "execute", "title": "rm -r", "rawInput": {"command": "rm"}},
        now=1.01,
    )

    drafts = (
        stepped(1, "id-1"),
        row("id-1", "May I?"),
        *called("c1", "execute", {"command": "rm"}, kind="execute", title="rm -r"),
    )
    assert (asked.id, asked.name, asked.kind, asked.title) == ("c1", "execute", "execute", "rm -r")
    assert (asked.arguments, asked.locations, asked.drafts) == ({"command": "rm"}, (), drafts)
    assert translator.update(tool_update("c1", status="completed"), now=2.0) == returned(
        "c1", "execute"
    )


def test_a_call_that_is_asked_about_is_written_down_as_it_is_known_then() -> None:
    translator = a_translator()
    translator.update(tool("c1", title="Bash"), now=1.0)
    translator.update(tool("c2", title="Bash", rawInput={"n": 1}), now=1.0)

    first = translator.request({"toolCallId": "c1", "rawInput": {"command": "ls"}}, now=1.0)
    again = translator.request({"toolCallId": "c1"}, now=1.0)
    odd = translator.request("what?", now=1.0)

    assert first.drafts == (CallDetails(call_id=CallId("c1"), arguments={"command": "ls"}),)
    assert (again.id, again.arguments, again.drafts) == ("c1", {"command": "ls"}, ())
    assert odd.drafts == (*silent(3, "id-3"), *called("call_id-4", "other", {}))


def test_permission_for_a_call_that_has_ended_is_for_another_one() -> None:
    translator = a_translator()
    translator.update(tool("c1", status="completed"), now=1.0)

    assert translator.request({"toolCallId": "c1"}, now=1.0).id == "call_id-3"


@pytest.mark.parametrize(
    ("final", "result"),
    [
        (
            {"status": "failed"},
            (None, ("rejected", "The user did not allow this.")),
        ),
        ({}, (None, ("rejected", "The user did not allow this."))),
    ],
)
def test_a_call_that_was_not_allowed_is_denied_and_not_failed(
    final: dict[str, Any], result: tuple[Any, tuple[str, str]]
) -> None:
    translator = a_translator()
    asked = translator.request({"toolCallId": "c1"}, now=1.0)

    translator.deny(asked.id)
    drafts = translator.update(tool_update("c1", **final), now=2.0)
    end = translator.end(END_TURN)

    expected = returned("c1", "other", ResultStatus.DENIED, result[0], result[1])
    assert (*drafts, *end.drafts, end.outcome) == (*expected, cost(), STOP)


def test_a_call_that_was_not_allowed_and_went_well_all_the_same_is_told_as_it_was() -> None:
    translator = a_translator()
    translator.deny(translator.request({"toolCallId": "c1"}, now=1.0).id)

    assert translator.update(tool_update("c1", status="completed"), now=2.0) == returned(
        "c1", "other"
    )


def test_what_we_do_for_the_agent_is_a_call_with_a_result_of_ours() -> None:
    translator = a_translator()

    begun = translator.act("fs.write_text_file", "edit", {"path": "/w/a"}, now=1.0)
    done = CallOutcome(status=ResultStatus.OK, result={"bytes": 3})

    assert begun.drafts == (
        *silent(1, "id-1"),
        *called("call_id-2", "fs.write_text_file", {"path": "/w/a"}, kind="edit"),
    )
    assert translator.finish_act(begun.id, done, now=1.0) == returned(
        "call_id-2", "fs.write_text_file", result={"bytes": 3}
    )
    assert translator.finish_act(begun.id, done, now=1.0) == ()


def test_usage_is_taken_once_from_the_first_that_tells_it() -> None:
    aside = say("x", _meta={"usage": {"inputTokens": 1, "outputTokens": 2}})
    quota = {"_meta": {"quota": {"token_count": {"input_tokens": 3, "output_tokens": 4}}}}
    whole = {"usage": {"inputTokens": 5, "outputTokens": 6}}

    def used(*updates: Params, **reply: Any) -> Draft:
        return heard(*updates, reply=END_TURN | reply)[-2]

    assert used(aside) == cost(Usage(input=1, output=2))
    assert used(aside, **quota) == cost(Usage(input=3, output=4))
    assert used(aside, update("usage_update", used=7), **quota) == cost(Usage(input=7))
    assert used(aside, update("usage_update", used=7), **quota, **whole) == cost(
        Usage(input=5, output=6)
    )


def test_an_empty_chunk_may_still_tell_what_the_turn_took() -> None:
    usage = {"promptTokens": 1, "candidatesTokens": 2, "thoughtsTokens": 3, "totalTokens": 6}

    assert heard(say("", _meta={"usage": usage})) == [
        cost(Usage(input=1, output=5, reasoning=3)),
        STOP,
    ]


def test_money_is_the_difference_between_two_sums() -> None:
    translator = a_translator()
    translator.update(
        update("usage_update", used=1, cost={"amount": 0.25, "currency": "USD"}), now=0.0
    )
    first = translator.end(END_TURN)
    # Told after the turn, so it is entered with the next one.
    translator.update(
        update("usage_update", used=2, cost={"amount": 0.26, "currency": "USD"}), now=0.0
    )
    second = a_translator(translator.agent_state)
    second.update(update("usage_update", used=3, cost={"amount": 0.75, "currency": "USD"}), now=0.0)

    assert first == turn_end(cost(Usage(input=1), microcents=25_000_000, priced=True), STOP)
    assert second.end(END_TURN) == turn_end(
        cost(Usage(input=3), microcents=50_000_000, priced=True),
        STOP,
    )


@each_case(
    "money",
    [
        {"amount": 1.0, "currency": "EUR"},
        {"amount": -1, "currency": "USD"},
        {"amount": 1},
        {"amount": float("nan"), "currency": "USD"},
        "a lot",
    ],
)
def test_money_that_we_cannot_count_is_unpriced(money: Any) -> None:
    assert heard(update("usage_update", cost=money)) == [cost(), STOP]


def test_a_plan_of_an_earlier_turn_is_known() -> None:
    known = (PlanStep(text="a"),)

    assert heard(plan("a"), plan("b"), plan("a"), plan=known) == [
        *planned("b"),
        *planned("a"),
        cost(),
        STOP,
    ]


def test_what_has_to_be_known_of_a_turn_is_in_its_history() -> None:
    steps = (PlanStep(text="new"),)
    history = (
        a_message(role=Role.SYSTEM, parts=(Plan(steps=(PlanStep(text="old"),)),)),
        a_message(role=Role.TOOL_CALL, parts=(a_tool_call(id="c1"),)),
        a_message(role=Role.SYSTEM, parts=(Plan(steps=steps),)),
        a_message("hello", turn=7),
    )
    turn = a_turn(*history, model=a_model(), turn=7, step=3)

    assert turn_facts(turn, session="S", model_id=MODEL, model="acp:x") == TurnFacts(
        session="S",
        turn=7,
        step=3,
        model_id=MODEL,
        model="acp:x",
        plan=steps,
        taken=frozenset({"c1"}),
    )


@each_case(
    ("code", "is_first_prompt", "is_unknown"),
    [
        (-32002, False, True),
        (-32602, True, True),
        (-32603, True, True),
        (-32602, False, False),
        (-32603, False, False),
        (-32000, True, False),
    ],
)
def test_a_program_that_has_lost_the_conversation_says_so_in_many_ways(
    code: int, is_first_prompt: bool, is_unknown: bool
) -> None:
    error = JsonRpcError(code, "no")

    assert is_unknown_session(error, is_first_prompt=is_first_prompt) is is_unknown


def test_arguments_that_are_too_large_are_kept_as_a_text() -> None:
    drafts = heard(tool("c1", title="Write", rawInput={"content": "x" * (2 << 20)}))

    arguments = drafts[2].parts[0].arguments  # type: ignore[union-attr]
    assert arguments["title"] == "Write"
    assert len(arguments["rawInput"]) <= 1 << 20


@demands("S1-054")
@each_case(
    ("said", "name"),
    [
        ({"name": "ls", "kind": "search"}, "ls"),
        ({"kind": "execute", "_meta": {"claudeCode": {"toolName": "Bash"}}}, "Bash"),
        ({"_meta": {"goose": {"toolCall": {"toolName": "shell"}}}}, "shell"),
        ({"kind": "edit", "_meta": {"tool_name": "write_file"}}, "write_file"),
        ({"toolCallId": "write_file__call_1e2fb0", "kind": "edit"}, "write_file"),
        ({"toolCallId": "read_file-1794769842874", "kind": "read"}, "read_file"),
        ({"title": "bash", "kind": "execute", "rawInput": {"cwd": "/w"}}, "bash"),
        ({"title": "terminal: rm -r probe", "kind": "execute"}, "terminal"),
        ({"title": "write · /w/a.txt", "kind": "edit"}, "write"),
        # The title is the command, or a sentence.
        ({"title": "ls", "kind": "execute", "rawInput": {"command": "ls"}}, "execute"),
        ({"title": "rm -r probe", "kind": "execute"}, "execute"),
        ({"title": "Writing to a.txt"}, "other"),
        ({"_meta": "no object", "toolCallId": 7}, "other"),
    ],
)
def test_a_call_has_the_name_of_its_tool_as_far_as_an_agent_reports_it(
    said: dict[str, Any], name: str
) -> None:
    call = TrackedCall(CallId("c1"))

    call.fold(said)

    assert call.name == name


@demands("S1-054")
@each_case(
    ("raw", "text", "result"),
    [
        ({"code": 0}, "Created a.txt", {"output": {"code": 0}, "text": "Created a.txt"}),
        ({"stdout": "a.txt\n"}, "a.txt", {"stdout": "a.txt\n"}),
        ("a.txt", "```console\na.txt\n```", "a.txt"),
        (None, "a.txt", "a.txt"),
        ({"code": 0}, "", {"code": 0}),
    ],
)
def test_a_result_keeps_the_text_beside_the_raw_output(raw: Any, text: str, result: Any) -> None:
    call = TrackedCall(CallId("c1"))
    block = {"type": "content", "content": {"type": "text", "text": text}}

    call.fold({"rawOutput": raw, "content": [block]})

    assert call.outcome(ResultStatus.OK)[0].result == result
