"""The configuration: flags before environment before file before defaults, and nothing unknown."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import PLACES, Config, default_home, explain, load
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Invalid

OTHERS: dict[str, tuple[str, Any, str, Any]] = {
    # setting: as text in the environment, as a value, in the file, as a value
    "default_model": ("a:env", "a:env", '"a:file"', "a:file"),
    "approval": ("deny", ApprovalMode.DENY, '"edits"', ApprovalMode.EDITS),
    "encryption": ("off", "off", '"keychain"', "keychain"),
    "turns_at_a_time": ("3", 3, "4", 4),
    "workspace_root": ("/srv/env", Path("/srv/env"), '"/srv/file"', Path("/srv/file")),
    "idle_timeout_minutes": ("0.5", 0.5, "7", 7.0),
    "max_concurrent_sessions": ("8", 8, "9", 9),
    "log_level": ("debug", "debug", '"error"', "error"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a home."""
    return tmp_path


def _load(folder: Path, environment: dict[str, str] | None = None, **flags: Any) -> Config:
    return load({"home": folder, **flags}, environment or {})


def _write(folder: Path, content: str) -> None:
    (folder / "holdfast.toml").write_text(content)


def test_without_anything_said_the_defaults_hold(folder: Path) -> None:
    assert _load(folder) == Config(
        home=folder,
        default_model="offline:holdfast",
        approval=ApprovalMode.ASK,
        encryption="auto",
        turns_at_a_time=64,
        workspace_root=None,
        idle_timeout_minutes=30,
        max_concurrent_sessions=5,
        log_level="warning",
    )


def test_every_setting_has_its_places() -> None:
    assert set(PLACES) == set(Config.__struct_fields__) - {"home"} == set(OTHERS)
    assert len({place[:2] for place in PLACES.values()}) == len(PLACES)
    assert len({place[2] for place in PLACES.values()}) == len(PLACES)


@pytest.mark.parametrize("setting", list(PLACES))
def test_a_flag_beats_the_environment_which_beats_the_file(folder: Path, setting: str) -> None:
    section, key, variable = PLACES[setting]
    text, from_environment, in_file, from_file = OTHERS[setting]
    default = getattr(_load(folder), setting)

    _write(folder, f"[{section}]\n{key} = {in_file}\n")
    assert getattr(_load(folder), setting) == from_file != default
    assert getattr(_load(folder, {variable: text}), setting) == from_environment != from_file
    assert getattr(_load(folder, {variable: ""}), setting) == from_file
    assert getattr(_load(folder, {variable: text}, **{setting: default}), setting) == (
        default if default is not None else from_environment
    )
    assert getattr(_load(folder, {variable: text}, **{setting: None}), setting) == from_environment


def test_each_value_says_where_it_came_from(folder: Path) -> None:
    _write(folder, '[chat]\ndefault_model = "a:b"\n[log]\nlevel = "error"\n')

    _, origins = explain({"home": folder, "approval": "deny"}, {"HOLDFAST_LOG": "debug"})

    assert origins == dict.fromkeys(Config.__struct_fields__, "default") | {
        "home": "flag",
        "approval": "flag",
        "log_level": "environment",
        "default_model": f"file {folder / 'holdfast.toml'}",
    }


def test_the_home_is_a_flag_a_variable_or_the_platforms_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = {"HOLDFAST_HOME": str(folder / "variable")}
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))

    assert load({"home": folder / "flag"}, variable).home == folder / "flag"
    assert explain({}, variable)[1]["home"] == "environment"
    assert load({}, variable).home == folder / "variable"
    assert load({"home": None}, {}).home == default_home() == folder / "data" / "holdfast"
    assert explain({}, {})[1]["home"] == "default"


def test_a_home_becomes_an_absolute_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder / "me"))

    assert load({"home": "here"}, {}).home == folder / "here"
    assert load({"home": "~/there"}, {}).home == folder / "me" / "there"
    assert load({}, {"HOLDFAST_HOME": "~"}).home == folder / "me"


def test_the_process_own_environment_is_read_when_none_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LOG", "info")

    assert load({"home": folder}).log_level == "info"


def test_another_file_can_be_named(folder: Path) -> None:
    other = folder / "other.toml"
    other.write_text('[log]\nlevel = "error"\n')
    _write(folder, '[log]\nlevel = "debug"\n')

    assert _load(folder, {"HOLDFAST_CONFIG": str(other)}).log_level == "error"
    assert load({"home": folder}, {}, other).log_level == "error"


def _refused(folder: Path, environment: dict[str, str] | None = None, **flags: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        _load(folder, environment, **flags)
    assert caught.value.code is Code.CONFIG_INVALID
    return caught.value


def test_a_named_file_that_is_missing_is_refused(folder: Path) -> None:
    missing = str(folder / "missing.toml")

    assert missing in _refused(folder, {"HOLDFAST_CONFIG": missing}).message


@pytest.mark.parametrize(
    ("content", "key", "nearest"),
    [
        ('[chat]\ndefault_modell = "a:b"\n', "chat.default_modell", "chat.default_model"),
        ("[limit]\nturns_at_a_time = 1\n", "limit.turns_at_a_time", "limits.turns_at_a_time"),
        ('level = "error"\n', "level", "log.level"),
        ("[workspace.root]\nx = 1\n", "", ""),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(
    folder: Path, content: str, key: str, nearest: str
) -> None:
    _write(folder, content)

    refused = _refused(folder)

    if key:
        assert f"did you mean {nearest}?" in refused.message
        assert refused.details == {"file": str(folder / "holdfast.toml"), "key": key}


@pytest.mark.parametrize(
    "content", [b"[chat", b"a = ", b"\xff\xfe", b"[a]\n[a]\n", b"a = 1\na = 2"]
)
def test_a_file_that_is_no_toml_is_refused_with_its_name(folder: Path, content: bytes) -> None:
    (folder / "holdfast.toml").write_bytes(content)

    assert str(folder / "holdfast.toml") in _refused(folder).message


def test_a_folder_in_the_place_of_the_file_is_refused(folder: Path) -> None:
    (folder / "holdfast.toml").mkdir()

    _refused(folder)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("approval", "sometimes"),
        ("encryption", "rot13"),
        ("turns_at_a_time", "many"),
        ("turns_at_a_time", "0"),
        ("turns_at_a_time", "-1"),
        ("turns_at_a_time", "1.5"),
        ("idle_timeout_minutes", "-1"),
        ("idle_timeout_minutes", "nan"),
        ("max_concurrent_sessions", "0"),
        ("log_level", "loud"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(folder: Path, setting: str, value: str) -> None:
    assert setting in _refused(folder, {PLACES[setting][2]: value}).message


@pytest.mark.parametrize("value", [5, [], {}, True])
def test_a_path_must_be_text(folder: Path, value: Any) -> None:
    _refused(folder, workspace_root=value)


def test_a_database_that_this_version_cannot_use_is_refused(folder: Path) -> None:
    refused = _refused(folder, {"HOLDFAST_DATABASE_URL": "postgresql://ada:secret@db/x"})

    assert "HOLDFAST_DATABASE_URL" in refused.message
    assert "secret" not in str(refused.body())
    assert _load(folder, {"HOLDFAST_DATABASE_URL": ""}).home == folder
