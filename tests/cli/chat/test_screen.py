"""What a conversation looks like."""

from collections.abc import Callable

import pytest

from holdfast import SessionRequest
from holdfast.api import Holdfast
from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.screen import JsonScreen, TextScreen
from holdfast.cli.json_stream import EventLines
from holdfast.cli.options import GlobalOptions
from holdfast.cli.output import Printer
from holdfast.domain.approvals import Ruling
from holdfast.domain.calls import Settlement
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    CallSettled,
    Channel,
    Event,
    Failure,
    FailureCode,
    Gap,
    MessageAppended,
    Payload,
    SessionClosed,
    SessionCompacted,
    StepDelta,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnPaused,
    TurnStarted,
)
from holdfast.domain.ids import ApprovalId, CallId, MessageId
from holdfast.domain.messages import ResultStatus, Role, ToolError
from holdfast.domain.sessions import Session, Status, StopReason
from holdfast.domain.tools import ToolClass
from holdfast.domain.waits import WaitReason
from holdfast.engine.tool_calls import REFUSALS
from tests.builders import MODEL_ID, an_event, an_id

pytestmark = pytest.mark.anyio

STARTED = StepStarted(step=1, model_id=MODEL_ID, message_id=MessageId(an_id(9)))
STOPPED = TurnEnded(stop_reason=StopReason.STOP)
CUT_OFF = Failure(code=FailureCode.INTERRUPTED, message="The answer was cut off.")


def delta(text: str, *, offset: int = 0, channel: Channel = Channel.TEXT) -> StepDelta:
    """Return a piece of an answer."""
    return StepDelta(step=1, channel=channel, offset=offset, text=text)


async def shown(screen: TextScreen, *payloads: Payload | Gap) -> None:
    """Show news one after the other."""
    for payload in payloads:
        await screen.show(payload if isinstance(payload, Gap) else an_event(payload, turn=1))


async def test_text_is_printed_as_it_arrives_and_the_line_is_ended(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = TextScreen(Printer(GlobalOptions()), quiet)

    await shown(screen, TurnStarted(), STARTED, delta("Good \x1b[31m"))
    first = capsys.readouterr().out
    await shown(screen, delta("day", offset=10), STOPPED)

    assert (first, capsys.readouterr()) == ("Good ", ("day\n", ""))


async def test_thoughts_are_for_terminals_only(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = TextScreen(Printer(GlobalOptions()), quiet)

    await shown(screen, STARTED, delta("hm", channel=Channel.REASONING), delta("yes"), STOPPED)

    assert capsys.readouterr().out == "yes\n"


@pytest.mark.parametrize("settings", [GlobalOptions(quiet=True), GlobalOptions()])
async def test_no_wheel_turns_in_a_pipe_or_when_silence_is_wanted(
    quiet: Holdfast, settings: GlobalOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    TextScreen(Printer(settings), quiet).show_waiting()

    assert capsys.readouterr() == ("", "")


async def test_a_step_that_was_in_vain_is_told_of_when_the_next_begins(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = TextScreen(Printer(GlobalOptions()), quiet)

    await shown(screen, STARTED, delta("Goo"), StepFailed(step=1, failure=CUT_OFF))
    before = capsys.readouterr()
    await shown(screen, STARTED, delta("Good day"), STOPPED)

    assert before == ("Goo", "")
    assert capsys.readouterr() == ("\nGood day\n", "The answer was cut off. Retrying.\n")


@pytest.mark.parametrize(
    "advice", ["Send a message to try again.", "Wait 3 s, then send a message to try again."]
)
async def test_what_is_tried_again_by_itself_asks_nobody_to_try_again(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str], advice: str
) -> None:
    failure = Failure(code=FailureCode.PROVIDER_UNAVAILABLE, message=f"It is away. {advice}")
    screen = TextScreen(Printer(GlobalOptions()), quiet)

    await shown(screen, STARTED, StepFailed(step=1, failure=failure))
    await shown(screen, STARTED, delta("yes"), STOPPED)

    assert capsys.readouterr() == ("yes\n", "It is away. Retrying.\n")


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (STOPPED, ""),
        (
            TurnEnded(stop_reason=StopReason.ABORTED),
            "Stopped; the partial answer is saved.\n",
        ),
        (TurnEnded(stop_reason=StopReason.LENGTH), "The turn ended with length.\n"),
        (
            TurnEnded(stop_reason=StopReason.INTERRUPTED, failure=CUT_OFF),
            "The turn failed (interrupted): The answer was cut off.\n",
        ),
    ],
)
async def test_an_end_that_is_no_answer_is_told_on_the_side(
    quiet: Holdfast, ended: TurnEnded, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = TextScreen(Printer(GlobalOptions(quiet=True)), quiet)

    await shown(screen, STARTED, delta("half"), StepFailed(step=1, failure=CUT_OFF), ended)

    assert capsys.readouterr() == ("half\n", told)


async def test_tools_questions_and_closings_are_remarks(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = TextScreen(Printer(GlobalOptions()), quiet)
    call = CallId("c1")

    await shown(
        screen,
        ToolStarted(call_id=call, name="read_file", arguments={"path": "a.txt"}),
        ToolEnded(call_id=call, name="read_file", status=ResultStatus.OK),
        ApprovalRequested(
            approval_id=ApprovalId(an_id(4)),
            tool="write_file",
            tool_class=ToolClass.WRITE,
            question="May \u202eI?",
        ),
        ApprovalAnswered(approval_id=ApprovalId(an_id(4)), decision="denied", by="ada"),
        TurnPaused(reason=WaitReason.APPROVAL, text="It waits for an answer."),
        TurnPaused(reason=WaitReason.CLIENT, text="It waits for a client.", call_ids=(call,)),
        TurnPaused(reason=WaitReason.TOOL, text="It waits for the tool refund."),
        TurnPaused(reason=WaitReason.RUNTIME, text="It waits for the loop planner."),
        TurnPaused(reason=WaitReason.HOLDER, text="It waits for its program."),
        TurnPaused(reason=WaitReason.CHILD, text="It waits for the agent helper."),
        CallSettled(call_id=call, how=Settlement.SKIPPED, by="ada"),
        SessionClosed(status=Status.COMPLETED, reason="idle_timeout"),
        SessionClosed(status=Status.CANCELLED),
    )

    assert capsys.readouterr() == (
        "",
        "read_file a.txt …\nread_file a.txt: ok\n"
        "write_file asks for approval: May \\u202eI?\n"
        "The approval request: denied, by ada\n"
        "It waits for a client. Answer with `holdfast calls answer c1`.\n"
        "It waits for the tool refund.\n"
        "It waits for the loop planner.\n"
        "It waits for its program.\n"
        "The unknown call c1 was skipped.\n"
        "The session was closed: idle_timeout.\n"
        "The session was closed: cancelled.\n",
    )


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("offline:holdfast", "free"),
        ("scripted", "unknown (unpriced)"),
    ],
)
async def test_a_person_is_told_what_a_turn_has_cost(
    holdfast: Holdfast,
    script: Callable[[str], str],
    model: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = await answered(holdfast, script("[{text: five}]") if model == "scripted" else model)
    page = await holdfast.events.list(holdfast.owner, session.id)
    ended = page.items[-1]
    assert isinstance(ended, Event)
    assert isinstance(ended.payload, TurnEnded)

    for manner in (AttendancePolicy(asks=True), AttendancePolicy(is_attended=False)):
        await TextScreen(Printer(GlobalOptions()), holdfast, manner).show(ended)

    spent = ended.payload.usage
    assert capsys.readouterr().err == f"{spent.input} tokens in, {spent.output} out, {told}\n"
    assert spent.output > 0


async def test_what_a_flag_does_not_answer_for_is_not_recommended(
    quiet: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = REFUSALS[Ruling.UNATTENDED]
    nobody = ToolError(code=code, message=message)
    screen = TextScreen(
        Printer(GlobalOptions()),
        quiet,
        AttendancePolicy(is_attended=False, yes_to=frozenset({"edit_file"})),
    )

    for name in ("write_file", "edit_file", "git_commit"):
        ended = ToolEnded(
            call_id=CallId(name), name=name, status=ResultStatus.DENIED, failure=nobody
        )
        await shown(screen, ended)

    assert capsys.readouterr().err.splitlines() == [
        f"write_file: denied (rejected): {message} Allow it with --yes-to write_file.",
        f"edit_file: denied (rejected): {message}",
        f"git_commit: denied (rejected): {message}",
    ]


async def test_a_summary_is_told_of(quiet: Holdfast, capsys: pytest.CaptureFixture[str]) -> None:
    folded = SessionCompacted(message_id=MessageId(an_id(9)), kept=2, dropped_through=6)

    await shown(TextScreen(Printer(GlobalOptions()), quiet), folded)

    assert capsys.readouterr().err == "Everything before message 7 has been summarized.\n"


async def test_what_was_missed_is_read_from_the_message(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await answered(holdfast)
    answer = (await holdfast.read(session.id))[-1]
    row = MessageAppended(message_id=answer.id, role=Role.ASSISTANT, sequence=2)
    told = an_event(row, session_id=session.id, turn=1)
    rest = answer.text[4:]

    for missed in (
        [],
        [STARTED, delta(rest, offset=4)],
        [
            STARTED,
            delta(answer.text[:4]),
            Gap(from_sequence=5, to_sequence=6),
            delta(rest, offset=4),
        ],
    ):
        screen = TextScreen(Printer(GlobalOptions()), holdfast)
        capsys.readouterr()
        await shown(screen, *missed)
        await screen.show(told)
        await shown(screen, STOPPED)

        assert capsys.readouterr().out == f"{answer.text}\n"


async def test_json_is_one_line_for_each_event(
    holdfast: Holdfast, capsys: pytest.CaptureFixture[str]
) -> None:
    session = await answered(holdfast)
    lines = await EventLines.from_sequence(holdfast, session, 0)
    screen = JsonScreen(Printer(GlobalOptions(json=True)), lines)

    screen.show_waiting()
    screen.remark("nothing of this")
    await screen.show(an_event(STARTED, turn=1))
    await screen.show(Gap(from_sequence=2, to_sequence=3))

    first, second = capsys.readouterr().out.splitlines()
    assert '"type":"holdfast:step.started"' in first
    assert '"type":"holdfast:gap"' in second


async def test_a_model_that_came_later_is_looked_up(holdfast: Holdfast) -> None:
    session = await answered(holdfast)
    lines = await EventLines.from_sequence(holdfast, session, session.last_event)
    await holdfast.agents.create(holdfast.owner, {"name": "x", "models": ("openai:new",)})
    model = next(each for each in await holdfast.models.list() if each.ref == "openai:new")
    started = StepStarted(step=1, model_id=model.id, message_id=MessageId(an_id(9)))

    await lines.line(an_event(started, turn=2))
    line = await lines.line(an_event(delta("x"), turn=2))

    assert line["model"] == "openai:new"


async def test_the_first_model_is_the_sessions_then_the_agents(holdfast: Holdfast) -> None:
    await holdfast.agents.create(holdfast.owner, {"name": "x", "models": ("openai:a", "openai:b")})
    own = await holdfast.open("x", SessionRequest(model="openai:c"))
    agents = await holdfast.open("x")

    models = []
    for session in (own, agents):
        lines = await EventLines.from_sequence(holdfast, session, 0)
        (opened,) = (await holdfast.events.list(holdfast.owner, session.id)).items
        models.append((await lines.line(opened))["model"])

    assert models == ["openai:c", "openai:a"]


async def answered(holdfast: Holdfast, model: str | None = None) -> Session:
    """Open a session and have one turn in it."""
    session = await holdfast.open("holdfast", SessionRequest(model=model))
    await holdfast.send(session.id, "What is 2+3?")
    async for item in holdfast.follow(session.id):
        if not isinstance(item, Gap) and isinstance(item.payload, TurnEnded):
            break
    return await holdfast.sessions.get(holdfast.owner, session.id)
