"""What is told of a run over blocks, and whose a block is."""

from typing import Any

from msgspec import Struct

from holdfast.zones.model import is_valid_definition_id


class MigrationStats(Struct, frozen=True, kw_only=True):
    """What a run has found and done."""

    blocks_scanned: int = 0
    archives_written: int = 0
    archives_already_present: int = 0
    current_zones_seeded: int = 0
    skipped_no_snapshot: int = 0
    failures: int = 0


class Trouble(Struct, frozen=True, kw_only=True):
    """What went wrong with one block, or with one desk."""

    oid: str
    step: str
    error: str


class BlockReport(Struct, frozen=True, kw_only=True):
    """A run: its numbers, and what went wrong in it."""

    stats: MigrationStats
    troubles: tuple[Trouble, ...] = ()


def definition_in(meta: dict[str, Any]) -> str | None:
    """Return whose block it is; nothing for one that is no agent's, or of an id that cannot be."""
    if meta.get("view") != "agent":
        return None
    said = meta.get("agentId")
    found = said if isinstance(said, str) and said else meta.get("agent:id")
    return found if isinstance(found, str) and is_valid_definition_id(found) else None
