"""`holdfast config`."""

from pathlib import Path

import pytest

from holdfast.config import PLACES
from tests.cli.conftest import Cli


def test_every_setting_says_where_its_value_came_from(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    (home / "holdfast.toml").write_text('[chat]\napproval = "deny"\n[log]\nlevel = "info"\n')
    monkeypatch.setenv("HOLDFAST_LOG", "error")
    monkeypatch.setenv("HOLDFAST_TURNS_AT_A_TIME", "3")

    data = cli("config", "--json").document["data"]

    found = {each["name"]: (each["value"], each["origin"]) for each in data}
    assert set(found) == {"home", *PLACES}
    assert found["home"] == (str(home), "environment")
    assert found["approval"] == ("deny", f"file {home / 'holdfast.toml'}")
    assert found["log_level"] == ("error", "environment")
    assert found["turns_at_a_time"] == (3, "environment")
    assert found["encryption"] == ("auto", "default")
    assert found["workspace_root"] == (None, "default")


def test_settings_are_shown_with_their_other_names(cli: Cli) -> None:
    lines = cli("config").out.splitlines()

    assert lines[0] == "SETTING\tVALUE\tFROM\tSET BY"
    assert "log_level\twarning\tdefault\tHOLDFAST_LOG, log.level" in lines
    assert "workspace_root\t-\tdefault\tAGENT_WORKSPACE_ROOT, workspace.root" in lines


def test_a_setting_that_is_wrong_is_invalid(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "loud")

    ran = cli("config", "--json")

    assert (ran.code, ran.error["error"]) == (2, "config_invalid")
