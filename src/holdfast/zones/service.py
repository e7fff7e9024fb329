"""Zones: read and write an agent's active zone, follow its output, keep archives."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.queries import require_limit
from holdfast.domain.secrets import Scrubber
from holdfast.domain.sessions import Status
from holdfast.ports.store import Brief, Store, Tx
from holdfast.services.journal import Journal, JournalTransaction
from holdfast.services.stamping import Stamping
from holdfast.zones.binding import definition_for, notify_bound_session, stamp_of
from holdfast.zones.files import (
    ZoneStamp,
    clear_active_zone,
    copy_file,
    ensure_file,
    make_room,
    read_lines,
    write_file,
)
from holdfast.zones.lines import LINES_MOST, LineQuery, Lines, is_document
from holdfast.zones.model import (
    APPEND_LARGEST,
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    WRITE_LARGEST,
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    OutputAppended,
    RestoreResult,
    StateWritten,
    ZoneFile,
    ZoneState,
    agent_archive_zone,
    agent_current_zone,
    archive_not_found,
    archive_prefix,
    archive_time,
    archives_limit,
    require_definition_id,
    require_size,
    zone_changed,
)
from holdfast.zones.replay import (
    PAGE,
    WINDOW,
    Replay,
    archives_of,
    new_snapshot,
    replay_zone,
    summary_of,
    without_block,
)


class Zones:
    """Active zones and archives of an owner."""

    def __init__(self, store: Store, journal: Journal, stamping: Stamping) -> None:
        self._store = store
        self._journal = journal
        self.stamping = stamping

    async def show(self, owner: Owner, definition_id: str) -> ActiveZone:
        """Return the files of an active zone and the session bound to it."""

        async def read(tx: Tx) -> ActiveZone:
            zone = await active_zone_of(tx, owner, definition_id)
            key = await tx.zones.bound_session(owner, zone)
            state = await tx.sessions.state_by_key(key) if key is not None else None
            return ActiveZone(
                zone=zone,
                session_id=state.session_id if state else None,
                files=await tx.zones.files(owner, zone),
                preview=(await summary_of(tx, owner, zone, 0)).preview,
            )

        return await self._store.read(read)

    async def write_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten:
        """Replace the snapshot; with `if_modified_ms`, only if it was last modified then.

        The time 0 means a missing snapshot. Detects lost updates.
        """
        require_definition_id(definition_id)
        written = _encode(content)

        async def work(tx: Tx) -> StateWritten:
            zone = await active_zone_of(tx, owner, definition_id)
            found = await tx.zones.file(owner, zone, SNAPSHOT_FILE)
            last = found.modified_ms if found else 0
            if if_modified_ms is not None and if_modified_ms != last:
                raise zone_changed({"modified_ms": last})
            stamp = stamp_of(self.stamping)
            file = await write_file(tx, owner, zone, SNAPSHOT_FILE, written, stamp=stamp)
            return StateWritten(zone=zone, bytes_written=len(written), modified_ms=file.modified_ms)

        return await self._store.write(work)

    async def read_state(self, owner: Owner, definition_id: str) -> ZoneState:
        """Return the snapshot of an active zone; its content is `None` if it is missing."""

        async def read(tx: Tx) -> ZoneState:
            zone = await active_zone_of(tx, owner, definition_id)
            file = await tx.zones.file(owner, zone, SNAPSHOT_FILE)
            if file is None:
                return ZoneState(zone=zone, content=None, modified_ms=None)
            text = await _text_of(tx, file)
            return ZoneState(zone=zone, content=text, modified_ms=file.modified_ms)

        return await self._store.read(read)

    async def append_output(self, owner: Owner, definition_id: str, line: str) -> OutputAppended:
        """Append a line to the output; an unfinished line of another writer is ended first."""
        return await self.append_lines(owner, definition_id, (line,))

    async def append_lines(
        self, owner: Owner, definition_id: str, lines: Sequence[str]
    ) -> OutputAppended:
        """Append several lines atomically."""
        require_definition_id(definition_id)
        more = b"".join(_end_line(_encode(line)) for line in lines)

        async def work(tx: Tx) -> OutputAppended:
            zone = await active_zone_of(tx, owner, definition_id)
            offset = await _append_whole(tx, owner, zone, more, stamp=stamp_of(self.stamping))
            return OutputAppended(zone=zone, offset=offset, bytes_written=len(more))

        return await self._store.write(Brief(work))

    async def raw_lines(self, key: SessionKey, lines: Sequence[bytes]) -> bool:
        """Append lines of an agent process to the session's zone; `False` if it has none.

        The zone gets a snapshot, unless a view has written one.
        """
        scrubber = self.stamping.scrubber()
        more = b"".join(_end_line(_clean(scrubber, line)) for line in lines)

        async def work(tx: Tx) -> bool:
            bound = await tx.zones.zone_of_session(key)
            if bound is None:
                return False
            owner, zone = bound
            stamp = stamp_of(self.stamping)
            await _append_whole(tx, owner, zone, more, stamp=stamp)
            if await tx.zones.file(owner, zone, SNAPSHOT_FILE) is None:
                output = await tx.zones.file(owner, zone, OUTPUT_FILE)
                content = new_snapshot(stamp.at, output.lines if output else 0)
                await write_file(tx, owner, zone, SNAPSHOT_FILE, content, stamp=stamp)
            return True

        return await self._store.write(Brief(work))

    async def read_lines(
        self,
        owner: Owner,
        definition_id: str,
        query: LineQuery | None = None,
        *,
        archive: int | None = None,
    ) -> Lines:
        """Return lines of the output of the active zone or of an archive."""
        require_definition_id(definition_id)
        wanted = query or LineQuery()
        require_limit(wanted.limit, most=LINES_MOST)

        async def read(tx: Tx) -> Lines:
            zone = await zone_at(tx, owner, definition_id, archive)
            return await read_lines(tx, await tx.zones.file(owner, zone, OUTPUT_FILE), wanted)

        return await self._store.read(read)

    async def follow(
        self, owner: Owner, definition_id: str, *, start: int | None = None
    ) -> AsyncGenerator[Lines, None]:
        """Yield lines of the output from a number on, by default from its end, then new lines.

        Starts again at line 0 when the output is cleared or replaced.
        """

        async def read(query: LineQuery) -> Lines:
            return await self.read_lines(owner, definition_id, query)

        async with aclosing(follow_output(read, start)) as pages:
            async for page in pages:
                yield page

    async def read_file(
        self, owner: Owner, definition_id: str, name: str, *, archive: int | None = None
    ) -> ZoneFile:
        """Return the metadata of a file in the active zone or in an archive."""

        async def read(tx: Tx) -> ZoneFile:
            zone = await zone_at(tx, owner, definition_id, archive)
            file = await tx.zones.file(owner, zone, name)
            if file is None:
                raise NotFound(Code.PATH_NOT_FOUND, "The zone has no such file.")
            return file

        return await self._store.read(read)

    async def read_bytes(self, owner: Owner, file: ZoneFile, start: int, end: int) -> bytes:
        """Return bytes of a file read before; raises `Conflict` if it was replaced since."""

        async def read(tx: Tx) -> bytes:
            now = await tx.zones.file(owner, file.zone, file.name)
            if now is None or now.generation != file.generation:
                raise zone_changed({"generation": now.generation if now else None})
            return await tx.zones.read(now, start, end)

        return await self._store.read(read)

    async def read_content(
        self, owner: Owner, definition_id: str, name: str, *, archive: int | None = None
    ) -> bytes:
        """Return the content of a file in the active zone or in an archive."""
        file = await self.read_file(owner, definition_id, name, archive=archive)
        return await self.read_bytes(owner, file, 0, file.size)

    async def replay(
        self, owner: Owner, definition_id: str, *, window: int = WINDOW, page: int = PAGE
    ) -> Replay:
        """Return the initial view of an active zone: the snapshot and the newest log lines."""
        require_definition_id(definition_id)
        require_limit(window, most=LINES_MOST, field="window")
        require_limit(page, most=LINES_MOST, field="page")

        async def read(tx: Tx) -> Replay:
            zone = await active_zone_of(tx, owner, definition_id)
            return await replay_zone(tx, owner, zone, window=window, page=page)

        return await self._store.read(read)

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
        self,
        owner: Owner,
        definition_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
    ) -> tuple[ArchiveSummary, ...]:
        """Return the archives of an agent, newest first; with `before`, those older than a time."""
        require_definition_id(definition_id)
        most = archives_limit(limit)

        async def read(tx: Tx) -> tuple[ArchiveSummary, ...]:
            found = await definition_for(tx, owner, definition_id)
            named = await archives_of(tx, owner, found)
            newest = [each for each in named if before is None or each[1] < before][:most]
            return tuple([await summary_of(tx, owner, zone, ms) for zone, ms in newest])

        return await self._store.read(read)

    async def read_archive(self, owner: Owner, definition_id: str, ms: int) -> Archive:
        """Return an archive with its snapshot."""

        async def read(tx: Tx) -> Archive:
            zone = await zone_at(tx, owner, definition_id, ms)
            files = await tx.zones.files(owner, zone)
            state = next((file for file in files if file.name == SNAPSHOT_FILE), None)
            text = None if state is None else await _text_of(tx, state)
            return Archive(archive_zoneid=zone, archived_at_ms=ms, content=text, files=files)

        return await self._store.read(read)

    async def restore_archive(self, owner: Owner, definition_id: str, ms: int) -> RestoreResult:
        """Copy an archive to the active zone; its current content is archived first."""
        require_definition_id(definition_id)

        async def compose(entry: JournalTransaction) -> RestoreResult:
            tx = entry.tx
            source = await zone_at(tx, owner, definition_id, ms)
            zone = await active_zone_of(tx, owner, definition_id)
            await _require_quiet(tx, owner, zone)
            displaced = await make_room(tx, owner, zone, self._now)
            for file in await tx.zones.files(owner, source):
                await _restore_file(tx, owner, file, zone, stamp=stamp_of(self.stamping))
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
                "Nothing was deleted: to delete all zones, confirm with the id itself.",
                {"field": "confirm"},
            )

        async def work(tx: Tx) -> int:
            found = await definition_for(tx, owner, definition_id)
            archives = await tx.zones.names(owner, archive_prefix(found))
            zones = [agent_current_zone(found), *archives]
            return sum([await tx.zones.remove_all(owner, zone) > 0 for zone in zones])

        gone = await self._store.write(work, urgent=True)
        await self._store.scrub()
        return gone

    def _now(self) -> int:
        return stamp_of(self.stamping).at

    # The names by which other programs know these operations.
    write_session_state = write_state
    read_session_state = read_state
    append_session_output = append_output
    archive_session = archive


async def _restore_file(
    tx: Tx, owner: Owner, file: ZoneFile, zone: str, *, stamp: ZoneStamp
) -> None:
    """Copy a file of an archive into the empty active zone."""
    # An imported file may exceed the size limit of a single write.
    if file.name == SNAPSHOT_FILE and file.size <= WRITE_LARGEST:
        content = await tx.zones.read(file, 0, file.size)
        cleaned = without_block(content)
        if cleaned != content:
            await write_file(tx, owner, zone, file.name, cleaned, stamp=stamp)
            return
    await copy_file(tx, owner, file, zone, stamp=stamp, modified_ms=max(stamp.at, file.modified_ms))


async def _text_of(tx: Tx, file: ZoneFile) -> str:
    return (await tx.zones.read(file, 0, file.size)).decode("utf-8", "replace")


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
    key = await tx.zones.bound_session(owner, zone)
    state = await tx.sessions.state_by_key(key) if key is not None else None
    if state is not None and state.status is Status.RUNNING:
        raise Conflict(
            Code.TURN_RUNNING, "A turn is running in the session of this zone; wait until it ends."
        )


# Poll interval in seconds of a follower; a poll reads one row.
POLL_SECONDS: Final = 0.2
Read = Callable[[LineQuery], Awaitable[Lines]]


async def follow_output(
    read: Read, start: int | None, *, pause: float = POLL_SECONDS
) -> AsyncGenerator[Lines, None]:
    """Yield lines from a number on, by default from the end, then new lines.

    Starts again at line 0 when the output is cleared or replaced.
    """
    seen = await read(LineQuery(start=0, limit=1))
    at = seen.total if start is None else start
    generation = seen.generation
    while True:
        page = await read(LineQuery(start=at))
        if page.generation != generation:
            at, generation = 0, page.generation
            continue
        whole = _whole(page)
        if whole.lines:
            yield whole
            at = whole.end
        else:
            await asyncio.sleep(pause)


def _whole(page: Lines) -> Lines:
    """Return a page without an unfinished last line, which may still grow."""
    is_growing = page.tail_open and page.lines and page.end == page.total
    return replace(page, lines=page.lines[:-1]) if is_growing else page


async def _append_whole(tx: Tx, owner: Owner, zone: str, more: bytes, *, stamp: ZoneStamp) -> int:
    """Append lines after a line break; return their offset."""
    require_size(len(more), APPEND_LARGEST, what="Data appended in one call")
    if not more:
        known = await tx.zones.file(owner, zone, OUTPUT_FILE)
        return known.size if known else 0
    file = await ensure_file(tx, owner, zone, OUTPUT_FILE, stamp=stamp)
    # Left by an interrupted writer; it is preserved as a line of its own.
    ended = b"\n" if file.tail_open else b""
    await tx.zones.append(owner, file, ended + more, stamp.at)
    return file.size + len(ended)


def _encode(content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise Invalid(
            Code.INVALID_TEXT, "The text must not contain a lone surrogate.", {"field": "content"}
        ) from None


def _end_line(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _clean(scrubber: Scrubber, line: bytes) -> bytes:
    """Return the line with known secrets redacted; valid JSON stays valid."""
    if is_document(line):
        return scrubber.redact_json(line)
    return scrubber.redact_text(line.decode("utf-8", "surrogateescape")).encode(
        "utf-8", "surrogateescape"
    )
