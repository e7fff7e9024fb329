"""`holdfast import …`: what other programs have left becomes zones and history."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.importers.blocks import a_folder, agent_block
from tests.importers.memories import SESSION, a_memory, bytes_below, memories


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
    assert finding["message"].startswith("1 agent blocks have a snapshot that is in no zone")
    assert (after.code, after.document["findings"]) == (0, [])


def test_memories_are_told_in_a_dry_run_and_brought_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.commands.imports.PROGRESS", 2)
    folder = memories(tmp_path / "memory")
    before = bytes_below(folder)
    dry = cli("import", "cursor-memory", str(folder), "--dry-run", "--json")
    empty = cli("history", "query", "--json").document
    wet = cli("import", "cursor-memory", str(folder))
    again = cli("import", "cursor-memory", str(folder), "--json")

    report = dry.document
    assert (dry.code, report["dry_run"], report["imported"], empty["total"]) == (0, True, 5, 0)
    assert report["by_kind"]["session"] == {"files": 1, "entities": 1}
    assert report["verified"] == {
        "entities_expected": 5,
        "entities_found": 5,
        "timeline_missing": [],
    }
    assert (wet.code, wet.out) == (
        0,
        "Files 5, imported 5, unchanged 0, repaired 0, failed 0, warnings 1.\n",
    )
    assert wet.err == (
        "2 of 5 files.\n4 of 5 files.\n"
        "feature_units/FU-061.json: warning: created_at has no offset and was read as UTC\n"
    )
    assert report["warned"] == [
        {
            "file": "feature_units/FU-061.json",
            "code": "TIMESTAMP_ASSUMED_UTC",
            "field": "created_at",
            "message": "created_at has no offset and was read as UTC",
        }
    ]
    assert (again.document["imported"], again.document["unchanged"]) == (0, 5)
    assert bytes_below(folder) == before
    assert "Session abc123 started" in cli("timeline", "FU-061").out


def test_what_cannot_be_brought_is_told_and_ends_with_findings(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "memory"
    a_memory(folder, "sessions/bad.json", b"{")
    a_memory(folder, "sessions/bare.json", {"session_id": "bare-1"})
    a_memory(folder, "sessions/good.json", SESSION)
    (folder / "sessions" / "out.json").symlink_to(tmp_path / "elsewhere.json")

    strict = cli("import", "cursor-memory", str(folder))
    mended = cli("import", "cursor-memory", str(folder), "--repair")

    assert (strict.code, mended.code) == (1, 1)
    assert strict.err.splitlines() == [
        "sessions/out.json: a link that leaves the folder is not followed",
        "sessions/bad.json: The payload is not JSON in UTF-8",
        "sessions/bare.json: actions is required",
    ]
    assert mended.out.splitlines()[1:] == [
        "sessions/bare.json: actions from session_imported",
        "sessions/bare.json: started_at from mtime",
    ]
    assert cli("import", "cursor-memory", str(tmp_path / "nothing")).code == 2
    assert cli("import", "cursor-memory", str(folder), "--server", "http://127.0.0.1:1").code == 2
