"""Modes, models and MCP servers that a client chooses for its sessions."""

import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.server.capabilities import session_options
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.ids import SessionId
from holdfast.domain.models import ModelRequest
from holdfast.domain.sessions import SessionRequest
from tests.acp.editor import Frame, editor_of, here, house_for, is_question
from tests.houses import raw, script
from tests.marks import each_case
from tests.tools.mcp_servers import PLAIN, Book

pytestmark = pytest.mark.anyio


async def test_a_mode_is_kept_and_followed(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)

        changed = await editor.call("session/set_mode", sessionId=session, modeId="deny")
        await editor.prompt(session, "write a.txt: hi")

        assert changed == {"result": {}}
        assert not (desk / "a.txt").exists()
        assert list(filter(is_question, editor.frames)) == []
        found = await house.sessions.get(house.owner, SessionId(session))
        assert found.approval is ApprovalMode.DENY


async def test_where_the_configuration_allows_it_nothing_is_asked(home: Path, desk: Path) -> None:
    async with here(home, desk, approval=ApprovalMode.AUTO) as (_, editor):
        session = await editor.opened(desk)
        for mode, asked in (("auto", 0), ("ask", 1)):
            editor.frames.clear()
            wanted = {"configId": "mode", "value": mode}
            await editor.call("session/set_config_option", sessionId=session, **wanted)
            await editor.prompt(session, f"write {mode}.txt: hi")
            assert len(list(filter(is_question, editor.frames))) == asked
            assert (desk / f"{mode}.txt").exists()


async def test_another_model_answers_from_then_on(home: Path, desk: Path, tmp_path: Path) -> None:
    other = script(tmp_path, {"text": "I am another."})
    async with here(home, desk) as (house, editor):
        await house.models.add(model_wish(other))
        session = await editor.opened(desk)

        wanted = {"sessionId": session, "configId": "model", "value": other}
        changed = await editor.call("session/set_config_option", **wanted)
        editor.frames.clear()
        await editor.prompt(session, "Who are you?")

        _, model = changed["result"]["configOptions"]
        assert model["currentValue"] == other
        assert {"value": other, "name": "Other"} in model["options"]
        assert editor.updates()[-1]["content"]["text"] == "I am another."


def model_wish(ref: str) -> ModelRequest:
    """Return a model by its name, as somebody describes it."""
    provider, _, name = ref.partition(":")
    return ModelRequest(provider=provider, name=name, display_name="Other")


@each_case(
    ("method", "params"),
    [
        ("set_mode", {"modeId": "yolo"}),
        ("set_mode", {"modeId": 1}),
        ("set_mode", {}),
        ("set_config_option", {"configId": "mode", "value": "yolo"}),
        ("set_config_option", {"configId": "model", "value": "none:none"}),
        ("set_config_option", {"configId": "model", "type": "boolean", "value": True}),
        ("set_config_option", {"configId": "weather", "value": "fine"}),
    ],
)
async def test_what_is_not_offered_cannot_be_chosen(
    home: Path, desk: Path, method: str, params: Frame
) -> None:
    async with here(home, desk) as (house, editor):
        session = await editor.opened(desk)
        before = await house.sessions.get(house.owner, SessionId(session))

        error = (await editor.call(f"session/{method}", sessionId=session, **params))["error"]

        assert (error["code"], error["data"]["code"]) == (-32602, "invalid_input")
        assert await house.sessions.get(house.owner, SessionId(session)) == before


async def test_a_program_behind_ours_chooses_its_model_itself(home: Path, desk: Path) -> None:
    async with house_for(home, desk) as house:
        (desk / ".git").mkdir()
        runtime = AcpRuntime(command="/bin/false")
        fields = {"name": "Other", "runtime": runtime, "system_prompt": ""}
        agent = await house.agents.create(house.owner, fields)
        repo = await house.repos.add(house.owner, str(desk))
        session = await house.open(agent.slug, SessionRequest(repo_id=repo.id))

        assert [each["id"] for each in session_options(session, (), house.config)] == ["mode"]


def program(book: Book, **more: Any) -> Frame:
    """Return the book's server as a client names it."""
    args = ["-P", "-S", str(PLAIN), str(book.path)]
    env = [{"name": "TOKEN", "value": "hush-hush-0123456789"}]
    server = {"name": "my books", "command": sys.executable, "args": args, "env": env}
    return server | more


ECHO = {"name": "mcp_my-books_echo", "arguments": {"text": "hi"}}


async def test_a_server_of_the_client_is_there_for_its_session_and_nowhere_kept(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    book = Book(desk)
    model = script(tmp_path, {"tool_calls": [ECHO]}, {"text": "done"}, {"text": "bye"})
    async with house_for(home, desk, default_model=model) as house:
        async with editor_of(house) as editor:
            await editor.meet()
            session = await editor.opened(desk, mcpServers=[program(book)])
            editor.frames.clear()
            await editor.prompt(session, "go")
            done = [each for each in editor.updates() if each.get("status") == "completed"]
            assert done[0]["rawOutput"] == {"text": '{"text": "hi"}'}
            await editor.call("session/close", sessionId=session)
            assert book.readers == []
        found = await house.sessions.get(house.owner, SessionId(session))
        assert found.agent.mcp_servers == ()
    assert book.calls == [["echo", {"text": "hi"}]]
    assert "echo" in stored(home)
    assert "hush-hush" not in stored(home)


def stored(home: Path) -> str:
    """Return all that is in the file of a home."""
    with raw(home) as connection:
        # What a virtual one shows lies in others, and not every one can be read through.
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
        ).fetchall()
        return str([connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in tables])


async def test_a_server_that_cannot_be_had_is_told_and_keeps_nobody_from_talking(
    home: Path, desk: Path
) -> None:
    gone = {"name": "gone", "command": "/nowhere/to-be-found", "args": [], "env": []}
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk, mcpServers=[gone])
        editor.frames.clear()

        answer = await editor.prompt(session, "What is 2+3?")

        texts = [each["content"]["text"] for each in editor.updates() if "content" in each]
        assert texts[0] == "The MCP server gone is not available: its command does not exist."
        assert answer["result"]["stopReason"] == "end_turn"


@pytest.mark.torture
async def test_an_address_of_the_client_is_reached(home: Path, desk: Path, tmp_path: Path) -> None:
    book = Book(desk)
    model = script(tmp_path, {"tool_calls": [ECHO]}, {"text": "done"})
    with book.listening("http") as port:
        server = {
            "type": "http",
            "name": "my books",
            "url": f"http://127.0.0.1:{port}/mcp",
            "headers": [{"name": "X-Test", "value": "yes"}],
        }
        async with here(home, desk, default_model=model) as (_, editor):
            session = await editor.opened(desk, mcpServers=[server])
            await editor.prompt(session, "go")
    assert book.calls == [["echo", {"text": "hi"}]]


async def test_servers_that_are_named_again_take_the_place_of_the_former(
    home: Path, desk: Path
) -> None:
    first, second = Book(desk, "first"), Book(desk, "second")
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk, mcpServers=[program(first)])
        await editor.prompt(session, "hello")
        assert len(first.readers) == 1

        where = {"sessionId": session, "cwd": str(desk)}
        await editor.call("session/load", **where, mcpServers=[program(second)])
        await editor.prompt(session, "hello")
        assert (first.readers, len(second.readers)) == ([], 1)
        await editor.call("session/resume", **where, mcpServers=[program(second)])
        assert len(second.readers) == 1
        await editor.call("session/load", **where, mcpServers=[])
        assert second.readers == []


@each_case(
    "servers",
    [
        ["books"],
        [{"name": "books"}],
        [{"name": "books", "command": 1}],
        [{"type": "sse", "name": "books", "url": "https://books.example"}],
        [{"type": "http", "name": "books"}],
        "none",
    ],
)
async def test_servers_that_nobody_offered_to_reach_are_refused(
    home: Path, desk: Path, servers: Any
) -> None:
    async with here(home, desk) as (_, editor):
        error = (await editor.call("session/new", cwd=str(desk), mcpServers=servers))["error"]

        assert error["code"] == -32602
        assert await editor.call("session/list") == {"result": {"sessions": []}}


async def test_an_editor_that_names_no_servers_has_none(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        assert "result" in await editor.call("session/new", cwd=str(desk))
