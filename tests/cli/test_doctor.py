"""`holdfast doctor`."""

from pathlib import Path

import pytest

from holdfast.storage.migrate import newest
from tests.cli.conftest import Cli
from tests.cli.test_sessions import change_a_message, leave_a_turn_waiting


def test_a_home_without_a_store_is_well_and_stays_empty(cli: Cli, home: Path) -> None:
    ran, plain = cli("doctor", "--json"), cli("doctor")

    assert (ran.code, ran.document["store"], ran.document["findings"]) == (0, None, [])
    assert "none yet" in plain.out
    assert not home.exists()


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
    assert plain.out.endswith("All is well.\n")


@pytest.mark.parametrize(
    ("environment", "source"),
    [({"HOLDFAST_KEY": "ab" * 32}, "environment"), ({"HOLDFAST_ENCRYPTION": "off"}, "off")],
)
def test_the_source_of_the_key_is_told(
    cli: Cli, environment: dict[str, str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cli("sessions", "list")

    assert cli("doctor", "--json").document["key_source"] == source


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


def test_a_store_that_does_not_open_is_a_finding(
    cli: Cli, chatted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_KEY", "cd" * 32)

    ran = cli("doctor", "--json")

    assert ran.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["store_key_wrong"]
    assert ran.document["key_source"] is None


def test_a_file_system_that_forgets_is_a_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", "/dev/shm/holdfast-doctor")  # nothing is made there

    ran = cli("doctor", "--json")

    assert ran.code == 1
    assert [each["code"] for each in ran.document["findings"]] == ["unsuitable_file_system"]
    assert not Path("/dev/shm/holdfast-doctor").exists()
