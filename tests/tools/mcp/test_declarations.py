"""How an agent declares MCP servers, and what is refused."""

from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.tools.mcp.declarations import (
    HttpServer,
    SecretReference,
    SseServer,
    StdioServer,
    WebsocketServer,
    is_registered,
    read_server,
)
from tests.marks import each_case

STDIO = {"id": "a", "transport": "stdio", "command": "serve"}
HTTP = {"id": "a", "transport": "http", "url": "https://example.com/mcp"}


def test_a_server_is_declared_by_a_command() -> None:
    env = {"PLAIN": "1", "TOKEN": {"secret": True, "ref": "mine"}}
    entry = {**STDIO, "args": ["--fast"], "env": env, "tools_allowlist": ["t"]}

    server = read_server(entry)

    assert server == StdioServer(
        id="a",
        command="serve",
        args=("--fast",),
        env={"PLAIN": "1", "TOKEN": SecretReference(secret=True, ref="mine")},
        tools_allowlist=("t",),
    )
    assert server.where == "serve --fast"


@each_case(
    ("transport", "kind"),
    [("http", HttpServer), ("sse", SseServer), ("websocket", WebsocketServer)],
)
def test_a_server_is_declared_by_an_address(transport: str, kind: type[HttpServer]) -> None:
    server = read_server({**HTTP, "transport": transport, "allow_local_endpoint": True})

    assert server == kind(id="a", url="https://example.com/mcp", allow_local_endpoint=True)
    assert server.where == "https://example.com/mcp"


@each_case(
    ("entry", "field"),
    [
        ({}, "transport"),
        ({**STDIO, "transport": "ftp"}, "transport"),
        ({"transport": "stdio", "command": "serve"}, "id"),
        ({**STDIO, "id": ""}, "id"),
        ({**STDIO, "id": "a b"}, "id"),
        ({**STDIO, "id": "a" * 65}, "id"),
        ({"id": "a", "transport": "stdio"}, "command"),
        ({**STDIO, "command": " "}, "command"),
        ({**STDIO, "command": "a\x00b"}, "command"),
        ({**STDIO, "args": "one two"}, "args"),
        ({**STDIO, "args": ["a\x00"]}, "args"),
        ({**STDIO, "url": "https://example.com/"}, "url"),
        ({**STDIO, "allow_local_endpoint": True}, "allow_local_endpoint"),
        ({**STDIO, "tools_allowlist": []}, "tools_allowlist"),
        ({**STDIO, "env": {"A=B": "1"}}, "env"),
        ({**STDIO, "env": {"A": "\x00"}}, "env"),
        ({**STDIO, "env": {"A": {"secret": False, "ref": "x"}}}, "secret"),
        ({**STDIO, "env": {"A": {"secret": True}}}, "env[...]"),
        ({**STDIO, "env": {"A": {"secret": True, "ref": ""}}}, "env[...].ref"),
        ({**STDIO, "env": {"A": {"secret": True, "ref": "x", "value": "y"}}}, "env[...]"),
        ({**STDIO, "shell": True}, "shell"),
        ({"id": "a", "transport": "http"}, "url"),
        ({**HTTP, "url": ""}, "url"),
        ({**HTTP, "url": "https://me:word@example.com/"}, "url"),
        ({**HTTP, "command": "serve"}, "command"),
        ({**HTTP, "args": []}, "args"),
        ({**HTTP, "env": {}}, "env"),
        ({**STDIO, "trusted": True}, "trusted"),
        ({**STDIO, "env_names": ["CI"]}, "env_names"),
        ({**STDIO, "readable": ["/srv"]}, "readable"),
        ({**STDIO, "writable": ["/srv"]}, "writable"),
        ({**STDIO, "network": True}, "network"),
        ({**STDIO, "confined": False}, "confined"),
        ({**STDIO, "cwd": "workspace"}, "cwd"),
        ({**HTTP, "headers": {"X-Key": {"secret": True, "ref": "x"}}}, "headers"),
        ({**HTTP, "trusted": True}, "trusted"),
        ({"ref": "unknown"}, "ref"),
        ({"ref": "mine", "url": "https://example.com/"}, "ref"),
        ({"ref": "mine", "trusted": True}, "ref"),
        ({"ref": "mine", "tools_allowlist": []}, "tools_allowlist"),
    ],
)
def test_what_is_declared_wrongly_is_refused_by_its_field(
    entry: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        read_server(entry, {"mine": {"transport": "stdio", "command": "serve"}})

    assert refused.value.code is Code.AGENT_INVALID
    assert refused.value.details == {"fields": [f"mcp_servers.{field}"]}
    assert "word" not in refused.value.message


def test_a_configured_server_is_named_and_can_only_become_narrower() -> None:
    known = {"transport": "stdio", "command": "serve", "trusted": True}
    listed = {**known, "tools_allowlist": ["a", "b"]}

    def tools(entry: dict[str, Any], configured: dict[str, Any]) -> tuple[str, ...] | None:
        server = read_server(entry, {"mine": configured})
        assert (server.id, server.trusted) == ("mine", True)
        return server.tools_allowlist

    assert tools({"ref": "mine"}, known) is None
    assert tools({"ref": "mine", "tools_allowlist": ["b", "c"]}, known) == ("b", "c")
    assert tools({"ref": "mine", "tools_allowlist": ["b", "c"]}, listed) == ("b",)
    assert tools({"ref": "mine"}, listed) == ("a", "b")


def test_what_the_user_configures_may_have_more_than_an_agent_declares() -> None:
    program = {
        "transport": "stdio",
        "command": "serve",
        "env_names": ["CI"],
        "network": True,
        "readable": ["/srv/a"],
        "writable": ["/srv/b"],
        "confined": False,
        "cwd": "workspace",
        "trusted": True,
    }
    key = {"secret": True, "ref": "key"}
    address = {"transport": "http", "url": "https://example.com/", "headers": {"X-Key": key}}
    known = {"program": program, "address": address}

    servers = [read_server({"ref": name}, known) for name in known]

    assert servers == [
        StdioServer(
            id="program",
            command="serve",
            env_names=("CI",),
            network=True,
            readable=("/srv/a",),
            writable=("/srv/b",),
            confined=False,
            cwd="workspace",
            trusted=True,
        ),
        HttpServer(
            id="address",
            url="https://example.com/",
            headers={"X-Key": SecretReference(secret=True, ref="key")},
        ),
    ]


@each_case(
    ("declared", "is_known"),
    [
        ({}, True),
        ({"id": "other", "tools_allowlist": ["t"]}, True),
        ({"command": "/opt/serve"}, False),
        ({"args": []}, False),
        ({"args": ["--fast", "--unsafe"]}, False),
        ({"env": {}}, False),
        ({"env": {"A": "2"}}, False),
        ({"env": {"A": "1", "LD_PRELOAD": "/opt/a.so"}}, False),
    ],
)
def test_only_the_very_same_program_is_a_known_one(
    declared: dict[str, Any], is_known: bool
) -> None:
    same: dict[str, Any] = {"args": ["--fast"], "env": {"A": "1"}}
    server = read_server({**STDIO, **same, **declared})
    assert isinstance(server, StdioServer)

    known = {"mine": {"transport": "stdio", "command": "serve", **same, "network": True}}
    address = {"there": {"transport": "http", "url": "https://example.com/"}}

    assert is_registered(server, {**address, **known}) is is_known
    assert not is_registered(server, address)
