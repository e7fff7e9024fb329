"""Programs that are looked at without a turn: who they are, what they keep, where they are."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.agent_command import StartSettings
from holdfast.acp.client.presets import PRESETS, detect, detect_version
from holdfast.acp.client.probe import (
    AgentIntroduction,
    StoredAgentSession,
    list_agent_sessions,
    probe_agent,
)
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.secrets import Secret
from tests.acp.scripted_agents import Peer

pytestmark = pytest.mark.anyio

MET: dict[str, Any] = {
    "protocolVersion": 1,
    "agentInfo": {"name": "peer", "version": "1.2"},
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False},
        "sessionCapabilities": {"list": {}, "_meta": {}},
        "_meta": {"own": {}},
    },
    "authMethods": [{"id": "key", "name": "A key"}, {"name": "nameless"}],
}
GREETING = {"initialize": [{"reply": MET}]}


async def _no_secret(_: str) -> Secret | None:
    return None


YARD = StartSettings(environment=dict(os.environ), secret=_no_secret)


def runtime_of(folder: Path, **script: Any) -> tuple[Peer, AcpRuntime]:
    """Return a scripted program, and how it is run."""
    peer = Peer(folder / "peer", **script)
    return peer, AcpRuntime(command=peer.argv[0], args=peer.argv[1:])


def _is_there(path: str) -> bool:
    return os.path.exists(path)


def _living(peer: Peer) -> list[int]:
    return [each["pid"] for each in peer.log("start") if _is_there(f"/proc/{each['pid']}")]


async def test_a_program_says_who_it_is_and_is_ended(tmp_path: Path) -> None:
    peer, runtime = runtime_of(tmp_path, on=GREETING)

    assert await probe_agent(YARD, runtime) == AgentIntroduction(
        name="peer",
        version="1.2",
        protocol=1,
        can=("loadSession", "promptCapabilities.image", "sessionCapabilities.list"),
        sign_in=("key",),
    )
    assert ([each["method"] for each in peer.got()], _living(peer)) == (["initialize"], [])


async def test_a_deep_look_opens_a_session_nowhere_and_tells_its_modes(tmp_path: Path) -> None:
    opened = {
        "modes": {"currentModeId": "ask", "availableModes": [{"id": "ask"}, {"id": "plan"}]},
        "configOptions": [
            {"id": "mode", "category": "mode", "options": [{"value": "plan"}, {"value": "act"}]}
        ],
    }
    peer, runtime = runtime_of(tmp_path, session=opened)

    assert (await probe_agent(YARD, runtime, is_deep=True)).modes == ("ask", "plan", "act")
    folder = peer.got("session/new")[0]["params"]["cwd"]
    assert (folder[0], _is_there(folder), _living(peer)) == ("/", False, [])


async def test_the_sessions_that_a_program_keeps_come_page_by_page(tmp_path: Path) -> None:
    first = {
        "sessions": [
            {"sessionId": "a", "cwd": "/srv", "title": "First", "updatedAt": "2026-01-02"},
            {"title": "nameless"},
        ],
        "nextCursor": "more",
    }
    pages = [[{"reply": first}], [{"reply": {"sessions": [{"sessionId": "b"}]}}]]
    peer, runtime = runtime_of(tmp_path, on={**GREETING, "session/list": pages})

    found = await list_agent_sessions(YARD, runtime, str(tmp_path))
    await list_agent_sessions(YARD, runtime, str(tmp_path), is_everywhere=True)

    assert found == [
        StoredAgentSession(id="a", title="First", folder="/srv", updated_at="2026-01-02"),
        StoredAgentSession(id="b", title=None, folder=None, updated_at=None),
    ]
    assert [each["params"] for each in peer.got("session/list")] == [
        {"cwd": str(tmp_path)},
        {"cwd": str(tmp_path), "cursor": "more"},
        {},
        {"cursor": "more"},
    ]


async def test_a_list_without_an_end_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.probe.PAGES_MOST", 3)
    page = {"sessions": [{"sessionId": "a"}], "nextCursor": "again"}
    _, runtime = runtime_of(tmp_path, on={**GREETING, "session/list": [{"reply": page}]})

    assert len(await list_agent_sessions(YARD, runtime, str(tmp_path))) == 3


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "another version": (
        {"initialize": [{"reply": MET | {"protocolVersion": 2}}]},
        "uses ACP version 1, the agent offered 2",
    ),
    "an end": ({"initialize": [{"stderr": "no key\n"}, {"exit": 3}]}, "Its last output: no key"),
    "a refusal": (
        {**GREETING, "session/list": [{"error": {"code": -32602, "message": "no such folder"}}]},
        "-32602: no such folder",
    ),
    "no answer": ({**GREETING, "session/list": []}, "did not answer in time"),
    "no list": ({}, "does not support listing its sessions"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_cannot_be_learned_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr("holdfast.acp.client.probe._LIST_SECONDS", 0.5)
    on, words = REFUSALS[case]
    peer, runtime = runtime_of(tmp_path, on=on)

    with pytest.raises(Unavailable) as refused:
        await list_agent_sessions(YARD, runtime, str(tmp_path))

    assert (refused.value.code, _living(peer)) == (Code.AGENT_UNAVAILABLE, [])
    assert words in refused.value.message


async def test_a_file_that_the_system_does_not_run_is_told(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no program")
    program.chmod(0o755)

    with pytest.raises(Unavailable) as refused:
        await probe_agent(YARD, AcpRuntime(command=str(program)))

    assert "cannot be started" in refused.value.message


def install(folder: Path, name: str, script: str) -> Path:
    """Put a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(script)
    program.chmod(0o755)
    return program


async def test_programs_are_found_with_their_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.presets.VERSION_SECONDS", 1.0)
    places, package = tmp_path / "bin", tmp_path / "lib" / "gemini-cli"
    script = install(package / "bundle", "gemini.js", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (package / "bundle" / "package.json").write_text("not even json")
    (package / "package.json").write_text('{"name": "@google/gemini-cli", "version": "0.61.0"}')
    install(places, "goose", "#!/bin/sh\necho goose 1.2.3-beta\n")
    install(places, "opencode", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 60\n")
    install(places, "qwen", "no program at all\n")
    install(places, "hermes-acp", f"#!{sys.executable}\nraise SystemExit(1)\n")
    (places / "python3").symlink_to(sys.executable)
    (places / "gemini").symlink_to(script)

    found = {each.preset: each for each in await detect({"PATH": str(places)})}

    assert list(found) == sorted(PRESETS)
    versions = {name: each.version for name, each in found.items() if each.path is not None}
    assert versions == {
        "gemini": "0.61.0",
        "goose": "1.2.3-beta",
        "hermes": None,
        "opencode": None,
        "qwen": None,
    }
    assert found["codex"].install == PRESETS["codex"].install
    assert not (tmp_path / "ran").exists()
    assert not _is_there(f"/proc/{int((tmp_path / 'pid').read_text())}")


async def test_a_program_that_cannot_be_read_has_no_version(tmp_path: Path) -> None:
    # Found on the way, and gone when it is looked at.
    missing = str(tmp_path / "gone")
    assert await detect_version(missing, PRESETS["goose"], {}) is None
