"""Agents that send too much, too late, too early, or break off: the house stands, in order."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Acp
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.events import FailureCode, StepDelta, TurnEnded
from holdfast.domain.messages import Media, NoticeCode, Role, ToolCall
from holdfast.domain.sessions import Budget, OnExceed, Status, StopReason
from tests.acp.harness import END, aboard, codes, notices, stands
from tests.acp.steps import ALL, asking
from tests.houses import news_until, payloads

pytestmark = pytest.mark.anyio


def text(words: str) -> dict[str, Any]:
    """Return the update with a piece of the answer."""
    return {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": words}}


async def test_a_permission_keeps_its_place_between_the_words(tmp_path: Path) -> None:
    asked = {"ask": {**asking(ALL, kind="read")["ask"], "wait": False}}
    steps = [{"texts": 300}, asked, {"text": "after"}, {"await": "asked"}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        rows = await ship.tell(await ship.open())

    before = "".join(f"chunk {number} " for number in range(300))
    said = [
        row.text if row.role is Role.ASSISTANT else row.parts[0].name  # type: ignore[union-attr]
        for row in rows
        if row.role is Role.ASSISTANT or isinstance(row.parts[0], ToolCall)
    ]
    assert (said[0], said[-1], len(said)) == (before, "after", 3)
    assert isinstance(rows[2].parts[0], ToolCall)


async def test_ten_thousand_pieces_are_far_fewer_writes(tmp_path: Path) -> None:
    async with aboard(tmp_path, on={"session/prompt": [{"texts": 10_000}, END]}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        news = payloads(await _all(ship, session))

    assert rows[-1].text == "".join(f"chunk {number} " for number in range(10_000))
    deltas = [each for each in news if isinstance(each, StepDelta)]
    assert "".join(each.text for each in deltas) == rows[-1].text
    assert len(deltas) < 2_000


async def _all(ship: Any, session: Any) -> Any:
    return await news_until(ship.house, session.id, TurnEnded)


async def test_sessions_at_the_same_time_do_not_hear_each_other(tmp_path: Path) -> None:
    steps = [{"repeat": {"count": 50, "steps": [{"text": "$prompt"}, {"text": " "}]}}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        sessions = [await ship.open() for _ in range(5)]
        words = ["red", "green", "blue", "black", "white"]
        told = await asyncio.gather(*map(ship.tell, sessions, words))

    assert [rows[-1].text for rows in told] == [f"{word} " * 50 for word in words]


async def test_a_flood_ends_the_turn_and_not_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.translator.UPDATES_MOST", 500)
    steps = [[{"texts": 100_000}, "until_cancel"], [{"text": "calm"}, END]]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)
        rows = await ship.tell(session, "again")
        now = await ship.now(session)

    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_FLOOD
    assert (rows[-1].text, now.status) == ("calm", Status.IDLE)


async def test_what_comes_after_the_reply_is_nobodys_message(tmp_path: Path) -> None:
    late = [END, {"text": "late"}, {"update": {"sessionUpdate": "current_mode_update",
            "currentModeId": "calm"}}, {"mark": "late"}]  # fmt: skip
    async with aboard(
        tmp_path, on={"session/prompt": [[{"text": "one"}, *late], [{"text": "two"}, END]]}
    ) as ship:
        session = await ship.open()
        await ship.tell(session)
        await ship.logged("mark", name="late")
        await ship.until(
            session,
            lambda each: each.program is not None and each.program.about.get("mode") == "calm",
        )
        rows = await ship.tell(session, "again")

    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["one", "two"]


async def test_what_comes_before_the_session_has_a_name_counts_as_state_only(
    tmp_path: Path,
) -> None:
    def early(update: dict[str, Any]) -> dict[str, Any]:
        params = {"sessionId": "s", "update": update}
        return {"notify": {"method": "session/update", "params": params}}

    commands = {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "go"}]}
    steps = [early(text("ghost")), early(commands), {"reply": {"sessionId": "s"}}]
    async with aboard(tmp_path, on={"session/new": steps}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.now(session)

    assert [row.text for row in rows] == ["hello", "ok"]
    assert now.program is not None
    assert now.program.about["commands"] == [{"name": "go"}]


async def test_a_line_that_is_too_long_is_dropped_and_the_turn_goes_on(tmp_path: Path) -> None:
    steps = [{"text": "x" * 5_000}, {"text": "short"}, END]
    async with aboard(
        tmp_path, config_acp=Acp(line_limit=2_000), on={"session/prompt": steps}
    ) as ship:
        rows = await ship.tell(await ship.open())

    assert rows[-1].text == "short"


async def test_a_reply_that_was_too_long_fails_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.runtime._AFTER_A_DROPPED_LINE", 0.3)
    huge = {"reply": {"stopReason": "end_turn", "_meta": {"x": "x" * 5_000}}}
    steps = [[{"text": "so"}, huge], [{"text": "well"}, END]]
    async with aboard(
        tmp_path, config_acp=Acp(line_limit=2_000), on={"session/prompt": steps}
    ) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)
        now = await ship.now(session)

    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_LINE_TOO_LONG
    assert now.status is Status.IDLE


LOOK = {
    "ask": {
        "method": "fs/read_text_file",
        "params": {"sessionId": "$session", "path": "/no"},
        "seconds": 0.5,
    }
}
BREAKS: dict[str, tuple[list[Any], str]] = {
    "stdout closed while it lives": (
        [{"text": "a"}, {"close": "stdout"}, "hang"],
        "closed its output",
    ),
    "half a line": ([{"raw": '{"jsonrpc"'}, {"signal": "KILL"}], "signal 9"),
    "input closed, then gone": ([{"close": "stdin"}, {"exit": 5}], "exit code 5"),
    # What is on its way is still read; the answer after that finds nobody.
    "answers find nobody": ([{"close": "stdin"}, LOOK, LOOK, {"exit": 6}], "exit code 6"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", BREAKS)
async def test_a_program_that_breaks_off_loses_the_session(tmp_path: Path, case: str) -> None:
    steps, words = BREAKS[case]
    # The agent's reader would otherwise see the closed input, and may exit with 0 first.
    ignored = ["eof"] if {"close": "stdin"} in steps else []
    async with aboard(tmp_path, on={"session/prompt": steps}, ignore=ignored) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        now = await ship.until(session, stands(ProcessState.EXITED))

    assert (now.status, now.last_stop) == (Status.FAILED, StopReason.ERROR)
    assert words in notices(rows)[-1][1]
    assert codes(rows) == [NoticeCode.ERROR, NoticeCode.AGENT_FAILED]


async def test_requests_without_end_are_refused_beyond_a_number(tmp_path: Path) -> None:
    asks = [
        {"ask": {**asking(ALL, name=f"q{number}", rawInput={"n": number})["ask"], "wait": False}}
        for number in range(70)
    ]
    steps = [*asks, {"await": "q69"}, {"mark": "refused"}, "until_cancel"]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.logged("mark", name="refused")
        waiting = await ship.waiting(session, 64)
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.settled(session)

    assert len(waiting) == 64
    assert ship.peer.answers()["q69"]["error"]["code"] == -32603


async def test_a_turn_without_money_is_not_begun(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open(budget=Budget(microcents=0, on_exceed=OnExceed.FAIL))
        await ship.tell(session)
        ended = await ship.ended(session)

    assert ended.stop_reason is StopReason.BUDGET
    assert ship.peer.log("start") == []


async def test_what_is_said_of_other_conversations_is_passed_over(tmp_path: Path) -> None:
    other = {
        "notify": {"method": "session/update", "params": {"sessionId": "x", "update": text("a")}}
    }
    odd = {"notify": {"method": "something/else", "params": {}}}
    steps = [other, odd, {"text": "mine"}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        rows = await ship.tell(await ship.open())

    assert rows[-1].text == "mine"


async def test_a_picture_is_kept_and_one_is_given_as_a_file(tmp_path: Path) -> None:
    dots = base64.b64encode(b"dots").decode()
    image = {"type": "image", "mimeType": "image/png", "data": dots}
    steps = [{"update": {"sessionUpdate": "agent_message_chunk", "content": image}}, END]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        keep = ship.house.media.keep
        ref = await keep(ship.house.owner, session.id, b"mine", mime_type="image/png")
        await ship.house.send(session.id, (Media(mime_type="image/png", ref=ref),))
        rows = await ship.settled(session)

    (block,) = ship.peer.got("session/prompt")[0]["params"]["prompt"]
    assert (block["type"], block["size"]) == ("resource_link", 4)
    (picture,) = rows[-1].parts
    assert isinstance(picture, Media)
    assert picture.byte_length == 4
    assert codes(rows) == [NoticeCode.INFORMATION]


async def test_a_session_that_was_closed_and_resumed_has_its_program_again(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        session = await ship.open()
        await ship.tell(session)
        house, owner = ship.house, ship.house.owner
        for _ in range(3):
            closing = asyncio.create_task(house.sessions.close(owner, session.id))
            await asyncio.sleep(0)
            await closing
            await house.sessions.resume(owner, session.id)
            rows = await ship.tell(session, "again")
        held = house.agent_processes._process_pool.held()

    assert rows[-1].text == "ok"
    assert len(held) == 1
