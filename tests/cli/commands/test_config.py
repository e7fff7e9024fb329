"""`holdfast config`."""

from pathlib import Path

import pytest

from holdfast.config import SETTING_KEYS
from tests.cli.conftest import Cli

CREDENTIALS = '[[credentials]]\nhost = "api.example.com"\nsecret = "example"\n'


def test_every_setting_says_where_its_value_came_from(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text('[chat]\napproval = "deny"\n[log]\nlevel = "info"\n')
    monkeypatch.setenv("HOLDFAST_LOG", "error")
    monkeypatch.setenv("HOLDFAST_TURNS_AT_A_TIME", "3")

    data = cli("config", "--json").document["data"]

    found = {each["name"]: (each["value"], each["origin"]) for each in data}
    assert set(found) == {"home", *SETTING_KEYS}
    assert found["home"] == (str(home), "environment")
    assert found["approval"] == ("deny", f"file {home / 'holdfast.toml'}")
    assert found["log_level"] == ("error", "environment")
    assert found["turns_at_a_time"] == (3, "environment")
    assert found["encryption"] == ("auto", "default")
    assert found["workspace_root"] == (None, "default")


def test_values_of_every_kind_are_shown_as_they_are_written(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text(f'[chat]\nextra_roots = ["/srv/a"]\n{CREDENTIALS}')
    monkeypatch.setenv("HOLDFAST_CHAT_ALLOWED_COMMANDS", "make test, git status")
    monkeypatch.setenv("HOLDFAST_APPROVALS_EXPIRE_AFTER", "90m")

    data = cli("config", "--json").document["data"]
    rows = [line.split("\t")[:3] for line in cli("config").out.splitlines()]

    found = {each["name"]: each["value"] for each in data}
    assert found["chat.allowed_commands"] == ["make test", "git status"]
    assert found["chat.extra_roots"] == ["/srv/a"]
    assert found["chat.allow_unpriced"] is True
    assert found["approvals_expire_after"] == "90m"
    assert found["credentials"] == [{"host": "api.example.com", "secret": "example"}]
    assert ["chat.allowed_commands", "make test, git status", "environment"] in rows
    assert ["chat.command_env", "-", "default"] in rows
    assert ["chat.allow_unpriced", "true", "default"] in rows
    assert ["credentials", "api.example.com (example)", f"file {home / 'holdfast.toml'}"] in rows


def test_a_server_is_shown_by_its_name_and_where_it_is(cli: Cli, home: Path) -> None:
    home.mkdir()
    program = '[mcp.servers.files]\ncommand = "mcp-files"\nargs = ["--all"]\n'
    address = '[mcp.servers.docs]\nurl = "https://docs.example.com/mcp"\n'
    (home / "holdfast.toml").write_text(program + address)

    rows = [line.split("\t")[:2] for line in cli("config").out.splitlines()]

    shown = "files (mcp-files), docs (https://docs.example.com/mcp)"
    assert ["mcp_servers", shown] in rows


@pytest.mark.parametrize(
    ("given", "shown"), [("86400", "24h"), ("90", "90s"), ("0.5", "0.5s"), ("2d", "48h")]
)
def test_a_length_of_time_is_shown_in_its_largest_unit(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, given: str, shown: str
) -> None:
    monkeypatch.setenv("HOLDFAST_APPROVALS_EXPIRE_AFTER", given)

    data = cli("config", "--json").document["data"]

    assert {each["name"]: each["value"] for each in data}["approvals_expire_after"] == shown


def test_settings_are_shown_with_their_other_names(cli: Cli) -> None:
    lines = cli("config").out.splitlines()

    assert lines[0] == "SETTING\tVALUE\tFROM\tSET BY"
    assert "log_level\twarning\tdefault\tHOLDFAST_LOG, log.level" in lines
    assert "workspace_root\t-\tdefault\tAGENT_WORKSPACE_ROOT, workspace.root" in lines
    assert "chat.fs_scope\tsandboxed\tdefault\tHOLDFAST_CHAT_FS_SCOPE, chat.fs_scope" in lines
    assert "credentials\t-\tdefault\tcredentials" in lines


def test_a_setting_that_is_wrong_is_invalid(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "loud")

    ran = cli("config", "--json")

    assert (ran.code, ran.error["error"]) == (2, "config_invalid")


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("gpt-4o", "openai:gpt-4o"),
        ("claude-haiku-4-5", "anthropic:claude-haiku-4-5"),
        ("gemini-2.5-pro", "google:gemini-2.5-pro"),
        ("sk-0123456789", "offline:holdfast"),
    ],
)
def test_a_model_without_its_provider_is_refused_with_the_one_it_probably_is_of(
    cli: Cli, name: str, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODEL", name)

    assert cli("doctor", "--json").error["message"] == (
        f"HOLDFAST_MODEL must have the form provider:name, for example {example}."
    )


@pytest.mark.parametrize("command", [["config"], ["doctor"], ["sessions", "list"]])
def test_a_model_that_is_none_is_refused_by_every_command(
    cli: Cli, home: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    file = home / "holdfast.toml"
    file.write_text('[chat]\ndefault_model = "nope"\n')

    from_file = cli(*command, "--json")
    file.unlink()
    monkeypatch.setenv("HOLDFAST_MODEL", "nope")
    from_environment = cli(*command, "--json")

    told = "must have the form provider:name, for example offline:holdfast."
    assert (from_file.code, from_file.out) == (2, "")
    assert from_file.error == {
        "error": "config_invalid",
        "message": f"{file}, line 2: chat.default_model {told}",
        "details": {"file": str(file), "line": 2, "key": "chat.default_model"},
    }
    assert from_environment.code == 2
    assert from_environment.error["message"] == f"HOLDFAST_MODEL {told}"
