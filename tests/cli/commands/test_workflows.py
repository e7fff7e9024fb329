"""`holdfast workflow validate|format|run`: files of workflows, checked, written and played."""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.models import Prices
from holdfast.domain.queries import SessionQuery
from holdfast.parsing.workflow_files import read_workflow, write_workflow
from holdfast.workflows.model import Workflow
from tests.acp.scripted_agents import Peer
from tests.cli.conftest import Cli
from tests.marks import demands, each_case
from tests.parsing.workflows import WHOLE

Script = Callable[[str], str]
Write = Callable[..., str]

ASKED = {"name": "who", "type": "string"}
AGENT = {"id": "helper", "model": "holdfast", "provider": "offline", "system_prompt": "Help."}


def player(id_: str, ref: str = "helper", **more: Any) -> dict[str, Any]:
    """Return a node of an agent that says its own name."""
    return {"id": id_, "type": "agent", "agent_ref": ref, "prompt_template": f"say {id_}"} | more


def line(*players: dict[str, Any], agents: Any = (AGENT,), **more: Any) -> dict[str, Any]:
    """Return a workflow that is one line."""
    nodes = [{"id": "input", "type": "input"}, *players, {"id": "output", "type": "output"}]
    ids = [node["id"] for node in nodes]
    edges = [{"from": a, "to": b} for a, b in pairwise(ids)]
    body = {"id": "w", "nodes": nodes, "edges": edges, "agents": list(agents)} | more
    return {"schema_version": "1.0", "workflow": body}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a workflow into the folder that commands work in."""
    monkeypatch.chdir(tmp_path)

    def written(document: dict[str, Any], name: str = "w.relavium.yaml") -> str:
        (tmp_path / name).write_text(write_workflow(Workflow(document)))
        return name

    return written


def test_a_workflow_is_checked(cli_without_home: Cli, write: Write, home: Path) -> None:
    file = write(line(player("a")))

    told = cli_without_home("workflow", "validate", file)

    assert (told.code, told.out) == (0, f"{file} is a valid workflow, w, with 3 nodes.\n")
    assert told.err == "`holdfast workflow run` can run it.\n"
    assert cli_without_home("workflow", "validate", file, "--json").document == {
        "file": file,
        "id": "w",
        "nodes": 3,
        "edges": 2,
        "findings": [],
        "runnable": True,
        "why": None,
    }
    # A check of what needs no agent of here opens nothing.
    assert not (home / "history.db").exists()


def test_what_means_nothing_is_found(cli: Cli, write: Write) -> None:
    file = write(line(player("a", "ghost"), player("b", tools=["read_file"])))

    told = cli("workflow", "validate", file, "--json")

    assert told.code == 1
    assert told.document["findings"] == [
        {"code": "agent_ref_unresolved", "node": "a", "message": "there is no agent ghost"},
        {
            "code": "tools_exceed_agent",
            "node": "b",
            "message": "agent helper does not have read_file",
        },
    ]
    assert (
        "agent_ref_unresolved at a: there is no agent ghost."
        in cli("workflow", "validate", file).out
    )


def test_an_agent_that_is_known_here_is_no_finding(cli: Cli, write: Write, tmp_path: Path) -> None:
    cli("agents", "create", "--name", "Stored", "--tools", "read_file")
    own = tmp_path / ".holdfast" / "agents"
    own.mkdir(parents=True)
    (own / "near.agent.yaml").write_text(
        "id: near\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\ntools: [find_text]\n"
    )
    (tmp_path / "far.agent.yaml").write_text(
        "id: far\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\n"
    )
    players = (
        player("a", "stored", tools=["read_file"]),
        player("b", "near", tools=["find_text"]),
        player("c", "far"),
    )
    file = write(line(*players, agents=[{"$ref": "far.agent.yaml"}]))

    assert cli("workflow", "validate", file, "--json").document["findings"] == []


def test_one_that_cannot_be_played_says_why(cli: Cli, write: Write) -> None:
    (Path("agents")).mkdir()
    Path("agents/other.agent.yaml").write_text(
        "id: other\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\n"
    )
    file = write(WHOLE)

    told = cli("workflow", "validate", file, "--json").document

    assert (told["runnable"], told["why"].startswith("The workflow cannot be run yet")) == (
        False,
        True,
    )


@pytest.mark.parametrize("verb", ["validate", "format", "run"])
@each_case(
    ("content", "told"),
    [
        (None, (4, "path_not_found")),
        (b"a: [", (2, "yaml_invalid")),
        (b"\xff", (2, "yaml_invalid")),
        (b"a: &x [*x]", (2, "yaml_invalid")),
        (b"schema_version: '2.0'", (2, "workflow_invalid")),
        (b"PK\x03\x04", (2, "yaml_invalid")),
    ],
)
def test_a_file_that_is_no_workflow_is_refused(
    cli: Cli, write: Write, verb: str, content: bytes | None, told: tuple[int, str]
) -> None:
    if content is not None:
        Path("x.yaml").write_bytes(content)

    ran = cli("workflow", verb, "x.yaml", "--json")

    assert (ran.out, (ran.code, ran.error["error"])) == ("", told)


def test_a_workflow_has_one_form(cli: Cli, write: Write) -> None:
    file = write(line(player("a")))
    wanted = Path(file).read_text()
    Path("odd.yaml").write_text("# mine\n" + json.dumps(line(player("a"))))

    assert cli("workflow", "format", "odd.yaml").out == wanted
    assert cli("workflow", "format", "-", stdin=wanted).out == wanted
    assert cli("workflow", "format", "-", stdin=b"\xff").code == 2
    assert cli("workflow", "format", "odd.yaml", "--check").code == 1
    written = cli("workflow", "format", "odd.yaml", "--write", "--json")
    assert written.document == {"file": "odd.yaml", "formatted": False, "written": True}
    assert Path("odd.yaml").read_text() == wanted
    checked = cli("workflow", "format", "odd.yaml", "--check")
    assert (checked.code, checked.out) == (0, "odd.yaml is in canonical form.\n")


@pytest.mark.parametrize("words", [("w", "--check", "--write"), ("-", "--write")])
def test_wishes_that_do_not_go_together_are_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("workflow", "format", *words, "--json").error["error"] == "invalid_input"


def test_a_line_is_played_as_turns_of_sessions(cli: Cli, write: Write, script: Script) -> None:
    steps = [{"text": f"answer {number}"} for number in (1, 2, 3)]
    other = AGENT | {"id": "other"}
    file = write(line(player("a"), player("b"), player("c", "other"), agents=[AGENT, other]))

    told = cli("workflow", "run", file, "--model", script(json.dumps(steps)))

    assert (told.code, told.out) == (0, "answer 1\nanswer 2\nanswer 1\n")
    sessions = cli("sessions", "list", "--json").document["data"]
    assert [(each["turn"], each["message_count"]) for each in sessions] == [(1, 2), (2, 4)]
    assert [each.split(":")[0] for each in told.err.splitlines()] == ["a", "b", "c"]
    rows = cli("sessions", "messages", sessions[0]["id"], "--json").document["data"]
    assert rows[0]["content"]["text"] == "answer 2\n\nsay c"


@demands("S0-080", "S0-081", "S0-081b", "S0-100")
def test_a_node_is_a_turn_like_any_other(cli: Cli, write: Write, tmp_path: Path) -> None:
    # The first model is away, the second one looks around and answers.
    (tmp_path / "one.yaml").write_text("- {error: unavailable, repeat: 3}\n")
    looks = {"text": "I look.", "tool_calls": [{"name": "list_directory", "arguments": {}}]}
    steps = [{"text": "never"}, looks, {"text": "never"}, {"text": "Seen."}]
    (tmp_path / "two.yaml").write_text(json.dumps(steps))
    agent = AGENT | {
        "provider": "scripted",
        "model": "one.yaml",
        "tools": ["list_directory"],
        "retry": {"max": 1, "backoff": "linear"},
        "fallback_chain": [{"provider": "scripted", "model": "two.yaml", "max_attempts": 1}],
    }
    Path("helper.agent.yaml").write_text(json.dumps(agent))
    file = write(line(player("a"), agents=[agent]))

    talked = cli("chat", "say a", "--agent", "helper.agent.yaml", "--json")
    played = cli("workflow", "run", file, "--json")

    def story(lines: list[Any]) -> list[dict[str, Any]]:
        passing = {"sessionId", "timestamp", "callId", "messageId"}
        return [{key: each[key] for key in each if key not in passing} for each in lines]

    assert (talked.code, played.code) == (0, 0)
    types = [each["type"] for each in story(played.lines)]
    assert {"holdfast:step.failed", "agent:tool_call", "agent:tool_result"} <= set(types)
    assert story(played.lines) == story(talked.lines)


def test_with_json_the_events_of_its_sessions_are_printed(cli: Cli, write: Write) -> None:
    lines = cli("workflow", "run", write(line(player("a"))), "--json").lines

    assert lines[0]["type"] == "session:started"
    assert lines[-1]["type"] == "session:turn_completed"
    assert [each["sequenceNumber"] for each in lines] == list(range(1, len(lines) + 1))


def test_a_turn_that_fails_ends_it_with_its_code(cli: Cli, write: Write, script: Script) -> None:
    file = write(line(player("a"), player("b")))

    told = cli("workflow", "run", file, "--model", script('[{"error": "bad_request"}]'))

    assert told.code == 2
    assert "Stopped at a; " in told.err
    assert cli("sessions", "list", "--json").document["data"][0]["turn"] == 1


@each_case(
    ("document", "code", "error"),
    [
        (line(player("a", timeout_ms=1)), 2, "workflow_not_runnable"),
        (line(player("a", prompt_template="{{ctx.x}}")), 2, "workflow_not_runnable"),
        (line(player("a"), inputs=[ASKED | {"required": True}]), 2, "invalid_input"),
        (line(player("a"), player("b", model="x:y")), 2, "unknown_model"),
        (line(player("a"), player("b", model="other")), 2, "model_not_found"),
        (line(player("a"), tools={"allowedCommands": ["ls"]}), 3, "grant_exceeded"),
        (line(player("a"), tools={"fsScopeTier": "full"}), 3, "grant_exceeded"),
        (line(player("a"), player("b", "ghost")), 4, "agent_not_found"),
        (line(player("a", tools=["read_file"])), 3, "grant_exceeded"),
        (line(player("a"), player("b", "holdfast", tools=["ghost"])), 3, "grant_exceeded"),
        (line(player("a"), agents=[{"$ref": "ghost.yaml"}]), 4, "agent_not_found"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_first_turn(
    cli: Cli, write: Write, document: dict[str, Any], code: int, error: str
) -> None:
    told = cli("workflow", "run", write(document), "--json")

    assert (told.code, told.out, told.error["error"]) == (code, "", error)
    assert cli("sessions", "list", "--json").document["data"] == []


def said_in(cli: Cli, session: str) -> list[str]:
    """Return the messages of a user in a session."""
    rows = cli("sessions", "messages", session, "--json").document["data"]
    return [row["content"]["text"] for row in rows if row["role"] == "user"]


def test_inputs_contexts_and_earlier_answers_are_put_into_prompts(
    cli: Cli, write: Write, script: Script
) -> None:
    agent = AGENT | {"system_prompt": "Help {{ctx.team}}."}
    file = write(
        line(
            player("a", prompt_template="Ask {{inputs.who}} of {{ctx.team}}."),
            player("b", "other", prompt_template='Say {{run.outputs["a"]}} {{inputs.n}} times.'),
            player("c", "other", prompt_template="And {{run.outputs.b}}?"),
            agents=[agent, AGENT | {"id": "other"}],
            inputs=[ASKED, {"name": "n", "type": "number", "default": 2}],
            context=[{"key": "team", "value": "{{inputs.who}} & Co"}],
        )
    )
    steps = json.dumps([{"text": "{{inputs.n}}"}, {"text": "well"}])

    told = cli("workflow", "run", file, "--input", "who=A=B", "--model", script(steps))

    assert (told.code, told.out) == (0, "{{inputs.n}}\n{{inputs.n}}\nwell\n")
    second, first = [each["id"] for each in cli("sessions", "list", "--json").document["data"]]
    assert said_in(cli, first) == ["Ask A=B of A=B & Co."]
    assert said_in(cli, second) == ["Say {{inputs.n}} 2 times.", "And {{inputs.n}}?"]
    context = cli("sessions", "show", first, "--json").document["context"]
    assert context["variables"] == {"team": "A=B & Co"}


@each_case(
    ("given", "told"),
    [
        (["who=A", "nope=B"], "Input nope: The workflow has no such input; its inputs are who."),
        (["who=A", "who=B"], "Write each input once, as --input NAME=VALUE."),
        (["who"], "Write each input once, as --input NAME=VALUE."),
        ([], "These inputs have no value: who; give each one with --input NAME=VALUE."),
    ],
)
def test_an_input_that_does_not_fit_is_refused_before_the_first_turn(
    cli: Cli, write: Write, given: list[str], told: str
) -> None:
    file = write(line(player("a", prompt_template="{{inputs.who}}"), inputs=[ASKED]))
    words = [word for each in given for word in ("--input", each)]

    ran = cli("workflow", "run", file, *words, "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "invalid_input")
    assert ran.error["message"] == told
    assert cli("sessions", "list", "--json").document["data"] == []


def test_a_node_has_its_own_model_and_settings(
    cli: Cli, write: Write, home: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        steps = [{"text": f"{name} {number}"} for number in (1, 2, 3)]
        (tmp_path / f"{name}.yaml").write_text(json.dumps(steps))
    agent = AGENT | {"provider": "scripted", "model": "one.yaml", "temperature": 1}
    settings = {"temperature": 0, "max_tokens": 7, "system_prompt_append": "To {{inputs.who}}."}
    file = write(
        line(
            player("a"),
            player("b", model="scripted:two.yaml"),
            player("c"),
            player("d", model=str(tmp_path / "two.yaml"), **settings),
            agents=[agent],
            inputs=[ASKED],
        )
    )

    told = cli("workflow", "run", file, "--input", "who=Ann")

    assert (told.code, told.out) == (0, "one 1\ntwo 2\none 3\ntwo 1\n")
    first, second = asyncio.run(agents_of_sessions(home))
    assert (first.system_prompt, second.system_prompt) == ("Help.", "Help.\n\nTo Ann.")
    assert [(a.runtime.temperature, a.runtime.max_tokens) for a in (first, second)] == [
        (1.0, None),
        (0.0, 7),
    ]
    # A flag is for all nodes.
    flag = cli("workflow", "run", file, "--input", "who=A", "--model", "scripted:one.yaml")
    assert flag.out == "one 1\none 2\none 3\none 1\n"


async def agents_of_sessions(home: Path) -> list[Any]:
    """Return the agents as the sessions of a home have them, the oldest first."""
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        page = await house.sessions.list(SessionQuery(owner=house.owner))
        return [session.agent for session in reversed(page.items)]


@demands("S0-120")
def test_a_budget_is_that_of_all_sessions_together(
    cli: Cli, write: Write, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "holdfast.llm.router.prices_of",
        lambda model: Prices(input=10**10, output=10**10) if model.provider == "scripted" else None,
    )
    steps = json.dumps([{"text": "yes", "usage": {"input": 1_000, "output": 100}}] * 3)
    # A request costs 11,000,000, and needs some 21,000,000 to be sent.
    players = (player("a"), player("b", "other"), player("c"))
    agents = [AGENT, AGENT | {"id": "other"}]

    def ran(most: int, on_exceed: str) -> Any:
        budget = {"max_cost_microcents": most, "on_exceed": on_exceed}
        file = write(line(*players, agents=agents, budget=budget))
        return cli("workflow", "run", file, "--model", script(steps))

    assert (ran(10**9, "fail").code, ran(3 * 10**7, "warn").code) == (0, 0)
    for on_exceed in ("fail", "pause_for_approval"):
        stopped = ran(4 * 10**7, on_exceed)
        assert (stopped.code, stopped.out, "Stopped at c; " in stopped.err) == (
            6,
            "yes\nyes\n",
            True,
        )
    budgets = [
        each["budget"]["microcents"] for each in cli("sessions", "list", "--json").document["data"]
    ]
    assert budgets[:3] == [18_000_000, 29_000_000, 40_000_000]


def test_a_session_that_was_narrowed_is_narrow_when_it_is_played(
    cli: Cli, write: Write, script: Script, home: Path, tmp_path: Path
) -> None:
    home.mkdir(exist_ok=True)
    (home / "holdfast.toml").write_text('[chat]\nfs_scope = "project"\n')
    steps = [
        {"tool_calls": [{"name": "list_directory", "arguments": {}}]},
        {"text": "I tried."},
    ]
    chat = ("chat", "Look.", "--model", script(json.dumps(steps)), "--fs-scope", "sandboxed")
    session = cli(*chat, "--tools", "find_text", "--json").lines[0]["sessionId"]
    cli("chat-export", session, "--out", "talk.yaml")

    told = cli("workflow", "run", "talk.yaml", "--json")

    assert told.code == 0
    results = [each for each in told.lines if each["type"] == "agent:tool_result"]
    assert [(each["status"], each["code"]) for each in results] == [("denied", "not_granted")]
    assert told.lines[0]["context"]["fsScopeTier"] == "sandboxed"


def test_a_program_plays_with_the_tools_it_has_itself(
    cli: Cli, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    (root / ".git").mkdir(parents=True)
    monkeypatch.chdir(root)
    looked = {
        "sessionUpdate": "tool_call",
        "toolCallId": "c",
        "title": "Read a.txt",
        "kind": "read",
        "status": "completed",
    }
    done = {"reply": {"stopReason": "end_turn"}}
    peer = Peer(
        tmp_path / "peer", on={"session/prompt": [{"update": looked}, {"text": "Aye."}, done]}
    )
    program, *words = peer.argv
    given = (f"--writable={peer.folder}", *(f"--arg={word}" for word in words))
    cli("agents", "create", "--name", "Peer", "--command", program, *given)
    session = cli("chat", "Look.", "--agent", "peer", "--json").lines[0]["sessionId"]

    exported = cli("chat-export", session, "--out", "talk.yaml")
    checked = cli("workflow", "validate", "talk.yaml", "--json").document
    told = cli("workflow", "run", "talk.yaml")

    assert "tools:" in Path("talk.yaml").read_text()
    assert exported.err.splitlines()[0] == ("Bind agent_ref: the file does not contain agent peer.")
    assert (exported.err.count("\n"), checked["findings"], checked["runnable"]) == (2, [], True)
    assert (told.code, told.out) == (0, "Aye.\n")
    for place, more in (("tools", {"allowedTools": ["read"]}), ("node", {"model": "a:b"})):
        changed = read_workflow(Path("talk.yaml"))
        changed.body["nodes"][1] |= more if place == "node" else {}
        changed.body["tools"] = more if place == "tools" else {}
        Path("changed.yaml").write_text(write_workflow(changed))
        refused = cli("workflow", "run", "changed.yaml", "--json")
        assert (refused.code, refused.error["error"]) == (2, "workflow_not_runnable")
        assert "is a program with tools and models of its own" in refused.error["message"]


def test_an_agent_of_yours_is_not_changed_by_one_of_its_name(cli: Cli, write: Write) -> None:
    cli("agents", "create", "--name", "Helper", "--system-prompt", "Mine.")
    file = write(line(player("a")))

    assert [cli("workflow", "run", file).code for _ in range(2)] == [0, 0]

    agents = cli("agents", "list", "--json").document["data"]
    assert cli("agents", "show", "helper", "--json").document["system_prompt"] == "Mine."
    assert len(agents) == 2
    assert agents[0]["slug"].startswith("helper-")
