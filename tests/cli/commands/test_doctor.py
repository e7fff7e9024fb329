"""`holdfast doctor`."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.config.models import DEFAULT_MODELS
from holdfast.integrations.calls import DurableResult
from holdfast.process.launcher import Launcher
from holdfast.store.sqlite.migrate import newest
from holdfast.tools.files.tools import file_weaknesses
from tests.cli.commands.test_history import submitted
from tests.cli.commands.test_sessions import change_a_message, leave_a_turn_waiting
from tests.cli.conftest import Cli
from tests.docs.blocks import ROOT
from tests.integrations.test_durable_calls import PAY, guarded
from tests.integrations.test_records import add, call, opened, result, user

pytestmark = pytest.mark.slow


def test_a_home_without_a_store_is_well_and_stays_empty(cli_without_home: Cli, home: Path) -> None:
    ran, plain = cli_without_home("doctor", "--json"), cli_without_home("doctor")

    assert (ran.code, ran.document["store"], ran.document["findings"]) == (0, None, [])
    assert "none yet" in plain.out
    assert not home.exists()


def test_a_key_that_is_none_is_found_before_the_first_session(
    cli_without_home: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "abc")

    ran, said = cli_without_home("doctor", "--json"), cli_without_home("chat", "hi", "--json")

    assert (ran.code, [each["code"] for each in ran.document["findings"]]) == (
        1,
        ["store_key_invalid"],
    )
    assert said.error["message"] == ran.document["findings"][0]["message"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("key", "model"), DEFAULT_MODELS.items())
def test_a_model_that_was_not_named_is_said_with_the_reason(
    cli: Cli, key: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = f"{model} answers, because {key} is set and no model was chosen; "
    before = cli("doctor")
    monkeypatch.setenv(key, "sk-test")

    ran, plain = cli("doctor", "--json"), cli("doctor")
    config = cli("config", "--json").document["data"]
    monkeypatch.setenv("HOLDFAST_MODEL", model)
    named = cli("doctor")

    assert ran.document["model"] == model
    assert [notice in each.out for each in (before, plain, named)] == [False, True, False]
    assert [each["origin"] for each in config if each["name"] == "default_model"] == [key]
    assert model in (ROOT / "docs" / "models.md").read_text("utf-8")


def test_a_default_model_of_no_provider_is_found_and_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_MODEL", "opnai:gpt-4o")

    ran, said, served = cli("doctor", "--json"), cli("chat", "hi", "--json"), cli("serve", "--json")

    (finding,) = ran.document["findings"]
    assert (ran.code, said.code, served.code) == (1, 2, 2)
    assert finding["code"] == said.error["error"] == served.error["error"] == "config_invalid"
    assert finding["message"] == said.error["message"] == served.error["message"]
    assert finding["message"].startswith(
        "chat.default_model (HOLDFAST_MODEL): The model's provider is unknown "
        "(did you mean openai?); the providers are alibaba, "
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["a link", "no disk"])
def test_a_home_that_cannot_be_written_is_found_before_the_first_session(
    cli_without_home: Cli, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    homes = {"a link": link, "no disk": Path("/proc/holdfast")}
    monkeypatch.setenv("HOLDFAST_HOME", str(homes[kind]))

    ran, said = cli_without_home("doctor", "--json"), cli_without_home("chat", "hi")

    codes = [each["code"] for each in ran.document["findings"]]
    assert (ran.code, codes[-1]) == (1, "store_unwritable")
    assert "choose another HOLDFAST_HOME" in ran.document["findings"][-1]["message"]
    assert said.code != 0
    assert list(tmp_path.iterdir()) == [link]


def test_a_sound_store_is_described(cli: Cli, home: Path, chatted: str) -> None:
    ran, plain = cli("doctor", "--json"), cli("doctor")

    facts = ran.document
    assert ran.code == 0
    assert facts["home"] == str(home)
    assert facts["store"] == str(home / "history.db")
    assert facts["key_source"] == "keyfile"
    assert facts["schema"] == facts["newest_schema"] == newest()
    assert facts["unsettled"] == []
    assert facts["findings"] == []
    assert tuple(map(int, facts["sqlite"].split("."))) >= (3, 51, 3)
    assert plain.out.endswith("No problems found.\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("environment", "source"),
    [({"HOLDFAST_KEY": "ab" * 32}, "environment"), ({"HOLDFAST_ENCRYPTION": "off"}, "off")],
)
def test_the_source_of_the_key_is_told(
    cli_without_home: Cli, environment: dict[str, str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cli_without_home("sessions", "list")

    assert cli_without_home("doctor", "--json").document["key_source"] == source


def test_what_others_can_reach_is_a_finding_once(cli: Cli, home: Path, chatted: str) -> None:
    home.chmod(0o755)
    (home / "key").chmod(0o644)

    first, second = cli("doctor", "--json"), cli("doctor", "--json")

    assert first.code == 1
    assert [each["code"] for each in first.document["findings"]] == ["open_to_others"] * 2
    assert [each["message"] for each in first.document["findings"]] == [
        f"{home} has mode 0755: others than its owner can reach it.",
        f"{home / 'key'} has mode 0644: others than its owner can reach it.",
    ]
    assert second.code == 0


def test_a_turn_that_waits_is_told_of_and_is_no_fault(cli: Cli, home: Path, chatted: str) -> None:
    leave_a_turn_waiting(home, chatted)

    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert (ran.code, ran.document["unsettled"]) == (0, [chatted])
    assert f"`holdfast chat --resume {chatted}`" in plain.out


def test_a_damaged_record_is_a_finding(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    cli("chat", "What is 2+3?")
    change_a_message(home / "history.db")

    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert ran.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["corrupt_store"]
    assert plain.out.splitlines()[-1] == "1 found."
    (remedy,) = ran.document["remedies"].values()
    assert "restore a backup with `holdfast restore FILE`" in remedy
    assert plain.out.splitlines()[-2] == f"remedy: {remedy}"


def test_many_problems_of_one_kind_are_one_group_with_one_remedy(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    for _ in range(7):
        cli("chat", "What is 2+3?")
    change_a_message(home / "history.db")

    ran, plain = cli("doctor", "--json"), cli("doctor")

    found = ran.document["findings"]
    assert len(found) == len({each["message"] for each in found}) > 5
    lines = [line for line in plain.out.splitlines() if line.startswith(("problem:", "remedy:"))]
    assert lines[:5] == [f"problem: {each['message']}" for each in found[:5]]
    assert lines[5] == (
        f"problem: {len(found) - 5} more of corrupt_store; `holdfast doctor --json` lists all"
    )
    assert lines[6:] == [f"remedy: {ran.document['remedies']['corrupt_store']}"]


def test_a_store_that_does_not_open_is_a_finding(
    cli: Cli, chatted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "cd" * 32)

    ran = cli("doctor", "--json")

    assert ran.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["store_key_wrong"]
    assert ran.document["key_source"] is None


@pytest.mark.parametrize("removed", [(), ("-wal",), ("-anchor",)], ids=str)
def test_a_store_that_is_gone_is_a_finding(
    cli: Cli, home: Path, chatted: str, removed: tuple[str, ...]
) -> None:
    for ending in ("", *removed):
        (home / f"history.db{ending}").unlink(missing_ok=True)

    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert ran.code == plain.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["corrupt_store"]
    assert "history.db is missing, but history.db-" in plain.out
    assert "none yet" not in plain.out


def test_a_file_system_that_forgets_is_a_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/dev/shm/holdfast-doctor")  # nothing is made there

    ran = cli("doctor", "--json")

    assert ran.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["unsuitable_file_system"]
    assert not Path("/dev/shm/holdfast-doctor").exists()


def test_what_agents_may_do_and_how_they_are_kept_is_told(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text(
        "[chat]\n"
        'approval = "edits"\n'
        'fs_scope = "project"\n'
        'extra_roots = ["/srv/shared"]\n'
        'allowed_commands = ["make test"]\n'
        'allowed_command_globs = ["git log *"]\n'
        'allowed_domains = ["api.example"]\n'
    )

    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert ran.document["allowed"] == {
        "approval": "edits",
        "fs_scope": "project",
        "extra_roots": ["/srv/shared"],
        "commands": ["make test"],
        "command_globs": ["git log *"],
        "domains": ["api.example"],
    }
    assert ran.document["keys"] == [{"account": "openai:default", "origin": "OPENAI_API_KEY"}]
    told = dict(line.split("  ", 1) for line in plain.out.splitlines() if "  " in line)
    assert {name: value.strip() for name, value in told.items()}.items() >= {
        ("approval", "edits"),
        ("file scope", "project, /srv/shared"),
        ("commands", "make test, git log *"),
        ("domains", "api.example"),
        ("keys", "openai:default"),
    }
    assert "canary" not in ran.out + plain.out


def test_everything_that_keeps_tools_in_place_is_told_as_it_is_here(cli: Cli) -> None:
    strength = asyncio.run(Launcher().strength())

    ran, plain = cli("doctor", "--json"), cli("doctor")

    safety = ran.document["safety"]
    assert set(safety["active"]) >= set(strength.active)
    assert safety["weaker"] == [*file_weaknesses(), *strength.weaker]
    assert ran.code == 0
    for line in (
        *(f"safe: {each}" for each in safety["active"]),
        *(f"weaker: {each}" for each in safety["weaker"]),
    ):
        assert line in plain.out.splitlines()


def test_agents_that_are_not_confined_are_named(cli: Cli, home: Path) -> None:
    cli("agents", "create", "--name", "Free", "--command", "x", "--unconfined")
    cli("agents", "create", "--name", "Held", "--command", "x", "--writable", "~/.x")
    with (home / "holdfast.toml").open("a") as file:
        file.write('[acp]\nwrap = ["bwrap", "--"]\n')

    weaker = cli("doctor", "--json").document["safety"]["weaker"]
    held = cli("agents", "show", "held", "--json").document["runtime"]["options"]

    assert [line for line in weaker if "option confined" in line] == [
        "agent free is not confined: its option confined is false"
    ]
    assert [line for line in weaker if "acp.wrap" in line] != []
    assert held == {"writable": ["~/.x"]}


def test_tools_that_a_framework_ran_without_a_guard_are_named(cli: Cli, home: Path) -> None:
    async def run(_: str) -> DurableResult:
        return DurableResult(raw=b'"paid"', value="paid")

    async def act(*, is_guarded: bool) -> None:
        async with open_holdfast(home) as hf:
            session_id = await opened(hf)
            if is_guarded:
                await add(hf, session_id, user("Go."))
                await guarded(hf, session_id, PAY, run)
            else:
                await add(hf, session_id, call("c2"), result("c2"))

    asyncio.run(act(is_guarded=True))
    guarded_only = cli("doctor", "--json")
    asyncio.run(act(is_guarded=False))
    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert guarded_only.document["not_guarded"] == []
    assert ran.document["not_guarded"] == [{"framework": "acme", "tool": "look"}]
    assert ran.code == 0
    assert "not guarded: acme ran look without a durable call" in plain.out


def test_what_is_computed_is_computed_anew_and_what_differed_is_told(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENCRYPTION", "off")
    submitted(cli)
    before = cli("timeline", "abc123", "--json").document
    sound = cli("doctor", "--rebuild", "--json")
    with sqlite3.connect(home / "history.db") as database:
        database.execute("DELETE FROM timeline")
    database.close()
    damaged = cli("timeline", "abc123", "--json").document
    mended = cli("doctor", "--rebuild")
    again = cli("doctor", "--rebuild", "--json").document

    assert sound.code == 0
    assert (sound.document["rebuilt"]["entities"], sound.document["rebuilt"]["differences"]) == (
        1,
        [],
    )
    assert damaged["data"] == []
    assert mended.code == 0
    assert "rebuilt: 1 histories and 1 documents" in mended.out
    assert "repaired: The snapshot of ent_31ed4722e1f7ffa6ea9a9ed8 did not match" in mended.out
    assert again["rebuilt"]["differences"] == []
    assert cli("timeline", "abc123", "--json").document == before
    assert cli("doctor", "--json").document["rebuilt"] is None
