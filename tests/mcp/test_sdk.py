"""The protocol's own client against the real command and the real server, over each transport."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.cli.processes import COMMAND, environment
from tests.cli.remote_server import serve
from tests.mcp.payloads import ABC, COMPLETE, UNIT
from tests.mcp.test_tools import PROMISED

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NOBODYS = "0192f0c1-0000-7000-8000-00000000dead"
# Every tool, with arguments, and what it refuses with where there is nothing to find.
CALLS: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("submit_agent_session", COMPLETE, None),
    ("query_agent_history", {}, None),
    ("query_agent_history", {"session_id": "abc123"}, None),
    ("query_entity_timeline", {"entity_id": ABC}, None),
    ("restore_checkpoint", {"session_id": "abc123", "name": "spec_complete"}, None),
    ("correct", {"session_id": "abc123", "field": "duration", "value": 60}, None),
    ("delete_agent_session", {"session_id": "abc123"}, None),
    ("restore_agent_session", {"session_id": "abc123"}, None),
    ("list_observations", {"session_id": "abc123"}, None),
    ("search_sessions", {"query": "spec"}, None),
    ("get_session", {"session_id": NOBODYS}, "session_not_found"),
    ("list_unknown_calls", {}, None),
    ("settle_call", {"call_id": "c1", "how": "skip"}, "call_not_found"),
    ("submit_entity", {"entity_type": "feature_unit", "fields": UNIT}, None),
    ("query_entities", {"entity_type": "feature_unit"}, None),
)


@asynccontextmanager
async def over_pipes(home: Path, mode: str) -> AsyncIterator[Client]:
    """Start the command as clients do."""
    command = StdioServerParameters(command=COMMAND, args=["mcp"], env=environment(home))
    async with Client(stdio_client(command), mode=mode, raise_exceptions=False) as client:
        yield client


@asynccontextmanager
async def over_http(home: Path, mode: str) -> AsyncIterator[Client]:
    """Start the server and reach it with its token."""
    with serve(home) as server:
        headers = {"authorization": f"Bearer {server.secret}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode
            ) as client,
        ):
            yield client


def test_every_tool_is_called() -> None:
    assert {name for name, _, _ in CALLS} == PROMISED


@pytest.mark.parametrize(
    ("over", "mode"), [(over_pipes, "legacy"), (over_http, "auto")], ids=["pipes", "http"]
)
async def test_the_protocols_own_client_finds_everything(home: Path, over: Any, mode: str) -> None:
    async with over(home, mode) as client:
        listed = (await client.list_tools()).tools
        results = {}
        for name, arguments, refusal in CALLS:
            # It holds every answer against the schema that was listed.
            result = await client.call_tool(name, arguments)
            assert result.is_error is (refusal is not None), result
            results[name] = result.structured_content
            if refusal is not None:
                assert result.structured_content["error"] == refusal
        templates = (await client.list_resource_templates()).resource_templates
        prompts = (await client.list_prompts()).prompts
        prompt = await client.get_prompt("continue_session")
        read = await client.read_resource("holdfast://history/abc123")
        resources = (await client.list_resources()).resources

    assert {each.name for each in listed} == PROMISED
    assert results["list_observations"]["total"] == 4
    assert results["list_observations"]["observations"][0]["source"]
    assert (len(templates), len(prompts), resources) == (3, 2, [])
    assert prompt.messages[1].content.type == "resource"
    assert json.loads(read.contents[0].text)["snapshot"]["duration"] == 60
