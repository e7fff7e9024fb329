"""Which MCP servers somebody else's agent gets to start by itself, and in which form."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Grant
from holdfast.ports.tools import ClientMcpServer, ClientMcpServers
from holdfast.tools.mcp.client import McpSettings
from holdfast.tools.mcp.tools import PassthroughServers
from holdfast.tools.process_context import ProcessSettings
from tests.marks import each_case
from tests.tools.mcp_servers import with_servers

pytestmark = pytest.mark.anyio

NOWHERE = ("-c", 'cd / && exec "$0" "$@"')
TOKEN = {"secret": True, "ref": "books"}
ADDRESS = {"transport": "http", "url": "https://books.test/mcp"}


async def _secret(name: str) -> Secret:
    if name != "books":
        raise Unavailable(Code.KEY_NOT_FOUND, f"The keychain holds no secret {name}.")
    return Secret("the-token")


def a_program(**more: Any) -> dict[str, Any]:
    """Return a server that is started."""
    return {"transport": "stdio", "command": sys.executable, "args": ["-m", "books"], **more}


async def handed(folder: Path, *entries: dict[str, Any], **more: Any) -> ClientMcpServers:
    """Return what goes along where these servers are declared, and others configured."""
    configured = more.pop("configured", {})
    ours = {"PATH": os.environ["PATH"], "BOOK_LANG": "de", "UNNAMED": "ours"}
    settings = McpSettings(
        configured=configured, secret=_secret, processes=ProcessSettings(environment=ours)
    )
    return await PassthroughServers(settings).of(with_servers(folder, *entries, **more))


def opened(companion: ClientMcpServer) -> dict[str, str]:
    """Return the values that are sent."""
    return {name: value.reveal() for name, value in companion.values.items()}


async def test_a_configured_program_is_handed_over_with_its_secrets_and_starts_nowhere(
    tmp_path: Path,
) -> None:
    books = a_program(env={"TOKEN": TOKEN, "SHELF": "a"}, env_names=["BOOK_LANG", "NOT_THERE"])

    company = await handed(tmp_path, {"ref": "books"}, configured={"books": books})

    (found,) = company.companions
    assert company.troubles == ()
    assert (found.name, found.transport, found.command) == ("books", "stdio", "/bin/sh")
    assert found.args == (*NOWHERE, sys.executable, "-m", "books")
    assert opened(found) == {"TOKEN": "the-token", "SHELF": "a", "BOOK_LANG": "de"}
    assert "the-token" not in repr(found)


async def test_a_program_that_is_to_start_in_the_workspace_is_run_as_it_is(tmp_path: Path) -> None:
    books = a_program(cwd="workspace")

    company = await handed(tmp_path, {"ref": "books"}, configured={"books": books})

    (found,) = company.companions
    assert (found.command, found.args) == (sys.executable, ("-m", "books"))


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_an_address_is_handed_over_with_its_headers(tmp_path: Path, transport: str) -> None:
    books = {**ADDRESS, "transport": transport, "headers": {"Authorization": TOKEN}}
    grants = (Grant(domains=("books.test",)),)

    company = await handed(tmp_path, {"ref": "books"}, configured={"books": books}, grants=grants)

    (found,) = company.companions
    assert (found.transport, found.url) == (transport, "https://books.test/mcp")
    assert opened(found) == {"Authorization": "the-token"}


async def test_what_a_person_brought_along_goes_along(tmp_path: Path) -> None:
    session_servers = ({"id": "mine", **a_program()}, {"id": "far", **ADDRESS})

    company = await handed(tmp_path, session_servers=session_servers)

    assert [each.name for each in company.companions] == ["mine", "far"]
    assert company.troubles == ()


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a program that nobody configured": ({"id": "books", **a_program()}, {}, "[mcp.servers.books]"),
    "an address that is not granted": ({"id": "books", **ADDRESS}, {}, "books.test"),
    "one that is not configured": ({"ref": "books"}, {}, "is not configured"),
    "one that is declared wrongly": ({"id": "books", "transport": "stdio"}, {}, "command"),
    "a command that does not exist": (
        {"ref": "books"},
        {"books": a_program(command="no-such-server")},
        "its command does not exist",
    ),
    "a secret that does not exist": (
        {"ref": "books"},
        {"books": a_program(env={"TOKEN": {"secret": True, "ref": "lost"}})},
        "no secret lost",
    ),
    "some tools only": (
        {"ref": "books", "tools_allowlist": ["find"]},
        {"books": a_program()},
        "only some of its tools",
    ),
    "a kind that nobody speaks": (
        {"id": "books", "transport": "websocket", "url": "wss://books.test"},
        {},
        "websockets",
    ),
}


@each_case("case", REFUSED)
async def test_a_server_that_cannot_be_handed_over_is_named_with_its_reason(
    tmp_path: Path, case: str
) -> None:
    entry, configured, words = REFUSED[case]

    company = await handed(tmp_path, entry, configured=configured, grants=(Grant(),))

    assert company.companions == ()
    (told,) = company.troubles
    assert words in told


async def test_a_session_that_has_some_tools_of_a_server_does_not_hand_over_all(
    tmp_path: Path,
) -> None:
    tools = frozenset({"mcp_books_find"})

    company = await handed(
        tmp_path, {"ref": "books"}, configured={"books": a_program()}, tools=tools
    )

    assert company.companions == ()
    assert len(company.troubles) == 1


async def test_a_server_that_is_named_twice_goes_along_once(tmp_path: Path) -> None:
    entries = ({"ref": "books"}, {"ref": "books"})

    company = await handed(tmp_path, *entries, configured={"books": a_program()})

    assert [each.name for each in company.companions] == ["books"]
    assert company.troubles == ("The MCP server books is declared twice.",)
