"""What a program sees of us: how we introduce ourselves, what we say, and how we take our leave."""

import asyncio
import os
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import FailureCode, ToolStarted
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.domain.sessions import Status
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.acp.harness import END, aboard, codes, hasty
from tests.acp.steps import ALL, CANCELLED, asking, does, prompt
from tests.houses import news_until
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

CAN = {"loadSession": True, "sessionCapabilities": {"resume": {}, "close": {}}}
# Every method that we call, and every field that we send with it.
CALLED = {
    "initialize": {"protocolVersion", "clientCapabilities", "clientInfo"},
    "session/new": {"cwd", "mcpServers"},
    "session/resume": {"sessionId", "cwd", "mcpServers"},
    "session/set_mode": {"sessionId", "modeId"},
    "session/prompt": {"sessionId", "prompt"},
    "session/cancel": {"sessionId"},
    "session/close": {"sessionId"},
}


async def test_we_say_who_we_are_and_nothing_before_we_know_who_they_are(tmp_path: Path) -> None:
    go = tmp_path / "go"
    known = {"protocolVersion": 1}
    steps = [{"mark": "asked"}, {"wait_file": str(go)}, {"reply": known}]
    async with aboard(tmp_path, on={"initialize": steps}) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "hello")
        await ship.logged("mark", name="asked")
        first = ship.peer.got()
        go.touch()
        rows = await ship.settled(session)

    (asked,) = first
    assert asked == {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": {"readTextFile": True, "writeTextFile": True},
                "terminal": True,
                "session": {"configOptions": {"boolean": {}}},
            },
            "clientInfo": {
                "name": "holdfast",
                "title": "Holdfast",
                "version": metadata.version("holdfast"),
            },
        },
    }
    assert rows[-1].text == "ok"


async def test_commands_are_offered_as_far_as_the_agent_may_run_them(tmp_path: Path) -> None:
    async with aboard(tmp_path, options={"terminal": False}) as ship:
        await ship.tell(await ship.open())

    (asked,) = ship.peer.got("initialize")
    assert asked["params"]["clientCapabilities"]["terminal"] is False


async def test_all_that_we_say_is_in_the_protocol_and_nothing_beside_it(tmp_path: Path) -> None:
    modes = {"modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]}}
    on = {
        "session/set_mode": [{"reply": {}}],
        "session/prompt": [
            [asking(ALL), does("fs/read_text_file", path="/no"), {"text": "one"}, END],
            [{"mark": "in"}, "until_cancel"],
            [END],
        ],
    }
    script: dict[str, Any] = {"options": {"mode": "plan"}, "capabilities": CAN, "session": modes}
    async with aboard(tmp_path, on=on, **script) as ship:
        session = await ship.open(approval=ApprovalMode.DENY)
        await ship.tell(session)
        await ship.house.send(session.id, "two")
        await ship.logged("mark", name="in")
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.settled(session)
    async with aboard(tmp_path, on={"session/prompt": [END]}, **script) as ship:
        await ship.tell(session, "three")
        await ship.house.sessions.close(ship.house.owner, session.id)

    said = ship.peer.got()
    fields = {each["method"]: set(each["params"]) for each in said if "method" in each}
    assert fields == CALLED
    assert [each for each in said if "method" in each and "_meta" in str(each)] == []
    replies = [set(each) for each in said if "method" not in each]
    assert replies == [{"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}]
    notified = {each["method"] for each in said if "method" in each and "id" not in each}
    assert notified == {"session/cancel"}


async def test_whoever_has_to_sign_in_is_told_how(tmp_path: Path) -> None:
    methods = [
        {"id": "key", "name": "API key", "description": "paste it"},
        {"id": "web", "description": "in a browser"},
        {"id": "none"},
    ]
    on = {
        "initialize": [{"reply": {"protocolVersion": 1, "authMethods": methods}}],
        "session/new": [{"error": {"code": -32000, "message": "sign in"}}],
    }
    async with aboard(tmp_path, on=on) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)

    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_AUTH_REQUIRED
    told = ended.failure.message
    assert "key (API key: paste it), web (in a browser), none (no name)" in told
    assert f"its own program ({ship.peer.argv[0]})" in told


LEAVES = ["close", "sweep", "go away"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", LEAVES)
async def test_a_question_that_nobody_will_answer_is_answered_cancelled(
    tmp_path: Path, how: str
) -> None:
    clock = SettableClock()
    on = {"session/prompt": [asking(ALL), "until_cancel"]}
    async with aboard(tmp_path, on=on, outside=Environment(clock=clock)) as ship:
        house, session = ship.house, await ship.open(approval=ApprovalMode.ASK)
        await house.send(session.id, "go")
        (asked,) = await ship.waiting(session)
        if how == "close":
            await house.sessions.close(house.owner, session.id)
        elif how == "sweep":
            clock.advance(hours=1)
            await house.maintenance.sweep(timedelta(minutes=30))
        if how != "go away":
            row = await house.approvals.get(house.owner, session.id, asked.id)
            assert row.state is ApprovalState.EXPIRED

    assert ship.peer.answers()["asked"]["result"] == CANCELLED


async def test_who_does_not_answer_its_farewell_is_ended_all_the_same(tmp_path: Path) -> None:
    async with aboard(tmp_path, capabilities=CAN, on={"session/close": []}) as ship:
        session = await ship.open()
        await ship.tell(session)
        await ship.house.sessions.close(ship.house.owner, session.id)
        (start,) = ship.peer.log("start")
        assert not os.path.exists(f"/proc/{start['pid']}")  # noqa: ASYNC240

    assert len(ship.peer.got("session/close")) == 1


async def test_a_file_is_written_with_the_folders_above_it(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a" / "b" / "c.txt"
    step = does("fs/write_text_file", path=str(file), content="deep\n")
    async with aboard(tmp_path, on=prompt(step), config_approval=ApprovalMode.AUTO) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.EDITS))

    assert (ship.peer.answers()["it"]["result"], file.read_text()) == ({}, "deep\n")


PLACES = ["..", "link", "../tree-evil", "relative", "missing", "file", ".", "ä b/"]
INSIDE = {".", "ä b/"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
async def test_a_command_runs_in_the_repository_or_not_at_all(tmp_path: Path, place: str) -> None:
    tree, mark = tmp_path / "tree", tmp_path / "tree" / "here"
    for folder in (tree / "ä b", tmp_path / "tree-evil"):
        folder.mkdir(parents=True)
    (tree / "file").touch()
    (tree / "link").symlink_to(tmp_path)
    given = place if place == "relative" else f"{tree}/{place}"
    made = does("terminal/create", command="touch", args=[str(mark)], cwd=given)
    made["ask"]["save"] = {"t": "terminalId"}
    ended = does("terminal/wait_for_exit", "ended", terminalId="$t")
    async with aboard(tmp_path, on=prompt(made, ended), config_approval=ApprovalMode.AUTO) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.AUTO))

    answer = ship.peer.answers()["it"]
    assert mark.exists() is (place in INSIDE)
    assert answer.get("error", {}).get("code") in ({None} if place in INSIDE else {-32602, -32002})


async def test_an_unknown_outcome_of_a_foreign_call_is_not_run_again(tmp_path: Path) -> None:
    call = {"sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "title": "rm",
            "rawInput": {"command": "rm"}, "status": "in_progress"}  # fmt: skip
    steps = [{"update": call}, "until_cancel"]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        house, session = ship.house, await ship.open()
        await house.send(session.id, "go")
        await news_until(house, session.id, ToolStarted)
        await house.sessions.interrupt(house.owner, session.id)
        await ship.settled(session)
        with pytest.raises(Conflict) as refused:
            await house.calls.settle(
                house.owner, session.id, "c", SettlementRequest(how=SettlementAction.RETRY, by="me")
            )
        skipped = await house.calls.settle(
            house.owner, session.id, "c", SettlementRequest(how=SettlementAction.SKIP, by="me")
        )

    assert refused.value.code is Code.CALL_NOT_OPEN
    assert skipped.settlement == "skipped"


async def test_a_title_that_somebody_gave_stays(tmp_path: Path) -> None:
    named = {"update": {"sessionUpdate": "session_info_update", "title": "Theirs"}}
    async with aboard(tmp_path, on={"session/prompt": [named, END]}) as ship:
        mine, free = await ship.open(title="Mine"), await ship.open()
        await ship.tell(mine)
        await ship.tell(free)
        titles = [(await ship.now(each)).title for each in (mine, free)]

    assert titles == ["Mine", "Theirs"]


async def test_a_terminal_of_nobodys_making_is_only_named(tmp_path: Path) -> None:
    done = {"sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "title": "ls",
            "rawInput": {"command": "ls"}, "status": "completed",
            "content": [{"type": "terminal", "terminalId": "theirs"}]}  # fmt: skip
    async with aboard(tmp_path, on={"session/prompt": [{"update": done}, END]}) as ship:
        rows = await ship.tell(await ship.open())

    (result,) = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert (result.status, result.result) == (
        ResultStatus.OK,
        {"output": None, "terminals": ["theirs"]},
    )


async def test_the_clock_of_a_silence_stands_while_somebody_is_asked(tmp_path: Path) -> None:
    silence = 0.2
    on = {"session/prompt": [asking(ALL), {"text": "done"}, END]}
    config = hasty(silence=silence)
    async with aboard(tmp_path, on=on, config_acp=config) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        # Nothing is waited for: so long a silence would have been told of.
        await asyncio.sleep(3 * silence)
        rows = await ship.house.messages.list(ship.house.owner, session.id)
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.settled(session)

    assert "agent_silent" not in codes(tuple(rows.items))


async def test_every_turn_is_one_entry_in_the_ledger(tmp_path: Path) -> None:
    usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
    replies = [[END], [{"reply": {"stopReason": "end_turn", "usage": usage}}]]
    async with aboard(tmp_path, on={"session/prompt": replies}) as ship:
        session = await ship.open()
        await ship.tell(session, "one")
        await ship.tell(session, "two")
        (spent,) = (await ship.house.costs.of_sessions(ship.house.owner, [session.id])).values()
        now = await ship.now(session)

    assert (spent.requests, spent.usage.input, spent.usage.output) == (2, 7, 3)
    assert now.status is Status.IDLE
