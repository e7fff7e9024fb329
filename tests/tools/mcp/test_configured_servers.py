"""MCP servers through the whole house: registered by the user, named by an agent, used."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Session, open_holdfast
from holdfast.config import Config, McpServer
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Denied
from holdfast.domain.messages import Notice, ToolResult
from holdfast.domain.sessions import SessionContext, SessionRequest
from tests.houses import played
from tests.tooled import a_config, asks, call, outcomes, says
from tests.tools.mcp_servers import ECHO, Book, a_tool

pytestmark = pytest.mark.anyio

AUTO = ApprovalMode.AUTO


def house(folder: Path, book: Book) -> Config:
    """Return the settings of somebody who has registered the book's server, and asks for it."""
    known = McpServer(name="books", command=book.entry()["command"], args=book.entry()["args"])
    steps = (asks(call("mcp_books_echo", text="hi")), says("done"))
    return a_config(folder / "home", *steps, mcp_servers=(known,), approval=AUTO)


async def worker(opened: Holdfast, *tools: str) -> str:
    """Have an agent with these tools and the book's server; return its name."""
    named = [{"name": name} for name in tools]
    fields = {"name": "Worker", "tools": named, "mcp_servers": [{"ref": "books"}], "grant": None}
    return (await opened.agents.create(opened.owner, fields)).slug


async def turn(config: Config, desk: Path, *servers: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """Play a turn of an agent with these servers; return how its calls came out, and the rest."""
    async with open_holdfast(config=config) as opened:
        fields = {"name": "Worker", "mcp_servers": servers, "grant": None}
        agent = await opened.agents.create(opened.owner, fields)
        context = SessionContext(working_dir=str(desk))
        session: Session = await opened.open(
            agent.slug, SessionRequest(context=context, approval=AUTO)
        )
        await opened.send(session.id, "go")
        await played(opened, session.id)
        rows = await opened.read(session.id)
    parts = [part for row in rows for part in row.parts]
    told = [part for part in parts if isinstance(part, Notice | ToolResult)]
    return outcomes(rows), told


async def test_a_server_that_the_user_registered_is_named_and_used(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    book = Book(desk)

    came, told = await turn(house(tmp_path, book), desk, {"ref": "books"})

    assert came == ["mcp_books_echo ok"]
    assert [part.result for part in told if isinstance(part, ToolResult)] == [
        {"text": '{"text": "hi"}'}
    ]
    assert book.calls == [["echo", {"text": "hi"}]]
    # The key of the call as the store has it.
    assert len(book.metas[0]["holdfast/idempotency_key"]) > 16
    assert book.readers == []


async def test_a_program_that_came_with_an_agent_is_not_started(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    book = Book(desk)
    begun = desk / "begun"
    entry = book.entry()
    evil = {**entry, "args": ["-c", f"open({str(begun)!r}, 'w').close()"]}

    came, told = await turn(house(tmp_path, book), desk, evil)

    assert came == ["mcp_books_echo error/unavailable"]
    notices = [part.text for part in told if isinstance(part, Notice)]
    assert [text.partition(":")[0] for text in notices] == ["The MCP server books is not available"]
    assert "add it to holdfast.toml as [mcp.servers.books]" in notices[0]
    assert not begun.exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("tools", "wanted", "came", "kept"),
    [
        ((), None, "ok", ["mcp_books_echo"]),
        ((), (), "error/unknown_tool", []),
        (("read_file",), ("read_file",), "error/unknown_tool", ["read_file"]),
        (("read_file",), (), "error/unknown_tool", []),
        (("read_file",), ("mcp_books_echo",), "ok", ["mcp_books_echo"]),
        ((), ("mcp_books_other",), "denied/not_granted", ["mcp_books_other"]),
        (("mcp_books_other",), None, "denied/not_granted", ["mcp_books_other"]),
    ],
)
async def test_a_session_that_names_its_tools_has_no_others_of_its_servers(
    tmp_path: Path,
    tools: tuple[str, ...],
    wanted: tuple[str, ...] | None,
    came: str,
    kept: list[str],
) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    book = Book(desk)

    async with open_holdfast(config=house(tmp_path, book)) as opened:
        agent = await worker(opened, *tools)
        context = SessionContext(working_dir=str(desk))
        request = SessionRequest(context=context, approval=AUTO, tools=wanted)
        session = await opened.open(agent, request)
        await opened.send(session.id, "go")
        rows = await played(opened, session.id)
        found = await opened.sessions.get(opened.owner, session.id)

    assert outcomes(rows) == [f"mcp_books_echo {came}"]
    assert [tool.name for tool in found.tools] == kept
    assert book.calls == ([["echo", {"text": "hi"}]] if came == "ok" else [])


@pytest.mark.parametrize("wanted", ["mcp_books_echo", "mcp_shop_echo"])
async def test_a_session_cannot_have_more_of_a_server_than_its_agent(
    tmp_path: Path, wanted: str
) -> None:
    async with open_holdfast(config=house(tmp_path, Book(tmp_path))) as opened:
        agent = await worker(opened, "mcp_books_other")
        with pytest.raises(Denied) as refused:
            await opened.open(agent, SessionRequest(tools=(wanted,)))

    assert refused.value.code is Code.GRANT_EXCEEDED


async def test_the_tools_that_were_found_are_written_down_with_the_session(tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    book = Book(desk)
    steps = [says("one"), asks(call("mcp_books_wipe"), call("mcp_books_echo", text="hi"))]
    known = McpServer(name="books", command=book.entry()["command"], args=book.entry()["args"])
    config = a_config(tmp_path / "home", *steps, says("two"), mcp_servers=(known,), approval=AUTO)

    async with open_holdfast(config=config) as opened:
        agent = await worker(opened)
        context = SessionContext(working_dir=str(desk))
        session = await opened.open(agent, SessionRequest(context=context, approval=AUTO))
        await opened.send(session.id, "go")
        await played(opened, session.id)
        first = await opened.sessions.get(opened.owner, session.id)
    # Another process, and a server that has become more than it was.
    book.write(tools=[ECHO, a_tool("wipe")])
    async with open_holdfast(config=config) as opened:
        await opened.send(session.id, "go on")
        rows = await played(opened, session.id)
        second = await opened.sessions.get(opened.owner, session.id)
        fork = await opened.sessions.fork(opened.owner, session.id)

    assert outcomes(rows) == ["mcp_books_wipe denied/not_granted", "mcp_books_echo ok"]
    assert session.tools == ()
    names = [[tool.name for tool in each.tools] for each in (first, second, fork)]
    assert names == [["mcp_books_echo"]] * 3
    assert book.calls == [["echo", {"text": "hi"}]]
