"""Zones: read and write the files of an agent's active zone, follow its output, archive and
restore.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.queries import require_limit
from holdfast.domain.secrets import Scrubber
from holdfast.ports import Brief, Tx
from holdfast.zones.archives import Archives, active_zone_of, zone_at
from holdfast.zones.files import ZoneFiles, read_lines
from holdfast.zones.lines import LINES_MOST, LineQuery, Lines, is_document
from holdfast.zones.model import (
    APPEND_LARGEST,
    OUTPUT_FILE,
    SNAPSHOT_FILE,
    ActiveZone,
    OutputAppended,
    StateWritten,
    ZoneFile,
    ZoneState,
    require_definition_id,
    require_size,
    zone_changed,
)
from holdfast.zones.replay import PAGE, WINDOW, Replay, replay_zone

# Poll interval in seconds of a follower; a poll reads one row.
LOOK: Final = 0.2
Read = Callable[[LineQuery], Awaitable[Lines]]


async def follow_output(
    read: Read, start: int | None, *, pause: float = LOOK
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


class Zones(Archives):
    """Active zones and archives of an owner."""

    async def show(self, owner: Owner, definition_id: str) -> ActiveZone:
        """Return the files of an active zone and the session bound to it."""

        async def look(tx: Tx) -> ActiveZone:
            zone = await active_zone_of(tx, owner, definition_id)
            key = await tx.zones.seated(owner, zone)
            head = await tx.sessions.head_by_key(key) if key is not None else None
            files = await tx.zones.files(owner, zone)
            return ActiveZone(zone=zone, session_id=head.session_id if head else None, files=files)

        return await self._store.read(look)

    async def write_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten:
        """Replace the snapshot; with `if_modified_ms`, only if it was last modified then.

        The time 0 stands for a missing snapshot. Detects lost updates.
        """
        require_definition_id(definition_id)
        written = _encoded(content)

        async def work(tx: Tx) -> StateWritten:
            zone = await active_zone_of(tx, owner, definition_id)
            files = self._files(tx, owner)
            found = await files.stat(zone, SNAPSHOT_FILE)
            last = found.modified_ms if found else 0
            if if_modified_ms is not None and if_modified_ms != last:
                raise zone_changed({"modified_ms": last})
            file = await files.write(zone, SNAPSHOT_FILE, written)
            return StateWritten(zone=zone, bytes_written=len(written), modified_ms=file.modified_ms)

        return await self._store.write(work)

    async def read_state(self, owner: Owner, definition_id: str) -> ZoneState:
        """Return the snapshot of an active zone; its content is `None` if it is missing."""

        async def look(tx: Tx) -> ZoneState:
            zone = await active_zone_of(tx, owner, definition_id)
            file = await tx.zones.file(owner, zone, SNAPSHOT_FILE)
            if file is None:
                return ZoneState(zone=zone, content=None, modified_ms=None)
            content = await tx.zones.read(file, 0, file.size)
            text = content.decode("utf-8", "replace")
            return ZoneState(zone=zone, content=text, modified_ms=file.modified_ms)

        return await self._store.read(look)

    async def append_output(self, owner: Owner, definition_id: str, line: str) -> OutputAppended:
        """Append a line to the output; an unfinished line of another writer is ended first."""
        return await self.append_lines(owner, definition_id, (line,))

    async def append_lines(
        self, owner: Owner, definition_id: str, lines: Sequence[str]
    ) -> OutputAppended:
        """Append several lines atomically."""
        require_definition_id(definition_id)
        more = b"".join(_ended(_encoded(line)) for line in lines)

        async def work(tx: Tx) -> OutputAppended:
            zone = await active_zone_of(tx, owner, definition_id)
            offset = await _append_whole(self._files(tx, owner), zone, more)
            return OutputAppended(zone=zone, offset=offset, bytes_written=len(more))

        return await self._store.write(Brief(work))

    async def raw_lines(self, key: SessionKey, lines: Sequence[bytes]) -> bool:
        """Append lines of an agent process to the session's zone; `False` if it has none."""
        scrubber = self.stamping.scrubber()
        more = b"".join(_ended(_clean(scrubber, line)) for line in lines)

        async def work(tx: Tx) -> bool:
            desk = await tx.zones.desk_of(key)
            if desk is None:
                return False
            await _append_whole(self._files(tx, desk[0]), desk[1], more)
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

        async def look(tx: Tx) -> Lines:
            zone = await zone_at(tx, owner, definition_id, archive)
            return await read_lines(tx, await tx.zones.file(owner, zone, OUTPUT_FILE), wanted)

        return await self._store.read(look)

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

        async def look(tx: Tx) -> ZoneFile:
            zone = await zone_at(tx, owner, definition_id, archive)
            file = await tx.zones.file(owner, zone, name)
            if file is None:
                raise NotFound(Code.PATH_NOT_FOUND, "The zone has no such file.")
            return file

        return await self._store.read(look)

    async def read_bytes(self, owner: Owner, file: ZoneFile, start: int, end: int) -> bytes:
        """Return bytes of a file read before; raises `Conflict` if it was replaced since."""

        async def look(tx: Tx) -> bytes:
            now = await tx.zones.file(owner, file.zone, file.name)
            if now is None or now.generation != file.generation:
                raise zone_changed({"generation": now.generation if now else None})
            return await tx.zones.read(now, start, end)

        return await self._store.read(look)

    async def replay(
        self, owner: Owner, definition_id: str, *, window: int = WINDOW, page: int = PAGE
    ) -> Replay:
        """Return the initial view of an active zone: the snapshot and the newest log lines."""
        require_definition_id(definition_id)
        require_limit(window, most=LINES_MOST, field="window")
        require_limit(page, most=LINES_MOST, field="page")

        async def look(tx: Tx) -> Replay:
            zone = await active_zone_of(tx, owner, definition_id)
            return await replay_zone(tx, owner, zone, window=window, page=page)

        return await self._store.read(look)


async def _append_whole(files: ZoneFiles, zone: str, more: bytes) -> int:
    """Append lines after a line break; return their offset."""
    require_size(len(more), APPEND_LARGEST, what="What is appended at once")
    file = await files.ensure(zone, OUTPUT_FILE) if more else await files.stat(zone, OUTPUT_FILE)
    if file is None or not more:
        return file.size if file else 0
    # Left by an interrupted writer; it is preserved as a line of its own.
    ended = b"\n" if file.tail_open else b""
    await files.extend(file, ended + more)
    return file.size + len(ended)


def _encoded(content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise Invalid(
            Code.INVALID_TEXT, "The text must not contain a lone surrogate.", {"field": "content"}
        ) from None


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _clean(scrubber: Scrubber, line: bytes) -> bytes:
    """Return the line with known secrets redacted; valid JSON stays valid."""
    if is_document(line):
        return scrubber.clean_json(line)
    return scrubber.clean(line.decode("utf-8", "surrogateescape")).encode(
        "utf-8", "surrogateescape"
    )
