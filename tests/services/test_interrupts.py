"""An interrupt stops the turn, keeps what was said, and leaves the session open."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.calls import CallState, Settlement
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import (
    CallSettled,
    Channel,
    Failure,
    FailureCode,
    StepDelta,
    StepFailed,
    ToolEnded,
    TurnEnded,
)
from holdfast.domain.ids import CallId
from holdfast.domain.leases import Lease
from holdfast.domain.messages import Notice, NoticeCode, ResultStatus, Role, Text, ToolResult
from holdfast.domain.sessions import Session, Status, StopReason
from holdfast.domain.tools import Effect
from holdfast.services.journal import SessionWriter
from holdfast.services.session_lifecycle import Interruption
from holdfast.services.turns import begin
from tests.builders import MODEL_ID, an_id
from tests.houses import (
    House,
    calls_of,
    current,
    key_of,
    news_until,
    open_house,
    payloads,
    played,
    texts,
)
from tests.marks import demands
from tests.stand_ins import (
    Gate,
    GatedRuntime,
    HeldStore,
    a_start,
    an_answer,
    an_intent,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio


async def test_text_that_was_streamed_is_kept_before_the_closing_notice(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    play = [(asked(),), (streamed("Once upon "), streamed("a time", offset=10)), gate]
    runtime = GatedRuntime(play)
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "Tell me a story")
        await gate.reached()

        done = await house.sessions.interrupt(house.owner, session.id)

        stopped = done.session
        assert (done.turn, done.is_settled) == (1, True)
        _, kept, notice = await house.read(session.id)
        assert (kept.id, kept.role, kept.turn) == (asked().message_id, Role.ASSISTANT, 1)
        assert (kept.parts, kept.model_id) == ((Text(text="Once upon a time"),), MODEL_ID)
        closing = Notice(code=NoticeCode.ABORTED, text="The turn was stopped by its user.")
        assert (notice.role, notice.turn, notice.parts) == (Role.SYSTEM, 1, (closing,))
        assert (stopped.status, stopped.last_stop) == (Status.IDLE, StopReason.ABORTED)
        assert (stopped.turn, stopped.settled) == (1, 1)


async def test_an_interrupted_turn_ends_once_and_says_so(home: Path, outside: Environment) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        await house.sessions.interrupt(house.owner, session.id)

        news = payloads(await news_until(house, session.id, TurnEnded))
        cut = Failure(code=FailureCode.INTERRUPTED, message="The model's answer was cut off.")
        assert StepFailed(step=1, failure=cut) in news
        assert news[-1] == TurnEnded(stop_reason=StopReason.ABORTED, priced=False)
        assert news.count(news[-1]) == 1


async def test_the_runtime_is_closed_by_an_interrupt(home: Path, outside: Environment) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        assert house.coordinator.active() == {await key_of(house, session)}

        await house.sessions.interrupt(house.owner, session.id)

        assert house.coordinator.active() == frozenset()
    assert runtime.closed == 1


async def test_a_queued_message_is_played_next(home: Path, outside: Environment) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate], [an_answer("second")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.send(session.id, "two")

        await house.sessions.interrupt(house.owner, session.id)

        assert texts(await played(house, session.id)) == [
            ("user", "one"),
            ("user", "two"),
            ("system", "The turn was stopped by its user."),
            ("assistant", "second"),
        ]
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
        assert ended == TurnEnded(stop_reason=StopReason.ABORTED, more_turns=True)


async def test_an_interrupt_that_is_meant_for_a_turn_hits_no_other(
    home: Path, outside: Environment
) -> None:
    gate, later = Gate(), Gate()
    runtime = GatedRuntime([gate, an_answer("first")], [later, an_answer("second")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.send(session.id, "two")
        # Not yet: the second one waits behind the first.
        await house.sessions.interrupt(house.owner, session.id, turn=2)
        gate.open()
        await later.reached()

        # Too late: the first one has ended by itself.
        late = await house.sessions.interrupt(house.owner, session.id, turn=1)
        after = late.session
        assert late.turn is None
        assert (after.status, after.settled) == (Status.RUNNING, 1)
        assert house.coordinator.active() == {await key_of(house, session)}
        done = await house.sessions.interrupt(house.owner, session.id, turn=2)

        stopped = done.session
        assert done.turn == 2
        assert (stopped.status, stopped.last_stop) == (Status.IDLE, StopReason.ABORTED)
        assert texts(await house.read(session.id)) == [
            ("user", "one"),
            ("user", "two"),
            ("assistant", "first"),
            ("system", "The turn was stopped by its user."),
        ]


async def test_whoever_ran_the_turn_can_write_nothing_more(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        key = await key_of(house, session)
        held = Lease(key=key, holder=str(outside.machine.holder()), epoch=1)

        async def begin_again(writer: SessionWriter) -> None:
            begin(writer)

        await house.journal.write_by_key(key, begin_again, lease=held)

        await house.sessions.interrupt(house.owner, session.id)

        with pytest.raises(Conflict) as caught:
            await house.journal.write_by_key(key, begin_again, lease=held)
        assert (caught.value.code, caught.value.details) == (Code.LEASE_LOST, {"epoch": 2})


@demands("S2-120g", "S2-053c")
async def test_calls_that_are_open_get_their_one_result(home: Path, outside: Environment) -> None:
    gate = Gate()
    play = [
        (an_intent("pure", Effect.PURE), an_intent("unsafe"), an_intent("waiting")),
        (a_start("pure"), a_start("unsafe")),
        gate,
    ]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "work")
        await gate.reached()

        await house.sessions.interrupt(house.owner, session.id)

        rows = await house.read(session.id)
        results = [row.parts[0] for row in rows if row.role is Role.TOOL_RESULT]
        assert [
            (part.call_id, part.status) for part in results if isinstance(part, ToolResult)
        ] == [
            ("pure", ResultStatus.ERROR),
            ("unsafe", ResultStatus.UNKNOWN),
            ("waiting", ResultStatus.SKIPPED),
        ]
        news = payloads(await news_until(house, session.id, TurnEnded))
        assert [each.status for each in news if isinstance(each, ToolEnded)] == [
            ResultStatus.ERROR,
            ResultStatus.UNKNOWN,
            ResultStatus.SKIPPED,
        ]
        assert await calls_of(house, session.id, turn=1) == {
            "pure": CallState.FINISHED,
            "unsafe": CallState.UNKNOWN,
            "waiting": CallState.FINISHED,
        }


async def test_an_interrupt_of_an_idle_session_changes_nothing(quiet: Holdfast) -> None:
    session = await quiet.open()

    interrupted = await quiet.sessions.interrupt(quiet.owner, session.id)

    assert interrupted == Interruption(session=session)
    assert session.last_event == 1


async def test_an_interrupt_after_the_answer_changes_nothing(holdfast: Holdfast) -> None:
    session = await holdfast.open()
    await holdfast.send(session.id, "2+2?")
    rows = await played(holdfast, session.id)
    before = await current(holdfast, session)

    interrupted = await holdfast.sessions.interrupt(holdfast.owner, session.id)
    assert interrupted == Interruption(session=before)
    assert await holdfast.read(session.id) == rows


async def test_interrupts_that_arrive_together_stop_the_turn_once(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        stop = house.sessions.interrupt
        told = await asyncio.gather(*(stop(house.owner, session.id) for _ in range(5)))

        # One of them has stopped it; the others found nothing that ran.
        assert sorted(each.turn or 0 for each in told) == [0, 0, 0, 0, 1]
        assert texts(await house.read(session.id)) == [
            ("user", "hello"),
            ("system", "The turn was stopped by its user."),
        ]


async def test_a_waiting_turn_that_nobody_plays_yet_goes_on_waiting(quiet: Holdfast) -> None:
    session = await quiet.open()
    await quiet.send(session.id, "hello")

    interrupted = (await quiet.sessions.interrupt(quiet.owner, session.id)).session

    assert (interrupted.status, interrupted.turn, interrupted.settled) == (Status.PENDING, 1, 0)


async def test_the_reason_is_told_in_the_closing_notice(home: Path, outside: Environment) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        for wrong in ("", "x" * 256, "a\x00"):
            with pytest.raises(Invalid) as caught:
                await house.sessions.interrupt(house.owner, session.id, reason=wrong)
            assert caught.value.code is Code.INVALID_TEXT
        await house.sessions.interrupt(house.owner, session.id, reason="That is enough")

        notice = Notice(
            code=NoticeCode.ABORTED, text="The turn was stopped by its user: That is enough"
        )
        assert (await house.read(session.id))[-1].parts == (notice,)


def _store_of(house: House) -> HeldStore:
    assert isinstance(house.store, HeldStore)
    return house.store


class TestAStoreThatIsHeld:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.services.session_lifecycle.PATIENCE", 0.05)

    @pytest.fixture
    def outside(self, outside: Environment) -> Environment:
        return replace(outside, wrap=HeldStore)

    async def _held(self, house: House, gate: Gate) -> Session:
        """Return a session whose turn runs while nobody can write."""
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        _store_of(house).hold()
        return session

    async def test_a_turn_is_stopped_as_soon_as_it_can_be(
        self, home: Path, outside: Environment
    ) -> None:
        gate = Gate()
        async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
            session = await self._held(house, gate)

            later = await house.sessions.interrupt(house.owner, session.id, reason="Enough")
            other = await house.sessions.interrupt(house.owner, session.id, turn=2)
            _store_of(house).let_go()
            await news_until(house, session.id, TurnEnded)

            assert (later.turn, later.is_settled) == (1, False)
            assert (later.session.status, later.session.settled) == (Status.RUNNING, 0)
            assert (other.turn, other.is_settled) == (None, True)
            stopped = await current(house, session)
            assert (stopped.status, stopped.last_stop) == (Status.IDLE, StopReason.ABORTED)
            assert texts(await house.read(session.id)) == [
                ("user", "hello"),
                ("system", "The turn was stopped by its user: Enough"),
            ]

    async def test_where_nothing_runs_nothing_is_stopped_later(
        self, home: Path, outside: Environment
    ) -> None:
        async with open_house(home, GatedRuntime(), outside=outside) as house:
            session = await house.open()
            _store_of(house).hold()

            told = await house.sessions.interrupt(house.owner, session.id)

            assert told == Interruption(session=session)
            _store_of(house).let_go()

    async def test_a_session_that_is_gone_by_then_harms_nobody(
        self, home: Path, outside: Environment, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
            session = await self._held(house, gate)

            later = await house.sessions.interrupt(house.owner, session.id)
            async with open_holdfast(house.config.home, scope=RunScope.NONE) as other:
                await other.sessions.delete(other.owner, session.id)
            _store_of(house).let_go()
            await house.open()

        assert not later.is_settled
        assert any(told.startswith("a turn was not stopped: ") for told in caplog.messages)


@demands("S0-064b")
async def test_the_conversation_goes_on_after_an_interrupt(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), (streamed("half"),), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.sessions.interrupt(house.owner, session.id)

        await house.send(session.id, "two")
        await played(house, session.id)

        said = [row.text for row in runtime.turns[-1].history if row.text]
        assert said == ["one", "half", "two"]
        assert (await current(house, session)).last_stop is StopReason.STOP


async def test_an_unknown_session_cannot_be_interrupted(quiet: Holdfast) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.sessions.interrupt(quiet.owner, an_id(95))

    assert caught.value.code is Code.SESSION_NOT_FOUND


async def test_an_unknown_outcome_can_be_put_right_by_somebody(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    play = [(an_intent(),), (a_start(),), gate]
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "work")
        await gate.reached()
        await house.sessions.interrupt(house.owner, session.id)
        settled = CallSettled(call_id=CallId("call-1"), how=Settlement.MARKED_DONE, by="ada")

        async def settle(writer: SessionWriter) -> None:
            await writer.load_call(settled.call_id)
            writer.add_event(settled)

        await house.journal.write(house.owner, session.id, settle)

        assert await calls_of(house, session.id, turn=1) == {"call-1": CallState.SETTLED}
        with pytest.raises(Conflict) as caught:
            await house.journal.write(house.owner, session.id, settle)
        assert caught.value.code is Code.CALL_NOT_OPEN
        news = payloads(await news_until(house, session.id, CallSettled))
        assert news.count(settled) == 1


async def test_thinking_that_was_streamed_is_not_kept_as_text(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    thought = StepDelta(step=1, channel=Channel.REASONING, offset=0, text="hmm")
    runtime = GatedRuntime([(asked(),), (thought, streamed("So")), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        await house.sessions.interrupt(house.owner, session.id)

        assert [row.text for row in await house.read(session.id)] == ["hello", "So", ""]
