"""The configuration: flags before environment before file before defaults, and nothing unknown."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import (
    SETTING_KEYS,
    Chat,
    Config,
    Credential,
    McpServer,
    default_home,
    explain,
    load,
    setting_types,
    setting_value,
)
from holdfast.domain.agents import ReasoningEffort
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.secrets import mask_text
from holdfast.domain.sessions import OnExceed
from holdfast.domain.tools import FsTier
from holdfast.store.database_url import shown_url
from tests.marks import demands, each_case

OTHERS: dict[str, tuple[str, Any, str, Any]] = {
    # setting: as text in the environment, as a value, in the file, as a value
    "default_model": ("a:env", "a:env", '"a:file"', "a:file"),
    "approval": ("deny", ApprovalMode.DENY, '"edits"', ApprovalMode.EDITS),
    "chat.fs_scope": ("full", FsTier.FULL, '"project"', FsTier.PROJECT),
    "chat.extra_roots": ("/a, /b", (Path("/a"), Path("/b")), '["/c"]', (Path("/c"),)),
    "chat.linked_dirs": ("vendor", ("vendor",), '["target", ".venv"]', ("target", ".venv")),
    "chat.allowed_commands": (
        "make test,ls",
        ("make test", "ls"),
        '["git status"]',
        ("git status",),
    ),
    "chat.allowed_command_globs": ("git log **", ("git log **",), '["ls *"]', ("ls *",)),
    "chat.command_env": ("CI,EDITION", ("CI", "EDITION"), '["JOBS"]', ("JOBS",)),
    "chat.command_writes": ("out,Makefile", ("out", "Makefile"), '["dist"]', ("dist",)),
    "chat.command_memory_mb": ("512", 512, "0", 0),
    "chat.command_processes": ("500", 500, "600", 600),
    "chat.command_cpu_seconds": ("60", 60, "0", 0),
    "chat.allow_unprotected_commands": ("true", True, "true", True),
    "chat.allowed_domains": (
        "a.example,b.example:8443",
        ("a.example", "b.example:8443"),
        '["c.example"]',
        ("c.example",),
    ),
    "chat.max_messages": ("40", 40, "50", 50),
    "chat.max_cost_microcents": ("1000", 1000, "2000", 2000),
    "chat.on_exceed": ("warn", OnExceed.WARN, '"fail"', OnExceed.FAIL),
    "chat.allow_unpriced": ("false", False, "false", False),
    "chat.auto_compact": ("0", False, "false", False),
    "chat.compact_threshold": ("0.5", 0.5, "1", 1.0),
    "chat.reasoning_effort": ("low", ReasoningEffort.LOW, '"max"', ReasoningEffort.MAX),
    "acp.agent": ("gemini", "gemini", '"codex"', "codex"),
    "acp.workspace_flag": ("--workspace", "--workspace", '"-w"', "-w"),
    "acp.wrap": ("", None, '["bwrap", "--"]', ("bwrap", "--")),
    "acp.line_limit": ("1048576", 1 << 20, "2048", 2048),
    "acp.raw_log": ("false", False, "false", False),
    "acp.start_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "acp.session_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "acp.option_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "acp.silence_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "acp.cancel_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "acp.write_timeout": ("3s", timedelta(seconds=3), "4", timedelta(seconds=4)),
    "approvals_expire_after": ("90m", timedelta(minutes=90), "3600", timedelta(hours=1)),
    "approvals_pause_after": ("90s", timedelta(seconds=90), "0", timedelta()),
    "events_delta_retention": ("2h", timedelta(hours=2), "60", timedelta(minutes=1)),
    "events_retention": ("30d", timedelta(days=30), '"52d"', timedelta(days=52)),
    "turn_cap": ("7", 7, "8", 8),
    "attended_turn_cap": ("70", 70, "80", 80),
    "max_tool_rounds": ("3", 3, "4", 4),
    "turns_at_a_time": ("3", 3, "4", 4),
    "child_depth": ("0", 0, "4", 4),
    "children_at_a_time": ("3", 3, "4", 4),
    "children_per_session": ("3", 3, "4", 4),
    "tool_threads": ("3", 3, "4", 4),
    "idle_timeout_minutes": ("0.5", 0.5, "7", 7.0),
    "max_concurrent_sessions": ("8", 8, "9", 9),
    "observations_per_minute": ("0", 0, "60", 60),
    "credentials": (
        "",
        None,
        '[{host = "a.example", secret = "a"}]',
        (Credential(host="a.example", secret="a"),),
    ),
    "mcp_servers": (
        "",
        None,
        '{a = {command = "x"}}',
        (McpServer(name="a", command="x"),),
    ),
    "block_zones": ("/srv/env", Path("/srv/env"), '"/srv/file"', Path("/srv/file")),
    "workspace_root": ("/srv/env", Path("/srv/env"), '"/srv/file"', Path("/srv/file")),
    "database_url": (
        "postgresql://one/x",
        "postgresql://one/x",
        '"postgresql://two/x"',
        "postgresql://two/x",
    ),
    "encryption": ("off", "off", '"keychain"', "keychain"),
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


@demands("S0-480")
def test_without_anything_said_the_defaults_hold(folder: Path) -> None:
    assert _load(folder) == Config(
        home=folder,
        default_model="offline:holdfast",
        approval=ApprovalMode.ASK,
        chat=Chat(
            fs_scope=FsTier.SANDBOXED,
            extra_roots=(),
            linked_dirs=("node_modules", ".venv"),
            allowed_commands=(),
            allowed_command_globs=(),
            command_env=(),
            allowed_domains=(),
            max_messages=None,
            max_cost_microcents=0,
            on_exceed=OnExceed.PAUSE,
            allow_unpriced=True,
            auto_compact=True,
            compact_threshold=0.8,
            reasoning_effort=None,
        ),
        approvals_expire_after=timedelta(hours=24),
        approvals_pause_after=timedelta(seconds=5),
        events_delta_retention=timedelta(hours=24),
        events_retention=timedelta(),
        turn_cap=50,
        attended_turn_cap=1_000,
        max_tool_rounds=16,
        turns_at_a_time=64,
        child_depth=3,
        children_at_a_time=8,
        children_per_session=32,
        tool_threads=16,
        idle_timeout_minutes=30,
        max_concurrent_sessions=5,
        observations_per_minute=600,
        credentials=(),
        mcp_servers=(),
        block_zones=None,
        workspace_root=None,
        encryption="auto",
        log_level="warning",
    )


def test_every_setting_has_its_places() -> None:
    assert set(SETTING_KEYS) == set(setting_types()) == set(OTHERS)
    assert len({place[:2] for place in SETTING_KEYS.values()}) == len(SETTING_KEYS)
    variables = [place.variable for place in SETTING_KEYS.values() if place.variable]
    assert len(set(variables)) == len(variables) == len(SETTING_KEYS) - 3


def test_the_page_about_operations_names_every_setting_and_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")

    missing = [
        place.path
        for place in SETTING_KEYS.values()
        if f"| `{place.path}` | {f'`{place.variable}`' if place.variable else '–'} |" not in page
    ]

    assert missing == []


@each_case("setting", list(SETTING_KEYS))
@demands("S0-480")
def test_a_value_of_the_file_is_taken(folder: Path, setting: str) -> None:
    _, _, in_file, from_file = OTHERS[setting]
    section, key, _ = SETTING_KEYS[setting]

    _write(folder, f"[{section}]\n{key} = {in_file}\n" if section else f"{key} = {in_file}\n")

    assert setting_value(_load(folder), setting) == from_file
    assert from_file != setting_value(Config(home=folder), setting)


@each_case("setting", [name for name, place in SETTING_KEYS.items() if place.variable])
def test_the_environment_beats_the_file_and_a_flag_beats_both(folder: Path, setting: str) -> None:
    section, key, variable = SETTING_KEYS[setting]
    text, from_environment, in_file, from_file = OTHERS[setting]
    _write(folder, f"[{section}]\n{key} = {in_file}\n")
    assert variable is not None

    for flag in ({}, {setting: None}):
        assert setting_value(_load(folder, {variable: text}, **flag), setting) == from_environment
    assert setting_value(_load(folder, {variable: ""}), setting) == from_file
    narrowest = {"approval": ApprovalMode.DENY, "chat.fs_scope": FsTier.SANDBOXED}
    flag = narrowest.get(setting, () if setting.startswith("chat.allowed") else from_file)
    assert setting_value(_load(folder, {variable: text}, **{setting: flag}), setting) == flag


@demands("S1-092", "S1-092b")
def test_the_time_after_which_a_session_is_idle_is_told_in_minutes(folder: Path) -> None:
    assert _load(folder).idle_timeout_minutes == 30
    assert _load(folder, {"AGENT_SESSION_IDLE_TIMEOUT": "12"}).idle_timeout_minutes == 12


def test_each_value_says_where_it_came_from(folder: Path) -> None:
    _write(folder, '[chat]\ndefault_model = "a:b"\n[log]\nlevel = "error"\n')

    _, origins = explain({"home": folder, "approval": "deny"}, {"HOLDFAST_LOG": "debug"})

    assert origins == dict.fromkeys(SETTING_KEYS, "default") | {
        "home": "flag",
        "approval": "flag",
        "log_level": "environment",
        "default_model": f"file {folder / 'holdfast.toml'}",
    }


@each_case(
    ("setting", "flag"),
    [
        ("approval", "auto"),
        ("chat.fs_scope", "full"),
        ("chat.allowed_commands", ["git status", "rm"]),
        ("chat.allowed_command_globs", ["git **"]),
        ("chat.allowed_domains", ["b.example"]),
    ],
)
def test_a_flag_may_narrow_what_is_allowed_and_not_widen_it(
    folder: Path, setting: str, flag: Any
) -> None:
    _write(
        folder,
        '[chat]\napproval = "edits"\nfs_scope = "project"\n'
        'allowed_commands = ["git status", "ls"]\nallowed_command_globs = ["git log **"]\n'
        'allowed_domains = ["a.example"]\n',
    )

    with pytest.raises(Denied) as caught:
        _load(folder, **{setting: flag})

    assert caught.value.code is Code.GRANT_EXCEEDED
    assert caught.value.details == {
        "key": SETTING_KEYS[setting].path,
        "file": str(folder / "holdfast.toml"),
    }
    assert setting_value(_load(folder, **{setting: None}), setting) != flag
    narrowed = _load(folder, approval="ask", **{"chat.allowed_commands": ["ls"]})
    assert (narrowed.approval, narrowed.chat.allowed_commands) == (ApprovalMode.ASK, ("ls",))


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


def test_a_script_is_found_from_where_it_was_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = folder / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(folder / "me"))
    _write(folder, '[chat]\ndefault_model = "scripted:a/b.yaml"\n')

    def model(variable: str) -> str:
        return _load(folder, {"HOLDFAST_MODEL": variable}).default_model

    assert _load(folder).default_model == f"scripted:{folder}/a/b.yaml"
    assert model("scripted:b.yaml") == f"scripted:{here}/b.yaml"
    assert model("scripted:~/b.yaml") == f"scripted:{folder}/me/b.yaml"
    assert model("scripted:/x//b.yaml") == "scripted:/x//b.yaml"
    assert model("other:b.yaml") == "other:b.yaml"


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
    assert "a\x00b" in _refused(folder, {"HOLDFAST_CONFIG": "a\x00b"}).message


@demands("S0-115c")
@each_case(
    ("content", "key", "line", "nearest"),
    [
        ('[chat]\ndefault_modell = "a:b"\n', "chat.default_modell", 2, "chat.default_model"),
        ("\n[limit]\nturns_at_a_time = 1\n", "limit.turns_at_a_time", 3, "limits.turns_at_a_time"),
        ("[chat]\nturn_cap = 7\n", "chat.turn_cap", 2, "limits.turn_cap"),
        ('level = "error"\n', "level", 1, "log.level"),
        ('log . "lvl" = "error"\n', "log.lvl", 1, "log.level"),
        ("[chat.approval]\nx = 1\n[chat.aproval]\n", "chat.aproval", 3, "chat.approval"),
        ('[credential]\nhost = "a"\n', "credential.host", 2, "credentials"),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_named(
    folder: Path, content: str, key: str, line: int, nearest: str
) -> None:
    _write(folder, content)

    refused = _refused(folder)

    file = str(folder / "holdfast.toml")
    assert refused.message == (
        f"{file}, line {line} sets {key}, an unknown setting; did you mean {nearest}?"
    )
    assert refused.details == {"file": file, "line": line, "key": key}


def test_a_variable_that_is_mistyped_is_refused_and_the_nearest_named(folder: Path) -> None:
    refused = _refused(folder, {"HOLDFAST_CHAT_APROVAL": "deny"})

    assert refused.message == (
        "HOLDFAST_CHAT_APROVAL is set, but is not a known setting; "
        "did you mean HOLDFAST_CHAT_APPROVAL?"
    )


@each_case(
    ("content", "line"),
    [
        (b"[chat", None),
        (b"[chat\n", 1),
        (b"\na = \n", 2),
        (b"\xff\xfe", None),
        (b"[a]\n[a]\n", 2),
        (b"a = 1\na = 2\n", 2),
    ],
)
def test_a_file_that_is_no_toml_is_refused_with_its_name_and_line(
    folder: Path, content: bytes, line: int | None
) -> None:
    file = folder / "holdfast.toml"
    file.write_bytes(content)

    refused = _refused(folder)

    assert refused.message.startswith(f"{file} cannot be read: ")
    assert refused.details == {"file": str(file)} | ({"line": line} if line else {})


def test_a_home_that_is_a_file_is_refused_as_what_it_is(folder: Path) -> None:
    home = folder / "home"
    home.write_text("")

    refused = _refused(home)

    assert refused.message.startswith(f"{home} is not a folder; ")
    assert refused.details == {"file": str(home / "holdfast.toml")}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a pipe"])
def test_what_is_not_a_file_is_refused_and_not_waited_for(folder: Path, kind: str) -> None:
    file = folder / "holdfast.toml"
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / "pipe")
        file.symlink_to("pipe")

    refused = _refused(folder)

    assert refused.message == f"{file} cannot be read: it is not a file."


def test_a_file_may_be_a_link_and_have_a_mebibyte(folder: Path) -> None:
    (folder / "kept.toml").write_text("#" * (1 << 20))
    (folder / "holdfast.toml").symlink_to("kept.toml")

    assert _load(folder).log_level == "warning"
    (folder / "kept.toml").write_text("#" * (1 << 20) + "\n")
    assert _refused(folder).message.endswith("it is larger than 1 MiB.")


@each_case(
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
        ("observations_per_minute", "-1"),
        ("max_tool_rounds", "0"),
        ("approvals_expire_after", "soon"),
        ("approvals_expire_after", "0"),
        ("approvals_expire_after", "9999d"),
        ("approvals_pause_after", "soon"),
        ("approvals_pause_after", "-1"),
        ("approvals_pause_after", "366d"),
        ("events_delta_retention", "soon"),
        ("events_delta_retention", "36501d"),
        ("events_retention", "59s"),
        ("events_retention", "36501d"),
        ("chat.auto_compact", "perhaps"),
        ("chat.compact_threshold", "0"),
        ("chat.compact_threshold", "1.1"),
        ("chat.compact_threshold", "nan"),
        ("chat.max_messages", "0"),
        ("chat.max_cost_microcents", "-1"),
        ("chat.on_exceed", "shout"),
        ("chat.reasoning_effort", "some"),
        ("chat.fs_scope", "half"),
        ("log_level", "loud"),
        ("default_model", "a\udcff:b"),
    ],
)
def test_a_wrong_value_of_a_variable_is_refused_and_not_repeated(
    folder: Path, setting: str, value: str
) -> None:
    variable = SETTING_KEYS[setting].variable
    assert variable is not None

    refused = _refused(folder, {variable: value})

    assert refused.message.startswith(f"{variable} must be ")
    assert refused.details == {"variable": variable, "key": SETTING_KEYS[setting].path}


@each_case(
    ("line", "told"),
    [
        ("[chat]\nfs_scope = 1", "must be one of sandboxed, project, full"),
        ("[chat]\nallowed_commands = 'ls'", "must be a list of strings"),
        ("[chat]\nallowed_commands = ['ls', 1]", "must be a list of strings"),
        ("[chat]\nextra_roots = '/a'", "must be a list of paths"),
        ("[chat]\nallow_unpriced = 'false'", "must be true or false"),
        ("[chat]\nmax_messages = '5'", "must be an integer"),
        ("[chat]\nmax_messages = true", "must be an integer"),
        ("[chat]\ncompact_threshold = '1'", "must be a number"),
        ("[chat]\ndefault_model = 1979-05-27", "must be a string"),
        ('[chat]\ndefault_model = "a:\\u0000"', "must be UTF-8 text without NUL"),
        ("[limits]\nturns_at_a_time = '4'", "must be an integer"),
        ("[workspace]\nroot = ''", "must be a path"),
        ("[workspace]\nroot = 5", "must be a path"),
        (
            "[approvals]\nexpire_after = true",
            "must be seconds, or a number with s, m, h or d, such as 24h",
        ),
        ("\n[[credentials]]", "must be tables [[credentials]] with host and secret"),
        (
            "\n[[credentials]]\nhost = 'a.b'\nsecret = 'x'\nkey = 1",
            "must be tables [[credentials]] with host and secret",
        ),
    ],
)
def test_the_file_takes_no_type_for_another(folder: Path, line: str, told: str) -> None:
    _write(folder, f"{line}\n")

    refused = _refused(folder)

    assert refused.message.startswith(f"{folder / 'holdfast.toml'}, line 2: ")
    assert refused.message.endswith(f" {told}.")
    assert refused.details["line"] == 2


def test_a_wrong_value_in_the_file_is_told_also_where_it_would_not_count(folder: Path) -> None:
    _write(folder, '[log]\nlevel = "loud"\n')

    assert "log.level" in _refused(folder, {"HOLDFAST_LOG": "info"}).message


@each_case("value", [5, [], {}, True])
def test_a_path_must_be_text(folder: Path, value: Any) -> None:
    _refused(folder, workspace_root=value)


def test_a_home_must_be_text(folder: Path) -> None:
    for home in ("a\udcff", "a\x00"):
        with pytest.raises(Invalid) as caught:
            load({}, {"HOLDFAST_HOME": home})
        assert caught.value.code is Code.CONFIG_INVALID


@pytest.mark.parametrize("given", ["0", "-3"])
def test_no_cap_of_turns_is_the_usual_one(folder: Path, given: str) -> None:
    _write(folder, f"[limits]\nturn_cap = {given}\n")

    assert _load(folder).turn_cap == _load(folder, {"HOLDFAST_TURN_CAP": given}).turn_cap == 50


@each_case(
    ("given", "length"),
    [
        ('"24h"', timedelta(hours=24)),
        ('"15 m"', timedelta(minutes=15)),
        ('"30s"', timedelta(seconds=30)),
        ('"7d"', timedelta(days=7)),
        ('"90"', timedelta(seconds=90)),
        ("0.5", timedelta(seconds=0.5)),
    ],
)
def test_a_length_of_time_is_seconds_or_has_a_unit(
    folder: Path, given: str, length: timedelta
) -> None:
    _write(folder, f"[approvals]\nexpire_after = {given}\n")

    assert _load(folder).approvals_expire_after == length


def test_pausing_for_approval_is_pausing(folder: Path) -> None:
    _write(folder, '[chat]\non_exceed = "pause_for_approval"\n')

    assert _load(folder, {"HOLDFAST_CHAT_ON_EXCEED": "pause_for_approval"}) == _load(folder)
    assert _load(folder).chat.on_exceed is OnExceed.PAUSE


def test_a_configuration_that_a_program_makes_is_judged_too(folder: Path) -> None:
    with pytest.raises(Invalid) as caught:
        Config(home=folder, chat=Chat(command_env=("CI", "LD_PRELOAD")))

    assert caught.value.details == {"key": "chat.command_env"}
    with pytest.raises(Invalid, match=r"turns_at_a_time must be 1 to 1,000,000\."):
        Config(home=folder, turns_at_a_time=0)


def test_the_address_of_a_database_is_one_of_postgres_and_never_repeated(folder: Path) -> None:
    url = "postgresql://ada:secret@db/x"
    refused = _refused(folder, {"HOLDFAST_DATABASE_URL": "mysql://ada:secret@db/x"})

    told = "must be written postgresql://<user>:<password>@<host>:<port>/<database>"
    assert f"HOLDFAST_DATABASE_URL {told}" in refused.message
    assert mask_text(refused.message) == refused.message
    assert "secret" not in str(refused.body())
    assert _load(folder, {"HOLDFAST_DATABASE_URL": url}).database_url == url
    assert _load(folder, {"HOLDFAST_DATABASE_URL": ""}).database_url is None
    assert shown_url(url) == "postgresql://db/x"
