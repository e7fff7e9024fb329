"""MCP servers that go along with a program: which ones, how they are written, what is told."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Chat, McpServer, SecretEntry
from holdfast.domain.agent_processes import ProcessState
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import Session, SessionRequest
from holdfast.domain.tools import Grant
from tests.acp.harness import Aboard, aboard, codes, notices, stands
from tests.keychains import Known, using

pytestmark = pytest.mark.anyio

SECRET = "canary-1234567890-the-token-of-the-library"
TOKEN = SecretEntry(secret=True, ref="x")
BOOKS = McpServer(name="books", command=sys.executable, args=("-m", "b"), env={"TOKEN": TOKEN})
FAR = McpServer(name="far", url="https://far.test/mcp", headers={"X-Shelf": "a"})
SETTINGS = {"config_mcp_servers": (BOOKS, FAR), "config_chat": Chat(allowed_domains=("far.test",))}
STDIO = {
    "name": "books",
    "command": "/bin/sh",
    "args": ["-c", 'cd / && exec "$0" "$@"', sys.executable, "-m", "b"],
    "env": [{"name": "TOKEN", "value": SECRET}],
}
HTTP = {
    "type": "http",
    "name": "far",
    "url": "https://far.test/mcp",
    "headers": [{"name": "X-Shelf", "value": "a"}],
}


@pytest.fixture
def keychain(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Return a keychain that holds the token of a server."""
    # Without one nobody would look for a keychain.
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    found = Known()
    found.set_password("holdfast", "mcp:x", SECRET)
    return found


async def opened(ship: Aboard, *servers: dict[str, Any]) -> Session:
    """Open a session with an agent that has these servers."""
    options = {"with_servers": {"TRUSTED": "yes"}, "writable": [str(ship.peer.folder)]}
    runtime = AcpRuntime(command=ship.peer.argv[0], args=ship.peer.argv[1:], options=options)
    fields = {"name": "With", "slug": "with", "runtime": runtime, "mcp_servers": servers}
    await ship.house.agents.create(
        ship.house.owner, {**fields, "grant": Grant(domains=("far.test",))}
    )
    return await ship.house.open("with", SessionRequest(repo_id=ship.repo.id))


async def test_the_servers_of_an_agent_go_along_and_nobody_sees_their_secrets(
    tmp_path: Path, keychain: Known, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    capabilities = {"mcpCapabilities": {"http": True}}
    with using(keychain):
        async with aboard(tmp_path, capabilities=capabilities, **SETTINGS) as ship:
            session = await opened(ship, {"ref": "books"}, {"ref": "far"})
            rows = await ship.tell(session)
            now = await ship.now(session)

    (asked,) = ship.peer.got("session/new")
    assert asked["params"]["mcpServers"] == [STDIO, HTTP]
    assert ship.peer.log("start")[0]["env"]["TRUSTED"] == "yes"
    assert codes(rows) == []
    assert SECRET not in caplog.text + repr(rows) + repr(now)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rung", ["resume", "load"])
async def test_they_go_along_again_when_the_program_is_started_again(
    tmp_path: Path, keychain: Known, rung: str
) -> None:
    offered = {"loadSession": rung == "load", "sessionCapabilities": {rung: {}}}
    script = {"session/load": [{"text": "as before"}, {"reply": None}]}
    with using(keychain):
        async with aboard(tmp_path, capabilities=offered, on=script, **SETTINGS) as ship:
            session = await opened(ship, {"ref": "books"})
            await ship.tell(session)
            await _ended(ship, session)
            await ship.tell(session)

    (asked,) = ship.peer.got(f"session/{rung}")
    assert asked["params"]["mcpServers"] == [STDIO]
    assert len(ship.peer.got("session/new")) == 1


async def test_those_that_cannot_go_along_are_told_once(tmp_path: Path) -> None:
    async with aboard(tmp_path, **SETTINGS) as ship:
        session = await opened(ship, {"ref": "books"}, {"ref": "far"}, {"ref": "lost"})
        await ship.tell(session)
        await _ended(ship, session)
        rows = await ship.tell(session)

    assert [each["params"]["mcpServers"] for each in ship.peer.got("session/new")] == [[], []]
    # It gets none of them after all, but that is known only when it runs.
    told = [text for code, text in notices(rows) if code == NoticeCode.MCP_UNAVAILABLE]
    assert len(told) == 3
    assert "lost is not configured" in told[1]
    assert "books" in told[0]
    assert told[2] == (
        "The agent does not get the MCP server far: its program does not support http."
    )


async def test_without_servers_nothing_is_said_and_nothing_more_is_set(tmp_path: Path) -> None:
    async with aboard(tmp_path) as ship:
        await ship.tell(await opened(ship))

    assert ship.peer.got("session/new")[0]["params"]["mcpServers"] == []
    assert "TRUSTED" not in ship.peer.log("start")[0]["env"]


async def _ended(ship: Aboard, session: Session) -> None:
    """Have the program end between two turns."""
    os.kill(ship.peer.log("start")[-1]["pid"], 9)
    await ship.until(session, stands(ProcessState.EXITED))
