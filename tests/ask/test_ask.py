"""`ask` and `stream`: one call from a question to its answer."""

import asyncio
import dataclasses
import tempfile
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    Answer,
    AskOptions,
    Holdfast,
    SettlementAction,
    SettlementRequest,
    TurnFailed,
    open_holdfast,
    tool,
)
from holdfast.ask.answers import Cost, ReasoningDelta, TextDelta, Waiting
from holdfast.domain.approvals import Approval, ApprovalScope, ApprovalState, Decision
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.events import FailureCode, MessageAppended, ToolEnded, ToolStarted, TurnStarted
from holdfast.domain.messages import Role
from holdfast.domain.sessions import SessionContext, Status, StopReason
from tests.builders import an_id
from tests.houses import news_until, played
from tests.marks import each_case
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, asks, call, says

pytestmark = pytest.mark.anyio

LONG = 600_000


class Sum(msgspec.Struct):
    """The value of an answer."""

    sum: int


@dataclasses.dataclass
class SumData:
    """The same as a dataclass."""

    sum: int


class SumModel(pydantic.BaseModel):
    """The same as a model of pydantic, with a rule that no schema can say."""

    sum: int

    @pydantic.field_validator("sum")
    @classmethod
    def odd(cls, value: int) -> int:
        """Refuse even numbers."""
        if value % 2 == 0:
            raise ValueError("even")
        return value


async def test_the_answer_holds_the_turn(home: Path) -> None:
    steps = (says("4", usage={"input": 3, "output": 1}),)
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        answer = await hf.ask("2+2", title="Sums", tags=["a"], approval="auto", session=None)
        session = await hf.sessions.get(hf.owner, answer.session_id)
        rows = await hf.read(answer.session_id)

    assert (str(answer), answer.text, answer.value) == ("4", "4", None)
    assert (answer.turn, answer.stop_reason, answer.waiting) == (1, StopReason.STOP, None)
    assert answer.messages == rows
    assert (answer.usage.input, answer.usage.output) == (3, 1)
    assert (answer.model or "").startswith("scripted:")
    assert (session.title, session.tags, session.status) == ("Sums", ("a",), Status.IDLE)


@each_case(
    ("cost", "text"),
    [
        (Cost(microcents=123_456), "$0.0012"),
        (Cost(microcents=123_456, priced=False), "at least $0.0012"),
        (Cost(microcents=123_456, priced=False, estimated=True), "at most $0.0012"),
        (Cost(), "free"),
        (Cost(priced=False), "unknown"),
    ],
)
def test_a_cost_is_a_sum_or_a_bound(cost: Cost, text: str) -> None:
    assert str(cost) == text


async def test_the_calls_of_the_turn_are_in_the_answer(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hold")
    steps = asks(call("read_file", "c1", path="a.txt"), text="Let me look."), says("It says hold.")
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        answer = await hf.ask("Read a.txt", context=SessionContext(working_dir=str(tmp_path)))

    assert answer.text == "It says hold."
    assert [(each.id, each.state) for each in answer.calls] == [("c1", CallState.FINISHED)]


async def test_a_second_question_is_asked_in_the_same_session(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("one"), says("two"))) as hf:
        first = await hf.ask("1")
        second = await hf.ask("2", session=first.session_id)
        queued = await asyncio.gather(
            *(hf.ask(text, session=first.session_id, check=False) for text in "34")
        )

    assert (second.text, second.turn) == ("two", 2)
    assert [row.turn for row in second.messages] == [2, 2]
    # Two questions at once share a turn, or the second waits for the next; each has its own row.
    for answer, text in zip(queued, "34", strict=True):
        assert text in [row.text for row in answer.messages if row.role is Role.USER]


@each_case("options", [{"id": an_id(7)}, {"key": "report-7"}])
async def test_the_same_question_is_asked_once(home: Path, options: dict[str, Any]) -> None:
    config = a_config(home, says("once"), says("twice"))
    async with open_holdfast(config=config) as hf:
        first = await hf.ask("go", **options)
        assert await hf.ask("go", **options) == first
    async with open_holdfast(config=config) as hf:
        assert await hf.ask("go", **options) == first
        with pytest.raises(Conflict) as caught:
            await hf.ask("stay", **options)
        assert [row.text for row in await hf.read(first.session_id)] == ["go", "once"]

    assert caught.value.code is Code.MESSAGE_ID_REUSED


async def test_a_key_is_answered_once_the_call_that_a_crash_cut_off_is_settled(
    home: Path,
) -> None:
    started, runs = asyncio.Event(), []

    @tool
    async def refund(order: str) -> str:
        """Refund an order."""
        runs.append(order)
        started.set()
        await asyncio.Event().wait()
        return order

    config = a_config(home, asks(call("refund", "c1", order="17")), says("Refunded."))
    options: AskOptions = {"key": "refund-17", "tools": [refund], "approval": "auto"}
    async with open_holdfast(config=config) as hf:
        asked = asyncio.ensure_future(hf.ask("Refund 17", detach=True, **options))
        await started.wait()
        asked.cancel()
    async with open_holdfast(config=config) as hf:
        with pytest.raises(TurnFailed) as failed:
            await hf.ask("Refund 17", **options)
        assert failed.value.answer is not None
        session_id, (cut_off,) = failed.value.answer.session_id, failed.value.answer.calls
        with pytest.raises(TurnFailed):
            await hf.ask("Refund 17", **options)
        done = SettlementRequest(how=SettlementAction.MARK_DONE, by="me", result="refunded")
        await hf.calls.settle(hf.owner, session_id, cut_off.id, done)
        answer = await hf.ask("Refund 17", **options)
        rows = await hf.read(session_id)
        assert await hf.ask("Refund 17", **options) == answer

    assert (cut_off.state, runs) == (CallState.UNKNOWN, ["17"])
    assert (answer.text, answer.turn, answer.stop_reason) == ("Refunded.", 2, StopReason.STOP)
    assert [row.text for row in rows if row.role is Role.USER] == [
        "Refund 17",
        "Go on: the outcome of the call that was cut off is settled now.",
    ]


async def test_a_key_is_of_an_agent(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("a"), says("b"))) as hf:
        await hf.agents.create(hf.owner, {"name": "Ada", "system_prompt": "Be terse."})
        answers = [await hf.ask("go", key="k", agent=agent) for agent in ("holdfast", "ada")]

    assert len({each.session_id for each in answers}) == 2


@each_case(
    ("options", "named"),
    [
        ({"session": an_id(1), "model": "offline:holdfast", "title": "x"}, ["model", "title"]),
        ({"session": an_id(1), "key": "k"}, ["key"]),
        ({"id": an_id(1), "key": "k"}, ["id"]),
    ],
)
async def test_options_that_do_not_go_together_are_refused(
    quiet: Holdfast, options: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(Invalid) as caught:
        await quiet.ask("go", **options)

    assert (caught.value.code, caught.value.details["options"]) == (Code.OPTION_NOT_OFFERED, named)
    remedy = "leave one of them out" if "id" in options else "sessions.update"
    remedy = "key and session cannot be given together" if named == ["key"] else remedy
    assert remedy in caught.value.message


@each_case(
    ("options", "error"),
    [
        ({"prompt": " "}, Code.MESSAGE_EMPTY),
        ({"id": "seven"}, Code.INVALID_ID),
        ({"session": an_id(9)}, Code.SESSION_NOT_FOUND),
        ({"agent": "nobody"}, Code.AGENT_NOT_FOUND),
        ({"on_wait": "never"}, Code.INVALID_INPUT),
        ({"key": ""}, Code.INVALID_INPUT),
        ({"approve": "yes"}, Code.INVALID_INPUT),
        ({"approval": "perhaps"}, Code.INVALID_INPUT),
        ({"tools": [len]}, Code.TOOL_INVALID),
        ({"tools": "read_file"}, Code.INVALID_INPUT),
        ({"tools": ["nope"]}, Code.UNKNOWN_TOOL),
        ({"tools": ["read_output"]}, Code.GRANT_EXCEEDED),
        ({"context": "/tmp"}, Code.INVALID_INPUT),
        ({"budget": 5}, Code.INVALID_INPUT),
        ({"timeout": "long"}, Code.INVALID_INPUT),
        ({"check": 1}, Code.INVALID_INPUT),
        ({"output": object}, Code.TOOL_INVALID),
    ],
)
async def test_bad_input_changes_nothing(
    quiet: Holdfast, options: dict[str, Any], error: Code
) -> None:
    with pytest.raises(HoldfastError) as caught:
        await quiet.ask(**{"prompt": "go", **options})

    assert caught.value.code is error


async def test_an_unknown_option_is_a_mistake_in_the_program(quiet: Holdfast) -> None:
    odd: Any = quiet
    with pytest.raises(TypeError, match="modell"):
        await odd.ask("go", modell="x")


async def test_a_turn_that_fails_is_raised_with_its_answer(home: Path) -> None:
    failed = {"error": {"kind": "bad_request"}}
    async with open_holdfast(config=a_config(home, failed, failed)) as hf:
        with pytest.raises(TurnFailed) as caught:
            await hf.ask("go")
        returned = await hf.ask("go", check=False)

    error = caught.value
    assert error.failure is not None
    assert error.failure.code is FailureCode.INVALID_REQUEST
    assert str(error) == error.failure.message
    assert error.answer is not None
    assert error.answer.stop_reason is StopReason.ERROR
    assert returned.stop_reason is StopReason.ERROR


async def test_a_turn_that_takes_too_long_is_interrupted(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("late", delay_ms=LONG))) as hf:
        with pytest.raises(TurnFailed) as caught:
            await hf.ask("go", timeout=0.3)

    assert caught.value.answer is not None
    assert caught.value.answer.stop_reason is StopReason.ABORTED


async def test_a_detached_turn_goes_on_after_the_timeout(home: Path) -> None:
    config = a_config(home, says("late", delay_ms=700))
    async with open_holdfast(config=config) as hf:
        with pytest.raises(TimeoutError):
            await hf.ask("go", key="k", timeout=0.2, detach=True)
        async with asyncio.timeout(PATIENCE):
            assert (await hf.ask("go", key="k")).text == "late"


async def test_a_queued_question_stays_queued_after_the_timeout(home: Path) -> None:
    steps = says("first", delay_ms=LONG), says("second")
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        session = await hf.open()
        await hf.send(session.id, "1")
        with pytest.raises(TimeoutError, match="stays queued"):
            await hf.ask("2", session=session.id, timeout=0.2)
        assert (await hf.sessions.get(hf.owner, session.id)).status is Status.RUNNING


@each_case(("detach", "stop"), [(False, StopReason.ABORTED), (True, StopReason.STOP)])
async def test_cancelling_the_caller_interrupts_the_turn(
    home: Path, *, detach: bool, stop: StopReason
) -> None:
    async with open_holdfast(config=a_config(home, says("late", delay_ms=700))) as hf:
        session = await hf.open()
        asked = asyncio.ensure_future(hf.ask("go", session=session.id, detach=detach))
        await news_until(hf, session.id, TurnStarted)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(PATIENCE):
            await played(hf, session.id)
        assert (await hf.sessions.get(hf.owner, session.id)).last_stop is stop


async def later(answer: Decision) -> Decision:
    """Answer asynchronously."""
    return answer


YES = Decision(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION)


@each_case(("decide", "written"), [(True, True), (False, False), (YES, True), (later(YES), True)])
async def test_questions_of_the_turn_are_answered(
    home: Path, tmp_path: Path, decide: Any, *, written: bool
) -> None:
    asked: list[Approval] = []

    def approve(approval: Approval) -> Any:
        asked.append(approval)
        return decide

    desk = Path(tempfile.mkdtemp(dir=tmp_path))
    steps = asks(call("write_file", "c1", path="a.txt", content="hold")), says("Done.")
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        context = SessionContext(working_dir=str(desk))
        answer = await hf.ask("Write", context=context, approve=approve)

    assert [each.question.tool for each in asked] == ["write_file"]
    assert (desk / "a.txt").exists() == written
    assert answer.text == "Done."


async def test_an_answer_that_is_no_decision_is_refused_and_answers_nothing(
    home: Path, tmp_path: Path
) -> None:
    desk = Path(tempfile.mkdtemp(dir=tmp_path))
    step = asks(call("write_file", "c1", path="a.txt", content="hold"))
    async with open_holdfast(config=a_config(home, step, says("Done."))) as hf:
        context = SessionContext(working_dir=str(desk))
        answer: Any = "yes"
        with pytest.raises(Invalid) as caught:
            await hf.ask("Write", context=context, approve=lambda _: answer)

    assert caught.value.details["field"] == "approve"
    assert not (desk / "a.txt").exists()


async def test_a_question_that_another_answers_first_is_left_alone(
    home: Path, tmp_path: Path
) -> None:
    steps = asks(call("write_file", "c1", path="a.txt", content="hold")), says("Done.")
    async with open_holdfast(config=a_config(home, *steps)) as hf:

        async def approve(approval: Approval) -> bool:
            no = Decision(state=ApprovalState.DENIED, by="another")
            await hf.approvals.answer(hf.owner, approval.session_id, approval.id, no)
            return True

        context = SessionContext(working_dir=str(tmp_path))
        answer = await hf.ask("Write", context=context, approve=approve)

    assert answer.text == "Done."
    assert not (tmp_path / "a.txt").exists()


async def test_a_turn_that_waits_may_be_returned_and_asked_for_again(
    home: Path, tmp_path: Path
) -> None:
    steps = asks(call("write_file", "c1", path="a.txt", content="hold")), says("Done.")
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        context = SessionContext(working_dir=str(tmp_path))
        first = await hf.ask("Write", context=context, on_wait="return", key="k")
        waiting = first.waiting
        assert waiting is not None
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        assert waiting.approval_id is not None
        await hf.approvals.answer(hf.owner, first.session_id, waiting.approval_id, yes)
        again = await hf.ask("Write", context=context, on_wait="return", key="k")

    assert (first.stop_reason, first.text) == (None, "")
    assert (waiting.reason, waiting.call_ids) == ("approval", ("c1",))
    assert "a.txt (new file)\n+hold" in waiting.text
    assert (again.stop_reason, again.waiting, again.text) == (StopReason.STOP, None, "Done.")


async def test_a_session_that_is_closed_leaves_nothing_to_wait_for(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("late", delay_ms=LONG))) as hf:
        session = await hf.open()
        await hf.send(session.id, "1")
        asked = asyncio.ensure_future(hf.ask("2", session=session.id))
        await news_until(hf, session.id, TurnStarted)
        await news_until(hf, session.id, MessageAppended, after=3)
        await hf.sessions.close(hf.owner, session.id)
        with pytest.raises(Conflict) as caught:
            async with asyncio.timeout(PATIENCE):
                await asked

    assert caught.value.code is Code.SESSION_CLOSED


async def test_an_answer_outlives_its_events_and_the_end_of_its_session(home: Path) -> None:
    steps = says("one"), {"error": "bad_request"}
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        first = await hf.ask("1", key="k")
        ids = {"session": first.session_id, "id": an_id(2)}
        await hf.ask("2", **ids, check=False)
        await hf.sessions.close(hf.owner, first.session_id)
        assert await hf.ask("1", key="k") == first
        await hf.sessions.resume(hf.owner, first.session_id)
        assert await hf.ask("1", key="k") == first
        await hf.maintenance.forget(timedelta(0))
        async with asyncio.timeout(PATIENCE):
            old = await hf.ask("1", key="k")
            with pytest.raises(TurnFailed) as failed:
                await hf.ask("2", **ids)

    assert (old.text, old.stop_reason, old.messages) == ("one", StopReason.STOP, first.messages)
    assert str(old.cost) == "unknown"
    assert failed.value.answer is not None
    assert failed.value.answer.stop_reason is StopReason.ERROR


@each_case(
    ("kind", "text", "value"),
    [
        (Sum, '{"sum": 5}', Sum(5)),
        (SumData, '{"sum": 5}', SumData(5)),
        (SumModel, '{"sum": 5}', SumModel(sum=5)),
        (list[int], "[1, 2]", [1, 2]),
        (bool, "true", True),
    ],
)
async def test_the_value_has_the_type_that_was_asked_for(
    home: Path, kind: Any, text: str, value: Any
) -> None:
    async with open_holdfast(config=a_config(home, says("Five."), says(text), says(text))) as hf:
        answer = await hf.ask("2+3", output=kind)
        again = await hf.ask("2+3", session=answer.session_id, output=kind)
        with pytest.raises(Invalid) as caught:
            await hf.ask("2+3", session=answer.session_id, output=dict[str, Sum])

    assert (answer.value, answer.text, again.value) == (value, text, value)
    assert caught.value.code is Code.OPTION_NOT_OFFERED


@each_case(
    ("kind", "steps", "message"),
    [
        (Sum, ("Five.",) * 3, "not match the output schema"),
        (SumModel, ('{"sum": 4}',), "does not fit the output type"),
        (Sum, (), "The turn ended"),
    ],
)
async def test_without_a_value_the_question_fails(
    home: Path, kind: Any, steps: tuple[str, ...], message: str
) -> None:
    said = map(says, steps) if steps else [{"error": "filtered"}]
    async with open_holdfast(config=a_config(home, *said)) as hf:
        with pytest.raises(TurnFailed) as caught:
            await hf.ask("2+3", output=kind, check=False)

    assert caught.value.failure is not None
    assert caught.value.failure.code is FailureCode.OUTPUT_INVALID
    assert message in str(caught.value)


async def test_a_stream_ends_with_the_answer(home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hold")
    steps = (
        asks(call("read_file", "c1", path="a.txt"), text="Let me look."),
        says("It says hold.", reasoning="I read it."),
    )
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        context = SessionContext(working_dir=str(tmp_path))
        items = [item async for item in hf.stream("Read a.txt", context=context)]

    *before, answer = items
    assert isinstance(answer, Answer)
    last = max(item.step for item in before if isinstance(item, TextDelta))
    spoken = [each.text for each in before if isinstance(each, TextDelta) and each.step == last]
    assert "".join(spoken) == answer.text == "It says hold."
    kinds = [type(each) for each in before]
    assert kinds.index(ToolStarted) < kinds.index(ToolEnded) < kinds.index(ReasoningDelta)


async def test_leaving_a_stream_stops_nothing(home: Path, tmp_path: Path) -> None:
    steps = asks(call("write_file", "c1", path="a.txt", content="hold")), says("Done.")
    async with open_holdfast(config=a_config(home, *steps)) as hf:
        context = SessionContext(working_dir=str(tmp_path))
        async with aclosing(hf.stream("Write", context=context, key="k")) as items:
            waiting: list[Waiting] = []
            async for item in items:
                if isinstance(item, Waiting):
                    waiting.append(item)
                    break
        assert waiting[0].approval_id is not None
        answer = await hf.ask("Write", context=context, key="k", approve=lambda _: True)

    assert answer.text == "Done."
    assert (tmp_path / "a.txt").read_text() == "hold"
