"""A failure inside a turn is data on its last event, never an exception that reaches a client."""

import logging
from pathlib import Path

import pytest

from holdfast import Config, open_holdfast
from holdfast.app import Environment
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.drafts import Draft, Outcome
from holdfast.domain.errors import Code, Internal
from holdfast.domain.events import Event, Failure, FailureCode, SessionClosed, TurnEnded
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import SessionRequest, Status, StopReason
from tests.houses import (
    current,
    news_until,
    open_house,
    payloads,
    played,
    raw,
    script,
    texts,
    unlocked,
)
from tests.stand_ins import GatedRuntime, a_start, asked

pytestmark = pytest.mark.anyio

FAULTS: dict[str, tuple[list[tuple[Draft | Outcome, ...] | Exception], str]] = {
    "raises": ([RuntimeError("secret")], "the turn raised"),
    "raises ours": ([Internal(Code.INTERNAL, "secret")], "the turn raised"),
    "never ends": ([(asked(),)], "the turn raised"),
    "says nothing": ([], "the turn raised"),
    "starts what nobody intended": ([(a_start("never"),)], "the turn raised"),
    "ends in mid-batch": ([(Outcome(stop_reason=StopReason.STOP), asked())], "the turn raised"),
}


@pytest.mark.parametrize(("play", "logged"), FAULTS.values(), ids=list(FAULTS))
async def test_a_runtime_that_breaks_ends_the_turn_as_data(
    home: Path,
    outside: Environment,
    play: list[tuple[Draft | Outcome, ...] | Exception],
    logged: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_house(home, GatedRuntime(play), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]

        failure = ended.failure
        assert ended.stop_reason is StopReason.ERROR
        assert failure == Failure(
            code=FailureCode.INTERNAL,
            message="Internal error in Holdfast; see the log for details.",
            correlation_id=failure.correlation_id,
        )
        notice = (await house.read(session.id))[-1]
        told = Notice(code=NoticeCode.ERROR, text=f"internal: {failure.message}")
        assert (notice.role, notice.parts) == (Role.SYSTEM, (told,))
        assert (await current(house, session)).last_stop is StopReason.ERROR

        await house.send(session.id, "again")
        assert (await played(house, session.id))[-1].text == "done"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert f"{logged}: {failure.correlation_id}" in [record.message for record in errors]


async def test_an_agent_that_nothing_here_can_run_fails_its_turn(
    home: Path, outside: Environment, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
        runtime = AcpRuntime(command="nothing")
        await house.agents.create(house.owner, {"name": "Cli", "runtime": runtime})
        session = await house.open("cli", SessionRequest(repo_id=repo.id))

        await house.send(session.id, "hello")
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]

    assert (ended.stop_reason, ended.failure.code) == (StopReason.ERROR, FailureCode.INTERNAL)


async def test_an_agent_that_is_lost_fails_its_session_and_leaves_the_evidence(
    home: Path, outside: Environment
) -> None:
    failure = Failure(code=FailureCode.AGENT_ERROR, message="it is gone")
    lost = Outcome(
        stop_reason=StopReason.ERROR, failure=failure, is_lost=True, evidence="Segmentation fault"
    )
    async with open_house(home, GatedRuntime([(lost,)]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        closed = payloads(await news_until(house, session.id, SessionClosed))[-1]
        notice = (await house.read(session.id))[-1]
        head = await house.store.read(lambda tx: tx.sessions.state(session.owner, session.id))

    text = "Agent failed: agent_error: it is gone\nSegmentation fault"
    assert notice.parts == (Notice(code=NoticeCode.AGENT_FAILED, text=text),)
    assert closed == SessionClosed(status=Status.FAILED, reason="agent_error")
    assert (head.status, head.reason, head.holder) == (Status.FAILED, "agent_error", None)


async def test_a_damaged_history_fails_the_turn_and_not_the_house(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        damaged, sound = await house.open(), await house.open()
        await house.send(damaged.id, "one")
        await played(house, damaged.id)
    with raw(home) as connection:
        unlocked(connection)
        connection.execute("UPDATE messages SET turn = 7 WHERE sequence = 1")

    async with open_house(home, GatedRuntime(), outside=outside) as house:
        before = (await current(house, damaged)).last_event
        await house.send(damaged.id, "two")
        ended = (await news_until(house, damaged.id, TurnEnded, after=before))[-1]
        assert isinstance(ended, Event)
        assert ended.payload.failure.code is FailureCode.INTERNAL

        await house.send(sound.id, "hello")
        assert texts(await played(house, sound.id))[-1] == ("assistant", "done")


async def test_a_scripted_failure_is_data_and_the_next_turn_works(
    home: Path, outside: Environment, tmp_path: Path
) -> None:
    model = script(tmp_path, {"error": "bad_request"}, {"text": "better", "chunks": 3})
    config = Config(home=home, default_model=model)
    async with open_holdfast(config=config, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        failed = payloads(await news_until(house, session.id, TurnEnded))[-1]
        await house.send(session.id, "two")
        rows = await played(house, session.id)

    assert failed.failure.code is FailureCode.INVALID_REQUEST
    assert rows[-1].text == "better"
