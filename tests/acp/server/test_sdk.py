"""Judged from outside: the protocol's own Python package as a client of `holdfast acp`.

Its client drives the command, and its models read every frame that we send.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acp.editor import command, is_question, is_update, words
from tests.cli.processes import COMMAND, environment
from tests.houses import script
from tests.marks import skip_package

pytestmark = pytest.mark.anyio


def package() -> Any:
    """Return the protocol's package, or say loudly that nobody has judged."""
    try:
        import acp
        import acp.schema
    except ImportError:
        skip_package("agent-client-protocol")
    return acp


class Watching:
    """A client that notes what it is told, and answers as it was told to."""

    def __init__(self, acp: Any, option: str | None) -> None:
        self._schema = acp.schema
        self._option = option
        self.updates: list[Any] = []
        self.asked = 0

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **_: Any
    ) -> Any:
        self.asked += 1
        if self._option is None:
            outcome = self._schema.DeniedOutcome(outcome="cancelled")
        else:
            outcome = self._schema.AllowedOutcome(outcome="selected", option_id=self._option)
        return self._schema.RequestPermissionResponse(outcome=outcome)

    def on_connect(self, _: Any) -> None:
        """Do nothing: whoever spawned us has the connection."""


@asynccontextmanager
async def connected(client: Watching, home: Path, desk: Path, **more: str) -> AsyncIterator[Any]:
    """Run the command behind the package's own connection, hands shaken."""
    acp = package()
    spawned = acp.spawn_agent_process(
        client, COMMAND, "acp", env=environment(home, **more), cwd=desk
    )
    async with spawned as (connection, _):
        met = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert met.protocol_version == 1
        assert met.agent_info.name == "holdfast"
        yield connection


@pytest.mark.parametrize(("option", "is_written"), [("allow_once", True), ("reject_once", False)])
async def test_a_prompt_is_executed_or_denied(
    home: Path, desk: Path, option: str, is_written: bool
) -> None:
    acp = package()
    client = Watching(acp, option)
    async with connected(client, home, desk) as connection:
        opened = await connection.new_session(cwd=str(desk), mcp_servers=[])
        said = [acp.text_block("write a.txt: hi")]
        answer = await connection.prompt(session_id=opened.session_id, prompt=said)

        assert (answer.stop_reason, client.asked) == ("end_turn", 1)
        assert answer.usage.total_tokens > 0
        assert (desk / "a.txt").exists() is is_written


async def test_a_prompt_is_cancelled(home: Path, desk: Path, tmp_path: Path) -> None:
    acp = package()
    model = script(tmp_path, {"text": "never", "delay_ms": 3_600_000})
    client = Watching(acp, None)
    async with connected(client, home, desk, HOLDFAST_MODEL=model) as connection:
        import asyncio

        opened = await connection.new_session(cwd=str(desk), mcp_servers=[])
        said = [acp.text_block("go")]
        asked = asyncio.create_task(connection.prompt(session_id=opened.session_id, prompt=said))
        await asyncio.sleep(0)
        await connection.cancel(session_id=opened.session_id)
        assert (await asked).stop_reason == "cancelled"


@pytest.mark.torture
async def test_a_session_is_loaded_in_a_fresh_process_and_its_mode_is_set(
    home: Path, desk: Path
) -> None:
    acp = package()
    first, second = Watching(acp, None), Watching(acp, "allow_once")
    async with connected(first, home, desk) as connection:
        opened = await connection.new_session(cwd=str(desk), mcp_servers=[])
        id_ = opened.session_id
        await connection.prompt(session_id=id_, prompt=[acp.text_block("What is 2+3?")])
    async with connected(second, home, desk) as connection:
        where = {"cwd": str(desk), "mcp_servers": []}
        loaded = await connection.load_session(session_id=id_, **where)
        kinds = [each.session_update for each in second.updates]
        assert kinds == ["user_message_chunk", "agent_message_chunk"]
        assert loaded.modes.current_mode_id == "ask"
        await connection.set_session_mode(session_id=id_, mode_id="deny")
        said = [acp.text_block("write a.txt: hi")]
        await connection.prompt(session_id=id_, prompt=said)
        assert second.asked == 0
        listed = await connection.list_sessions(cwd=str(desk))
        assert [each.session_id for each in listed.sessions] == [id_]


async def test_the_models_of_the_package_read_every_frame(
    home: Path, desk: Path, tmp_path: Path
) -> None:
    schema = package().schema
    (desk / "notes.txt").write_text("hold fast\n")
    calls = [
        {"name": "read_file", "arguments": {"path": "notes.txt"}},
        {"name": "write_file", "arguments": {"path": "a.txt", "content": "hi"}},
    ]
    steps = [{"reasoning": "hm", "text": "I look.", "tool_calls": calls}, {"text": "done"}]
    model = script(tmp_path, *steps)
    async with command(home, desk, HOLDFAST_MODEL=model) as editor:

        async def call(kind: str, method: str, **params: Any) -> Any:
            reply = await editor.call(method, **params)
            read(getattr(schema, kind), reply["result"])
            return reply["result"]

        await call("InitializeResponse", "initialize", protocolVersion=1)
        where = {"cwd": str(desk), "mcpServers": []}
        id_ = (await call("NewSessionResponse", "session/new", **where))["sessionId"]
        await call("PromptResponse", "session/prompt", sessionId=id_, prompt=words("go"))
        await call("LoadSessionResponse", "session/load", sessionId=id_, **where)
        await call("ResumeSessionResponse", "session/resume", sessionId=id_, **where)
        await call("SetSessionModeResponse", "session/set_mode", sessionId=id_, modeId="deny")
        wish = {"sessionId": id_, "configId": "mode", "value": "ask"}
        await call("SetSessionConfigOptionResponse", "session/set_config_option", **wish)
        await call("ListSessionsResponse", "session/list")
        await call("CloseSessionResponse", "session/close", sessionId=id_)
        await call("DeleteSessionResponse", "session/delete", sessionId=id_)

        for frame in filter(is_update, editor.frames):
            read(schema.SessionNotification, frame["params"])
        (question,) = filter(is_question, editor.frames)
        read(schema.RequestPermissionRequest, question["params"])


def read(model: Any, content: Any) -> None:
    """Read a value with a model of the package, which has to find all of it and nothing else."""
    found = model.model_validate(content)
    assert found.model_dump(mode="json", by_alias=True, exclude_unset=True) == content
