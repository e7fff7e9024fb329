"""MCP servers through the whole house: registered by the user, named by an agent, used."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Session, open_holdfast
from holdfast.config import Config, McpServer
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.contexts import SessionContext
from holdfast.domain.messages import Notice, ToolResult
from holdfast.domain.openings import SessionRequest
from tests.houses import played
from tests.tooled import a_config, asks, call, outcomes, says
from tests.tools.mcp_servers import Book

pytestmark = pytest.mark.anyio

AUTO = ApprovalMode.AUTO


def house(folder: Path, book: Book) -> Config:
    """Return the settings of somebody who has registered the book's server, and asks for it."""
    known = McpServer(name="books", command=book.entry()["command"], args=book.entry()["args"])
    steps = (asks(call("mcp_books_echo", text="hi")), says("done"))
    return a_config(folder / "home", *steps, mcp_servers=(known,), approval=AUTO)


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
    assert "describe it in holdfast.toml as [mcp.servers.books]" in notices[0]
    assert not begun.exists()
