"""Agents that are programs, over `/api` and `/v1`: their state, their absence, who makes them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import open_holdfast
from holdfast.config import Acp, Config
from holdfast.domain.tokens import Scope
from holdfast.parsing.workflow_files import parse_workflow
from tests.acp.harness import PATIENCE, provide
from tests.acp.scripted_agents import Peer
from tests.http.api.client import Client, client_of
from tests.http.v1.client import refusal
from tests.marks import demands, each_case
from tests.tools.process_fixture import known_means

pytestmark = pytest.mark.anyio

END = {"reply": {"stopReason": "end_turn"}}


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    """Have a scripted agent that waits in its turn for a file."""
    gate = tmp_path / "gate"
    steps = [
        {"text": "thinking"},
        {"mark": "in"},
        {"wait_file": str(gate)},
        {"text": ", done"},
        END,
    ]
    return Peer(tmp_path / "peer", on={"session/prompt": steps})


@pytest.fixture
async def client(tmp_path: Path, peer: Peer) -> AsyncIterator[Client]:
    """Visit a house whose agent in repositories is the scripted one."""
    root = tmp_path / "work"
    root.mkdir()
    config = Config(home=tmp_path / "home", workspace_root=root, acp=Acp(agent="peer"))
    async with open_holdfast(config=config) as house, client_of(house, root) as somebody:
        await provide(house, peer, {"confined": True})
        yield somebody


async def _until(client: Client, session: dict[str, Any], state: str) -> dict[str, Any]:
    """Wait for a state of the program, or a status of the session, and return the session."""
    async with asyncio.timeout(PATIENCE):
        while True:
            whole = await client.whole(session)
            if state in (whole["process"]["state"], whole["status"]):
                return whole
            await asyncio.sleep(0.02)


async def test_the_state_of_a_program_is_shown_beside_the_status(
    client: Client, peer: Peer, tmp_path: Path
) -> None:
    session = await client.opened()
    before = await client.whole(session)
    await client.prompted(session, "hello")
    await asyncio.to_thread(peer.wait_for, "mark", name="in")
    busy = await _until(client, session, "busy")
    in_v1 = (await client.get(f"/v1/sessions/{session['id']}")).document
    (tmp_path / "gate").touch()
    ready = await _until(client, session, "ready")
    gone = (await client.delete(f"/api/sessions/{session['id']}")).document

    assert (before["process"], before["status"]) == (
        {"state": "not_started", "exitCode": None},
        "active",
    )
    assert busy["status"] == "active"
    sandbox = in_v1["metadata"]["acp"]["sandbox"]
    assert in_v1["process"] == {
        "state": "busy",
        "exit_code": None,
        "signal": None,
        "sandbox": sandbox,
    }
    assert sandbox.startswith("confined") is bool(known_means().landlock)
    assert in_v1["metadata"]["acp"]["agent"]["name"] == "peer"
    assert ready["metadata"]["acp"]["session_id"] == "peer-session-1"
    assert (gone["status"], gone["process"]) == ("cancelled", {"state": "exited", "exitCode": 0})


async def test_a_program_that_is_missing_opens_no_session(client: Client) -> None:
    runtime = {"type": "acp", "command": "no-such-agent", "options": {"install": "get it"}}
    agent = await client.agent(name="Lost", runtime=runtime)

    in_api = await client.post(
        "/api/sessions", {"repoId": client.repo["id"], "agentId": agent["id"]}
    )
    in_v1 = await client.post(f"/v1/agents/{agent['id']}/sessions", {"repo_id": client.repo["id"]})

    assert refusal(in_api) == refusal(in_v1) == (503, "agent_unavailable")
    assert "no-such-agent" in in_api.document["message"]
    assert in_api.document["details"]["install"] == "get it"
    listed = (await client.get("/api/sessions")).document
    assert listed["total"] == 0


@pytest.mark.parametrize("agent", [None, "gemini"])
async def test_without_a_word_the_seeded_program_answers_or_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str | None
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    config = Config(home=tmp_path / "home", workspace_root=tmp_path, acp=Acp(agent=agent))
    async with open_holdfast(config=config) as house, client_of(house, tmp_path) as client:
        body = {"repoId": client.repo["id"]}
        missing = await client.post("/api/sessions", body)
        named = await client.post("/api/sessions", {**body, "agentId": "holdfast"})
        (folder / "gemini").write_text("#!/bin/sh\n")
        (folder / "gemini").chmod(0o755)
        found = await client.post("/api/sessions", body)
        listed = (await client.get("/api/sessions")).document
        session = (await client.get(f"/v1/sessions/{found.document['id']}")).document

    assert refusal(missing) == (503, "agent_unavailable")
    assert "npm install -g @google/gemini-cli" in missing.document["message"]
    assert (named.status, found.status, listed["total"]) == (201, 201, 2)
    assert session["agent"]["slug"] == "gemini"


async def test_whoever_may_only_write_cannot_set_up_programs(client: Client) -> None:
    writer = await client.as_("local", Scope.WRITE)
    runtime = {"type": "acp", "command": "sh"}
    mine = await writer.agent(name="Model")
    theirs = (await client.get("/v1/agents/peer")).document

    made = await writer.post("/v1/agents", {"name": "Program", "runtime": runtime})
    turned = await writer.patch(f"/v1/agents/{mine['id']}", {"runtime": runtime})
    renamed = await writer.patch(f"/v1/agents/{theirs['id']}", {"name": "Other"})
    plain = await writer.patch(f"/v1/agents/{mine['id']}", {"name": "Other"})

    refused = [refusal(each) for each in (made, turned, renamed)]
    assert refused == [(403, "forbidden")] * 3
    assert "--scope admin" in made.document["message"]
    assert plain.status == 200


@each_case(
    ("options", "field"),
    [
        ({"aprove": "auto"}, "aprove"),
        ({"approve": "always"}, "approve"),
        ({"limits": {"nise": 1}}, "limits"),
        ({"environment": {"A=B": "x"}}, "environment"),
        ({"share": True}, "share"),
        ({"fs": "no"}, "fs"),
        ({"confined": "no"}, "confined"),
        ({"network": 1}, "network"),
        ({"writable": "/a"}, "writable"),
        ({"writable": ["a/b"]}, "writable"),
        ({"readable": ["~other"]}, "readable"),
    ],
)
async def test_an_option_that_nobody_would_read_is_refused(
    client: Client, options: dict[str, Any], field: str
) -> None:
    runtime = {"type": "acp", "command": "sh", "options": options}

    answer = await client.post("/v1/agents", {"name": "Program", "runtime": runtime})

    assert refusal(answer) == (400, "agent_invalid")
    assert answer.document["details"]["fields"] == [f"runtime.options.{field}"]


async def test_the_agents_own_mode_counts_where_nobody_says_another(client: Client) -> None:
    runtime = {"type": "acp", "command": "sh", "options": {"approve": "auto"}}
    agent = await client.agent(name="Free", runtime=runtime)
    path, body = f"/v1/agents/{agent['id']}/sessions", {"repo_id": client.repo["id"]}

    free = (await client.post(path, body)).document
    asked = (await client.post(path, {**body, "approval": "ask"})).document

    assert (free["approval"], asked["approval"]) == ("auto", "ask")


async def test_an_agent_that_a_signal_ended_has_an_exit_code(client: Client, peer: Peer) -> None:
    peer.write(on={"session/prompt": [{"signal": "KILL"}]})
    session = await client.opened()
    await client.prompted(session, "hello")
    whole = await _until(client, session, "error")
    in_v1 = (await client.get(f"/v1/sessions/{session['id']}")).document

    assert whole["process"] == {"state": "exited", "exitCode": 128 + 9}
    assert (in_v1["process"]["exit_code"], in_v1["process"]["signal"]) == (128 + 9, 9)


@demands("S1-023b", "S1-083", "S1-083b")
async def test_a_failed_agent_is_an_error_with_its_last_words(client: Client, peer: Peer) -> None:
    peer.write(on={"session/prompt": [{"stderr": "out of luck\n"}, {"sleep": 0.2}, {"exit": 7}]})
    session = await client.opened()
    await client.prompted(session, "hello")
    whole = await _until(client, session, "error")
    again = await client.prompt(session, text="more")
    # As many as may be open at a time: the failed session counts no more.
    opened = [(await client.opened())["status"] for _ in range(5)]

    said = whole["messages"][-1]["content"]
    assert said["text"].startswith("Agent failed: agent_died")
    assert ("exit code 7" in said["text"], "out of luck" in said["text"]) == (True, True)
    assert whole["process"] == {"state": "exited", "exitCode": 7}
    assert refusal(again) == (409, "session_not_active")
    assert opened == ["active"] * 5


@demands("S1-073", "S1-073b", "S1-073c", "S1-022c")
async def test_a_cancelled_agent_is_asked_to_stop_and_ended(client: Client, peer: Peer) -> None:
    peer.write(on={"session/prompt": [{"mark": "in"}, "until_cancel"]})
    session = await client.opened()
    await client.prompted(session, "hello")
    await asyncio.to_thread(peer.wait_for, "mark", name="in")

    answer = await client.delete(f"/api/sessions/{session['id']}")

    assert (answer.status, answer.document["id"]) == (200, session["id"])
    assert (answer.document["status"], answer.document["process"]["state"]) == (
        "cancelled",
        "exited",
    )
    assert len(peer.got("session/cancel")) == 1
    process = Path(f"/proc/{peer.log('start')[0]['pid']}")
    assert not await asyncio.to_thread(process.exists)


@demands("S0-039")
async def test_an_export_and_costs_name_a_program_as_its_model(client: Client, peer: Peer) -> None:
    peer.write()
    session = await client.opened()
    await client.prompted(session, "hello")
    await client.settled(session)

    answer = await client.get(f"/v1/sessions/{session['id']}/export?format=workflow")

    costs = (await client.get("/v1/costs?group_by=model")).document["data"]

    assert [each["name"] for each in costs] == ["acp:peer"]
    body = parse_workflow(answer.body.decode(), where="it").body
    rows = body["metadata"]["relaviumExport"]["messages"]
    assert [(row["role"], row.get("modelId")) for row in rows] == [
        ("user", None),
        ("assistant", "acp:peer"),
    ]


OPTIONS = [
    {"optionId": "proceed", "name": "Yes", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


async def _question(client: Client, session: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.get(f"/v1/sessions/{session['id']}/approvals?state=waiting")
            if answer.document["data"]:
                found: dict[str, Any] = answer.document["data"][0]
                return found
            await asyncio.sleep(0.02)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("body", "status", "chosen"),
    [
        ({"decision": "allow"}, 200, "proceed"),
        ({"decision": "allow", "option_id": "ever"}, 200, "ever"),
        ({"decision": "deny", "option_id": "no"}, 200, "no"),
        ({"decision": "allow", "option_id": "no"}, 409, "no"),
        ({"decision": "allow", "option_id": "other"}, 409, "no"),
    ],
)
async def test_a_question_shows_the_agents_own_options(
    client: Client, peer: Peer, body: dict[str, Any], status: int, chosen: str
) -> None:
    call = {
        "toolCallId": "c",
        "title": "Run it",
        "kind": "execute",
        "rawInput": {"command": "make"},
    }
    params = {"sessionId": "$session", "toolCall": call, "options": OPTIONS}
    ask = {"ask": {"method": "session/request_permission", "params": params, "as": "asked"}}
    peer.write(on={"session/prompt": [ask, {"text": "done"}, END]})
    session = await client.opened()
    await client.prompted(session, "hello")
    question = await _question(client, session)
    path = f"/v1/sessions/{session['id']}/approvals/{question['id']}"

    answered = await client.post(path, body)
    if status != 200:
        await client.post(path, {"decision": "deny"})
    await client.settled(session)

    assert question["options"] == [
        {"id": "proceed", "name": "Yes", "kind": "allow_once"},
        {"id": "ever", "name": "Always", "kind": "allow_always"},
        {"id": "no", "name": "No", "kind": "reject_once"},
    ]
    assert answered.status == status
    outcome = peer.answers()["asked"]["result"]["outcome"]
    assert outcome == {"outcome": "selected", "optionId": chosen}
