"""One call through its fixed order: who says no first, and what a call that goes wrong leaves."""

import asyncio
import base64
import logging
from typing import Any

import pytest
from msgspec import Struct

from holdfast.domain.approvals import ApprovalMode, ApprovalState, Question, Ruling, digest_call
from holdfast.domain.calls import Call
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import ToolEnded, ToolStarted
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.messages import (
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.tools import Effect, ResultCode, ToolClass, ToolSpec
from holdfast.engine.runtime import EngineRuntime
from holdfast.engine.tool_calls import NOT_AN_OBJECT, REFUSALS
from holdfast.ports.llm import LlmDelta
from holdfast.ports.tools import CallOutcome, RequestedCall, ToolWorkspace
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure
from holdfast.tools.toolbox import LocalToolbox
from tests.engine.builders import CountingRandomness, StillClock, call, result, user
from tests.engine.scripts import (
    asks,
    bad,
    cost,
    ended,
    good,
    intent,
    looks,
    named,
    says,
    start,
    started,
)
from tests.engine.stand_ins import (
    ScriptedLlm,
    Stage,
    StandInApprover,
    StandInTool,
    StandInToolbox,
    an_approval,
    raising,
)
from tests.marks import each_case

pytestmark = pytest.mark.anyio

DENIED = ResultStatus.DENIED


def tool_drafts(batches: list[tuple[Draft, ...]]) -> list[tuple[Draft, ...]]:
    """Return what was written about the calls of a one-round turn, intent and steps aside."""
    about = (
        tuple(
            draft
            for draft in batch
            if isinstance(draft, ToolStarted | ToolEnded | Question)
            or (isinstance(draft, MessageDraft) and draft.role is Role.TOOL_RESULT)
        )
        for batch in named(batches)
    )
    return [drafts for drafts in about if drafts]


async def answered(
    toolbox: StandInToolbox,
    approver: StandInApprover | None = None,
    script: list[LlmDelta] | None = None,
    **changes: Any,
) -> list[tuple[Draft, ...]]:
    """Play a turn whose one step asks for one call, and return what was written about it."""
    stage = Stage(ScriptedLlm(script or looks("c1"), says("Well.")), toolbox, approver)
    return tool_drafts(await stage.play(stage.turn(**changes)))


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the tool of the table takes."""

    at: str


class Hurdles(Struct, frozen=True, kw_only=True):
    """What stands in a call's way; each one that is taken away shows the next."""

    is_registered: bool = False
    is_granted: bool = False
    arguments: str = '{"at": 1}'
    is_available: bool = False
    is_within: bool = False
    is_allowed: bool = False
    is_working: bool = False


ORDER = [
    (Hurdles(), "error", ResultCode.UNKNOWN_TOOL),
    (Hurdles(is_registered=True), "denied", ResultCode.NOT_GRANTED),
    (Hurdles(is_registered=True, is_granted=True), "error", ResultCode.INVALID_ARGUMENTS),
    (
        Hurdles(is_registered=True, is_granted=True, arguments="[1]"),
        "error",
        ResultCode.INVALID_ARGUMENTS,
    ),
    (
        Hurdles(is_registered=True, is_granted=True, arguments='{"at": "x"}'),
        "error",
        ResultCode.UNAVAILABLE,
    ),
    (
        Hurdles(is_registered=True, is_granted=True, arguments='{"at": "x"}', is_available=True),
        "denied",
        ResultCode.OUTSIDE_SCOPE,
    ),
    (
        Hurdles(
            is_registered=True,
            is_granted=True,
            arguments='{"at": "x"}',
            is_available=True,
            is_within=True,
        ),
        "denied",
        ResultCode.REJECTED,
    ),
    (
        Hurdles(
            is_registered=True,
            is_granted=True,
            arguments='{"at": "x"}',
            is_available=True,
            is_within=True,
            is_allowed=True,
        ),
        "error",
        ResultCode.NOT_FOUND,
    ),
]


def a_tool(hurdles: Hurdles) -> LocalTool[Arguments]:
    """Return a tool with these hurdles, among those of the real toolbox."""

    async def plan(_: ToolWorkspace, __: Arguments) -> CallPlan:
        if not hurdles.is_within:
            raise ToolFailure(ResultCode.OUTSIDE_SCOPE, "Too far out.")
        return CallPlan(tool_class=ToolClass.WRITE, question="Look?")

    async def act(_: ToolWorkspace, __: Arguments, ___: RequestedCall) -> Any:
        if not hurdles.is_working:
            raise ToolFailure(ResultCode.NOT_FOUND, "Nothing there.")
        return "seen"

    return LocalTool(
        name="look",
        description="Looks.",
        arguments=Arguments,
        effect=lambda _: Effect.IDEMPOTENT,
        plan=plan,
        act=act,
        is_available=lambda _: hurdles.is_available,
    )


async def outcome_of(hurdles: Hurdles) -> tuple[list[str], ToolResult]:
    """Return the names of the news of a call, and its result."""
    mode = ApprovalMode.AUTO if hurdles.is_allowed else ApprovalMode.DENY
    stage = Stage(ScriptedLlm(asks(("c1", "look", hurdles.arguments)), says("Well.")))
    stage.approver = StandInApprover(mode)
    toolbox = LocalToolbox([a_tool(hurdles)] if hurdles.is_registered else [])
    stage.engine = EngineRuntime(stage.llm, toolbox, StillClock(), CountingRandomness())
    tools = frozenset({"look"}) if hurdles.is_granted else frozenset()
    place = ToolWorkspace(
        session="session",
        working_dir="/desk",
        scratch="/desk",
        grants=(),
        tools=tools,
        shelf=stage.shelf,
    )
    batches = await stage.play(stage.turn(workspace=place))
    drafts = [draft for batch in batches for draft in batch]
    news = [type(each).__name__ for each in drafts if isinstance(each, ToolStarted | ToolEnded)]
    [found] = [
        part
        for draft in drafts
        if isinstance(draft, MessageDraft)
        for part in draft.parts
        if isinstance(part, ToolResult)
    ]
    return news, found


@each_case(("hurdles", "status", "code"), ORDER)
async def test_a_call_that_fails_everywhere_reports_the_first_step_it_fails(
    hurdles: Hurdles, status: str, code: ResultCode
) -> None:
    news, found = await outcome_of(hurdles)

    assert (found.status, found.error and found.error.code) == (status, code)
    # Refused before it ran, a call was never started.
    assert news == (["ToolStarted", "ToolEnded"] if hurdles.is_allowed else ["ToolEnded"])


async def test_a_call_that_fails_nowhere_is_run() -> None:
    free = Hurdles(
        is_registered=True,
        is_granted=True,
        arguments='{"at": "x"}',
        is_available=True,
        is_within=True,
        is_allowed=True,
        is_working=True,
    )

    assert await outcome_of(free) == (
        ["ToolStarted", "ToolEnded"],
        ToolResult(call_id=CallId("c1"), name="look", status=ResultStatus.OK, result="seen"),
    )


async def test_an_unknown_tool_with_unreadable_arguments_is_an_unknown_tool() -> None:
    _, found = await outcome_of(Hurdles(arguments="{"))

    assert found.error == ToolError(
        code=ResultCode.UNKNOWN_TOOL, message="There is no tool 'look'."
    )


@pytest.mark.parametrize("text", ["", " \n"])
async def test_no_arguments_are_an_empty_object(text: str) -> None:
    script = asks(("c1", "look", text))

    assert await answered(StandInToolbox(), script=script) == [
        start("c1", arguments={}),
        good("c1"),
    ]


UNREADABLE = [
    "{",
    "null",
    "[]",
    '"x"',
    "1",
    "{} {}",
    "{'a': 1}",
    '{"a": NaN}',
    '{"a": 1e999}',
    '{"a": "\\ud800"}',
    '{"a": "\ud800"}',
    "\ud800",
    "\ufeff{}",
    "x\x00y",
    '{"a":' * 100 + "1" + "}" * 100,
    "[" * 100_000,
]


@each_case("text", UNREADABLE)
async def test_arguments_that_are_no_object_run_nothing_although_the_tool_takes_all(
    text: str,
) -> None:
    toolbox = StandInToolbox()
    stage = Stage(ScriptedLlm(asks(("c1", "look", text)), says("Well.")), toolbox)

    batches = named(await stage.play(stage.turn()))

    assert toolbox.done == ["plan c1"]
    assert tool_drafts(batches) == [
        bad("c1", ResultCode.INVALID_ARGUMENTS, "The arguments are not a JSON object.")
    ]
    [part] = batches[1][1].parts
    assert isinstance(part, ToolCall)
    [(key, kept)] = part.arguments.items()
    assert (key, len(kept)) == (NOT_AN_OBJECT, min(len(text), 2_048))
    kept.encode()


async def test_unreadable_arguments_are_refused_after_a_crash_as_well() -> None:
    first = Stage(ScriptedLlm(asks(("c1", "look", "{")), says("Well.")))
    [_, (_, row, *_), *_] = await first.play(first.turn())
    assert isinstance(row, MessageDraft)
    [part] = row.parts
    assert isinstance(part, ToolCall)
    open_call = call_of(part)
    second = Stage(ScriptedLlm(says("Well.")))

    batches = await second.play(second.turn(user(1, "Hello"), call(2, "c1"), calls=(open_call,)))

    assert named(batches)[0][:2] == bad(
        "c1", ResultCode.INVALID_ARGUMENTS, "The arguments are not a JSON object."
    )
    assert second.toolbox.done == ["plan c1"]


def call_of(part: ToolCall) -> Call:
    return Call(
        id=part.id,
        session_id=SessionId("session"),
        turn=1,
        name=part.name,
        arguments=part.arguments,
        idempotency_key="key",
    )


@each_case("call_id", ["", "with space", "\x00", "\ud800", "ü", "x" * 257])
async def test_an_id_that_no_row_can_hold_is_replaced(call_id: str) -> None:
    stage = Stage(ScriptedLlm(asks((call_id, "look", "{}")), says("Well.")))

    batches = named(await stage.play(stage.turn()))

    assert batches[1][1].parts == (ToolCall(id=CallId("id2"), name="look", arguments={}),)
    assert batches[1][3:] == start("id2", arguments={})


async def test_an_id_that_comes_twice_is_given_to_the_first_call_only() -> None:
    script = asks(("c1", "look", "{}"), ("c1", "look", "{}"))
    stage = Stage(ScriptedLlm(script, says("Well.")))

    batches = named(await stage.play(stage.turn()))

    assert [draft.parts[0].id for draft in batches[1][1:3]] == ["c1", "id2"]
    assert stage.toolbox.keys[0] == "session:c1"
    assert len(set(stage.toolbox.keys)) == 2


async def test_an_id_of_an_earlier_step_is_not_given_again() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), looks("c1"), says("Well.")))

    await stage.play(stage.turn())

    assert stage.toolbox.keys[0] == "session:c1"
    assert len(set(stage.toolbox.keys)) == 2


async def test_an_id_of_an_earlier_turn_is_not_given_again() -> None:
    history = (user(1, "Hello"), call(2, "c1"), result(3, "c1"), user(4, "Again", turn=2))
    stage = Stage(ScriptedLlm(looks("c1"), says("Well.")))

    await stage.play(stage.turn(*history, turn=2))

    assert stage.toolbox.keys != ["session:c1"]


async def test_a_name_that_no_row_can_hold_is_mended_and_cut() -> None:
    stage = Stage(ScriptedLlm(asks(("c1", "\x00\ud800" + "x" * 1_000, "{}")), says("Well.")))

    batches = await stage.play(stage.turn())

    [part] = named(batches)[1][1].parts
    assert part.name == "\ufffd\ufffd" + "x" * 254


@pytest.mark.parametrize(
    "error", [OSError("a secret"), RuntimeError("a secret"), asyncio.CancelledError("a secret")]
)
async def test_what_a_tool_raises_is_the_calls_trouble_and_the_logs(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    toolbox = StandInToolbox({"look": StandInTool(acts=raising(error))})

    with caplog.at_level(logging.ERROR, logger="holdfast.engine"):
        written = await answered(toolbox)

    message = "look failed with an internal error; see the log of Holdfast for details."
    assert written == [start("c1"), bad("c1", ResultCode.FAILED, message)]
    [record] = caplog.records
    assert record.exc_info is not None


@each_case(
    "error", [OSError("a secret"), RuntimeError("a secret"), asyncio.CancelledError("a secret")]
)
async def test_what_a_plan_raises_is_the_calls_trouble_too(error: BaseException) -> None:
    toolbox = StandInToolbox({"look": StandInTool(refusal=error)})

    message = "look failed with an internal error; see the log of Holdfast for details."
    assert await answered(toolbox) == [bad("c1", ResultCode.FAILED, message)]


async def test_a_tool_that_cannot_tell_its_effect_is_unsafe() -> None:
    class Stumbling(StandInToolbox):
        def effect(self, name: str, arguments: Any, place: ToolWorkspace) -> Effect:
            raise KeyError(name)

    stage = Stage(ScriptedLlm(looks("c1"), says("Well.")), Stumbling())

    batches = named(await stage.play(stage.turn()))

    assert batches[1] == (ended(1, "id1"), intent("c1", effect=Effect.UNSAFE), cost("id2"))


@each_case("thing", [object(), {1: object()}, [[[object()]]], {(1, 2): 3}])
async def test_a_result_that_cannot_be_written_down_is_said_to_be_so(thing: object) -> None:
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: thing)})

    message = "look was executed, but its result cannot be stored."
    assert await answered(toolbox) == [start("c1"), bad("c1", ResultCode.FAILED, message)]


async def test_what_is_unknown_stays_unknown_although_it_cannot_be_written_down() -> None:
    done = CallOutcome(status=ResultStatus.UNKNOWN, result=object())
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: done)})

    message = "look was executed, but its result cannot be stored."
    assert await answered(toolbox) == [
        start("c1"),
        bad("c1", ResultCode.FAILED, message, status=ResultStatus.UNKNOWN),
    ]


def nested(depth: int) -> Any:
    value: Any = "end"
    for _ in range(depth):
        value = [value]
    return value


async def test_a_result_that_goes_on_for_ever_is_said_to_be_so() -> None:
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: nested(100_000))})

    message = "look was executed, but its result cannot be stored."
    assert await answered(toolbox) == [start("c1"), bad("c1", ResultCode.FAILED, message)]


async def test_a_result_is_mended_before_it_is_written_down() -> None:
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: {"\ud800": ["a\x00b", ("c",)]})})

    assert await answered(toolbox) == [
        start("c1"),
        good("c1", {"\ufffd": ["a\ufffdb", ["c"]]}),
    ]


async def test_a_long_error_is_cut_and_kept() -> None:
    error = ToolError(code=ResultCode.FAILED, message="x" * 100_000)
    done = CallOutcome(status=ResultStatus.ERROR, error=error)
    toolbox = StandInToolbox({"look": StandInTool(acts=lambda _: done)})
    stage = Stage(ScriptedLlm(looks("c1"), says("Well.")), toolbox)

    batches = await stage.play(stage.turn())

    [_, row, *_] = batches[2]
    assert isinstance(row, MessageDraft)
    [part] = row.parts
    assert isinstance(part, ToolResult)
    assert part.error is not None
    assert len(part.error.message.encode()) <= 48 << 10
    assert list(stage.shelf.kept.values()) == [b"x" * 100_000]


async def test_a_refusal_of_the_plan_is_the_result() -> None:
    error = ToolError(code=ResultCode.OUTSIDE_SCOPE, message="Too far out.")
    refusal = CallOutcome(status=DENIED, error=error)

    assert await answered(StandInToolbox({"look": StandInTool(refusal=refusal)})) == [
        bad("c1", ResultCode.OUTSIDE_SCOPE, "Too far out.", status=DENIED)
    ]


WRITES = {"look": StandInTool(effect=Effect.UNSAFE, tool_class=ToolClass.WRITE, memory="write:/")}


def asked_about(call_id: str = "c1") -> Question:
    return Question(
        id=ApprovalId("id3"),
        call_id=CallId(call_id),
        tool="look",
        tool_class=ToolClass.WRITE,
        arguments={"at": call_id},
        question="look?",
        digest=digest_call("look", {"at": call_id}, "/desk", ()),
        memory="write:/",
    )


QUESTION = asked_about()


@each_case(
    ("answer", "note", "code", "message"),
    [
        (ApprovalState.DENIED, None, ResultCode.REJECTED, "The user did not allow this."),
        (
            ApprovalState.DENIED,
            "Not 'today'.",
            ResultCode.REJECTED,
            "The user did not allow this. Their note: \"Not 'today'.\"",
        ),
        (
            ApprovalState.EXPIRED,
            None,
            ResultCode.EXPIRED,
            "The approval request was not answered in time, so the call was not executed.",
        ),
    ],
)
async def test_a_call_that_is_not_allowed_is_asked_about_and_never_started(
    answer: ApprovalState, note: str | None, code: ResultCode, message: str
) -> None:
    approver = StandInApprover(ApprovalMode.ASK, answer, note=note)
    toolbox = StandInToolbox(WRITES)

    assert await answered(toolbox, approver) == [
        (QUESTION,),
        bad("c1", code, message, status=DENIED),
    ]
    assert toolbox.done == ["plan c1"]


async def test_a_call_that_is_allowed_is_started_after_the_answer() -> None:
    approver = StandInApprover(ApprovalMode.ASK, ApprovalState.ALLOWED)

    assert await answered(StandInToolbox(WRITES), approver) == [
        (QUESTION,),
        start("c1"),
        good("c1"),
    ]


async def test_where_nobody_can_be_asked_the_call_is_refused_at_once() -> None:
    approver = StandInApprover(ApprovalMode.ASK, is_attended=False)
    toolbox = StandInToolbox(WRITES)

    message = "This call requires approval, and no user is present to give it (unattended)."
    assert await answered(toolbox, approver) == [
        bad("c1", ResultCode.REJECTED, message, status=DENIED)
    ]
    assert approver.asked == []


@each_case("mode", ApprovalMode)
async def test_an_agent_may_forbid_what_every_mode_would_allow(mode: ApprovalMode) -> None:
    approver = StandInApprover(mode)

    message = "The session's approval mode does not allow this."
    tools = (ToolSpec(name="other"), ToolSpec(name="look", approval="deny"))
    assert await answered(StandInToolbox(), approver, tools=tools) == [
        bad("c1", ResultCode.REJECTED, message, status=DENIED)
    ]


async def test_an_agent_may_want_to_be_asked_about_what_the_mode_would_allow() -> None:
    approver = StandInApprover(ApprovalMode.AUTO, ApprovalState.ALLOWED)

    written = await answered(
        StandInToolbox(), approver, tools=(ToolSpec(name="look", approval="ask"),)
    )

    assert [type(batch[0]) for batch in written] == [Question, ToolStarted, ToolEnded]


def test_every_ruling_that_runs_nothing_has_its_words() -> None:
    assert set(REFUSALS) == set(Ruling) - {Ruling.RUN, Ruling.ASK, Ruling.WAIT}


async def test_whatever_became_of_a_call_the_model_is_told_and_asked_again() -> None:
    stage = Stage(ScriptedLlm(asks(("c1", "nothing", "{}")), says("Well.")))

    batches = named(await stage.play(stage.turn()))

    assert batches[2] == (
        *bad("c1", ResultCode.UNKNOWN_TOOL, "There is no tool 'nothing'.", name="nothing"),
        started(2, "id3"),
    )
    assert stage.llm.requests[1].messages[-1].text == (
        "error (unknown_tool): There is no tool 'nothing'."
    )


@pytest.mark.parametrize(
    ("mode", "state", "message"),
    [
        (
            ApprovalMode.ASK,
            ApprovalState.DENIED,
            "The user did not allow this. Their note: 'Because.'",
        ),
        (
            ApprovalMode.DENY,
            ApprovalState.ALLOWED,
            "The session's approval mode does not allow this.",
        ),
    ],
)
async def test_a_note_is_told_with_the_answer_it_belongs_to_and_no_other(
    mode: ApprovalMode, state: ApprovalState, message: str
) -> None:
    approver = StandInApprover(mode, earlier=an_approval(QUESTION, state, note="Because."))

    assert await answered(StandInToolbox(WRITES), approver) == [
        bad("c1", ResultCode.REJECTED, message, status=DENIED)
    ]


async def test_a_question_that_waits_where_nobody_is_is_closed_and_means_no() -> None:
    approver = StandInApprover(
        ApprovalMode.ASK, earlier=an_approval(QUESTION), is_attended=False, note="Because."
    )
    toolbox = StandInToolbox(WRITES)

    code, message = REFUSALS[Ruling.UNATTENDED]
    assert await answered(toolbox, approver) == [bad("c1", code, message, status=DENIED)]
    assert (approver.asked, approver.withdrawn) == ([], [QUESTION])
    assert "run c1" not in toolbox.done


async def test_an_answer_that_came_just_before_a_question_was_closed_counts() -> None:
    approver = StandInApprover(
        ApprovalMode.ASK, ApprovalState.ALLOWED, earlier=an_approval(QUESTION), is_attended=False
    )
    toolbox = StandInToolbox(WRITES)
    await answered(toolbox, approver)

    assert approver.withdrawn == [QUESTION]
    assert toolbox.done[-1] == "run c1"


async def test_arguments_are_run_and_written_down_as_they_came_bytes_included() -> None:
    picture = f"data:image/png;base64,{base64.b64encode(bytes(range(256))).decode()}"
    script = asks(("c1", "look", f'{{"at": "{picture}"}}'))
    stage = Stage(ScriptedLlm(script, says("Well.")))

    batches = await stage.play(stage.turn())

    assert named(batches)[1][1] == intent("c1", arguments={"at": picture})


async def test_what_is_missing_is_told_once() -> None:
    toolbox = StandInToolbox()
    toolbox.missing = ("The server notes did not start.",)
    stage = Stage(ScriptedLlm(says("Well.")), toolbox)

    first, *_ = await stage.play(stage.turn())

    part = Notice(code=NoticeCode.MCP_UNAVAILABLE, text="The server notes did not start.")
    assert first == (MessageDraft(role=Role.SYSTEM, parts=(part,)),)
