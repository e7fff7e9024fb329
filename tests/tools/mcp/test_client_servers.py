"""MCP servers that a person brings along: agreed to by being named, and judged like all others."""

import sys
from pathlib import Path

import pytest

from holdfast.domain.errors import Invalid
from holdfast.tools.mcp.client import McpSettings
from holdfast.tools.mcp.declarations import StdioServer, read_client_server
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.toolbox import LocalToolbox
from tests.tools.http_hosts import a_place
from tests.tools.mcp_servers import Book

pytestmark = pytest.mark.anyio


async def troubles(folder: Path, *session_servers: dict[str, object]) -> tuple[str, ...]:
    """Return what is wrong with servers that somebody brought along."""
    place = a_place(session_servers=session_servers, working_dir=str(folder), scratch=str(folder))
    tools = McpTools(McpSettings())
    try:
        return await LocalToolbox((), tools).troubles(place)
    finally:
        await tools.aclose()


async def test_a_program_needs_no_consent_but_its_name(tmp_path: Path) -> None:
    book = Book(tmp_path)

    assert await troubles(tmp_path, book.entry()) == ()
    assert book.readers == []


async def test_an_agent_and_a_person_cannot_have_servers_of_one_name(tmp_path: Path) -> None:
    book = Book(tmp_path)

    told = await troubles(tmp_path, book.entry(), book.entry())

    assert told == ("The MCP server books is declared twice.",)


@pytest.mark.parametrize("url", ["https://10.0.0.1/mcp", "https://machine.local/mcp"])
async def test_an_address_that_nobody_reaches_is_not_reached_for_a_person(
    tmp_path: Path, url: str
) -> None:
    (told,) = await troubles(tmp_path, {"id": "web", "transport": "http", "url": url})

    assert "is an IP address or a local name" in told


async def test_a_host_needs_no_grant_but_its_name(tmp_path: Path) -> None:
    entry = {"id": "web", "transport": "http", "url": "https://books.invalid/mcp"}

    (told,) = await troubles(tmp_path, entry)

    assert "is not an allowed domain" not in told


async def test_what_is_no_declaration_is_told(tmp_path: Path) -> None:
    assert await troubles(tmp_path, {"id": "web", "transport": "http"}) == (
        "The declaration of an MCP server is not valid; check url.",
    )


def test_a_program_of_a_person_has_the_network_and_stays_confined() -> None:
    entry = {"id": "a", "transport": "stdio", "command": sys.executable}

    server = read_client_server(entry)

    assert isinstance(server, StdioServer)
    assert (server.network, server.confined) == (True, True)
    with pytest.raises(Invalid, match="check command"):
        read_client_server(entry | {"command": ""})
