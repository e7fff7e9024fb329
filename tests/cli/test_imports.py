"""`holdfast import …`: what other programs have left becomes zones of agents."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.importers.blocks import a_folder, agent_block


def test_block_zones_are_told_in_a_dry_run_and_brought_once(cli: Cli, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "a", b"first")

    dry = cli("import", "block-zones", str(folder), "--dry-run", "--json").document
    empty = cli("zones", "read", "a").out
    brought = cli("import", "block-zones", str(folder))
    again = cli("import", "block-zones", str(folder), "--json").document

    assert dry == {
        "blocks_scanned": 1,
        "archives_written": 1,
        "archives_already_present": 0,
        "current_zones_seeded": 1,
        "skipped_no_snapshot": 0,
        "failures": 0,
        "dry_run": True,
        "troubles": [],
    }
    assert empty == "nothing to restore\n"
    assert brought.out == "Blocks scanned 1, archives written 1, current zones seeded 1.\n"
    assert again["blocks_scanned"] == 0
    assert cli("import", "block-zones", str(folder)).out == "Nothing to do.\n"
    assert cli("zones", "read", "a").out == "first\n"


def test_what_cannot_be_read_is_told_and_ends_with_findings(cli: Cli, tmp_path: Path) -> None:
    import apsw

    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "a", b"first")
    files = apsw.Connection(str(folder / "files.db"))
    files.execute("DELETE FROM db_data")
    files.close()

    ran = cli("import", "block-zones", str(folder))

    assert ran.code == 1
    assert "b1: archive: The folder to import from cannot be read" in ran.err
    assert cli("import", "block-zones", str(tmp_path / "missing")).code == 7


def test_the_doctor_tells_of_blocks_that_nobody_holds(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_folder(tmp_path / "old")
    agent_block(folder, "b1", "a", b"first")
    agent_block(folder, "b2", "a", b"second")
    cli("zones", "write", "a", stdin="first")
    monkeypatch.setenv("HOLDFAST_IMPORTERS_BLOCK_ZONES", str(folder))

    before = cli("doctor", "--json")
    cli("import", "block-zones", str(folder))
    after = cli("doctor", "--json")

    (finding,) = before.document["findings"]
    assert (before.code, finding["code"]) == (1, "blocks_left")
    assert finding["message"].startswith("1 agent blocks have a snapshot that no archive or desk")
    assert (after.code, after.document["findings"]) == (0, [])
