"""Turns of a scripted agent: what is recorded of them, how they end, what becomes of it."""

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.events import FailureCode
from holdfast.domain.messages import NoticeCode, ResultStatus, Role, ToolResult
from holdfast.domain.sessions import Status, StopReason
from tests.acp.harness import END, aboard, codes, hasty, notices, stands
from tests.houses import texts
from tests.marks import demands

pytestmark = pytest.mark.anyio

STOPS = [
    ("end_turn", StopReason.STOP, []),
    ("max_tokens", StopReason.LENGTH, []),
    ("max_turn_requests", StopReason.TURN_LIMIT, ["turn_limit"]),
    ("refusal", StopReason.REFUSAL, []),
    ("cancelled", StopReason.INTERRUPTED, ["interrupted"]),
    ("something_new", StopReason.STOP, ["information"]),
]


@demands("S1-065b")
async def test_a_prompt_is_answered_and_the_program_stays(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        rows = await ship.tell(session, "two")
        now = await ship.now(session)

    assert texts(rows) == [
        ("user", "one"),
        ("assistant", "ok"),
        ("user", "two"),
        ("assistant", "ok"),
    ]
    assert (now.status, now.last_stop) == (Status.IDLE, StopReason.STOP)
    assert now.program is not None
    assert now.program.state is ProcessState.READY
    (start,) = ship.peer.log("start")
    # Without `workspace_flag` nothing is added to what the agent's arguments say.
    assert (start["argv"], start["cwd"]) == ([*ship.peer.argv[3:]], str(ship.tree))
    assert [each["params"] for each in ship.peer.got("session/new")] == [
        {"cwd": str(ship.tree), "mcpServers": []}
    ]
    prompts = [each["params"]["prompt"] for each in ship.peer.got("session/prompt")]
    assert prompts == [[{"type": "text", "text": text}] for text in ("one", "two")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("reason", "stop", "said"), STOPS)
async def test_each_stop_reason_ends_the_turn_in_our_words(
    tmp_path: Path, reason: str, stop: StopReason, said: list[str]
) -> None:
    steps = [{"text": "so far"}, {"reply": {"stopReason": reason}}]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.now(session)

    assert (now.last_stop, now.status, codes(rows)) == (stop, Status.IDLE, said)


async def test_an_error_reply_ends_the_turn_and_not_the_session(tmp_path: Path) -> None:
    steps = [[{"error": {"code": -32603, "message": "no luck"}}], [END]]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        after = await ship.ended(session)
        await ship.tell(session, "again")
        now = await ship.now(session)

    assert after.failure is not None
    assert after.failure.code is FailureCode.AGENT_ERROR
    assert "no luck" in notices(rows)[-1][1]
    assert (now.status, now.last_stop, len(ship.peer.log("start"))) == (
        Status.IDLE,
        StopReason.STOP,
        1,
    )


@pytest.mark.sampled(1)
@demands("S1-023")
@pytest.mark.parametrize("how", [{"signal": "KILL"}, {"exit": 3}])
async def test_a_program_that_dies_in_its_turn_takes_the_session_with_it(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "rm", "kind": "execute",
            "rawInput": {"command": "rm"}, "status": "in_progress"}  # fmt: skip
    steps = [
        {"text": "half"},
        {"update": call},
        {"stderr": "something broke\n"},
        {"sleep": 0.2},
        how,
    ]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.now(session)
        fork = await ship.house.sessions.fork(ship.house.owner, session.id)
        ship.peer.write()
        answered = await ship.tell(fork, "go on")

    assert (now.status, now.reason, now.last_stop) == (
        Status.FAILED,
        "agent_died",
        StopReason.ERROR,
    )
    assert now.program is not None
    assert now.program.state is ProcessState.EXITED
    assert codes(rows) == [NoticeCode.ERROR, NoticeCode.AGENT_FAILED]
    said = notices(rows)[-1][1]
    assert said.startswith("Agent failed: agent_died")
    assert "something broke" in said
    assert ("signal 9" if "signal" in how else "exit code 3") in said
    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert [each.status for each in results] == [ResultStatus.UNKNOWN]
    assert answered[-1].text == "ok"
    prompt = ship.peer.got("session/prompt")[-1]["params"]["prompt"]
    assert ["half" in block["text"] for block in prompt] == [True, False]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("signal", ["KILL", "TERM"])
async def test_a_program_that_ends_between_turns_is_started_again(
    tmp_path: Path, signal: str
) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        pid = ship.peer.log("start")[0]["pid"]
        os.kill(pid, {"KILL": 9, "TERM": 15}[signal])
        now = await ship.until(session, stands(ProcessState.EXITED))
        rows = await ship.tell(session, "two")
        later = await ship.now(session)

    assert now.status is Status.IDLE
    assert (later.status, rows[-1].text, len(ship.peer.log("start"))) == (Status.IDLE, "ok", 2)


async def test_what_is_sent_meanwhile_is_one_prompt_with_a_block_for_each(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    steps = [[{"mark": "in"}, {"wait_file": str(gate)}, {"text": "1"}, END], [{"text": "2"}, END]]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "a")
        await ship.logged("mark", name="in")
        for word in ("b", "c"):
            await ship.house.send(session.id, word)
        gate.touch()
        rows = await ship.settled(session)

    prompts = [each["params"]["prompt"] for each in ship.peer.got("session/prompt")]
    assert [[block["text"] for block in each] for each in prompts] == [["a"], ["b", "c"]]
    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["1", "2"]


async def test_five_thousand_updates_come_out_in_their_order(tmp_path: Path) -> None:
    steps = [{"texts": 5000}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)

    assert rows[-1].text == "".join(f"chunk {number} " for number in range(5000))


async def test_a_silence_is_told_once_and_the_turn_goes_on(tmp_path: Path) -> None:
    steps = [{"sleep": 0.7}, {"text": "here"}, END]
    config = hasty(silence=0.2)
    async with aboard(tmp_path, config_acp=config, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)

    assert codes(rows) == [NoticeCode.AGENT_SILENT]
    assert [row.role for row in rows] == [Role.USER, Role.SYSTEM, Role.ASSISTANT]


async def test_the_state_of_a_program_survives_in_what_it_told(tmp_path: Path) -> None:
    updates = [
        {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "plan"}]},
        {"sessionUpdate": "session_info_update", "title": "Sums"},
    ]
    steps = [*({"update": each} for each in updates), {"text": "4"}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.tell(session)
        now = await ship.until(
            session, lambda each: each.program is not None and "commands" in each.program.about
        )

    assert now.title == "Sums"
    program = now.program
    assert program is not None
    assert program.about["commands"] == [{"name": "plan"}]
    assert program.about["agent"]["name"] == "peer"
    assert program.agent_session == "peer-session-1"
