"""`holdfast agents detect`, `holdfast agents create --preset` and agents that are programs."""

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.presets import PRESETS
from tests.acp.scripted_agents import Peer
from tests.cli.conftest import Cli
from tests.marks import each_case

_YES = ("--yes-to", "execute")
_DONE = {"reply": {"stopReason": "end_turn"}}


def install(folder: Path, name: str, script: str) -> Path:
    """Put a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be the only folder in which programs are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_programs_that_are_missing_are_told_with_the_way_to_get_them(
    cli: Cli, bin_folder: Path
) -> None:
    ran, plain = cli("agents", "detect", "--json"), cli("agents", "detect")

    data = ran.document["data"]
    assert [each["preset"] for each in data] == sorted(PRESETS)
    assert {each["path"] for each in data} == {None}
    assert {
        "preset": "gemini",
        "title": "Gemini CLI",
        "command": "gemini",
        "path": None,
        "version": None,
        "install": "npm install -g @google/gemini-cli",
    } in data
    assert "not installed; npm install -g @google/gemini-cli" in plain.out


def test_a_version_is_read_from_the_package_without_running_the_program(
    cli: Cli, bin_folder: Path, tmp_path: Path
) -> None:
    package = tmp_path / "lib" / "gemini-cli"
    program = install(package / "bundle", "gemini.js", "#!/bin/sh\ntouch ran\n")
    (package / "bundle" / "package.json").write_text("not even json")
    (package / "package.json").write_text('{"name": "@google/gemini-cli", "version": "0.61.0"}')
    (bin_folder / "gemini").symlink_to(program)

    first = cli("agents", "detect", "--json").document["data"][0]

    assert (first["preset"], first["version"]) == ("gemini", "0.61.0")
    assert first["path"] == str(bin_folder / "gemini")
    assert not Path("ran").exists()


def test_a_python_program_is_known_by_what_its_interpreter_has_installed(
    cli: Cli, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(bin_folder, "hermes-acp", f"#!{sys.executable}\nraise SystemExit(1)\n")
    (bin_folder / "python3").symlink_to(sys.executable)

    found = {each["preset"]: each for each in cli("agents", "detect", "--json").document["data"]}

    # The script is there, and what it belongs to is not installed; of the other, only Python is.
    assert (found["hermes"]["path"] is not None, found["hermes"]["version"]) == (True, None)
    assert (found["deepagents"]["path"], found["deepagents"]["version"]) == (None, None)


def test_another_program_is_asked_and_one_that_does_not_answer_is_ended(
    cli: Cli, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.acp.client.presets.VERSION_SECONDS", 0.5)
    install(bin_folder, "goose", "#!/bin/sh\necho goose 1.2.3-beta\n")
    install(bin_folder, "opencode", f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec /bin/sleep 60\n")
    install(bin_folder, "qwen", "no program at all\n")

    found = {each["preset"]: each for each in cli("agents", "detect", "--json").document["data"]}

    assert found["goose"]["version"] == "1.2.3-beta"
    assert (found["opencode"]["path"] is not None, found["opencode"]["version"]) == (True, None)
    assert (found["qwen"]["path"] is not None, found["qwen"]["version"]) == (True, None)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_is_there_stands_first(cli: Cli, bin_folder: Path) -> None:
    install(bin_folder, "vibe-acp", "#!/bin/sh\necho 3.0\n")

    plain = cli("agents", "detect").out.splitlines()

    assert plain[0] == "PRESET\tAGENT\tVERSION\tPROGRAM"
    assert plain[1] == f"vibe\tMistral Vibe\t3.0\t{bin_folder / 'vibe-acp'}"
    assert len(plain) == 1 + len(PRESETS)


def test_detection_is_about_this_machine(cli: Cli) -> None:
    afar = cli("--server", "http://127.0.0.1:9", "agents", "detect", "--json")

    assert (afar.code, afar.error["error"]) == (2, "invalid_input")


def test_the_doctor_names_the_programs_that_are_there(cli: Cli, bin_folder: Path) -> None:
    nothing = cli("doctor")
    program = install(bin_folder, "goose", "#!/bin/sh\necho 1.2.3\n")

    told, plain = cli("doctor", "--json"), cli("doctor")

    assert "programs     none; `holdfast agents detect` shows how to install some\n" in nothing.out
    assert told.document["programs"] == [
        {"preset": "goose", "version": "1.2.3", "path": str(program)}
    ]
    assert "programs     goose 1.2.3\n" in plain.out


def test_an_agent_is_made_from_a_preset(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    made = cli("agents", "create", "--preset", "gemini", "--slug", "mine", "--json").document
    plain = cli("agents", "show", "mine").out

    assert (made["slug"], made["name"], made["grant"]) == ("mine", "Gemini CLI", None)
    assert made["runtime"] == {
        "type": "acp",
        "command": "gemini",
        "args": ["--acp"],
        "env_names": ["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        "options": {
            "fs_missing": "empty",
            "with_servers": {"GEMINI_CLI_TRUST_WORKSPACE": "true"},
            "install": "npm install -g @google/gemini-cli",
            "preset": "gemini",
        },
    }
    assert "program        gemini --acp\n" in plain


def test_what_is_said_goes_before_what_the_preset_says(cli: Cli) -> None:
    made = cli(
        "agents", "create", "--preset", "codex", "--name", "My Codex", "--command", "/opt/codex",
        "--arg=--fast", "--arg", "x y", "--env", "CODEX_HOME=/srv/a=b", "--env-name", "MY_KEY",
        "--mode", "read-only", "--tag", "a", "--json",
    ).document  # fmt: skip

    runtime = made["runtime"]
    assert (made["name"], made["slug"], made["tags"]) == ("My Codex", "codex", ["a"])
    assert (runtime["command"], runtime["args"]) == ("/opt/codex", ["--fast", "x y"])
    assert runtime["env_names"] == ["OPENAI_API_KEY", "CODEX_API_KEY", "MY_KEY"]
    assert runtime["options"]["environment"] == {"CODEX_HOME": "/srv/a=b"}
    assert runtime["options"]["mode"] == "read-only"


def test_any_program_can_be_an_agent(cli: Cli) -> None:
    made = cli(
        "agents", "create", "--name", "Own", "--command", "my-agent", "--arg=--acp", "--json"
    ).document

    assert made["runtime"] == {
        "type": "acp",
        "command": "my-agent",
        "args": ["--acp"],
        "env_names": [],
        "options": {},
    }


def test_a_program_that_needs_a_word_as_root_gets_it_as_root_only(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    root = cli("agents", "create", "--preset", "claude", "--slug", "a", "--json").document
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    person = cli("agents", "create", "--preset", "claude", "--slug", "b", "--json").document

    assert root["runtime"]["options"]["environment"] == {"IS_SANDBOX": "1"}
    assert "environment" not in person["runtime"]["options"]


@each_case(
    ("words", "told"),
    [
        (("--preset", "nobody"), "There is no preset nobody; use one of claude, codex,"),
        (("--name", "x", "--mode", "plan"), "--mode requires a program"),
        (("--name", "x", "--arg=-v", "--env", "A=1"), "--arg, --env requires a program"),
        (("--preset", "gemini", "--env", "A"), "Write a variable as --env NAME=VALUE."),
        (("--preset", "gemini", "--env", "GEMINI_API_KEY=abc"), "use --env-name GEMINI_API_KEY"),
        (("--preset", "gemini", "--model", "offline:holdfast"), "chooses its own models"),
        (("--slug", "x"), "An agent needs a name"),
    ],
)
def test_what_cannot_be_made_is_refused_and_leaves_nothing(
    cli: Cli, words: tuple[str, ...], told: str
) -> None:
    ran = cli("agents", "create", *words, "--json")

    assert ran.code == 2
    assert told in ran.error["message"]
    assert "abc" not in ran.err
    assert cli("agents", "list", "--json").document["data"] == []


def test_gemini_is_there_without_being_made_and_can_be_changed(cli: Cli) -> None:
    shown = cli("agents", "show", "gemini", "--json").document
    cli("agents", "archive", "gemini")
    again = cli("agents", "show", "gemini", "--json").document

    assert (shown["slug"], shown["runtime"]["command"]) == ("gemini", "gemini")
    assert (again["id"], again["status"]) == (shown["id"], "archived")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder of a Git work tree."""
    root = tmp_path / "a tree"
    (root / ".git").mkdir(parents=True)
    (root / "deep" / "folder").mkdir(parents=True)
    monkeypatch.chdir(root / "deep" / "folder")
    return root


def a_peer(cli: Cli, folder: Path, **script: Any) -> Peer:
    """Make the scripted program an agent."""
    peer = Peer(folder / "peer", **script)
    program, *words = peer.argv
    cli(
        "agents",
        "create",
        "--name",
        "Peer",
        "--command",
        program,
        f"--writable={peer.folder}",
        *(f"--arg={w}" for w in words),
    )
    return peer


def test_a_program_answers_in_the_repository_around_the_folder(
    cli: Cli, tmp_path: Path, repository: Path
) -> None:
    peer = a_peer(cli, tmp_path, on={"session/prompt": [{"text": "Aye."}, _DONE]})

    ran = cli("chat", "hello", "--agent", "peer")
    repos = cli("repos", "list", "--json").document["data"]

    assert (ran.code, ran.out) == (0, "Aye.\n")
    assert [each["path"] for each in repos] == [str(repository)]
    assert peer.log("start")[0]["cwd"] == str(repository)
    assert peer.got("session/new")[0]["params"]["cwd"] == str(repository)


def test_a_repository_that_is_named_is_the_one(cli: Cli, tmp_path: Path, repository: Path) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    peer = a_peer(cli, tmp_path)

    ran = cli("chat", "hello", "--agent", "peer", "--repo", str(other))

    assert (ran.code, ran.out) == (0, "ok\n")
    assert peer.log("start")[0]["cwd"] == str(other)


def test_a_program_that_is_missing_leaves_nothing_behind(
    cli: Cli, repository: Path, bin_folder: Path
) -> None:
    for more in ((), ("--repo", str(repository))):
        ran = cli("chat", "hello", "--agent", "gemini", *more, "--json")

        assert (ran.code, ran.error["error"]) == (7, "agent_unavailable")
        assert "npm install -g @google/gemini-cli" in ran.error["message"]
    assert cli("repos", "list", "--json").document["data"] == []
    assert cli("sessions", "list", "--json").document["data"] == []


def test_a_well_known_program_that_is_no_agent_yet_is_told_how_to_become_one(cli: Cli) -> None:
    ran, made = (
        cli("chat", "--agent", "goose", "hello"),
        cli("agents", "create", "--preset", "goose"),
    )
    again = cli("chat", "--agent", "goose", "hello")

    told = "There is no agent goose yet; create it with `holdfast agents create --preset goose`."
    assert (ran.code, ran.err, made.code) == (4, f"holdfast: {told}\n", 0)
    assert "There is no agent" not in again.err


def test_a_program_works_in_a_repository_only(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_peer(cli, tmp_path)
    monkeypatch.chdir(tmp_path)

    ran = cli("chat", "hello", "--agent", "peer", "--json")

    assert (ran.code, ran.error["error"]) == (2, "repo_required")
    assert "name one with --repo" in ran.error["message"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("flags", "told"), [((), "denied, by unattended"), (_YES, "by flag")])
def test_a_flag_answers_for_a_kind_of_call(
    cli: Cli, tmp_path: Path, repository: Path, flags: tuple[str, ...], told: str
) -> None:
    call = {"toolCallId": "c", "title": "rm -r probe", "kind": "execute", "status": "pending"}
    options = [
        {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        {"optionId": "no", "name": "No", "kind": "reject_once"},
    ]
    params = {"sessionId": "$session", "toolCall": call, "options": options}
    asked = {"method": "session/request_permission", "params": params, "as": "may", "wait": True}
    peer = a_peer(cli, tmp_path, on={"session/prompt": [{"ask": asked}, _DONE]})

    ran = cli("chat", "hello", "--agent", "peer", *flags)

    chosen = peer.answers()["may"]["result"]["outcome"]["optionId"]
    assert (ran.code, chosen) == (0, "yes" if flags else "no")
    assert told in ran.err
