"""A conversation over lines: whatever comes, it goes on, in order, and ends when it should."""

import asyncio
import json

import pytest

from holdfast import Holdfast
from holdfast.domain.tokens import Scope
from holdfast.mcp import stdio_transport
from holdfast.mcp.stdio_transport import CONCURRENT_MOST
from tests.mcp.clients import INITIALIZE, Line, line_to
from tests.mcp.payloads import MINIMAL

pytestmark = pytest.mark.anyio


async def test_an_invalid_line_is_answered_and_the_next_one_too(line: Line) -> None:
    for said, id in ((b"not json", None), (b'{"jsonrpc":"1.0","id":5,"method":"ping"}', 5)):
        line.say(said + b"\n")

        frame = await line.frame()
        assert (frame["id"], frame["error"]["code"]) == (id, -32600 if id else -32700)
        assert (await line.call("ping"))["result"] == {}


async def test_a_line_that_is_too_long_is_told_so(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio_transport, "LINE_LARGEST", 1_000)
    async with line_to(quiet) as line:
        line.say(b"x" * 2_000 + b"\n")
        frame = await line.frame()
        assert (frame["id"], frame["error"]["code"]) == (None, -32600)
        assert (await line.call("ping"))["result"] == {}


async def test_answers_nobody_waits_for_and_odd_notices_are_passed_over(line: Line) -> None:
    line.send(id=99, result={})
    line.send(id=98, error={"code": 1, "message": "x"})
    line.send(method="notifications/whatever", params={"a": 1})
    line.send(method="notifications/cancelled", params={"requestId": 12345})
    line.send(method="notifications/cancelled")

    assert (await line.call("ping"))["result"] == {}
    assert (await line.call("nothing/like/this"))["error"]["code"] == -32601


async def test_what_comes_behind_a_change_sees_it(line: Line) -> None:
    """Nobody waits for an answer before the next question."""
    line.begin("tools/call", name="submit_agent_session", arguments=MINIMAL)
    asked = line.begin("tools/call", name="query_agent_history", arguments={"session_id": "abc123"})

    result = (await line.answer(asked))["result"]
    assert result["structuredContent"]["observation_count"] == 1


async def test_many_questions_at_once_are_all_answered(line: Line) -> None:
    numbers = [line.begin("ping") for _ in range(5 * CONCURRENT_MOST)]

    answers = [await line.answer(number) for number in numbers]
    assert all(each["result"] == {} for each in answers)


async def test_what_was_asked_before_the_end_is_answered(quiet: Holdfast) -> None:
    async with line_to(quiet) as line:
        number = line.begin("tools/call", name="submit_agent_session", arguments=MINIMAL)
    # The block has ended with the conversation, and so has the server.
    assert (await line.answer(number))["result"]["isError"] is False


async def test_a_last_line_needs_no_end(quiet: Holdfast) -> None:
    async with line_to(quiet) as line:
        line.say(b'{"jsonrpc":"2.0","id":"last","method":"ping"}')
    assert (await line.answer("last"))["result"] == {}


async def test_only_messages_are_written_each_on_a_line(quiet: Holdfast) -> None:
    async with line_to(quiet) as line:
        await line.tool("submit_agent_session", **(MINIMAL | {"note": "a\nb\u2028c"}))
        await line.tool("query_agent_history", session_id="abc123")

    lines = line.written.split(b"\n")
    assert lines.pop() == b""
    assert all(json.loads(each)["jsonrpc"] == "2.0" for each in lines)


async def test_nothing_is_answered_before_the_handshake_and_all_versions_are_met(
    quiet: Holdfast,
) -> None:
    async with line_to(quiet, is_met=False) as line:
        early = await line.call("tools/list")
        assert early["error"]["code"] == -32602
        for version in ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "1999-01-01"):
            met = await line.call("initialize", **(INITIALIZE | {"protocolVersion": version}))
            told = met["result"]["protocolVersion"]
            assert told == (version if version != "1999-01-01" else "2025-11-25")


async def test_the_newest_protocol_needs_no_handshake(quiet: Holdfast) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
    }
    async with line_to(quiet, is_met=False) as line:
        told = await line.call(
            "tools/call", name="submit_agent_session", arguments=MINIMAL, _meta=meta
        )
        missing = await line.call("resources/read", uri="holdfast://history/never", _meta=meta)

    assert told["result"]["structuredContent"]["observation_count"] == 1
    assert missing["error"]["code"] == -32602
    page = await quiet.observations.list_observations(quiet.owner, "abc123")
    assert [each.source for each in page.items] == ["modern"]


async def test_whoever_may_only_read_is_told_so_in_the_result(quiet: Holdfast) -> None:
    async with line_to(quiet, scope=Scope.READ) as line:
        refused = await line.tool("submit_agent_session", **MINIMAL)
        listed = await line.tool("query_agent_history")

    assert (refused.error, listed.words) == ("forbidden", [])


async def test_a_cancelled_request_is_not_answered_and_owes_nothing(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    monkeypatch.setattr(type(quiet.observations), "query", never)
    async with line_to(quiet) as line:
        number = line.begin("tools/call", name="query_agent_history", arguments={})
        await begun.wait()
        line.send(method="notifications/cancelled", params={"requestId": number})
        await gone.wait()
        assert (await line.call("ping"))["result"] == {}
    assert line.frames.empty()


async def test_a_fault_of_ours_is_told_without_its_text(
    line: Line, quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fault, code in (
        (RuntimeError("the secret word"), "internal"),
        (MemoryError(), "out_of_memory"),
    ):

        async def broken(*_: object, fault: Exception = fault, **__: object) -> None:
            raise fault

        monkeypatch.setattr(type(quiet.observations), "query", broken)
        monkeypatch.setattr(type(quiet.sessions), "list", broken)
        told = await line.tool("query_agent_history")
        listed = await line.call("resources/list")

        assert told.error == code
        assert (listed["error"]["code"], listed["error"]["data"]["error"]) == (-32603, code)
    assert b"secret word" not in line.written


async def test_whoever_does_not_listen_is_left_when_told_to_stop(quiet: Holdfast) -> None:
    from holdfast.mcp.server import build_server

    line, stop = Line(), asyncio.Event()
    serving = asyncio.create_task(
        stdio_transport.serve(build_server(quiet, "0"), line, line, stop=stop)
    )
    line.send(id=1, method="initialize", params=INITIALIZE)
    await line.frame()
    stop.set()

    await asyncio.wait_for(serving, 20)


async def test_a_broken_pipe_ends_the_conversation(quiet: Holdfast) -> None:
    from holdfast.mcp.server import build_server

    class Broken(Line):
        async def drain(self) -> None:
            raise BrokenPipeError

    line = Broken()
    serving = asyncio.create_task(
        stdio_transport.serve(build_server(quiet, "0"), line, line, stop=asyncio.Event())
    )
    line.send(id=1, method="initialize", params=INITIALIZE)

    await asyncio.wait_for(serving, 20)


async def test_an_unknown_tool_is_an_error_of_the_protocol(line: Line) -> None:
    told = await line.call("tools/call", name="rm", arguments={})

    assert (told["error"]["code"], told["error"]["message"]) == (-32602, "Unknown tool: rm")
