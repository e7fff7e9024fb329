"""Each noun has one JSON form: `--json`, `/v1` and MCP show the same value of one store."""

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from holdfast import Holdfast, SessionRequest, open_holdfast
from holdfast.app import RunScope
from holdfast.domain.messages import Role
from tests.cli.commands.test_approvals import ask
from tests.cli.commands.test_calls import cut
from tests.cli.conftest import Cli, cli, cli_without_home  # noqa: F401 — the fixtures
from tests.houses import script
from tests.http.v1.client import a_repository, visiting
from tests.mcp.clients import line_to
from tests.tooled import asks, call, says

# Replaced in commands, paths and arguments by the ids of the prepared store.
Names = Mapping[str, str]
Pick = Callable[[Any], Any]


@dataclass(frozen=True)
class Noun:
    """A value, and where each surface shows it; `pick` takes it out of an answer."""

    command: str
    path: str
    pick: Pick = lambda answer: answer
    tool: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pick_tool: Pick = lambda answer: answer


def data(answer: Any) -> Any:
    """Return the items of a page; a cursor belongs to its surface."""
    return answer["data"]


def named(name: str) -> Pick:
    """Return what picks one member."""
    return lambda answer: answer[name]


def unknown_calls(answer: Any) -> Any:
    """Return the calls of MCP, whose form adds two names that its contract fixes."""
    for each in answer["calls"]:
        assert each.pop("call_id") == each["id"]
        assert each.pop("since") == each["ended_at"]
    return answer["calls"]


SESSIONS = ("played", "fork", "asking", "unknown", "stopped", "program")
NOUNS: Mapping[str, Noun] = {
    **{
        f"session {name}": Noun(
            f"sessions show {{{name}}}",
            f"/v1/sessions/{{{name}}}",
            tool="get_session",
            arguments={"session_id": f"{{{name}}}"},
            pick_tool=named("session"),
        )
        for name in SESSIONS
    },
    **{
        f"messages {name}": Noun(
            f"sessions messages {{{name}}}",
            f"/v1/sessions/{{{name}}}/messages",
            data,
            "get_session",
            {"session_id": f"{{{name}}}", "limit": 500},
            named("messages"),
        )
        for name in SESSIONS
    },
    "a page of messages": Noun(
        "sessions messages {stopped} --limit 2", "/v1/sessions/{stopped}/messages?limit=2", data
    ),
    "sessions": Noun("sessions list", "/v1/sessions?order=updated_at", data),
    "chat-list": Noun("chat-list", "/v1/sessions?order=updated_at", data),
    "verification": Noun("sessions verify {fork}", "/v1/sessions/{fork}/verify"),
    "agent": Noun("agents show plain", "/v1/agents/plain"),
    "agent with a program": Noun("agents show program", "/v1/agents/program"),
    "agent from a file": Noun("agents show reviewer", "/v1/agents/reviewer"),
    "agents": Noun("agents list", "/v1/agents", data),
    "approvals": Noun("approvals list", "/v1/approvals?state=waiting", data),
    "answered approvals": Noun(
        "approvals list --session {unknown}", "/v1/sessions/{unknown}/approvals", data
    ),
    "approval": Noun(
        "approvals show {asking} {approval}", "/v1/sessions/{asking}/approvals/{approval}"
    ),
    "calls": Noun("calls list --session {unknown}", "/v1/sessions/{unknown}/calls", data),
    "unknown calls": Noun(
        "calls list --unknown",
        "/v1/calls?state=unknown",
        data,
        "list_unknown_calls",
        {},
        unknown_calls,
    ),
    "costs": Noun("costs", "/v1/costs"),
    "costs of a session": Noun(
        "costs --session {played}",
        "/v1/costs?session_id={played}",
        named("total"),
        "get_session",
        {"session_id": "{played}"},
        named("costs"),
    ),
    "hits": Noun(
        "search 2+3",
        f"/v1/search?q={quote('2+3')}",
        data,
        "search_sessions",
        {"query": "2+3"},
        named("hits"),
    ),
    "zone": Noun("zones show desk", "/v1/zones/desk"),
    "zone state": Noun("zones read desk", "/v1/zones/desk/state"),
    "zone archives": Noun("zones archives desk", "/v1/zones/desk/archives"),
    "zone replay": Noun("zones replay desk", "/v1/zones/desk/replay"),
    "history": Noun(
        "history query",
        "/v1/history",
        data,
        "query_agent_history",
        {},
        named("sessions"),
    ),
    "history of a session": Noun(
        "history query abc123",
        "/v1/history/abc123",
        tool="query_agent_history",
        arguments={"session_id": "abc123"},
    ),
    "observations": Noun(
        "history observations abc123",
        "/v1/history/abc123/observations",
        data,
        tool="list_observations",
        arguments={"session_id": "abc123"},
        pick_tool=named("observations"),
    ),
    "checkpoint": Noun(
        "history checkpoint abc123 half",
        "/v1/history/abc123/checkpoints/half",
        tool="restore_checkpoint",
        arguments={"session_id": "abc123", "name": "half"},
    ),
    "timeline": Noun(
        "timeline abc123",
        "/v1/timeline?entity_id=abc123",
        data,
        tool="query_entity_timeline",
        arguments={"entity_id": "abc123"},
        pick_tool=named("events"),
    ),
}
SUBMITTED = {
    "session_id": "abc123",
    "started_at": "2026-01-02T03:04:05Z",
    "actions": [{"type": "build", "result": "success"}],
    "checkpoints": [{"name": "half", "timestamp": "2026-01-02T03:30:00Z", "state": {"n": 1}}],
}
AGENT_FILE = """id: reviewer
name: Reviewer
provider: offline
model: holdfast
system_prompt: Be kind.
reasoning_effort: low
memory: {type: window, window_size: 4}
fallback_chain: []
"""


def test_each_surface_shows_the_same_json(
    cli: Cli,  # noqa: F811
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = prepare(cli, home, tmp_path, monkeypatch)
    printed = {
        name: cli(*shlex.split(noun.command.format(**names)), "--json")
        for name, noun in NOUNS.items()
    }
    assert {name: ran.err for name, ran in printed.items() if ran.code} == {}
    missing = cli("agents", "show", "nosuch", "--json").error
    repos = cli("repos", "list", "--json").document["data"]

    async def compare(house: Holdfast) -> list[str]:
        found: list[str] = []
        async with visiting(house) as visitor, line_to(house) as line:
            for name, noun in NOUNS.items():
                answer = await visitor.get(noun.path.format(**names))
                assert answer.status == 200, (name, answer.body)
                wanted = noun.pick(answer.document)
                found += differences(noun.pick(printed[name].document), wanted, f"--json {name}")
                if noun.tool is not None:
                    told = (await line.tool(noun.tool, **arguments(noun, names))).form
                    found += differences(noun.pick_tool(told), wanted, f"MCP {name}")
            assert missing == (await visitor.get("/v1/agents/nosuch")).document
            assert repos == [
                {("created_at" if key == "createdAt" else key): each for key, each in repo.items()}
                for repo in (await visitor.get("/api/repos")).document["repos"]
            ]
            rows = {
                name: (await visitor.get(f"/v1/sessions/{names[name]}/messages")).document
                for name in SESSIONS
            }
        require_all_kinds([row for each in rows.values() for row in each["data"]])
        return found

    assert asyncio.run(with_house(home, compare)) == []


def arguments(noun: Noun, names: Names) -> dict[str, Any]:
    """Return the arguments of a noun's tool."""
    return {
        name: each.format(**names) if isinstance(each, str) else each
        for name, each in noun.arguments.items()
    }


def differences(one: Any, other: Any, place: str) -> list[str]:
    """Return where two values differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [each for key in one for each in differences(one[key], other[key], f"{place}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            each
            for number, pair in enumerate(zip(one, other, strict=True))
            for each in differences(*pair, f"{place}[{number}]")
        ]
    return [] if one == other else [f"{place}: {one!r:.300} and {other!r:.300}"]


def require_all_kinds(rows: list[dict[str, Any]]) -> None:
    """Require that the compared messages are of every kind, so that nothing is left out."""
    assert {row["role"] for row in rows} == set(Role)
    for name in ("parts", "interrupted", "inherited"):
        assert any(name in row for row in rows), name
    assert {"ok", "unknown"} <= {row.get("result_status") for row in rows}
    unknown = [row for row in rows if row.get("result_status") == "unknown"]
    assert all(row["content"]["error"].startswith("outcome unknown") for row in unknown)


async def with_house(home: Path, act: Callable[[Holdfast], Any]) -> Any:
    """Run something with the store open, without playing turns."""
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        return await act(house)


def prepare(cli: Cli, home: Path, tmp_path: Path, patch: pytest.MonkeyPatch) -> Names:  # noqa: F811
    """Fill a store with every noun, and return the ids."""
    desk = tmp_path / "desk"
    desk.mkdir()
    unknown = cut(home, desk, cli)
    question = ask(home, tmp_path / "asking")
    patch.chdir(desk)
    (desk / "a.txt").write_text("seven\n")
    steps = (
        asks(call("read_file", call_id="c1", path="a.txt"), text="2+3?", reasoning="I look."),
        says("It is 2+3 = 5."),
    )
    played = cli("chat", "What is 2+3?", "--json", "--model", script(desk, *map(dict, steps)))
    stopped_steps = ({"text": "half an answer", "error": "auth"},)
    (desk / "second").mkdir()
    model = script(desk / "second", *map(dict, stopped_steps))
    stopped = cli("chat", "Go on.", "--json", "--model", model)
    names = {
        "played": str(played.lines[0]["sessionId"]),
        "stopped": str(stopped.lines[0]["sessionId"]),
        "unknown": unknown,
        "asking": str(question.session_id),
        "approval": str(question.id),
    }
    names["fork"] = cli("sessions", "fork", names["played"], "--json").document["id"]
    (desk / "reviewer.agent.yaml").write_text(AGENT_FILE)
    (desk / "history.json").write_text(json.dumps(SUBMITTED))
    for words in (
        ("agents", "create", "--name", "Plain", "--tag", "t"),
        ("agents", "create", "--name", "Program", "--command", "true"),
        ("agents", "import", "reviewer.agent.yaml"),
        ("repos", "add", str(a_repository(tmp_path / "repo"))),
        ("history", "submit", "history.json"),
        ("zones", "write", "desk"),
        ("zones", "append", "desk"),
        ("zones", "archive", "desk"),
        ("zones", "append", "desk"),
    ):
        ran = cli(*words, stdin='{"role":"user","text":"hi"}')
        assert ran.code == 0, (words, ran.err)

    async def open_program(house: Holdfast) -> str:
        (repo,) = await house.repos.list(house.owner)
        return (await house.open("program", SessionRequest(repo_id=repo.id))).id

    return names | {"program": asyncio.run(with_house(home, open_program))}
