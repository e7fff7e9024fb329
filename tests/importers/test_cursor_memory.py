"""Memories of another program become observations: once, as they are, and the source stays."""

import codecs
import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import Holdfast
from holdfast.domain.errors import Invalid
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.importers.cursor_memory import (
    CursorMemory,
    FileWarning,
    ImportVerification,
    KindCount,
    MemoryReport,
    SkippedFile,
)
from holdfast.importers.cursor_memory_files import (
    LARGEST,
    FieldRepair,
    MemoryFile,
    MemoryFolder,
    file_key,
    repair_fields,
)
from holdfast.observations.issues import WarningCode
from holdfast.observations.model import EntityType
from holdfast.observations.queries import EntityQuery
from tests.importers.memories import (
    DECISION,
    MODIFIED,
    SESSION,
    UNIT,
    VALIDATION,
    a_memory,
    bytes_below,
    memories,
)
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make an empty folder of memories."""
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


async def brought(house: Holdfast, root: Path, **wish: bool) -> MemoryReport:
    folder = MemoryFolder(root)
    importer = CursorMemory(house.store, house.observations, house.owner, folder, **wish)
    return await importer.migrate()


async def snapshot(house: Holdfast, session_id: str) -> dict[str, Any]:
    return (await house.observations.show(house.owner, session_id)).entity.snapshot


@demands("S3-140", "S3-140b", "S3-146")
async def test_one_memory_of_each_kind_is_brought(quiet: Holdfast, root: Path) -> None:
    before = bytes_below(memories(root))
    report = await brought(quiet, root)

    assert report == MemoryReport(
        root=str(MemoryFolder(root).path),
        dry_run=False,
        files=5,
        imported=5,
        unchanged=0,
        repaired=0,
        failed=0,
        warnings=1,
        warned=(
            FileWarning(
                file="feature_units/FU-061.json",
                code=WarningCode.TIMESTAMP_ASSUMED_UTC,
                field="created_at",
                message="created_at has no offset and was read as UTC",
            ),
        ),
        by_kind={
            kind: KindCount(files=1, entities=1)
            for kind in ("session", "feature_unit", "release", "decision", "validation")
        },
        repairs=(),
        failures=(),
        skipped=(),
        verified=ImportVerification(entities_expected=5, entities_found=5),
    )
    assert report.is_whole
    history = await quiet.observations.show(quiet.owner, "abc123")
    assert history.entity.snapshot == SESSION
    (claim,) = history.observations
    assert (claim.kind, claim.priority) == ("import", 50)
    assert claim.source == "cursor-memory:sessions/session-abc123.json"
    assert format_iso8601(milliseconds(claim.observed_at)) == "2025-12-31T12:00:00.000Z"
    assert bytes_below(root) == before


@demands("S3-140c")
async def test_names_that_changed_are_mapped(quiet: Holdfast, root: Path) -> None:
    memories(root)
    a_memory(root, "sessions/session-of-mine.json", {**SESSION, "session_id": None})
    a_memory(root, "sessions/other.json", {**SESSION, "session_id": None, "id": "named"})
    a_memory(root, "validations/v1.2.3-checks.json", {**VALIDATION, "type": "test"})
    a_memory(root, "validations/plain.json", VALIDATION)
    a_memory(root, "validations/kept.json", {**VALIDATION, "target": "x"})
    await brought(quiet, root)

    async def of(kind: EntityType) -> list[dict[str, Any]]:
        query = EntityQuery(entity_type=kind)
        page = await quiet.observations.entities(quiet.owner, query)
        return [each.snapshot for each in page.items]

    assert (await snapshot(quiet, "of-mine"))["session_id"] == "of-mine"
    assert (await snapshot(quiet, "named"))["session_id"] == "named"
    assert await of(EntityType.FEATURE_UNIT) == [
        {
            "id": "FU-061",
            "description": UNIT["overview"],
            "status": "planning",
            "risk_level": "low",
            "created_at": "2025-12-30",
            "updated_at": "2025-12-31T09:00:00Z",
        }
    ]
    (release,) = await of(EntityType.RELEASE)
    assert (release["id"], release["feature_units"]) == ("v0.2.3", ["FU-061"])
    assert await of(EntityType.AGENT_DECISION) == [
        {**DECISION, "decision_type": "technical", "timestamp": "2025-12-31T00:00:00Z"}
    ]
    found = {
        (each["validation_type"], each["target"]) for each in await of(EntityType.VALIDATION_RESULT)
    }
    assert found == {
        ("custom", "FU-061"),
        ("test", "v1.2.3"),
        ("custom", "plain"),
        ("custom", "x"),
    }


async def test_names_in_camel_case_are_mapped_and_mending_overrides_none(
    quiet: Holdfast, root: Path
) -> None:
    told = {
        "sessionId": "camel-1",
        "actions": [{"type": "run_tests", "result": "success"}],
        "startedAt": "2025-12-31T11:00:00Z",
        "endedAt": "2025-12-31T12:00:00Z",
    }
    a_memory(root, "sessions/session-other.json", told)
    release = {
        "releaseId": "v1.0.0",
        "version": "One",
        "featureUnits": ["FU-1"],
        "status": "planning",
        "acceptanceCriteria": ["it works"],
        "createdAt": "2025-12-30T00:00:00Z",
        "updatedAt": "2025-12-31T00:00:00Z",
    }
    a_memory(root, "releases/one.json", release)
    a_memory(root, "sessions/two.json", {**told, "session_id": "snake-1"})

    report = await brought(quiet, root, repair=True)

    assert (report.imported, report.repairs) == (3, ())
    assert await snapshot(quiet, "camel-1") == {
        "session_id": "camel-1",
        "actions": told["actions"],
        "checkpoints": [],
        "outcomes": [],
        "started_at": told["startedAt"],
        "ended_at": told["endedAt"],
    }
    # Both spellings in one file: the schema's own is the one that counts.
    assert [(each.file, each.code, each.field) for each in report.warned] == [
        ("sessions/two.json", WarningCode.UNKNOWN_FIELD, "sessionId")
    ]


async def test_what_is_not_read_is_reported(quiet: Holdfast, root: Path) -> None:
    a_memory(root, "sessions/session-abc123.json", SESSION)
    for name in ("sessions/note.md", "sessions/deep/log.jsonl", "README.md", "drafts/a.json"):
        a_memory(root, name, b"{}")

    report = await brought(quiet, root)

    folders = "sessions/, feature_units/, releases/, decisions/, validations/"
    assert (report.files, report.imported, report.is_whole) == (1, 1, True)
    assert report.skipped == (
        SkippedFile(file="README.md", reason=f"only {folders} are read"),
        SkippedFile(file="drafts", reason=f"only {folders} are read"),
        SkippedFile(file="sessions/deep/log.jsonl", reason="only .json files are read"),
        SkippedFile(file="sessions/note.md", reason="only .json files are read"),
    )


@each_case(
    ("named", "meant"),
    [
        ("", "{root}/.cursor/memory"),
        (".cursor", "{root}/.cursor/memory"),
        (".cursor/memory/sessions", "{root}/.cursor/memory"),
        ("elsewhere", "the folder that contains sessions/"),
    ],
)
def test_a_folder_beside_the_right_one_is_refused_with_the_right_one(
    root: Path, named: str, meant: str
) -> None:
    memories(root / ".cursor" / "memory")
    (root / "elsewhere").mkdir(exist_ok=True)

    with pytest.raises(Invalid) as refused:
        MemoryFolder(root / named)

    assert refused.value.message == (
        f"{root / named} contains none of sessions/, feature_units/, releases/, decisions/, "
        f"validations/; name {meant.format(root=root)}."
    )


async def test_a_byte_order_mark_is_no_part_of_a_file(quiet: Holdfast, root: Path) -> None:
    a_memory(root, "sessions/marked.json", codecs.BOM_UTF8 + json.dumps(SESSION).encode())

    assert (await brought(quiet, root)).imported == 1


def test_a_file_is_known_by_its_place_and_its_bytes() -> None:
    file = MemoryFile(
        entity_type=EntityType.AGENT_SESSION,
        path="sessions/session-abc123.json",
        content=b"",
        modified_ms=0,
    )

    class Known(MemoryFile, frozen=True):
        @property
        def digest(self) -> str:
            return "a1982776d80c4c3af389895b42bbc5b5a81f9869717d60d384d596226b9df56a"

    known = Known(**{name: getattr(file, name) for name in file.__struct_fields__})
    assert file_key(known) == "cursor-memory:7df2898527c8dbd5d6b4e8464000ff31"
    assert file.digest.startswith("e3b0c442")


@demands("S3-140d")
async def test_a_second_run_adds_nothing_and_a_changed_file_one_claim(
    quiet: Holdfast, root: Path
) -> None:
    memories(root)
    await brought(quiet, root)
    again = await brought(quiet, root)
    a_memory(root, "sessions/session-abc123.json", {**SESSION, "duration": 3600})
    changed = await brought(quiet, root)

    assert (again.imported, again.unchanged) == (0, 5)
    assert again.verified == ImportVerification(entities_expected=5, entities_found=5)
    assert (changed.imported, changed.unchanged) == (1, 4)
    history = await quiet.observations.show(quiet.owner, "abc123")
    assert (history.observations_total, history.entity.snapshot["duration"]) == (2, 3600)


async def test_a_dry_run_tells_the_same_and_writes_nothing(quiet: Holdfast, root: Path) -> None:
    memories(root)
    a_memory(root, "sessions/bad.json", b"{")
    dry = await brought(quiet, root, dry_run=True)
    page = await quiet.observations.query(quiet.owner)
    wet = await brought(quiet, root)

    assert (dry.dry_run, wet.dry_run, page.total) == (True, False, 0)
    assert {**_told(dry), "dry_run": False} == _told(wet)


def _told(report: MemoryReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__struct_fields__}


async def test_what_is_missing_is_a_failure_or_mended(quiet: Holdfast, root: Path) -> None:
    bare = {"session_id": "bare-1", "checkpoints": [{"name": "reached"}]}
    a_memory(root, "sessions/bare.json", bare)
    a_memory(root, "sessions/empty.json", {**SESSION, "session_id": "empty-1", "actions": []})
    a_memory(root, "decisions/no-day.json", DECISION)
    a_memory(root, "decisions/20251399.json", DECISION)
    a_memory(root, "feature_units/FU-1.json", {**UNIT, "id": "FU-1", "created": None})

    strict = await brought(quiet, root)
    mended = await brought(quiet, root, repair=True)
    os.utime(root / "sessions/bare.json", (1, 1))
    again = await brought(quiet, root, repair=True)

    assert (strict.failed, strict.imported) == (5, 0)
    assert not strict.is_whole
    first = strict.failures[0]
    assert (first.file, first.error) == ("decisions/20251399.json", "schema_validation_failed")
    assert (first.details["field"], first.details["expected"]) == ("timestamp", "required")
    assert mended.repairs == (
        FieldRepair(file="decisions/20251399.json", field="timestamp", rule="mtime"),
        FieldRepair(file="decisions/no-day.json", field="timestamp", rule="mtime"),
        FieldRepair(file="sessions/bare.json", field="actions", rule="session_imported"),
        FieldRepair(file="sessions/bare.json", field="started_at", rule="mtime"),
        FieldRepair(file="sessions/bare.json", field="checkpoints[0].timestamp", rule="mtime"),
        FieldRepair(file="sessions/empty.json", field="actions", rule="session_imported"),
    )
    # What fails is not mended: FU-1 was changed before the time that it would be created at.
    assert (mended.repaired, mended.imported, mended.failed) == (4, 4, 1)
    known = await snapshot(quiet, "bare-1")
    assert known["actions"] == [{"type": "session_imported", "result": "success"}]
    assert known["started_at"] == format_iso8601(MODIFIED * 1000)
    # The same bytes are the same memory, whatever becomes of the file's time.
    assert (again.imported, again.unchanged) == (0, 4)
    assert again.verified.timeline_missing == ()


@demands("S3-140b")
async def test_what_cannot_be_read_keeps_no_other_back(quiet: Holdfast, root: Path) -> None:
    memories(root)
    a_memory(root, "sessions/a.json", b"\xff")
    a_memory(root, "sessions/b.json", b'{"id": "abc123", "id": "abc124"}')
    a_memory(root, "sessions/c.json", [])
    a_memory(root, "sessions/d.json", b"[" * 100_000)
    a_memory(root, "sessions/deep/er/e.json", {**SESSION, "session_id": "deeper"})
    a_memory(root, "sessions/note.txt", b"no memory")
    (root / "sessions" / "folder.json").mkdir()
    os.mkfifo(root / "sessions" / "pipe.json")
    with (root / "sessions" / "large.json").open("wb") as large:
        large.truncate(LARGEST + 1)

    report = await brought(quiet, root)

    assert (report.files, report.imported, report.failed) == (12, 6, 6)
    assert {each.file: each.error for each in report.failures} == {
        "sessions/a.json": "schema_validation_failed",
        "sessions/b.json": "schema_validation_failed",
        "sessions/c.json": "schema_validation_failed",
        "sessions/d.json": "schema_validation_failed",
        "sessions/large.json": "too_large",
        "sessions/pipe.json": "not_a_file",
    }
    assert (await snapshot(quiet, "deeper"))["session_id"] == "deeper"


async def test_links_out_of_the_folder_are_passed_over(
    quiet: Holdfast, root: Path, tmp_path: Path
) -> None:
    elsewhere = memories(tmp_path / "elsewhere")
    a_memory(root, "sessions/own.json", {**SESSION, "session_id": "own-1"})
    (root / "sessions" / "out.json").symlink_to(elsewhere / "sessions" / "session-abc123.json")
    (root / "sessions" / "folder").symlink_to(elsewhere / "sessions")
    (root / "sessions" / "loop").symlink_to(root / "sessions")
    (root / "sessions" / "gone.json").symlink_to(root / "sessions" / "nothing.json")
    (root / "sessions" / "same.json").symlink_to(root / "sessions" / "own.json")
    (root / "releases").symlink_to(elsewhere / "releases")

    report = await brought(quiet, root)

    assert {each.file: each.reason for each in report.skipped} == {
        "releases": "a link that leaves the folder is not followed",
        "sessions/folder": "a link that leaves the folder is not followed",
        "sessions/loop": "a link to a folder is not followed",
        "sessions/out.json": "a link that leaves the folder is not followed",
    }
    assert [(each.file, each.error) for each in report.failures] == [
        ("sessions/gone.json", "unreadable")
    ]
    assert (report.imported, report.verified.entities_expected) == (2, 1)


async def test_hostile_names_are_told_and_harmless(quiet: Holdfast, root: Path) -> None:
    (root / "sessions").mkdir()
    names = ["a\nb.json", "\x1b[31mred.json", "x" * 240 + ".json", "séance.json", ".json"]
    for name in names:
        a_memory(
            root, f"sessions/{name}", {**SESSION, "session_id": f"of-{len(name)}-{name[:2]!r}"}
        )
    bad = os.fsencode(root / "sessions") + b"/\xff.json"
    os.close(os.open(bad, os.O_CREAT | os.O_WRONLY))

    report = await brought(quiet, root)

    assert (report.files, report.imported) == (6, 5)
    (failure,) = report.failures
    assert (failure.error, failure.file) == ("invalid_text", "sessions/\ufffd.json")
    page = await quiet.observations.query(quiet.owner)
    for each in page.items:
        shown = await quiet.observations.show(quiet.owner, each.key)
        assert len(shown.observations[0].source) <= 200


def test_a_time_that_no_calendar_has_mends_nothing() -> None:
    kind = EntityType.AGENT_SESSION
    file = MemoryFile(entity_type=kind, path="sessions/odd.json", content=b"", modified_ms=1 << 60)
    told = {**SESSION, "started_at": None}

    assert repair_fields(file, told) == []
    assert repair_fields(file, "no object") == []
    assert told["started_at"] is None


async def test_an_import_overrides_nothing_and_fills_gaps(quiet: Holdfast, root: Path) -> None:
    await quiet.observations.submit(
        quiet.owner, {**SESSION, "ended_at": "2025-12-31T13:00:00Z", "checkpoints": []}
    )
    memories(root)
    await brought(quiet, root)

    known = await snapshot(quiet, "abc123")
    assert known["ended_at"] == "2025-12-31T13:00:00Z"
    assert [each["name"] for each in known["checkpoints"]] == ["spec_complete"]


async def test_what_was_hidden_since_is_no_miss(quiet: Holdfast, root: Path) -> None:
    memories(root)
    await brought(quiet, root)
    await quiet.observations.delete(quiet.owner, "abc123")

    assert (await brought(quiet, root)).is_whole


async def test_the_times_inside_say_when_it_was_true(quiet: Holdfast, root: Path) -> None:
    session = {name: value for name, value in SESSION.items() if name != "ended_at"}
    a_memory(root, "sessions/inside.json", session)
    late = {**session, "session_id": "plain-1", "checkpoints": []}
    a_memory(root, "sessions/plain.json", late)
    await brought(quiet, root)

    told = [
        format_iso8601(
            milliseconds(
                (await quiet.observations.show(quiet.owner, name)).observations[0].observed_at
            )
        )
        for name in ("abc123", "plain-1")
    ]
    assert told == ["2025-12-31T11:15:00.000Z", "2025-12-31T11:00:00.000Z"]


async def test_an_unreadable_folder_is_a_failure(
    quiet: Holdfast, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories(root)
    scan = os.scandir

    def refusing(path: Any) -> Any:
        if str(path).endswith("decisions"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    # Where tests run as root no mode keeps anybody out.
    monkeypatch.setattr(os, "scandir", refusing)
    report = await brought(quiet, root)

    assert [(each.file, each.error) for each in report.failures] == [("decisions", "unreadable")]
    assert report.imported == 4


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "nothing", a_memory(tmp_path, "file.json", {})):
        with pytest.raises(Invalid):
            MemoryFolder(place)


async def test_the_second_file_of_one_session_is_another_claim(quiet: Holdfast, root: Path) -> None:
    a_memory(root, "sessions/one.json", SESSION)
    a_memory(root, "sessions/two.json", {**SESSION, "duration": 3600})
    steps: list[tuple[int, int]] = []
    folder = MemoryFolder(root)
    importer = CursorMemory(quiet.store, quiet.observations, quiet.owner, folder)

    def progress(done: int, total: int) -> None:
        steps.append((done, total))

    report = await importer.migrate(progress=progress)

    assert report.by_kind["session"] == KindCount(files=2, entities=1)
    assert steps == [(1, 2), (2, 2)]
    assert (await quiet.observations.show(quiet.owner, "abc123")).observations_total == 2


@demands("S3-146b")
async def test_an_entity_is_looked_for_on_every_page_of_its_timeline(
    quiet: Holdfast, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.importers.cursor_memory.PAGE", 1)
    a_memory(root, "sessions/one.json", SESSION)
    earlier = {
        **SESSION,
        "session_id": "other-1",
        "started_at": "2025-12-30",
        "outcomes": [{"type": "session", "id": "abc123"}],
    }
    a_memory(root, "sessions/two.json", earlier)
    first = await brought(quiet, root)

    async def forget(tx: Any) -> None:
        await tx.projections._db.execute("DELETE FROM timeline")

    await quiet.store.write(forget)
    second = await brought(quiet, root)

    assert first.verified == ImportVerification(entities_expected=2, entities_found=2)
    assert first.is_whole
    assert len(second.verified.timeline_missing) == 2
    assert not second.is_whole
