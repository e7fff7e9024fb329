"""Imports a `cursor-memory` folder: each file becomes one observation, idempotently."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.domain.errors import Code, HoldfastError, Internal, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.text import is_encodable, storable
from holdfast.importers.cursor_memory_files import (
    FieldRepair,
    MemoryFolder,
    file_key,
    map_fields,
    observed_at,
    repair_fields,
    source_of,
)
from holdfast.observations.claims import Claim, accept_payload, build_observation
from holdfast.observations.issues import WarningCode
from holdfast.observations.merge import resolve
from holdfast.observations.model import EntityType, ObservationKind, Subject
from holdfast.observations.queries import TimelineQuery
from holdfast.observations.service import Observations
from holdfast.observations.timeline import EventType, events_of
from holdfast.observations.validation import decode_payload_strictly
from holdfast.ports.store import Store

# Names of entity types in a report.
KINDS: Final = {
    EntityType.AGENT_SESSION: "session",
    EntityType.FEATURE_UNIT: "feature_unit",
    EntityType.RELEASE: "release",
    EntityType.AGENT_DECISION: "decision",
    EntityType.VALIDATION_RESULT: "validation",
}


class KindCount(Struct, frozen=True, kw_only=True):
    """Number of files of a type, and of the entities they describe."""

    files: int = 0
    entities: int = 0


class ImportFailure(Struct, frozen=True, kw_only=True):
    """A file that was not imported, and why."""

    file: str
    error: str
    details: dict[str, Any] = {}


class FileWarning(Struct, frozen=True, kw_only=True):
    """A problem with the data of a file that was imported nevertheless."""

    file: str
    code: WarningCode
    field: str
    message: str


class SkippedFile(Struct, frozen=True, kw_only=True):
    """A path in the folder that was not read, and why."""

    file: str
    reason: str


class ImportVerification(Struct, frozen=True, kw_only=True):
    """Whether the imported entities exist and their first events are on their timelines."""

    entities_expected: int = 0
    entities_found: int = 0
    timeline_missing: tuple[str, ...] = ()


class MemoryReport(Struct, frozen=True, kw_only=True):
    """Result of a run: counts, repairs and failures."""

    root: str
    dry_run: bool
    files: int
    imported: int
    unchanged: int
    repaired: int
    failed: int
    warnings: int
    warned: tuple[FileWarning, ...]
    by_kind: dict[str, KindCount]
    repairs: tuple[FieldRepair, ...]
    failures: tuple[ImportFailure, ...]
    skipped: tuple[SkippedFile, ...]
    verified: ImportVerification

    @property
    def is_whole(self) -> bool:
        """Return whether every file was imported and verified."""
        verified = self.verified
        is_found = verified.entities_found == verified.entities_expected
        return not self.failed and is_found and not verified.timeline_missing


log = logging.getLogger(__name__)
PAGE = 500
# The first timeline event of each entity type.
_FIRST = {
    EntityType.AGENT_SESSION: EventType.SESSION_STARTED,
    EntityType.FEATURE_UNIT: EventType.STATUS_CHANGED,
    EntityType.RELEASE: EventType.STATUS_CHANGED,
    EntityType.AGENT_DECISION: EventType.DECISION_MADE,
    EntityType.VALIDATION_RESULT: EventType.VALIDATION_RECORDED,
}
Progress = Callable[[int, int], None]


class _FileClaim(Struct, frozen=True, kw_only=True):
    """A file's validated claim, its idempotency key and its repairs."""

    claim: Claim
    key: str
    repairs: list[FieldRepair]


class CursorMemory:
    """One import of a folder for an owner.

    `dry_run` writes nothing, `repair` fills in missing fields.
    """

    def __init__(
        self,
        store: Store,
        observations: Observations,
        owner: Owner,
        folder: MemoryFolder,
        *,
        dry_run: bool = False,
        repair: bool = False,
    ) -> None:
        self._store = store
        self._observations = observations
        self._owner = owner
        self._folder = folder
        self._is_dry = dry_run
        self._repairs_files = repair
        self._counts = dict.fromkeys(("imported", "unchanged", "repaired"), 0)
        self._files = dict.fromkeys(EntityType, 0)
        self._subjects: dict[Subject, bool] = {}
        self._repairs: list[FieldRepair] = []
        self._warned: list[FileWarning] = []
        self._failures: list[ImportFailure] = []

    async def migrate(self, *, progress: Progress | None = None) -> MemoryReport:
        """Import every file; a failed file is reported and does not stop the others."""
        places = await asyncio.to_thread(self._folder.files)
        for number, (kind, path) in enumerate(places, start=1):
            await self._import_file(kind, path)
            if progress is not None:
                progress(number, len(places))
        report = await self._report()
        counts = {name: value for name, value in asdict(report).items() if isinstance(value, int)}
        log.info("memories were imported", extra={"fields": counts})
        return report

    async def _import_file(self, kind: EntityType, path: str) -> None:
        """Import one file, or record why it failed."""
        self._files[kind] += 1
        try:
            found = await asyncio.to_thread(self._inspect, kind, path)
        except HoldfastError as error:
            details = error.details or {"message": error.message}
            self._fail(path, str(error.code), details)
            return
        except OSError as error:
            self._fail(path, "unreadable", {"message": error.strerror or "it cannot be read"})
            return
        known = await self._store.read(
            lambda tx: tx.observations.by_idempotency_key(self._owner, found.key)
        )
        subject = found.claim.payload.subject_of(self._owner) if known is None else known.subject
        is_new = known is None and await self._write(found)
        self._note(path, found, subject, is_new=is_new)

    def _inspect(self, kind: EntityType, path: str) -> _FileClaim:
        """Return the claim of a file, validated like a submission."""
        if not is_encodable(path):
            raise Invalid(Code.INVALID_TEXT, "Its name is not UTF-8; rename it.")
        file = self._folder.read(kind, path)
        data = map_fields(file, decode_payload_strictly(file.content))
        mended = repair_fields(file, data) if self._repairs_files else []
        payload = accept_payload(kind, data)
        key = file_key(file)
        claim = Claim(
            payload=payload,
            kind=ObservationKind.IMPORT,
            source=source_of(file),
            idempotency_key=key,
            observed_at=observed_at(kind, payload.fields),
        )
        return _FileClaim(claim=claim, key=key, repairs=mended)

    async def _write(self, claim: _FileClaim) -> bool:
        """Write a claim, unless this is a dry run; return whether it is new."""
        if self._is_dry:
            return True
        done = await self._observations.import_(self._owner, claim.claim)
        # A concurrent run may have imported it already.
        return not done.deduplicated

    def _note(self, path: str, claim: _FileClaim, subject: Subject, *, is_new: bool) -> None:
        self._counts["imported" if is_new else "unchanged"] += 1
        self._warned += [
            FileWarning(file=path, code=each.code, field=each.field, message=each.message)
            for each in claim.claim.payload.warnings
        ]
        self._counts["repaired"] += bool(claim.repairs)
        self._repairs += claim.repairs
        # In a dry run the timeline is computed from this file alone.
        is_on = self._is_dry and _starts_timeline(self._owner, claim)
        self._subjects[subject] = self._subjects.get(subject, False) or is_on

    def _fail(self, path: str, error: str, details: Any) -> None:
        self._failures.append(
            ImportFailure(file=storable(path), error=error, details=dict(details))
        )

    async def _report(self) -> MemoryReport:
        """Return the report, after verifying the result in the store."""
        for path, reason in self._folder.unreadable.items():
            self._fail(path, "unreadable", {"message": reason})
        by_kind = {
            name: KindCount(
                files=self._files[kind],
                entities=sum(each.entity_type is kind for each in self._subjects),
            )
            for kind, name in KINDS.items()
        }
        return MemoryReport(
            root=storable(self._folder.path),
            dry_run=self._is_dry,
            files=sum(self._files.values()),
            failed=len(self._failures),
            **self._counts,
            warnings=len(self._warned),
            warned=tuple(self._warned),
            by_kind=by_kind,
            repairs=tuple(self._repairs),
            failures=tuple(self._failures),
            skipped=tuple(
                SkippedFile(file=storable(path), reason=reason)
                for path, reason in sorted(self._folder.skipped.items())
            ),
            verified=await self._verify(),
        )

    async def _verify(self) -> ImportVerification:
        found, missing = 0, []
        for subject, is_on in self._subjects.items():
            is_there, is_in_timeline = (True, is_on)
            if not self._is_dry:
                is_there, is_in_timeline = await self._stands(subject)
            found += is_there
            missing += [] if is_in_timeline else [subject.entity_id]
        return ImportVerification(
            entities_expected=len(self._subjects),
            entities_found=found,
            timeline_missing=tuple(missing),
        )

    async def _stands(self, subject: Subject) -> tuple[bool, bool]:
        """Return whether an entity exists, and whether its first event is on its timeline."""
        known = await self._store.read(lambda tx: tx.observations.entity(subject))
        if known is None or known.is_deleted:
            # A deleted history exists but has no timeline, so it counts as verified.
            return known is not None, known is not None
        try:
            return True, await self._is_on_its_timeline(subject)
        except Internal:
            # Damaged rows are not shown; `holdfast doctor` reports details.
            return True, False

    async def _is_on_its_timeline(self, subject: Subject) -> bool:
        cursor = None
        query = TimelineQuery(event_types=(_FIRST[subject.entity_type],), limit=PAGE)
        while True:
            page = await self._observations.timeline(
                self._owner, subject.entity_id, query, cursor=cursor
            )
            if any(event.entity_id == subject.entity_id for event in page.events):
                return True
            cursor = page.next_cursor
            if cursor is None:
                return False


def _starts_timeline(owner: Owner, claim: _FileClaim) -> bool:
    """Return whether a claim alone creates its entity's first timeline event."""
    subject = claim.claim.payload.subject_of(owner)
    observation = build_observation(subject, claim.claim, ordinal=1, created_ms=0)
    first = _FIRST[subject.entity_type]
    return any(event.event_type is first for event in events_of(resolve(subject, [observation])))
