"""Imports zones of blocks as zones of agents: one archive each, the newest as active zone."""

import asyncio
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import Owner
from holdfast.ports.blocks import Block, BlockFile, BlockSource
from holdfast.ports.store import Store, Tx
from holdfast.services.stamping import Stamping
from holdfast.zones.binding import definition_for, stamp_of
from holdfast.zones.files import ensure_file, free_archive, make_room
from holdfast.zones.model import (
    MIGRATION_MARKER_V1,
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    ZoneFile,
    agent_current_zone,
    is_valid_definition_id,
)
from holdfast.zones.replay import archives_of

log = logging.getLogger(__name__)
CONTENT = "v1\n"


def import_marker(source: str) -> str:
    """Return the name of a folder's import marker, derived from its real path."""
    return f"block_zones_v1:{hashlib.sha256(source.encode('utf-8', 'surrogateescape')).hexdigest()}"


def write_flag_file(data_dir: Path, name: str) -> None:
    """Write a private flag file; a failure is only logged, because nothing depends on it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(data_dir / name, flags, 0o600), "w") as file:
            file.write(CONTENT)
    except OSError as error:
        log.warning("the flag %s was not written: %s", name, error.strerror)


class MigrationStats(Struct, frozen=True, kw_only=True):
    """Counts of a run."""

    blocks_scanned: int = 0
    archives_written: int = 0
    archives_already_present: int = 0
    current_zones_seeded: int = 0
    skipped_no_snapshot: int = 0
    failures: int = 0


class BlockFailure(Struct, frozen=True, kw_only=True):
    """An error with one block or one active zone."""

    oid: str
    step: str
    error: str


class BlockReport(Struct, frozen=True, kw_only=True):
    """Result of a run: counts and errors."""

    stats: MigrationStats
    troubles: tuple[BlockFailure, ...] = ()


def block_definition(meta: dict[str, Any]) -> str | None:
    """Return the agent id of a block; None if it is not an agent's or the id is invalid."""
    if meta.get("view") != "agent":
        return None
    said = meta.get("agentId")
    found = said if isinstance(said, str) and said else meta.get("agent:id")
    return found if isinstance(found, str) and is_valid_definition_id(found) else None


NAMES = (SNAPSHOT_FILE, OUTPUT_FILE)


class _SourceBlock(Struct, frozen=True, kw_only=True):
    """A block with a snapshot: its agent, and its files in the source."""

    oid: str
    definition_id: str
    files: dict[str, BlockFile]

    @property
    def archived_ms(self) -> int:
        state = self.files[SNAPSHOT_FILE]
        return max(state.created_ms, 0) or max(state.modified_ms, 0)

    @property
    def modified_ms(self) -> int:
        return self.files[SNAPSHOT_FILE].modified_ms


class BlockZones:
    """One import of the zones of a source's blocks for an owner's agents.

    A dry run only reports what would be written.
    """

    def __init__(
        self,
        store: Store,
        stamping: Stamping,
        owner: Owner,
        source: BlockSource,
        *,
        dry_run: bool = False,
    ) -> None:
        self._store = store
        self._stamping = stamping
        self._owner = owner
        self._source = source
        self._is_dry = dry_run
        # Whether contents of an active zone count as archived.
        self._counts_active = False
        self._counts: dict[str, int] = {}
        self._failures_seen: list[BlockFailure] = []
        # What a dry run would have written so far.
        self._promised: set[tuple[str, bytes]] = set()

    async def migrate(self, data_dir: Path) -> BlockReport:
        """Import everything, unless this was done before, and log the counts."""
        report = await self._import_once(data_dir)
        log.info("block zones were imported", extra={"fields": asdict(report.stats)})
        return report

    async def _import_once(self, data_dir: Path) -> BlockReport:
        mark = import_marker(self._source.path)
        if await self._store.read(lambda tx: tx.zones.is_marked(mark)):
            return BlockReport(stats=MigrationStats())
        blocks = await asyncio.to_thread(self._source.blocks)
        if blocks is None:
            return BlockReport(stats=MigrationStats())
        report = await self._import_all(sorted(blocks, key=lambda block: block.oid))
        if not self._is_dry and not report.troubles:
            await self._store.write(lambda tx: tx.zones.mark(mark, stamp_of(self._stamping).at))
            await asyncio.to_thread(write_flag_file, data_dir, MIGRATION_MARKER_V1)
        return report

    async def count_missing(self) -> int:
        """Return how many blocks have a snapshot that is in no archive and no active zone."""
        self._is_dry = self._counts_active = True
        blocks = await asyncio.to_thread(self._source.blocks)
        return (await self._import_all(blocks or [])).stats.archives_written

    async def _import_all(self, blocks: list[Block]) -> BlockReport:
        """Import every block, then fill the active zones."""
        newest: dict[str, _SourceBlock] = {}
        for block in blocks:
            definition_id = block_definition(block.meta)
            if definition_id is None:
                continue
            self._count("blocks_scanned")
            source_block = await self._inspect(block.oid, definition_id)
            if source_block is None:
                continue
            await self._try(source_block, "archive", self._archive)
            before = newest.get(source_block.definition_id)
            # On equal times the first block wins; blocks are sorted by id.
            if before is None or source_block.modified_ms > before.modified_ms:
                newest[source_block.definition_id] = source_block
        for source_block in newest.values():
            await self._try(source_block, "seed", self._fill_active)
        stats = MigrationStats(**self._counts, failures=len(self._failures_seen))
        return BlockReport(stats=stats, troubles=tuple(self._failures_seen))

    async def _inspect(self, oid: str, definition_id: str) -> _SourceBlock | None:
        """Return a block with a snapshot; counts one without, and records a failed one."""
        try:
            found = await asyncio.to_thread(self._stats, oid)
            named = await self._store.read(
                lambda tx: definition_for(tx, self._owner, definition_id)
            )
        except HoldfastError as error:
            self._failures_seen.append(BlockFailure(oid=oid, step="read", error=error.message))
            return None
        if SNAPSHOT_FILE not in found:
            self._count("skipped_no_snapshot")
            return None
        return _SourceBlock(oid=oid, definition_id=named, files=found)

    def _stats(self, oid: str) -> dict[str, BlockFile]:
        found = {name: self._source.stat(oid, name) for name in NAMES}
        return {name: file for name, file in found.items() if file is not None and file.size}

    async def _try(self, source_block: _SourceBlock, step: str, act: Any) -> None:
        try:
            await act(source_block)
        except HoldfastError as error:
            self._failures_seen.append(
                BlockFailure(oid=source_block.oid, step=step, error=error.message)
            )

    async def _archive(self, source_block: _SourceBlock) -> None:
        async def work(tx: Tx) -> bool:
            if await self._is_archived(tx, source_block):
                return False
            at = source_block.archived_ms or stamp_of(self._stamping).at
            zone, _ = await free_archive(tx, self._owner, source_block.definition_id, at)
            await self._import_block(tx, source_block, zone)
            return True

        if self._is_dry:
            is_new = await self._would_write(source_block)
        else:
            is_new = await self._store.write(work)
        self._count("archives_written" if is_new else "archives_already_present")

    async def _would_write(self, source_block: _SourceBlock) -> bool:
        digest = await asyncio.to_thread(self._digest, source_block)
        key = (source_block.definition_id, digest)
        is_held = await self._store.read(lambda tx: self._is_archived(tx, source_block))
        is_new = not is_held and key not in self._promised
        self._promised.add(key)
        return is_new

    def _digest(self, source_block: _SourceBlock) -> bytes:
        total = hashlib.sha256()
        for name in sorted(source_block.files):
            total.update(name.encode() + b"\x00")
            for piece in self._source.pieces(source_block.oid, name):
                total.update(piece)
        return total.digest()

    async def _is_archived(self, tx: Tx, source_block: _SourceBlock) -> bool:
        """Return whether an archive of the agent has the same bytes."""
        found = await archives_of(tx, self._owner, source_block.definition_id)
        active = [agent_current_zone(source_block.definition_id)] if self._counts_active else []
        for zone in [*(zone for zone, _ in found), *active]:
            files = {file.name: file for file in await tx.zones.files(self._owner, zone)}
            mine = {name: file for name, file in files.items() if name in NAMES and file.size}
            if set(mine) == set(source_block.files) and await self._are_same(
                tx, source_block, mine
            ):
                return True
        return False

    async def _are_same(
        self, tx: Tx, source_block: _SourceBlock, files: dict[str, ZoneFile]
    ) -> bool:
        for name, file in files.items():
            if file.size != source_block.files[name].size:
                return False
            start = 0
            for piece in self._source.pieces(source_block.oid, name):
                if await tx.zones.read(file, start, start + len(piece)) != piece:
                    return False
                start += len(piece)
        return True

    async def _fill_active(self, source_block: _SourceBlock) -> None:
        zone = agent_current_zone(source_block.definition_id)

        async def read(tx: Tx) -> bool:
            state = await tx.zones.file(self._owner, zone, SNAPSHOT_FILE)
            return state is None or not state.size

        async def work(tx: Tx) -> bool:
            if not await read(tx):
                return False
            stamp = stamp_of(self._stamping)
            # A log without a snapshot is archived first, so that two logs are never mixed.
            await make_room(tx, self._owner, zone, lambda: stamp.at)
            await self._import_block(tx, source_block, zone)
            return True

        is_free = await (self._store.read(read) if self._is_dry else self._store.write(work))
        if is_free:
            self._count("current_zones_seeded")

    async def _import_block(self, tx: Tx, source_block: _SourceBlock, zone: str) -> None:
        stamp = stamp_of(self._stamping)
        for name, known in source_block.files.items():
            file = await ensure_file(tx, self._owner, zone, name, stamp=stamp)
            for piece in self._source.pieces(source_block.oid, name):
                file = await tx.zones.append(self._owner, file, piece, stamp.at)
            created = max(known.created_ms, 0) or file.created_ms
            modified = max(known.modified_ms, 0) or created
            dated = replace(file, created_ms=created, modified_ms=modified)
            await tx.zones.move(self._owner, dated)

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1
