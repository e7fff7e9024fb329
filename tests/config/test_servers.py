"""`[mcp.servers.NAME]`: what can be configured, what is refused and where, and that it runs."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Config, McpServer, SecretEntry, load
from holdfast.domain.errors import Code, Invalid
from holdfast.tools.mcp.declarations import (
    HttpServer,
    SecretReference,
    SseServer,
    StdioServer,
    read_server,
)
from tests.marks import each_case

CANARY = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
WHOLE = """
[mcp.servers.notes]
command = "notes-server"
args = ["--folder", "/srv/notes"]
env = { MODE = "fast", TOKEN = { secret = true, ref = "notes" } }
env_names = ["CI"]
readable = ["/srv/notes"]
writable = ["/srv/notes/out"]
network = true
tools_allowlist = ["read", "write"]
trusted = true

[mcp.servers.free]
transport = "stdio"
command = "/opt/free/bin/serve"
confined = false
cwd = "workspace"

[mcp.servers.web]
url = "https://mcp.example.com/v1"

[mcp.servers.web.headers]
X-Team = "blue"
Authorization = { secret = true, ref = "web" }

[mcp.servers.here]
transport = "sse"
url = "http://127.0.0.1:8080/sse"
allow_local_endpoint = true
"""


def loaded(folder: Path, content: str) -> Config:
    (folder / "holdfast.toml").write_text(content)
    return load({"home": folder}, {})


def refused(folder: Path, content: str) -> Invalid:
    with pytest.raises(Invalid) as caught:
        loaded(folder, content)
    assert caught.value.code is Code.CONFIG_INVALID
    return caught.value


def test_servers_are_programs_and_addresses(tmp_path: Path) -> None:
    assert loaded(tmp_path, WHOLE).mcp_servers == (
        McpServer(
            name="notes",
            command="notes-server",
            args=("--folder", "/srv/notes"),
            env={"MODE": "fast", "TOKEN": SecretEntry(secret=True, ref="notes")},
            env_names=("CI",),
            readable=("/srv/notes",),
            writable=("/srv/notes/out",),
            network=True,
            tools_allowlist=("read", "write"),
            trusted=True,
        ),
        McpServer(
            name="free",
            transport="stdio",
            command="/opt/free/bin/serve",
            confined=False,
            cwd="workspace",
        ),
        McpServer(
            name="web",
            url="https://mcp.example.com/v1",
            headers={"X-Team": "blue", "Authorization": SecretEntry(secret=True, ref="web")},
        ),
        McpServer(
            name="here",
            transport="sse",
            url="http://127.0.0.1:8080/sse",
            allow_local_endpoint=True,
        ),
    )


def test_what_is_configured_is_what_the_tools_read(tmp_path: Path) -> None:
    config = loaded(tmp_path, WHOLE)
    known = {each.name: each.declaration for each in config.mcp_servers}

    servers = [read_server({"ref": name}, known) for name in known]

    assert servers == [
        StdioServer(
            id="notes",
            command="notes-server",
            args=("--folder", "/srv/notes"),
            env={"MODE": "fast", "TOKEN": SecretReference(secret=True, ref="notes")},
            env_names=("CI",),
            readable=("/srv/notes",),
            writable=("/srv/notes/out",),
            network=True,
            tools_allowlist=("read", "write"),
            trusted=True,
        ),
        StdioServer(id="free", command="/opt/free/bin/serve", confined=False, cwd="workspace"),
        HttpServer(
            id="web",
            url="https://mcp.example.com/v1",
            headers={
                "X-Team": "blue",
                "Authorization": SecretReference(secret=True, ref="web"),
            },
        ),
        SseServer(id="here", url="http://127.0.0.1:8080/sse", allow_local_endpoint=True),
    ]


@each_case(
    ("content", "key", "line", "nearest"),
    [
        (
            '[mcp.servers.a]\ncomand = "x"\n',
            "mcp.servers.a.comand",
            2,
            "mcp.servers.a.command",
        ),
        (
            '[mcp.servers.a]\ncommand = "x"\n[mcp.servers.b]\nuri = "x"\n',
            "mcp.servers.b.uri",
            4,
            "mcp.servers.b.url",
        ),
        ('[mcp.server.a]\ncommand = "x"\n', "mcp.server", None, "mcp.servers"),
        ('[mcp.servers.a]\nname = "x"\n', "mcp.servers.a.name", 2, "mcp.servers.a.env_names"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(
    tmp_path: Path, content: str, key: str, line: int | None, nearest: str
) -> None:
    error = refused(tmp_path, content)

    file = str(tmp_path / "holdfast.toml")
    where = file if line is None else f"{file}, line {line}"
    told = f"{where} sets {key}, an unknown setting; did you mean {nearest}?"
    assert error.message == told
    assert error.details == {"file": file, "key": key} | ({} if line is None else {"line": line})


IN_KEYCHAIN = "must not contain a secret; store it in the keychain"
PROGRAM = 'command = "x"'
ADDRESS = 'url = "https://example.com/"'


@each_case(
    ("lines", "key", "rule"),
    [
        ("", "", "must have either a command or a url"),
        (f"{PROGRAM}\n{ADDRESS}", "", "must have either a command or a url"),
        ("command = 1", "command", "must be a string"),
        ('command = " "', "command", "must be a program name or an absolute path"),
        ('command = "./x"', "command", "must be a program name or an absolute path"),
        ('command = "bin/x"', "command", "must be a program name or an absolute path"),
        ('command = "a\\u0000"', "command", "must be UTF-8 text without NUL"),
        (f'{PROGRAM}\nargs = "y"', "args", "must be a list of strings"),
        (f'{PROGRAM}\nargs = ["--key={CANARY}"]', "args", IN_KEYCHAIN),
        (f'{PROGRAM}\ntransport = "http"', "transport", "must be stdio for a command"),
        (f'{PROGRAM}\ntransport = "websocket"', "transport", "must be one of stdio, http, sse"),
        (f'{PROGRAM}\nheaders = {{ a = "b" }}', "headers", "requires a url"),
        (f"{PROGRAM}\nallow_local_endpoint = true", "allow_local_endpoint", "requires a url"),
        (f"{PROGRAM}\nenv = {{ A = 1 }}", "env", "must be a table of strings, or of { secret ="),
        (f'{PROGRAM}\nenv = {{ A = {{ secret = false, ref = "a" }} }}', "env", "must be a table"),
        (f'{PROGRAM}\nenv = {{ A = {{ ref = "a" }} }}', "env", "must be a table of strings"),
        (f'{PROGRAM}\nenv = {{ "A-B" = "1" }}', "env", "must have environment variable names"),
        (f'{PROGRAM}\nenv = {{ TOKEN = "{CANARY}" }}', "env.TOKEN", IN_KEYCHAIN),
        (
            f'{PROGRAM}\nenv = {{ TOKEN = {{ secret = true, ref = "{CANARY}" }} }}',
            "env.TOKEN",
            "must have the name of a keychain entry as its ref",
        ),
        (f'{PROGRAM}\nenv_names = ["CI", "LD_PRELOAD"]', "env_names", "entry 2 names a variable"),
        (
            f'{PROGRAM}\nenv_names = ["MY_TOKEN"]',
            "env_names",
            "entry 1 names a variable that looks",
        ),
        (f'{PROGRAM}\nreadable = ["here"]', "readable", "entry 1 must be an absolute path"),
        (f'{PROGRAM}\nwritable = ["/a", "b"]', "writable", "entry 2 must be an absolute path"),
        (f'{PROGRAM}\nnetwork = "yes"', "network", "must be true or false"),
        (f"{PROGRAM}\nconfined = 0", "confined", "must be true or false"),
        (f"{PROGRAM}\ncwd = '/srv'", "cwd", 'must be "workspace", or left out'),
        (f"{PROGRAM}\ntools_allowlist = []", "tools_allowlist", "must name a tool"),
        (f'{PROGRAM}\ntools_allowlist = [""]', "tools_allowlist", "must name a tool"),
        ('url = "http://example.com/"', "url", "must be https://HOST/…"),
        ('url = "https://me:word@example.com/"', "url", "must be https://HOST/…"),
        ('url = "https://example.com:99999/"', "url", "must be https://HOST/…"),
        ('url = "ftp://example.com/"\nallow_local_endpoint = true', "url", "must be https://HOST"),
        (f'url = "https://example.com/?key={CANARY}"', "url", "must not contain a secret"),
        (f'{ADDRESS}\nargs = ["y"]', "args", "requires a command"),
        (f"{ADDRESS}\nconfined = false", "confined", "requires a command"),
        (f"{ADDRESS}\ncwd = 'workspace'", "cwd", "requires a command"),
        (
            f'{ADDRESS}\nheaders = {{ Host = "a" }}',
            "headers",
            "must not contain invalid header names",
        ),
        (
            f'{ADDRESS}\nheaders = {{ "A B" = "a" }}',
            "headers",
            "must not contain invalid header names",
        ),
        (f'{ADDRESS}\nheaders = {{ A = "a\\r\\nB: c" }}', "headers.A", "must be printable text"),
        (f'{ADDRESS}\nheaders = {{ Cookie = "a" }}', "headers.Cookie", IN_KEYCHAIN),
        (f'{ADDRESS}\nheaders = {{ X-Api-Key = "{CANARY}" }}', "headers.X-Api-Key", IN_KEYCHAIN),
    ],
)
def test_what_is_wrong_is_told_by_its_key_and_line_and_never_by_its_value(
    tmp_path: Path, lines: str, key: str, rule: str
) -> None:
    error = refused(tmp_path, f"[mcp.servers.a]\n{lines}\n")

    path = f"mcp.servers.a.{key}" if key else "mcp.servers.a"
    top = key.partition(".")[0]
    at = next((n for n, text in enumerate(lines.splitlines(), 2) if text.startswith(f"{top} ")), 1)
    file = str(tmp_path / "holdfast.toml")
    assert error.message.startswith(f"{file}, line {at if key else 1}: {path} {rule}")
    assert error.details == {"file": file, "line": at if key else 1, "key": path}
    assert CANARY not in error.message
    assert "word" not in error.message.replace("password", "")


@each_case(
    "content",
    [
        "[mcp]\nservers = 1\n",
        '[mcp.servers."a.b"]\ncommand = "x"\n',
        '[mcp.servers."a b"]\ncommand = "x"\n',
        f'[mcp.servers.{"a" * 41}]\ncommand = "x"\n',
        "[mcp.servers]\na = 1\n",
    ],
)
def test_what_is_no_table_with_a_good_name_is_refused(tmp_path: Path, content: str) -> None:
    assert "mcp.servers" in refused(tmp_path, content).message


@each_case(
    "given",
    [{"name": "a"}, {"name": "a b", "command": "x"}, {"name": "a", "command": "./x"}],
)
def test_a_server_made_by_a_program_obeys_the_same_rules(given: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        McpServer(**given)

    assert caught.value.code is Code.CONFIG_INVALID


def test_each_name_is_there_once(tmp_path: Path) -> None:
    server = McpServer(name="a", command="x")

    with pytest.raises(Invalid, match="mcp_servers must name each server once"):
        Config(home=tmp_path, mcp_servers=(server, server))
