"""Recorded turns in a store: one commit, repeatable, played by nobody, treated like hosted ones."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RecordedDraft, Session, SessionQuery, open_holdfast
from holdfast.domain.calls import CallState
from holdfast.domain.costs import CostQuery, Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, HoldfastError
from holdfast.domain.events import (
    Event,
    MessageAppended,
    SessionOpened,
    TurnEnded,
    TurnStarted,
)
from holdfast.domain.ids import CallId, MessageId
from holdfast.domain.messages import Media, ResultStatus, Role, Text, ToolCall, ToolResult
from holdfast.domain.models import ModelRequest, Prices
from holdfast.search.query import SearchQuery
from holdfast.services.calls import SettlementAction, SettlementRequest
from holdfast.workflows.session_export import ExportFormat
from tests.builders import an_id
from tests.houses import current, news_until
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, says

pytestmark = pytest.mark.anyio


def turn(number: int, *, ids: bool = True, text: str = "answer") -> tuple[MessageDraft, ...]:
    """Return a turn with a call and its result."""
    called = ToolCall(id=CallId(f"c{number}"), name="refund", arguments={"order": number})
    result = ToolResult(call_id=called.id, name="", status=ResultStatus.OK, result="done")
    rows: list[tuple[Role, Any]] = [
        (Role.USER, Text(text=f"question {number}")),
        (Role.TOOL_CALL, called),
        (Role.TOOL_RESULT, result),
        (Role.ASSISTANT, Text(text=f"{text} {number}")),
    ]
    return tuple(
        MessageDraft(
            role=role,
            parts=(part,),
            id=MessageId(an_id(10 * number + place)) if ids else None,
        )
        for place, (role, part) in enumerate(rows)
    )


async def test_recorded_turns_are_like_hosted_ones(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("live"))) as hf:
        session = await hf.open()
        made = await hf.record(session.id, [*turn(1), *turn(2)])
        answer = await hf.ask("and now?", session=session.id)
        rows = await hf.read(session.id)
        proof = await hf.sessions.verify(hf.owner, session.id)
        fork = await hf.sessions.fork(hf.owner, session.id, at=4)
        found = await hf.search.find(hf.owner, SearchQuery(text="answer 2"))
        export = await hf.exports.export(hf.owner, session.id, ExportFormat.MARKDOWN)
        calls = (await hf.calls.list(hf.owner, session.id)).items
        inherited = await hf.read(fork.id)
        after = await current(hf, session)

    assert (made.turns, made.messages, made.is_new) == ((1, 2), rows[:8], True)
    assert (answer.text, answer.turn, after.title) == ("live", 3, "question 1")
    assert proof.faults == ()
    assert inherited == rows[:4]
    assert [hit.session_id for hit in found.items] == [session.id]
    assert b"answer 2" in export.content
    assert [call.state for call in calls] == [CallState.FINISHED] * 2


async def test_a_recording_is_repeated_and_continued(home: Path) -> None:
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open()
        first = await hf.record(session.id, turn(1))
        again = await hf.record(session.id, turn(1))
        longer = await hf.record(session.id, [*turn(1), *turn(2)])
        await hf.sessions.close(hf.owner, session.id)
        closed = await hf.record(session.id, [*turn(1), *turn(2)])
        rows = await hf.read(session.id)

    assert (again.messages, again.turns, again.is_new) == (first.messages, (1,), False)
    assert (longer.turns, longer.messages, longer.is_new) == ((1, 2), rows[:8], True)
    assert (closed.messages, closed.is_new) == (longer.messages, False)


async def test_an_answer_that_comes_later_continues_its_turn(home: Path) -> None:
    question, *rest = turn(1)
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open()
        await hf.record(session.id, [question])
        whole = await hf.record(session.id, [question, *rest])
        events = (await hf.events.list(hf.owner, session.id)).items

    assert [row.turn for row in whole.messages] == [1] * 4
    kinds = [type(each.payload) for each in events if isinstance(each, Event)]
    assert (kinds.count(TurnStarted), kinds.count(TurnEnded)) == (1, 1)


async def test_no_process_answers_what_was_recorded(home: Path) -> None:
    config = a_config(home, says("a second answer"))
    async with open_holdfast(config=config) as hf, open_holdfast(config=config):
        session = await hf.open()
        for number in range(1, 101):
            await hf.record(session.id, turn(number)[:1])
        after = await current(hf, session)
        events = (await hf.events.list(hf.owner, session.id)).items

    assert (after.settled, after.message_count) == (100, 100)
    kinds = {type(each.payload) for each in events if isinstance(each, Event)}
    assert kinds == {SessionOpened, MessageAppended, TurnStarted, TurnEnded}


async def test_a_call_without_a_result_is_unknown_and_can_be_settled(home: Path) -> None:
    question, called, result, _ = turn(1)
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open()
        made = await hf.record(session.id, [question, called])
        with pytest.raises(Conflict) as caught:
            await hf.record(session.id, [question, called, result])
        further = await hf.record(session.id, [question, called, *turn(2)])
        skip = SettlementRequest(how=SettlementAction.SKIP, by="me")
        settled = await hf.calls.settle(hf.owner, session.id, "c1", skip)

    assert len(made.messages) == 2
    assert caught.value.code is Code.CALL_NOT_OPEN
    assert further.turns == (1, 2)
    assert settled.state is CallState.SETTLED


async def refusals(hf: Holdfast, session: Session) -> dict[str, tuple[list[MessageDraft], Code]]:
    """Return recordings that the stored rows do not allow."""
    await hf.record(session.id, [*turn(1), *turn(2)])
    late = datetime.now(UTC) - timedelta(days=1)
    picture = Media(mime_type="image/png", ref=f"media://sha256-{'0' * 64}")
    words = (Text(text="x"),)
    return {
        "other content": ([*turn(1, text="another")], Code.MESSAGE_ID_REUSED),
        "not at the end": ([*turn(1), *turn(3)], Code.MESSAGE_ID_REUSED),
        "not at the beginning": ([*turn(3), *turn(1)], Code.MESSAGE_ID_REUSED),
        "a call again": ([*turn(1, ids=False)], Code.ID_REUSED),
        "no such media": ([MessageDraft(role=Role.USER, parts=(picture,))], Code.MEDIA_NOT_FOUND),
        "falling time": ([RecordedDraft(role=Role.USER, parts=words, at=late)], Code.INVALID_INPUT),
        "no model": (
            [RecordedDraft(role=Role.ASSISTANT, parts=words, model="x", usage=Usage())],
            Code.MODEL_NOT_FOUND,
        ),
        "id": ([MessageDraft(role=Role.USER, parts=words, id=MessageId("x"))], Code.INVALID_ID),
    }


async def test_what_does_not_fit_the_session_changes_nothing(home: Path) -> None:
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open()
        cases = await refusals(hf, session)
        before = await current(hf, session)
        for name, (drafts, code) in cases.items():
            with pytest.raises(HoldfastError) as caught:
                await hf.record(session.id, drafts)
            assert caught.value.code is code, name
        assert await current(hf, session) == before


async def test_nothing_is_recorded_while_a_turn_runs(home: Path) -> None:
    async with open_holdfast(config=a_config(home, says("late", delay_ms=600_000))) as hf:
        session = await hf.open()
        await hf.send(session.id, "go")
        await news_until(hf, session.id, TurnStarted)
        with pytest.raises(Conflict) as caught:
            await hf.record(session.id, turn(1))

    assert caught.value.code is Code.SESSION_RUNNING


async def test_models_and_usage_are_in_the_cost_report(home: Path) -> None:
    prices = Prices(input=1_000_000, output=2_000_000, cache_read=0, cache_write=0)
    said = (Text(text="4"),)
    async with open_holdfast(config=a_config(home)) as hf:
        await hf.models.add(ModelRequest(provider="openai", name="gpt-next", prices=prices))
        session = await hf.open()
        draft = RecordedDraft(
            role=Role.ASSISTANT,
            parts=said,
            model="openai:gpt-next",
            usage=Usage(input=3, output=2),
        )
        made = await hf.record(session.id, [MessageDraft(role=Role.USER, parts=said), draft])
        report = await hf.costs.report(CostQuery(owner=hf.owner))
        model = await hf.models.get("openai:gpt-next")

    assert made.messages[1].model_id == model.id
    assert (report.total.requests, report.total.microcents) == (1, 3 + 4)


async def test_a_long_recording_is_one_commit(home: Path) -> None:
    drafts = [draft for number in range(1, 1001) for draft in turn(number, ids=False)]
    async with open_holdfast(config=a_config(home)) as hf:
        session = await hf.open()
        async with asyncio.timeout(PATIENCE):
            made = await hf.record(session.id, drafts)
        after = await current(hf, session)
        listed = await hf.sessions.list(SessionQuery(owner=hf.owner))

    assert (len(made.turns), len(made.messages)) == (1000, 4000)
    assert (after.turn, after.settled, after.message_count) == (1000, 1000, 4000)
    assert [each.id for each in listed.items] == [session.id]


async def test_open_calls_may_be_refused(quiet: Holdfast) -> None:
    session = await quiet.open()

    with pytest.raises(HoldfastError) as caught:
        await quiet.record(session.id, turn(1)[:2], on_open_calls="reject")

    assert caught.value.code is Code.MESSAGE_INVALID
