"""`holdfast mcp` in this process: a conversation out of a file, and what it hands to the server."""

import json
from pathlib import Path

from tests.cli.commands.test_acp import swapped
from tests.cli.conftest import Cli
from tests.mcp.clients import INITIALIZE
from tests.mcp.payloads import MINIMAL

SAID = (
    {"id": 0, "method": "initialize", "params": INITIALIZE},
    {"method": "notifications/initialized"},
    {
        "id": 1,
        "method": "tools/call",
        "params": {"name": "submit_agent_session", "arguments": MINIMAL},
    },
)


def test_it_answers_until_its_input_ends(cli: Cli, tmp_path: Path) -> None:
    said, heard = tmp_path / "said.jsonl", tmp_path / "heard.jsonl"
    said.write_text("\n".join(json.dumps({"jsonrpc": "2.0", **each}) for each in SAID))
    with swapped(said, heard):
        ran = cli("mcp")

    answers = [json.loads(line) for line in heard.read_text().splitlines()]
    assert (ran.code, ran.out) == (0, "")
    assert [each["id"] for each in answers] == [0, 1]
    assert answers[0]["result"]["serverInfo"]["name"] == "holdfast"
    assert answers[1]["result"]["structuredContent"]["action"] == "created"
    assert cli("history", "query", "--json").document["total"] == 1


def test_with_http_it_is_the_server_and_refused_as_that_is(cli: Cli) -> None:
    where = ("--host", "192.0.2.1", "--port", "0", "--json")
    ran, served = cli("mcp", "--http", *where), cli("serve", *where)

    assert (ran.code, ran.error) == (served.code, served.error)
    assert ran.code != 0
