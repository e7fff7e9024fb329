"""Prompts to Holdfast as an agent: what is told of a turn, how it ends, and how it is stopped."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.rpc.framing import JsonRpcError, RequestRefused
from holdfast.acp.server.client_session import PendingPrompt
from holdfast.domain.events import MessageAppended, StepStarted, TurnEnded
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import StopReason
from tests.acp.editor import (
    Frame,
    chunk,
    editor_of,
    here,
    house_for,
    masked,
    selected,
    words,
)
from tests.houses import news_until, played, script, texts
from tests.marks import each_case

pytestmark = pytest.mark.anyio

NOTHING = {
    "totalTokens": 0,
    "inputTokens": 0,
    "outputTokens": 0,
    "thoughtTokens": 0,
    "cachedReadTokens": 0,
    "cachedWriteTokens": 0,
}
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SLOW = {"text": "never heard", "delay_ms": 3_600_000}


def ended(stop: str, word: str, **usage: int) -> Frame:
    """Return the answer to a prompt."""
    used = NOTHING | usage
    return {"result": {"stopReason": stop, "usage": used, "_meta": {"holdfast": {"stop": word}}}}


async def test_thoughts_and_words_are_told_before_the_answer(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    usage = {"input": 10, "output": 5, "cache_read": 3, "cache_write": 2, "reasoning": 4}
    model = script(tmp_path, {"reasoning": "hm", "text": "It is 5.", "usage": usage})
    async with here(home, desk, default_model=model) as (_, editor):
        session = await editor.opened(desk)
        editor.frames.clear()

        answer = await editor.prompt(session, "What is 2+3?")

        assert masked(editor.updates()) == [
            {"sessionUpdate": "session_info_update", "title": "What is 2+3?"},
            chunk("hm", kind="agent_thought_chunk"),
            chunk("It is 5."),
        ]
        assert answer == ended(
            "end_turn",
            "stop",
            totalTokens=20,
            inputTokens=10,
            outputTokens=5,
            thoughtTokens=4,
            cachedReadTokens=3,
            cachedWriteTokens=2,
        )


async def test_a_call_is_told_when_it_starts_and_when_it_has_ended(home: Path, desk: Path) -> None:
    (desk / "notes.txt").write_text("hold fast\n")
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        editor.frames.clear()

        await editor.prompt(session, "read notes.txt")

        _, started, done, said = masked(editor.updates())
        assert started == {
            "sessionUpdate": "tool_call",
            "toolCallId": "call_1",
            "title": "Read notes.txt",
            "kind": "read",
            "rawInput": {"path": "notes.txt"},
            "locations": [{"path": f"{desk}/notes.txt"}],
            "status": "in_progress",
        }
        found = done.pop("rawOutput")
        assert (found["content"], found["size_bytes"]) == ("hold fast\n", 10)
        assert done == {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "call_1",
            "status": "completed",
            "content": [{"type": "content", "content": {"type": "text", "text": "hold fast\n"}}],
        }
        assert said["sessionUpdate"] == "agent_message_chunk"


async def test_a_call_that_is_refused_was_never_started(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        editor.frames.clear()

        await editor.prompt(session, "read ../secret.txt")

        _, shown, done, _ = editor.updates()
        why = "../secret.txt is outside the session's file scope."
        assert (shown["sessionUpdate"], shown["status"]) == ("tool_call", "pending")
        assert done == {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "call_1",
            "status": "failed",
            "content": [{"type": "content", "content": {"type": "text", "text": why}}],
        }


async def test_what_stands_around_the_words_is_said_too(home: Path, desk: Path) -> None:
    picture = {
        "type": "image",
        "data": base64.b64encode(PICTURE).decode(),
        "mimeType": "image/png",
    }
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        answer = await editor.call(
            "session/prompt",
            sessionId=session,
            prompt=[
                *words("Look at "),
                {"type": "resource_link", "uri": "file:///a.py", "name": "a.py"},
                {"type": "resource", "resource": {"uri": "file:///b.py", "text": "b = 1"}},
                {"type": "resource", "resource": {"uri": "file:///c.bin", "blob": "AAAA"}},
                picture,
            ],
        )
        assert answer["result"]["stopReason"] == "end_turn"

        said = (await house.read(SessionId(session)))[0]
        assert said.text == (
            "Look at \n[a.py](file:///a.py)\n"
            '\n<resource uri="file:///b.py">\nb = 1\n</resource>\n'
            "\n[file:///c.bin](file:///c.bin)\n"
        )
        editor.frames.clear()
        await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])
        shown = [each["content"] for each in editor.updates() if "content" in each]
        assert shown[4] == picture


async def test_a_picture_inside_a_resource_is_a_picture(home: Path, desk: Path) -> None:
    data = base64.b64encode(PICTURE).decode()
    whole = {"uri": "file:///p.png", "blob": data, "mimeType": "image/png"}
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        prompt = [{"type": "resource", "resource": whole}]
        await editor.call("session/prompt", sessionId=session, prompt=prompt)

        said = (await house.read(SessionId(session)))[0]
        assert await house.media.read(house.owner, said.session_id, said.parts[0].ref) == PICTURE


@each_case(
    ("prompt", "code"),
    [
        ([], "message_empty"),
        (words("  "), "message_empty"),
        (words("x" * ((1 << 20) + 1)), "message_too_large"),
        ([{"type": "audio", "data": "", "mimeType": "audio/wav"}], "invalid_input"),
        ([{"type": "image", "data": "%", "mimeType": "image/png"}], "invalid_input"),
        ([{"type": "image", "data": "AAAA", "mimeType": "image/PNG"}], "invalid_input"),
        ([{"type": "smell"}], "invalid_input"),
        ("no list", "invalid_input"),
    ],
)
async def test_what_cannot_be_said_is_refused_and_nothing_is_written(
    home: Path, desk: Path, prompt: Any, code: str
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)

        answer = await editor.call("session/prompt", sessionId=session, prompt=prompt)

        error = answer["error"]
        assert (error["code"], error["data"]["code"]) == (-32602, code)
        assert error["data"]["message"] == error["message"]
        assert await house.read(SessionId(session)) == ()


@each_case(
    ("word", "stop"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("turn_limit", "max_turn_requests"),
        ("budget", "max_turn_requests"),
        ("refusal", "refusal"),
        ("aborted", "cancelled"),
        ("interrupted", "cancelled"),
    ],
)
async def test_the_answer_says_how_the_turn_stopped(word: str, stop: str) -> None:
    result = PendingPrompt("").result(TurnEnded(stop_reason=StopReason(word)))

    assert {"result": result} == ended(stop, word)


async def test_a_turn_that_fails_after_a_cancel_is_cancelled() -> None:
    prompt = PendingPrompt("")
    prompt.is_cancelled = True

    result = prompt.result(TurnEnded(stop_reason=StopReason.ERROR))

    assert {"result": result} == ended("cancelled", "error")


async def test_a_failure_without_words_is_told_all_the_same() -> None:
    with pytest.raises(RequestRefused) as refused:
        PendingPrompt("").result(TurnEnded(stop_reason=StopReason.ERROR))

    data = {"code": "internal", "message": "The turn failed."}
    assert refused.value.error == JsonRpcError(-32603, "The turn failed.", data)


async def test_a_prompt_past_the_turn_cap_is_asked_about_before_it_is_sent(
    home: Path, desk: Path
) -> None:
    async with here(home, desk, attended_turn_cap=1) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "one")
        left = [each["content"]["text"] for each in editor.updates() if "content" in each]
        editor.answer = lambda _: selected("reject_once")
        refused = await editor.prompt(session, "two")
        told = [each["content"]["text"] for each in editor.updates()]
        before = await house.sessions.get(house.owner, SessionId(session))
        editor.answer = lambda _: selected("allow_once")
        raised = await editor.prompt(session, "two")
        after = await house.sessions.get(house.owner, SessionId(session))

    assert left[0] == "(Turns left in this session: 0.)"
    assert refused == ended("max_turn_requests", "turn_limit")
    assert f"`holdfast sessions update {session} --turn-cap N`" in told[0]
    assert (before.turn, before.turn_cap) == (1, 1)
    assert raised["result"]["stopReason"] == "end_turn"
    assert (after.settled, after.turn_cap) == (2, 2)


async def test_a_turn_that_fails_is_an_error_with_its_code(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"error": "auth"})
    async with here(home, desk, default_model=model) as (_, editor):
        session = await editor.opened(desk)

        error = (await editor.prompt(session, "go"))["error"]

        assert (error["code"], error["data"]["code"]) == (-32603, "provider_auth")
        assert error["data"] == {"code": "provider_auth", "message": error["message"]}


async def test_two_prompts_at_once_are_answered_one_after_the_other(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "one", "delay_ms": 50}, {"text": "two"})
    async with here(home, desk, default_model=model) as (house, editor):
        session = await editor.opened(desk)
        first = await editor.begin("session/prompt", sessionId=session, prompt=words("1"))
        await news_until(house, SessionId(session), StepStarted)
        second = await editor.begin("session/prompt", sessionId=session, prompt=words("2"))
        editor.frames.clear()

        await editor.reply(second)

        order = [
            each.get("id") or each["params"]["update"].get("content") for each in editor.frames
        ]
        said = [each["text"] if isinstance(each, dict) else each for each in order if each]
        assert said == ["one", first, "two", second]


async def test_what_others_say_in_a_held_session_is_told(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "hello")
        editor.frames.clear()

        await house.send(SessionId(session), "What is 2+3?")
        last = await editor.until(lambda frame: "2+3 = 5" in str(frame))

        assert masked(editor.updates()) == [
            chunk("What is 2+3?", kind="user_message_chunk"),
            chunk(last["params"]["update"]["content"]["text"], "#2"),
        ]


async def test_a_cancel_stops_the_turn_and_is_no_error(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with here(home, desk, default_model=script(tmp_path, SLOW)) as (house, editor):
        session = await editor.opened(desk)
        asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        await news_until(house, SessionId(session), StepStarted)

        await editor.send(method="session/cancel", params={"sessionId": session})

        assert await editor.reply(asked) == {"result": ended("cancelled", "aborted")["result"]}
        assert (await house.sessions.get(house.owner, SessionId(session))).status == "idle"


async def test_a_cancel_right_behind_a_prompt_means_it(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with here(home, desk, default_model=script(tmp_path, SLOW)) as (_, editor):
        session = await editor.opened(desk)
        prompt = {"sessionId": session, "prompt": words("go")}
        asked = await editor.begin("session/prompt", **prompt)
        await editor.send(method="session/cancel", params={"sessionId": session})
        assert (await editor.reply(asked))["result"]["stopReason"] == "cancelled"


async def test_a_cancel_stops_what_waits_behind_the_turn(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, SLOW | {"repeat": 2})
    async with here(home, desk, default_model=model) as (house, editor):
        session = await editor.opened(desk)
        first = await editor.begin("session/prompt", sessionId=session, prompt=words("1"))
        await news_until(house, SessionId(session), StepStarted)
        second = await editor.begin("session/prompt", sessionId=session, prompt=words("2"))
        await asked_of(house, session, 2)

        await editor.send(method="session/cancel", params={"sessionId": session})

        assert (await editor.reply(first))["result"]["stopReason"] == "cancelled"
        assert (await editor.reply(second))["result"]["stopReason"] == "cancelled"


async def test_a_cancel_of_nothing_changes_nothing(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        for params in ({"sessionId": session}, {"sessionId": "none"}, {}, None, []):
            await editor.send(method="session/cancel", params=params)

        answer = await editor.prompt(session, "What is 2+3?")

        assert answer["result"]["stopReason"] == "end_turn"


async def test_a_request_that_is_taken_back_stops_its_turn(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with here(home, desk, default_model=script(tmp_path, SLOW)) as (house, editor):
        session = await editor.opened(desk)
        asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        await news_until(house, SessionId(session), StepStarted)

        await editor.send(method="$/cancel_request", params={"requestId": asked})

        assert (await editor.reply(asked))["error"]["code"] == -32800
        rows = await played(house, SessionId(session))
        assert texts(rows)[0] == ("user", "go")


async def test_the_end_of_the_input_stops_what_runs_and_records_it(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with house_for(home, desk, default_model=script(tmp_path, SLOW)) as house:
        async with editor_of(house) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
            await news_until(house, SessionId(session), StepStarted)

        page = await house.events.list(house.owner, SessionId(session))
        last = [each.payload for each in page.items][-1]
        assert isinstance(last, TurnEnded)
        assert last.stop_reason == "aborted"


async def test_what_was_asked_before_the_end_is_answered(home: Path, desk: Path) -> None:
    async with house_for(home, desk) as house, editor_of(house) as editor:
        await editor.send(id=1, method="initialize", params={"protocolVersion": 1})
        # The last line has no end of its own.
        await editor.say(b'{"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}')
        editor.writer.close()

        assert (await editor.reply(1))["result"]["protocolVersion"] == 1
        assert await editor.reply(2) == {"result": {"sessions": []}}


async def test_turns_that_are_played_elsewhere_go_on(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": 300})
    async with house_for(home, desk, default_model=model) as house:
        async with editor_of(house, goes_on=True) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
            await news_until(house, SessionId(session), StepStarted)

        assert texts(await played(house, SessionId(session))) == [
            ("user", "go"),
            ("assistant", "late"),
        ]


async def test_a_session_that_was_closed_elsewhere_is_opened_by_a_prompt(
    home: Path, desk: Path
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        await house.sessions.close(house.owner, SessionId(session))

        answer = await editor.prompt(session, "What is 2+3?")

        assert answer["result"]["stopReason"] == "end_turn"


async def test_a_session_that_is_closed_while_it_runs_cancels_its_prompt(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, SLOW | {"repeat": 2})
    async with here(home, desk, default_model=model) as (house, editor):
        session = await editor.opened(desk)
        first = await editor.begin("session/prompt", sessionId=session, prompt=words("1"))
        await news_until(house, SessionId(session), StepStarted)
        second = await editor.begin("session/prompt", sessionId=session, prompt=words("2"))
        await asked_of(house, session, 2)

        await house.sessions.close(house.owner, SessionId(session))

        assert (await editor.reply(first))["result"]["stopReason"] == "cancelled"
        assert (await editor.reply(second))["result"]["stopReason"] == "cancelled"


async def test_a_session_that_is_deleted_while_it_runs_is_not_found(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    async with here(home, desk, default_model=script(tmp_path, SLOW)) as (house, editor):
        session = await editor.opened(desk)
        asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        await news_until(house, SessionId(session), StepStarted)

        await house.sessions.delete(house.owner, SessionId(session))

        assert (await editor.reply(asked))["error"]["code"] == -32002
        assert (await editor.prompt(session, "again"))["error"]["code"] == -32002


async def asked_of(house: Any, session: str, count: int) -> None:
    """Wait until so many messages were written."""
    async with asyncio.timeout(30):
        async for item in house.follow(SessionId(session)):
            if isinstance(item.payload, MessageAppended) and item.payload.sequence >= count:
                return
