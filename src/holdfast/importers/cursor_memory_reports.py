"""What is told of a run over a folder of memories."""

from typing import Any, Final

from msgspec import Struct

from holdfast.importers.cursor_memory_mapping import Repair
from holdfast.observations.model import EntityType

# How kinds are called in a report.
KINDS: Final = {
    EntityType.AGENT_SESSION: "session",
    EntityType.FEATURE_UNIT: "feature_unit",
    EntityType.RELEASE: "release",
    EntityType.AGENT_DECISION: "decision",
    EntityType.VALIDATION_RESULT: "validation",
}


class KindCount(Struct, frozen=True, kw_only=True):
    """How many files of a kind there were, and how many entities they are about."""

    files: int = 0
    entities: int = 0


class Failure(Struct, frozen=True, kw_only=True):
    """A file that was not brought, and why."""

    file: str
    error: str
    details: dict[str, Any] = {}


class Skip(Struct, frozen=True, kw_only=True):
    """Something in the folder that was not looked at, and why."""

    file: str
    reason: str


class Verified(Struct, frozen=True, kw_only=True):
    """Whether what was brought is there: its entities, and their first events on timelines."""

    entities_expected: int = 0
    entities_found: int = 0
    timeline_missing: tuple[str, ...] = ()


class MemoryReport(Struct, frozen=True, kw_only=True):
    """A run: its numbers, what was mended, and what went wrong in it."""

    root: str
    dry_run: bool
    files: int
    imported: int
    unchanged: int
    repaired: int
    failed: int
    warnings: int
    by_kind: dict[str, KindCount]
    repairs: tuple[Repair, ...]
    failures: tuple[Failure, ...]
    skipped: tuple[Skip, ...]
    verified: Verified

    @property
    def is_whole(self) -> bool:
        """Tell whether everything was brought, and is there."""
        told = self.verified
        is_found = told.entities_found == told.entities_expected
        return not self.failed and is_found and not told.timeline_missing
