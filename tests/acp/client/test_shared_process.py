"""Sessions that share one program: each is what it would be alone, and none hears another."""

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Config, open_holdfast
from holdfast.acp.client.multiplex import LEFT, SharedProgram
from holdfast.acp.client.process_registry import ProcessRegistry
from holdfast.acp.rpc.redaction import NO_REDACTION
from holdfast.acp.rpc.streams import DEFAULT_LIMITS
from holdfast.app import Environment
from holdfast.domain.agent_processes import ProcessExit, ProcessRecord, ProcessState
from holdfast.domain.approvals import ApprovalAnswer, ApprovalMode, ApprovalState
from holdfast.domain.events import FailureCode, TurnEnded
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Role
from holdfast.domain.sessions import Session, Status, StopReason
from tests.acp.client.test_agent_requests import does
from tests.acp.client.test_permissions import ALL, CANCELLED, asking, chosen
from tests.acp.harness import END, Aboard, aboard, codes, hasty, notices, stands
from tests.acp.scripted_agents import Peer
from tests.houses import texts
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

SHARED = {"share": True}
CAN = {"sessionCapabilities": {"resume": {}, "close": {}, "delete": {}}}


def later(file: Path) -> dict[str, Any]:
    """Return the step that waits until somebody lets it go on."""
    return {"wait_file": str(file)}


async def _interrupt(ship: Aboard, session: Session) -> None:
    await ship.house.sessions.interrupt(ship.house.owner, session.id)


async def _close(ship: Aboard, session: Session) -> None:
    await ship.house.sessions.close(ship.house.owner, session.id)


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


async def test_sessions_of_one_agent_are_in_one_program(tmp_path: Path) -> None:
    steps = [{"repeat": {"count": 50, "steps": [{"text": "$prompt"}, {"text": " "}]}}, END]
    async with aboard(tmp_path, options=SHARED, on={"session/prompt": steps}) as ship:
        sessions = [await ship.open() for _ in range(5)]
        words = ["red", "green", "blue", "black", "white"]
        told = await asyncio.gather(*map(ship.tell, sessions, words))
        now = [await ship.now(each) for each in sessions]

    assert [rows[-1].text for rows in told] == [f"{word} " * 50 for word in words]
    (start,) = ship.peer.log("start")
    programs = [each.program for each in now]
    assert {each.birth.pid for each in programs if each and each.birth} == {start["pid"]}
    assert {each.agent_session for each in programs if each} == {
        f"peer-session-{number}" for number in range(1, 6)
    }
    assert len(ship.peer.got("initialize")) == 1
    assert [each["params"] for each in ship.peer.got("session/new")] == [
        {"cwd": str(ship.tree), "mcpServers": []}
    ] * 5


async def test_without_the_option_each_has_its_own(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        for _ in range(2):
            await ship.tell(await ship.open())

    assert len(ship.peer.log("start")) == 2


async def test_another_repository_is_another_program(tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    async with aboard(tmp_path, options=SHARED) as ship:
        await ship.tell(await ship.open())
        repo = await ship.house.repos.add(ship.house.owner, str(other), at_terminal=True)
        elsewhere = Aboard(house=ship.house, peer=ship.peer, repo=repo, tree=other)
        await elsewhere.tell(await elsewhere.open())

    assert [each["cwd"] for each in ship.peer.log("start")] == [str(ship.tree), str(other)]


async def test_a_turn_goes_on_beside_that_of_another_session(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = {
        "session/prompt": [
            [{"text": "first "}, {"mark": "in"}, later(go), {"text": "and last"}, END],
            [{"text": "between"}, END],
        ]
    }
    async with aboard(tmp_path, options=SHARED, on=script) as ship:
        slow, quick = await ship.open(), await ship.open()
        await ship.house.send(slow.id, "slow")
        await ship.logged("mark", name="in")
        between = await ship.tell(quick, "quick")
        go.touch()
        rows = await ship.settled(slow)

    assert texts(between) == [("user", "quick"), ("assistant", "between")]
    assert texts(rows) == [("user", "slow"), ("assistant", "first and last")]
    assert len(ship.peer.log("start")) == 1


async def test_a_question_is_asked_in_the_session_that_it_belongs_to(tmp_path: Path) -> None:
    script = {"session/prompt": [[asking(), {"text": "done"}, END], [{"text": "free"}, END]]}
    async with aboard(tmp_path, options=SHARED, on=script) as ship:
        asked, other = await ship.open(approval=ApprovalMode.ASK), await ship.open()
        await ship.house.send(asked.id, "ask")
        (question,) = await ship.waiting(asked)
        beside = await ship.tell(other, "meanwhile")
        theirs = (await ship.house.approvals.list(ship.house.owner, other.id)).items
        answer = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
        await ship.house.approvals.answer(ship.house.owner, asked.id, question.id, answer)
        rows = await ship.settled(asked)

    assert (beside[-1].text, theirs) == ("free", ())
    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["done"]
    assert ship.peer.answers()["asked"]["result"] == chosen("yes")


async def test_what_is_asked_for_nobody_or_for_one_who_rests_is_refused(tmp_path: Path) -> None:
    def read(name: str, session: str) -> dict[str, Any]:
        step = does("fs/read_text_file", name, path=str(tmp_path / "tree" / "a"))
        step["ask"]["params"]["sessionId"] = session
        return step

    foreign = {"ask": {"method": "_auth/status", "params": {}, "as": "foreign"}}
    steps = [read("mine", "$session"), read("nobody", "who"), read("rests", "peer-session-1")]
    script = {"session/prompt": [[END], [*steps, foreign, {"text": "done"}, END]]}
    async with aboard(tmp_path, options=SHARED, on=script) as ship:
        (ship.tree / "a").write_text("words")
        await ship.tell(await ship.open())
        rows = await ship.tell(await ship.open())

    answers = ship.peer.answers()
    assert answers["mine"]["result"] == {"content": "words"}
    assert [answers[each]["error"]["code"] for each in ("nobody", "rests", "foreign")] == [
        -32602,
        -32603,
        -32601,
    ]
    assert rows[-1].text == "done"


async def test_a_cancel_stops_one_turn_and_no_other(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = {
        "session/prompt": [
            [{"mark": "one"}, "until_cancel"],
            [{"mark": "two"}, later(go), {"text": "to its end"}, END],
            [{"text": "again"}, END],
        ]
    }
    async with aboard(tmp_path, options=SHARED, on=script) as ship:
        stopped, other = await ship.open(), await ship.open()
        await ship.house.send(stopped.id, "one")
        await ship.logged("mark", name="one")
        await ship.house.send(other.id, "two")
        await ship.logged("mark", name="two")
        await _interrupt(ship, stopped)
        again = await ship.tell(stopped, "three")
        go.touch()
        rows = await ship.settled(other)

    assert [each["params"] for each in ship.peer.got("session/cancel")] == [
        {"sessionId": "peer-session-1"}
    ]
    assert (again[-1].text, rows[-1].text) == ("again", "to its end")
    assert len(ship.peer.log("start")) == 1


async def test_a_turn_that_does_not_stop_takes_the_program_with_it(tmp_path: Path) -> None:
    script = {
        "ignore": ["cancel"],
        "on": {"session/prompt": [[{"mark": "one"}, "hang"], [{"mark": "two"}, "hang"]]},
    }
    runs = [script, {"on": {"session/prompt": [{"text": "again"}, END]}}]
    async with aboard(tmp_path, options=SHARED, runs=runs, config_acp=hasty()) as ship:
        stopped, other = await ship.open(), await ship.open()
        await ship.house.send(stopped.id, "one")
        await ship.logged("mark", name="one")
        await ship.house.send(other.id, "two")
        await ship.logged("mark", name="two")
        await _interrupt(ship, stopped)
        await ship.settled(other)
        ended, after = await ship.ended(other), await ship.now(other)
        rows = await ship.tell(other, "three")
        mine = await ship.tell(stopped, "four")

    assert (ended.stop_reason, after.status) == (StopReason.ERROR, Status.IDLE)
    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_DIED
    assert "another session" in ended.failure.message
    assert (rows[-1].text, mine[-1].text) == ("again", "again")
    assert len(ship.peer.log("start")) == 2


async def test_a_crash_fails_every_turn_in_the_program_and_no_session_that_rests(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    crash = [{"mark": "two"}, later(go), {"stderr": "out of luck\n"}, {"exit": 3}]
    script = {"on": {"session/prompt": [[END], [{"mark": "one"}, "hang"], crash]}}
    runs = [script, {"capabilities": CAN, "on": {"session/prompt": [{"text": "again"}, END]}}]
    async with aboard(tmp_path, options=SHARED, runs=runs) as ship:
        resting, one, two = [await ship.open() for _ in range(3)]
        await ship.tell(resting)
        for session, mark in ((one, "one"), (two, "two")):
            await ship.house.send(session.id, mark)
            await ship.logged("mark", name=mark)
        go.touch()
        rows = [await ship.settled(each) for each in (one, two)]
        ends: list[TurnEnded] = [await ship.ended(each) for each in (one, two)]
        now = [await ship.now(each) for each in (one, two)]
        gone = await ship.until(resting, stands(ProcessState.EXITED))
        again = await ship.tell(resting, "still there?")

    assert [each.failure.code if each.failure else None for each in ends] == [
        FailureCode.AGENT_DIED
    ] * 2
    assert [each.status for each in now] == [Status.FAILED] * 2
    assert all("out of luck" in told for each in rows for _, told in notices(each)[-1:])
    assert gone.status is Status.IDLE
    assert gone.program is not None
    assert gone.program.exit is not None
    assert gone.program.exit.code == 3
    assert (again[-1].text, len(ship.peer.log("start"))) == ("again", 2)
    assert [each["params"]["sessionId"] for each in ship.peer.got("session/resume")] == [
        "peer-session-1"
    ]


async def test_one_that_is_closed_leaves_and_the_last_one_ends_the_program(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED, capabilities=CAN) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        (start,) = ship.peer.log("start")
        await _close(ship, one)
        closed = await ship.until(one, stands(ProcessState.EXITED))
        rows = await ship.tell(two, "still there?")
        lives = _lives(start["pid"])
        await _close(ship, two)
        await ship.until(two, stands(ProcessState.EXITED))

    assert (rows[-1].text, lives, _lives(start["pid"])) == ("ok", True, False)
    assert closed.program is not None
    assert closed.program.exit is not None
    assert (closed.program.exit.code, closed.program.exit.reason) == (None, "left")
    assert [each["params"] for each in ship.peer.got("session/close")] == [
        {"sessionId": "peer-session-1"},
        {"sessionId": "peer-session-2"},
    ]


async def test_who_leaves_in_the_middle_of_a_question_gets_it_answered(tmp_path: Path) -> None:
    steps = [[asking(ALL), "until_cancel"], [{"text": "on"}, END]]
    async with aboard(tmp_path, options=SHARED, on={"session/prompt": steps}) as ship:
        one, two = await ship.open(approval=ApprovalMode.ASK), await ship.open()
        await ship.house.send(one.id, "ask")
        await ship.waiting(one)
        await ship.tell(two)
        await _close(ship, one)
        told = await ship.logged("answer", name="asked")
        rows = await ship.tell(two, "again")

    assert told["message"]["result"] == CANCELLED
    assert rows[-1].text == "on"


async def test_who_is_closed_and_does_not_stop_takes_the_program_with_it(tmp_path: Path) -> None:
    script = {"ignore": ["cancel"], "on": {"session/prompt": [[END], [{"mark": "in"}, "hang"]]}}
    runs = [script, {}]
    async with aboard(tmp_path, options=SHARED, runs=runs) as ship:
        other, one = await ship.open(), await ship.open()
        await ship.tell(other)
        await ship.house.send(one.id, "go")
        await ship.logged("mark", name="in")
        await _close(ship, one)
        await ship.until(one, stands(ProcessState.EXITED))
        await ship.until(other, stands(ProcessState.EXITED))
        lives = _lives(ship.peer.log("start")[0]["pid"])
        rows = await ship.tell(other, "still there?")

    assert (lives, rows[-1].text, len(ship.peer.log("start"))) == (False, "ok", 2)


async def test_what_goes_on_elsewhere_leaves_and_takes_nobody_along(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED) as ship:
        stays, goes = await ship.open(), await ship.open()
        await ship.tell(stays)
        await ship.tell(goes)
        first = ship.peer.log("start")[0]["pid"]
        async with open_holdfast(config=Config(home=tmp_path / "home")) as other:
            theirs = Aboard(house=other, peer=ship.peer, repo=ship.repo, tree=ship.tree)
            # One of the two processes plays it; whichever it is, the first program lives on.
            moved = await theirs.tell(goes, "elsewhere")
            rows = await ship.tell(stays, "still there?")
            assert (moved[-1].text, rows[-1].text, _lives(first)) == ("ok", "ok", True)


async def test_its_commands_end_with_the_session_and_not_with_the_program(tmp_path: Path) -> None:
    made = does("terminal/create", "made", command="sh", args=["-c", "echo $$; exec sleep 600"])
    made["ask"]["save"] = {"t": "terminalId"}
    number = tmp_path / "tree" / "number"
    made["ask"]["params"]["args"] = [
        "-c",
        f"echo $$ > {number}.new; mv {number}.new {number}; exec sleep 600",
    ]
    script = {"session/prompt": [[made, later(number), END], [END]]}
    async with aboard(
        tmp_path, options=SHARED, on=script, config_approval=ApprovalMode.AUTO
    ) as ship:
        one, two = await ship.open(approval=ApprovalMode.AUTO), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        pid = int(number.read_text())
        ran = _lives(pid)
        await _close(ship, one)
        await ship.until(one, stands(ProcessState.EXITED))
        (start,) = ship.peer.log("start")
        assert (ran, _lives(pid), _lives(start["pid"])) == (True, False, True)


async def test_early_words_reach_the_session_they_are_about(tmp_path: Path) -> None:
    def early(session: str, mode: str) -> dict[str, Any]:
        update = {"sessionUpdate": "current_mode_update", "currentModeId": mode}
        params = {"sessionId": session, "update": update}
        return {"notify": {"method": "session/update", "params": params}}

    opened = [
        [early("a", "calm"), {"reply": {"sessionId": "a"}}],
        [early("b", "bold"), early("a", "wary"), {"reply": {"sessionId": "b"}}],
    ]
    async with aboard(tmp_path, options=SHARED, on={"session/new": opened}) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)

        def modes(session: Session) -> str | None:
            return session.program.about.get("mode") if session.program else None

        await ship.until(one, lambda each: modes(each) == "wary")
        assert modes(await ship.now(two)) == "bold"


async def test_one_name_for_two_sessions_is_refused(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED, session={"sessionId": "only-one"}) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        ended, now = await ship.ended(two), await ship.now(two)
        rows = await ship.tell(one, "still there?")

    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_PROTOCOL
    assert "options.share" in ended.failure.message
    assert (now.status, rows[-1].text) == (Status.FAILED, "ok")
    assert len(ship.peer.log("start")) == 1


async def test_a_name_that_another_session_bears_is_not_resumed(tmp_path: Path) -> None:
    # Each process counts its sessions from one, so the old name of one is the new name of another.
    script: dict[str, Any] = {"options": SHARED, "capabilities": CAN}
    async with aboard(tmp_path, **script) as ship:
        old, new = await ship.open(), await ship.open()
        await ship.tell(old)
    async with aboard(tmp_path, **script) as ship:
        await ship.tell(new)
        rows = await ship.tell(old, "again")

    assert ship.peer.got("session/resume") == []
    assert codes(rows) == ["agent_restarted"]
    assert rows[-1].text == "ok"


async def test_after_a_restart_all_go_on_in_one_program(tmp_path: Path) -> None:
    script: dict[str, Any] = {"options": SHARED, "capabilities": CAN}
    async with aboard(tmp_path, **script) as ship:
        sessions = [await ship.open() for _ in range(2)]
        for each in sessions:
            await ship.tell(each)
    async with aboard(tmp_path, **script) as ship:
        rows = [await ship.tell(each, "again") for each in sessions]

    assert [each[-1].text for each in rows] == ["ok", "ok"]
    assert [each["params"]["sessionId"] for each in ship.peer.got("session/resume")] == [
        "peer-session-1",
        "peer-session-2",
    ]
    assert len(ship.peer.log("start")) == 2


async def test_a_start_that_fails_fails_for_one(tmp_path: Path) -> None:
    opened = [[{"reply": {"sessionId": "a"}}], [{"error": {"code": -32603, "message": "full"}}]]
    async with aboard(tmp_path, options=SHARED, on={"session/new": opened}) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        failed = await ship.now(two)
        rows = await ship.tell(one, "still there?")

    assert (failed.status, rows[-1].text) == (Status.FAILED, "ok")
    assert [row.role for row in rows].count(Role.ASSISTANT) == 2


async def test_a_program_that_nobody_else_came_into_is_not_kept_after_a_failed_start(
    tmp_path: Path,
) -> None:
    runs = [{"on": {"initialize": [{"reply": {"protocolVersion": 2}}]}}, {}]
    async with aboard(tmp_path, options=SHARED, runs=runs) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        failed = await ship.ended(one)
        first = ship.peer.log("start")[0]["pid"]
        gone = not _lives(first)
        rows = await ship.tell(two)

    assert failed.failure is not None
    assert failed.failure.code is FailureCode.AGENT_VERSION
    assert (gone, rows[-1].text, len(ship.peer.log("start"))) == (True, "ok", 2)


async def test_who_joins_a_program_that_dies_of_another_gets_a_new_one(tmp_path: Path) -> None:
    opened = [[{"reply": {"sessionId": "a"}}], [{"exit": 3}]]
    runs = [{"on": {"session/new": opened}}, {}]
    async with aboard(tmp_path, options=SHARED, runs=runs) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        rows = await ship.tell(two)
        resting = await ship.until(one, stands(ProcessState.EXITED))

    assert (rows[-1].text, resting.status) == ("ok", Status.IDLE)
    assert len(ship.peer.log("start")) == 2


async def test_the_mark_of_a_shared_program_is_no_sessions(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        process_records = [(await ship.now(each)).program for each in (one, two)]

    (start,) = ship.peer.log("start")
    mark = f"shared-{one.id}"
    assert start["env"]["HOLDFAST_SESSION_ID"] == mark
    assert [each.birth.mark for each in process_records if each and each.birth] == [mark, mark]


async def test_one_that_is_deleted_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED, capabilities=CAN) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        await ship.house.sessions.delete(ship.house.owner, one.id)
        rows = await ship.tell(two, "still there?")

    assert rows[-1].text == "ok"
    assert [each["params"] for each in ship.peer.got("session/delete")] == [
        {"sessionId": "peer-session-1"}
    ]
    assert len(ship.peer.log("start")) == 1


async def test_each_session_is_idle_for_itself(tmp_path: Path) -> None:
    clock = SettableClock()
    async with aboard(
        tmp_path, options=SHARED, capabilities=CAN, outside=Environment(clock=clock)
    ) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        clock.advance(minutes=20)
        await ship.tell(two, "later")
        clock.advance(minutes=15)
        swept = await ship.house.maintenance.sweep(timedelta(minutes=30))
        await ship.until(one, stands(ProcessState.EXITED))
        rows = await ship.tell(two, "still there?")
        idle = await ship.now(one)
        closed = [each["params"]["sessionId"] for each in ship.peer.got("session/close")]

    assert (swept, idle.status) == ((one.id,), Status.COMPLETED)
    assert (rows[-1].text, len(ship.peer.log("start"))) == ("ok", 1)
    assert closed == ["peer-session-1"]


async def test_what_a_former_run_left_is_found_by_any_of_its_sessions(tmp_path: Path) -> None:
    async with aboard(tmp_path, options=SHARED) as ship:
        one, two = await ship.open(), await ship.open()
        await ship.tell(one)
        await ship.tell(two)
        process_record = (await ship.now(two)).program
        assert process_record is not None
        (start,) = ship.peer.log("start")
        # As another process of ours would do it, which has started none of these.
        await ProcessRegistry().reap(process_record, two.id)
        gone = await ship.until(two, stands(ProcessState.EXITED))

    assert gone.program is not None
    assert gone.program.exit is not None
    assert (gone.program.exit.signal, _lives(start["pid"])) == (9, False)


async def test_one_that_others_sit_in_is_not_cleared_away(tmp_path: Path) -> None:
    peer, fleet = Peer(tmp_path / "peer"), ProcessRegistry()
    shared = await SharedProgram.spawn(peer.start(), "shared-1", DEFAULT_LIMITS, NO_REDACTION)
    seats = [shared.seat(None) for _ in range(2)]
    fleet.shares.add("key", shared)
    process_record = ProcessRecord(state=ProcessState.READY, birth=shared.program.birth)

    await fleet.reap(process_record, SessionId("one"))
    found = fleet.shares.find("key")
    assert await seats[0].leave(None, is_for_all=False) == LEFT
    lives = _lives(shared.program.birth.pid)
    end = await seats[1].leave(None, is_for_all=False)

    assert (found, lives, end) == (shared, True, ProcessExit(code=0, reason="ended"))
    assert fleet.shares.find("key") is None
    # A second time nothing happens any more.
    assert await seats[1].leave(None, is_for_all=False) == end
