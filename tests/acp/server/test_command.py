"""`holdfast acp` as an editor meets it: a real process, whatever bytes come, however it ends."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from holdfast import __version__
from tests.acp.editor import Process, chunk, command, masked, words
from tests.cli.approval_lookups import session_of, waiting
from tests.cli.processes import beside
from tests.cli.remote_server import serve
from tests.cli.server_probe import got, sent
from tests.houses import script

pytestmark = pytest.mark.anyio

INTRODUCTION = {
    "protocolVersion": 1,
    "agentInfo": {"name": "holdfast", "title": "Holdfast", "version": __version__},
    "authMethods": [],
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
        "mcpCapabilities": {"http": True, "sse": False},
        "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
    },
}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
LIST = b'{"jsonrpc":"2.0","id":"l","method":"session/list","params":{}}\n'


async def test_nothing_is_done_before_the_handshake_and_every_version_gets_ours(
    home: Path, desk: Path
) -> None:
    async with command(home, desk) as editor:
        for method in ("session/new", "session/list", "session/prompt", "authenticate", "x"):
            error = (await editor.call(method, cwd=str(desk)))["error"]
            assert (error["code"], error["message"]) == (-32600, "Call initialize first.")
        for version in (1, 2, 99, 0, -1, "1", None, 1.5):
            met = await editor.call("initialize", protocolVersion=version)
            assert met == {"result": INTRODUCTION}
        assert await editor.call("initialize") == {"result": INTRODUCTION}
        for id_ in (0, None, "", "text", -5, 1 << 53):
            await editor.send(id=id_, method="initialize", params={"protocolVersion": 1})
            assert await editor.frame() == {"id": id_, "result": INTRODUCTION}
        assert await editor.call("session/list") == {"result": {"sessions": []}}
        assert await editor.ended() == 0


async def test_whatever_line_comes_the_conversation_goes_on(home: Path, desk: Path) -> None:
    """The cases of T-10, each followed by a question that is still answered."""
    async with command(home, desk) as editor:
        await editor.meet()

        async def lives() -> None:
            editor.frames.clear()
            assert await editor.call("session/list") == {"result": {"sessions": []}}

        for line in (
            b"\n",
            b"  \r\n",
            b"not json\n",
            b'"bare"\n',
            b"17\n",
            b"\xff\xfe\n",
            b'{"jsonrpc":"2.0"}\n',
            b'{"jsonrpc":"2.0","id":7,"result":{}}\n',
            b'{"jsonrpc":"2.0","result":{}}\n',
            b'{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}\n',
            b'{"jsonrpc":"2.0","method":"session/unknown","params":[]}\n',
            b'{"jsonrpc":"2.0","method":"$/whatever"}\n',
            b"x" * (1 << 20) + b"\n",
        ):
            await editor.say(line)
            await lives()
            assert len(editor.frames) == 1

        await editor.say(b"[" + LIST.strip() + b"]\n")
        refused = await editor.frame()
        assert (refused["id"], refused["error"]["code"]) == (None, -32600)
        for method in ("session/fork", "authenticate", "fs/read_text_file", "_own/thing", ""):
            assert (await editor.call(method))["error"]["code"] == -32601
        for params in ([], "text", 5, {"cwd": 5}, {}):
            await editor.send(id=1, method="session/new", params=params)
            assert (await editor.reply(1))["error"]["code"] == -32602
        await lives()


async def test_lines_may_be_cut_and_joined_anywhere(home: Path, desk: Path) -> None:
    async with command(home, desk) as editor:
        whole = json.dumps(INITIALIZE).encode() + b"\r\n" + LIST + LIST
        await editor.say(whole[:-5])
        for byte in whole[-5:] + LIST:
            await editor.say(bytes([byte]))
        first = await editor.frame()
        assert first == {"id": 1, "result": INTRODUCTION}
        for _ in range(3):
            assert await editor.frame() == {"id": "l", "result": {"sessions": []}}


@pytest.mark.torture
@pytest.mark.parametrize(("size", "is_read"), [(20 << 20, True), (40 << 20, False)])
async def test_a_long_line_is_read_or_dropped_and_the_next_one_is_read(
    home: Path, desk: Path, size: int, is_read: bool
) -> None:
    async with command(home, desk) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        params = {"sessionId": session, "prompt": words("x" * size)}
        asked = await editor.begin("session/prompt", **params)
        listing = await editor.begin("session/list")
        replies = [await editor.frame() for _ in range(2 if is_read else 1)]

        by_id = {each["id"]: each for each in replies}
        assert "result" in by_id[listing]
        if is_read:
            error = by_id[asked]["error"]
            assert (error["code"], error["data"]["code"]) == (-32602, "message_too_large")


async def test_a_killed_agent_is_loaded_with_its_whole_past_once(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    slow = {"text": "lost", "delay_ms": 3_600_000}
    model = script(tmp_path, {"text": "first"}, slow, {"text": "third"})
    async with command(home, desk, HOLDFAST_MODEL=model) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "one")
        await editor.begin("session/prompt", sessionId=session, prompt=words("two"))
        await until_shown(home, session, "events", "step")
        editor.process.kill()
        await editor.process.wait()
    async with command(home, desk, HOLDFAST_MODEL=model) as editor:
        await editor.meet()
        editor.frames.clear()
        await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])

        assert masked(editor.updates()) == [
            chunk("one", "#1", kind="user_message_chunk"),
            chunk("first", "#2"),
            chunk("two", "#3", kind="user_message_chunk"),
        ]


async def test_a_client_that_is_gone_leaves_a_turn_that_is_recorded_as_stopped(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    slow = {"text": "never", "delay_ms": 3_600_000}
    model = script(tmp_path, slow, {"text": "again"})
    async with command(home, desk, HOLDFAST_MODEL=model) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        await until_shown(home, session, "events", "step")

        assert await editor.ended() == 0

    shown = json.loads(beside(home, "sessions", "show", session, "--json").stdout)
    assert shown["state"] == "idle"
    async with command(home, desk, HOLDFAST_MODEL=model) as editor:
        await editor.meet()
        await editor.call("session/resume", sessionId=session, cwd=str(desk), mcpServers=[])
        assert (await editor.prompt(session, "on"))["result"]["stopReason"] == "end_turn"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_like_the_end_of_its_input(
    home: Path, desk: Path, tmp_path: Path, number: signal.Signals
) -> None:
    slow = {"text": "never", "delay_ms": 3_600_000}
    async with command(home, desk, HOLDFAST_MODEL=script(tmp_path, slow)) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        asked = await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
        await until_shown(home, session, "events", "step")

        editor.process.send_signal(number)

        assert (await editor.reply(asked))["result"]["stopReason"] == "cancelled"
        async with asyncio.timeout(10):
            assert await editor.process.wait() == 0


async def test_a_session_of_an_editor_goes_on_at_a_terminal_and_back(
    home: Path, desk: Path
) -> None:
    async with command(home, desk) as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "What is 2+3?")
        assert session_of(home) == session

        done = await asyncio.to_thread(beside, home, "chat", "--resume", session, "What is 3+4?")
        assert done.stdout.startswith("3+4 = 7")

        editor.frames.clear()
        await editor.prompt(session, "What is 4+5?")
        texts = [each["content"]["text"] for each in editor.updates() if "content" in each]
        assert [text[:12] for text in texts] == ["What is 3+4?", "3+4 = 7", "4+5 = 9"]


async def test_a_session_of_an_editor_goes_on_over_http_and_back(home: Path, desk: Path) -> None:
    with serve(home, AGENT_WORKSPACE_ROOT=str(desk)) as server:
        async with command(home, desk) as editor:
            await editor.meet()
            session = await editor.opened(desk)
            await editor.prompt(session, "What is 2+3?")
            url = f"{server.url}/v1/sessions/{session}"
            body = {"role": "user", "content": {"text": "What is 3+4?"}}
            editor.frames.clear()

            said = await asyncio.to_thread(sent, f"{url}/messages", body, server.secret)
            await editor.until(lambda frame: "3+4 = 7" in str(frame))
            asked = [each["content"]["text"] for each in editor.updates() if "content" in each]
            await editor.prompt(session, "What is 4+5?")
            status, page = await asyncio.to_thread(got, f"{url}/messages", secret=server.secret)

    assert (said["session_id"], said["turn"]) == (session, 2)
    assert [text[:12] for text in asked] == ["What is 3+4?", "3+4 = 7"]
    texts = [each["content"]["text"].partition("\n")[0] for each in page["data"]]
    asked_and_answered = ["What is 2+3?", "2+3 = 5", "What is 3+4?", "3+4 = 7"]
    assert (status, texts) == (200, [*asked_and_answered, "What is 4+5?", "4+5 = 9"])


async def test_an_answer_at_a_terminal_counts_for_the_editor(home: Path, desk: Path) -> None:
    async with command(home, desk) as editor:
        await editor.meet()
        editor.answer = lambda _: None
        session = await editor.opened(desk)
        asked = await editor.begin(
            "session/prompt", sessionId=session, prompt=words("write a.txt: hi")
        )
        await editor.until(lambda frame: frame.get("method") == "session/request_permission")

        (question,) = await asyncio.to_thread(waiting, home)
        await asyncio.to_thread(beside, home, "approvals", "answer", question["id"], "--allow")

        assert (await editor.reply(asked))["result"]["stopReason"] == "end_turn"
        assert (desk / "a.txt").read_text() == "hi\n"


async def test_nothing_but_the_protocol_is_written_to_standard_output(
    home: Path, desk: Path
) -> None:
    async with command(home, desk, "-vv") as editor:
        await editor.meet()
        session = await editor.opened(desk)
        await editor.prompt(session, "read nothing.txt")
        assert await editor.call("session/close", sessionId=session) == {"result": {}}


async def test_the_root_is_the_folder_it_was_started_in(home: Path, desk: Path) -> None:
    inner = desk / "inner"
    inner.mkdir()
    async with command(home, inner) as editor:
        await editor.meet()
        error = (await editor.call("session/new", cwd=str(desk), mcpServers=[]))["error"]
        assert error["data"]["code"] == "repo_outside_root"
        await editor.opened(inner)
    async with command(home, inner, "--root", str(desk)) as editor:
        await editor.meet()
        await editor.opened(desk)
    async with command(home, inner, AGENT_WORKSPACE_ROOT=str(desk)) as editor:
        await editor.meet()
        await editor.opened(desk)


async def test_behind_a_server_a_turn_goes_on_without_its_client(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": 500}, {"text": "more"})
    more = {"HOLDFAST_MODEL": model, "AGENT_WORKSPACE_ROOT": str(desk)}
    with serve(home, **more) as server:
        far = {"HOLDFAST_SERVER": server.url, "HOLDFAST_TOKEN": server.secret}
        async with command(tmp_path / "other", desk, **far) as editor:
            met = await editor.call("initialize", protocolVersion=1)
            can = met["result"]["agentCapabilities"]["promptCapabilities"]
            assert can == {"image": True, "audio": False, "embeddedContext": True}
            server_of_mine = {"name": "mine", "command": "true", "args": [], "env": []}
            session = await editor.opened(desk, mcpServers=[server_of_mine])
            await editor.begin("session/prompt", sessionId=session, prompt=words("go"))
            remark = await editor.until(lambda frame: "mine" in str(frame))
            assert remark["params"]["update"]["sessionUpdate"] == "agent_message_chunk"
            await until_shown(home, session, "events", "step")
            assert await editor.ended() == 0
        await until_shown(home, session, "messages", "late")
        async with command(tmp_path / "other", desk, **far) as editor:
            await editor.meet()
            await editor.call("session/resume", sessionId=session, cwd=str(desk), mcpServers=[])
            assert (await editor.prompt(session, "on"))["result"]["stopReason"] == "end_turn"
            editor.frames.clear()
            await editor.call("session/load", sessionId=session, cwd=str(desk), mcpServers=[])
            texts = [each["content"]["text"] for each in editor.updates()]
            assert texts == ["go", "late", "on", "more"]
            await write_and_delete(editor, session, desk)
    assert not (tmp_path / "other" / "history.db").exists()


async def write_and_delete(editor: Process, session: str, desk: Path) -> None:
    """Do the rest of what can be done in a session behind a server."""
    assert await editor.call("session/set_mode", sessionId=session, modeId="deny") == {"result": {}}
    listed = (await editor.call("session/list", cwd=str(desk)))["result"]["sessions"]
    assert [each["sessionId"] for each in listed] == [session]
    none = str(desk / "none")
    error = (await editor.call("session/new", cwd=none, mcpServers=[]))["error"]
    assert error["code"] == -32602
    await editor.send(method="session/cancel", params={"sessionId": session})
    assert await editor.call("session/delete", sessionId=session) == {"result": {}}


async def until_shown(home: Path, session: str, what: str, word: str) -> None:
    """Wait until a word stands in what another process sees of the session."""

    def look() -> None:
        for _ in range(300):
            shown = beside(home, "sessions", what, session, "--json").stdout
            if word in shown:
                return
        raise AssertionError(shown)

    await asyncio.to_thread(look)
