"""Archives of an active zone: list, read, restore, delete."""

from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.sessions import Status
from holdfast.ports import Store, Tx
from holdfast.services.journal import Journal, JournalTransaction
from holdfast.services.stamping import Stamping
from holdfast.zones.binding import definition_for, notify_bound_session, stamp_of
from holdfast.zones.files import ZoneFiles, clear_active_zone, make_room
from holdfast.zones.model import (
    SNAPSHOT_FILE,
    WRITE_LARGEST,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    RestoreResult,
    ZoneFile,
    agent_archive_zone,
    agent_current_zone,
    archive_not_found,
    archive_prefix,
    archive_time,
    archives_limit,
    require_definition_id,
)
from holdfast.zones.replay import archives_of, summary_of, without_block


class Archives:
    """Archive operations of `Zones`."""

    def __init__(self, store: Store, journal: Journal, stamping: Stamping) -> None:
        self._store = store
        self._journal = journal
        self.stamping = stamping

    async def archive(self, owner: Owner, definition_id: str) -> ArchiveResult | None:
        """Move the files of an active zone into a new archive; `None` if it is empty."""
        require_definition_id(definition_id)

        async def compose(entry: JournalTransaction) -> ArchiveResult | None:
            zone = await active_zone_of(entry.tx, owner, definition_id)
            archived = await clear_active_zone(entry.tx, owner, zone, self._now)
            if archived is not None:
                await notify_bound_session(entry, owner, zone, archived.archive_zoneid)
            return archived

        return await self._journal.enter(compose)

    async def list_archives(
        self, owner: Owner, definition_id: str, *, limit: int | None = None
    ) -> tuple[ArchiveSummary, ...]:
        """Return the archives of an agent, newest first."""
        require_definition_id(definition_id)
        most = archives_limit(limit)

        async def look(tx: Tx) -> tuple[ArchiveSummary, ...]:
            found = await definition_for(tx, owner, definition_id)
            newest = (await archives_of(tx, owner, found))[:most]
            return tuple([await summary_of(tx, owner, zone, ms) for zone, ms in newest])

        return await self._store.read(look)

    async def read_archive(self, owner: Owner, definition_id: str, ms: int) -> Archive:
        """Return an archive with its snapshot."""

        async def look(tx: Tx) -> Archive:
            zone = await zone_at(tx, owner, definition_id, ms)
            files = await tx.zones.files(owner, zone)
            content = await self._files(tx, owner).read(zone, SNAPSHOT_FILE)
            text = None if content is None else content.decode("utf-8", "replace")
            return Archive(archive_zoneid=zone, archived_at_ms=ms, content=text, files=files)

        return await self._store.read(look)

    async def restore_archive(self, owner: Owner, definition_id: str, ms: int) -> RestoreResult:
        """Copy an archive to the active zone; its current content is archived first."""
        require_definition_id(definition_id)

        async def compose(entry: JournalTransaction) -> RestoreResult:
            tx = entry.tx
            source = await zone_at(tx, owner, definition_id, ms)
            zone = await active_zone_of(tx, owner, definition_id)
            await _require_quiet(tx, owner, zone)
            files = self._files(tx, owner)
            displaced = await make_room(tx, owner, zone, self._now)
            for file in await files.files(source):
                await self._brought_back(files, file, zone)
            if displaced is not None:
                await notify_bound_session(entry, owner, zone, displaced.archive_zoneid)
            return RestoreResult(
                zone=zone,
                restored_from=source,
                displaced=displaced.archive_zoneid if displaced else None,
            )

        return await self._journal.enter(compose)

    async def delete_archive(self, owner: Owner, definition_id: str, ms: int) -> bool:
        """Remove an archive; `False` if there is none."""
        require_definition_id(definition_id)

        async def work(tx: Tx) -> bool:
            found = await definition_for(tx, owner, definition_id)
            zone = agent_archive_zone(found, ms)
            is_one = archive_time(found, zone) is not None
            return is_one and await tx.zones.remove_all(owner, zone) > 0

        is_gone = await self._store.write(work, urgent=True)
        if is_gone:
            # Scrub the write-ahead log as well: deleted content must not remain on disk.
            await self._store.scrub()
        return is_gone

    async def purge(self, owner: Owner, definition_id: str, *, confirm: str) -> int:
        """Remove the active zone and all archives of an id; return the number of zones.

        `confirm` must repeat the id, to prevent accidental deletion.
        """
        require_definition_id(definition_id)
        if confirm != definition_id:
            raise Invalid(
                Code.INVALID_INPUT,
                "Nothing was removed: to remove all zones, confirm with the id itself.",
                {"field": "confirm"},
            )

        async def work(tx: Tx) -> int:
            found = await definition_for(tx, owner, definition_id)
            files = self._files(tx, owner)
            zones = [agent_current_zone(found), *await files.list_zones(archive_prefix(found))]
            return sum([await files.delete_zone(zone) > 0 for zone in zones])

        gone = await self._store.write(work, urgent=True)
        await self._store.scrub()
        return gone

    def _now(self) -> int:
        return stamp_of(self.stamping).at

    def _files(self, tx: Tx, owner: Owner) -> ZoneFiles:
        return ZoneFiles(tx, owner, stamp_of(self.stamping))

    async def _brought_back(self, files: ZoneFiles, file: ZoneFile, zone: str) -> None:
        at = max(self._now(), file.modified_ms)
        # An imported file may exceed the size limit of a single write.
        if file.name == SNAPSHOT_FILE and file.size <= WRITE_LARGEST:
            content = await files.read(file.zone, file.name) or b""
            cleaned = without_block(content)
            if cleaned != content:
                await files.write(zone, file.name, cleaned)
                return
        await files.copy(file, zone, modified_ms=at)


async def active_zone_of(tx: Tx, owner: Owner, definition_id: str) -> str:
    """Return the name of an agent's active zone."""
    return agent_current_zone(await definition_for(tx, owner, definition_id))


async def zone_at(tx: Tx, owner: Owner, definition_id: str, archive: int | None) -> str:
    """Return the active zone, or the archive of a timestamp; raises `NotFound`."""
    found = await definition_for(tx, owner, definition_id)
    if archive is None:
        return agent_current_zone(found)
    zone = agent_archive_zone(found, archive)
    if archive_time(found, zone) is None or not await tx.zones.is_taken(owner, zone):
        raise archive_not_found()
    return zone


async def _require_quiet(tx: Tx, owner: Owner, zone: str) -> None:
    key = await tx.zones.seated(owner, zone)
    head = await tx.sessions.head_by_key(key) if key is not None else None
    if head is not None and head.status is Status.RUNNING:
        raise Conflict(
            Code.TURN_RUNNING, "A turn of the session at this desk is running; wait for its end."
        )
