"""`holdfast agents check` and `holdfast agents sessions`: an agent's program, looked at briefly."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.acp.scripted_agents import Peer
from tests.cli.conftest import Cli

pytestmark = pytest.mark.slow

INTRODUCTION: dict[str, Any] = {
    "protocolVersion": 1,
    "agentInfo": {"name": "peer", "title": "A Peer", "version": "1.2"},
    "agentCapabilities": {
        "loadSession": True,
        "promptCapabilities": {"image": True, "audio": False},
        "sessionCapabilities": {"list": {}, "_meta": {}},
        "_meta": {"own": {}},
    },
    "authMethods": [{"id": "key", "name": "A key"}, {"name": "nameless"}],
}
MODES = {"availableModes": [{"id": "ask"}, {"id": "yolo"}], "currentModeId": "ask"}


def greeting(**others: Any) -> list[dict[str, Any]]:
    """Return what the peer says of itself."""
    return [{"reply": INTRODUCTION | others}]


def a_peer(cli: Cli, folder: Path, **script: Any) -> Peer:
    """Make the scripted program an agent."""
    peer = Peer(folder / "peer", **script)
    program, *words = peer.argv
    made = cli(
        "agents",
        "create",
        "--name",
        "Peer",
        "--command",
        program,
        f"--writable={peer.folder}",
        *(f"--arg={w}" for w in words),
    )
    assert made.code == 0, made.err
    return peer


def is_alive(pid: int) -> bool:
    """Tell whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_program_says_who_it_is_and_is_ended(cli: Cli, tmp_path: Path) -> None:
    peer = a_peer(cli, tmp_path, on={"initialize": greeting()})

    ran, plain = cli("agents", "check", "peer", "--json"), cli("agents", "check", "peer")

    assert ran.document == {
        "name": "A Peer",
        "version": "1.2",
        "protocol": 1,
        "can": ["loadSession", "promptCapabilities.image", "sessionCapabilities.list"],
        "sign_in": ["key"],
        "modes": None,
    }
    assert plain.out.splitlines()[0] == "agent         A Peer 1.2"
    # No probing: nothing was asked beyond the greeting.
    assert [each["method"] for each in peer.got()] == ["initialize", "initialize"]
    assert not any(is_alive(each["pid"]) for each in peer.log("start"))


def test_a_deep_look_opens_a_session_in_an_empty_folder(cli: Cli, tmp_path: Path) -> None:
    peer = a_peer(cli, tmp_path, on={"initialize": greeting()}, session={"modes": MODES})

    ran = cli("agents", "check", "peer", "--deep", "--json").document
    plain = cli("agents", "check", "peer", "--deep")

    assert ran["modes"] == ["ask", "yolo"]
    assert "session       opened\nmodes         ask, yolo\n" in plain.out
    folder = peer.got("session/new")[0]["params"]["cwd"]
    assert Path(folder) != Path.cwd()
    assert not Path(folder).exists()


def test_modes_may_be_told_as_an_option(cli: Cli, tmp_path: Path) -> None:
    options = [
        {"id": "model", "category": "model", "options": [{"value": "m"}]},
        {"id": "mode", "category": "mode", "options": [{"value": "plan"}, {"value": "act"}]},
        {"id": "odd", "category": "mode"},
    ]
    a_peer(cli, tmp_path, session={"configOptions": options})

    ran = cli("agents", "check", "peer", "--deep", "--json").document

    assert (ran["modes"], ran["can"]) == (["plan", "act"], [])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("script", "told"),
    [
        (
            {"on": {"initialize": greeting(protocolVersion=2)}},
            "uses ACP version 1, the agent offered 2",
        ),
        ({"start": [{"stderr": "no key\n"}, {"exit": 3}]}, "Its last output: no key"),
        (
            {"on": {"initialize": [{"error": {"code": -32603, "message": "no"}}]}},
            "rejected the request",
        ),
    ],
)
def test_a_program_that_cannot_be_spoken_with_is_told_with_its_reason(
    cli: Cli, tmp_path: Path, script: dict[str, Any], told: str
) -> None:
    a_peer(cli, tmp_path, **script)

    ran = cli("agents", "check", "peer", "--json")

    assert (ran.code, ran.error["error"]) == (7, "agent_unavailable")
    assert told in ran.error["message"]


def test_a_session_that_needs_somebody_to_sign_in_is_told(cli: Cli, tmp_path: Path) -> None:
    refusal = [{"error": {"code": -32000, "message": "sign in"}}]
    a_peer(cli, tmp_path, on={"initialize": greeting(), "session/new": refusal})

    shallow = cli("agents", "check", "peer", "--json")
    deep = cli("agents", "check", "peer", "--deep", "--json")

    assert shallow.code == 0
    assert deep.code == 7
    assert "It offers: key (A key)" in deep.error["message"]


def test_no_secret_is_told(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_API_KEY", "abcdefgh-secret")
    a_peer(cli, tmp_path, start=[{"stderr": "bad key abcdefgh-secret\n"}, {"exit": 1}])

    ran = cli("agents", "check", "peer", "--json")

    assert ran.code == 7
    assert "abcdefgh-secret" not in ran.err
    assert "bad key" in ran.error["details"]["stderr"]


def test_a_missing_program_is_told_with_the_way_to_get_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    ran = cli("agents", "check", "gemini", "--json")

    assert (ran.code, ran.error["error"]) == (7, "agent_unavailable")
    assert "npm install -g @google/gemini-cli" in ran.error["message"]


def test_an_agent_that_asks_a_model_has_no_program(cli: Cli) -> None:
    cli("agents", "create", "--name", "one")

    for verb in ("check", "sessions"):
        ran = cli("agents", verb, "one", "--json")
        assert (ran.code, ran.error["error"]) == (2, "invalid_input")
        assert "uses a model and has no program to start" in ran.error["message"]


def test_the_sessions_that_a_program_keeps_are_listed_page_by_page(
    cli: Cli, tmp_path: Path
) -> None:
    first = {
        "sessions": [
            {"sessionId": "a", "cwd": "/srv/one", "title": "First", "updatedAt": "2026-01-02"},
            {"title": "nameless"},
        ],
        "nextCursor": "more",
    }
    second = {"sessions": [{"sessionId": "b"}]}
    peer = a_peer(
        cli,
        tmp_path,
        on={
            "initialize": greeting(),
            "session/list": [[{"reply": first}], [{"reply": second}]],
        },
    )

    ran = cli("agents", "sessions", "peer", "--cwd", str(tmp_path), "--json")
    everywhere = cli("agents", "sessions", "peer", "--all")

    assert ran.document["data"] == [
        {"id": "a", "title": "First", "folder": "/srv/one", "updated_at": "2026-01-02"},
        {"id": "b", "title": None, "folder": None, "updated_at": None},
    ]
    assert [each["params"] for each in peer.got("session/list")][:2] == [
        {"cwd": str(tmp_path)},
        {"cwd": str(tmp_path), "cursor": "more"},
    ]
    assert peer.got("session/list")[2]["params"] == {}
    assert everywhere.out.splitlines()[0] == "ID\tUPDATED\tFOLDER\tTITLE"


def test_a_program_that_keeps_none_or_does_not_tell_is_no_surprise(
    cli: Cli, tmp_path: Path
) -> None:
    a_peer(cli, tmp_path, on={"initialize": greeting(), "session/list": [{"reply": {}}]})
    nothing = cli("agents", "sessions", "peer")
    Peer(tmp_path / "peer")
    silent = cli("agents", "sessions", "peer", "--json")

    assert (nothing.code, nothing.out) == (0, "")
    assert "use --all to list those of all folders" in nothing.err
    assert (silent.code, silent.error["error"]) == (7, "agent_unavailable")
    assert "does not support listing its sessions" in silent.error["message"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ([{"error": {"code": -32602, "message": "no such folder"}}], "-32602: no such folder"),
        ([], "did not answer in time"),
    ],
)
def test_a_list_that_is_refused_or_never_comes_is_told(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[dict[str, Any]],
    told: str,
) -> None:
    monkeypatch.setattr("holdfast.acp.client.probe._LIST_SECONDS", 0.5)
    a_peer(cli, tmp_path, on={"initialize": greeting(), "session/list": steps})

    ran = cli("agents", "sessions", "peer", "--json")

    assert (ran.code, ran.error["error"]) == (7, "agent_unavailable")
    assert told in ran.error["message"]


def test_a_list_without_an_end_is_cut(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.probe.PAGES_MOST", 3)
    page = {"sessions": [{"sessionId": "a"}], "nextCursor": "on and on"}
    a_peer(cli, tmp_path, on={"initialize": greeting(), "session/list": [{"reply": page}]})

    ran = cli("agents", "sessions", "peer", "--json")

    assert [each["id"] for each in ran.document["data"]] == ["a", "a", "a"]


def test_a_program_that_the_system_does_not_start_is_told(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "broken"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    cli("agents", "create", "--name", "Broken", "--command", str(program))

    ran = cli("agents", "check", "broken", "--json")

    assert (ran.code, ran.error["error"]) == (7, "agent_unavailable")
    assert "cannot be started: no such file or directory" in ran.error["message"]


def test_looking_is_about_this_machine(cli: Cli) -> None:
    for verb in ("check", "sessions"):
        afar = cli("--server", "http://127.0.0.1:9", "agents", verb, "gemini", "--json")
        assert (afar.code, afar.error["error"]) == (2, "invalid_input")
