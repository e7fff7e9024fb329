"""Active zones and archives of a server.

Ids are validated here, because not every text can be a path segment.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from msgspec.structs import asdict

from holdfast.client import ArchivesQuery, Client, LinesQuery, ReplayQuery, ZoneFileForm
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import require_limit
from holdfast.zones.lines import LINES_MOST, LineQuery, Lines
from holdfast.zones.model import (
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    OutputAppended,
    RestoreResult,
    StateWritten,
    ZoneFile,
    ZoneState,
    archives_limit,
    require_definition_id,
)
from holdfast.zones.replay import PAGE, WINDOW, Replay
from holdfast.zones.service import follow_output

# Longer than the local interval, because every poll is a request.
LOOK: Final = 0.5


class RemoteZones:
    """Active zones of a server, and their archives."""

    def __init__(self, client: Client) -> None:
        self._zones = client.zones

    async def show(self, _: Owner, definition_id: str) -> ActiveZone:
        """Return the active zone of an agent and the session bound to it."""
        form = await self._zones.show(require_definition_id(definition_id))
        session = None if form.session_id is None else SessionId(form.session_id)
        return ActiveZone(zone=form.zone, session_id=session, files=_files(form.zone, form.files))

    async def write_state(
        self,
        _: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten:
        """Replace the snapshot of an active zone."""
        require_definition_id(definition_id)
        form = await self._zones.write_state(
            definition_id, _text(content), if_modified_ms=if_modified_ms
        )
        return msgspec.convert(form, StateWritten, from_attributes=True)

    async def read_state(self, _: Owner, definition_id: str) -> ZoneState:
        """Return the snapshot of an active zone."""
        form = await self._zones.read_state(require_definition_id(definition_id))
        return msgspec.convert(form, ZoneState, from_attributes=True)

    async def append_lines(
        self, _: Owner, definition_id: str, lines: Sequence[str]
    ) -> OutputAppended:
        """Append several lines atomically."""
        ended = [line if line.endswith("\n") else f"{line}\n" for line in lines]
        form = await self._zones.append(require_definition_id(definition_id), "".join(ended))
        return msgspec.convert(form, OutputAppended, from_attributes=True)

    async def read_lines(
        self,
        _: Owner,
        definition_id: str,
        query: LineQuery | None = None,
        *,
        archive: int | None = None,
    ) -> Lines:
        """Return output lines of an active zone or of an archive."""
        wanted = query or LineQuery()
        require_definition_id(definition_id)
        require_limit(wanted.limit, most=LINES_MOST)
        asked = LinesQuery(
            start=max(wanted.start, 0), limit=wanted.limit, generation=wanted.generation
        )
        form = await self._zones.lines(definition_id, asked, archive=archive)
        return msgspec.convert(form, Lines, from_attributes=True)

    async def follow(
        self, owner: Owner, definition_id: str, *, start: int | None = None
    ) -> AsyncGenerator[Lines, None]:
        """Yield output lines from a number on, else from the end, then new ones."""

        async def read(query: LineQuery) -> Lines:
            return await self.read_lines(owner, definition_id, query)

        async with aclosing(follow_output(read, start, pause=LOOK)) as news:
            async for page in news:
                yield page

    async def replay(
        self, _: Owner, definition_id: str, *, window: int = WINDOW, page: int = PAGE
    ) -> Replay:
        """Return the initial view of an active zone."""
        require_definition_id(definition_id)
        require_limit(window, most=LINES_MOST, field="window")
        require_limit(page, most=LINES_MOST, field="page")
        form = await self._zones.replay(definition_id, ReplayQuery(window=window, page=page))
        return msgspec.convert(form, Replay, from_attributes=True)

    async def archive(self, _: Owner, definition_id: str) -> ArchiveResult | None:
        """Move an active zone to a new archive; None if it is empty."""
        form = await self._zones.archive(require_definition_id(definition_id))
        if form.archive_zoneid is None:
            return None
        return msgspec.convert(form, ArchiveResult, from_attributes=True)

    async def list_archives(
        self, _: Owner, definition_id: str, *, limit: int | None = None
    ) -> tuple[ArchiveSummary, ...]:
        """Return the archives of an agent, newest first."""
        most = archives_limit(limit)
        found = await self._zones.archives(
            require_definition_id(definition_id), ArchivesQuery(limit=most)
        )
        return tuple(msgspec.convert(each, ArchiveSummary, from_attributes=True) for each in found)

    async def read_archive(self, _: Owner, definition_id: str, ms: int) -> Archive:
        """Return an archive."""
        form = await self._zones.read_archive(require_definition_id(definition_id), ms)
        return Archive(
            archive_zoneid=form.archive_zoneid,
            archived_at_ms=form.archived_at_ms,
            content=form.content,
            files=_files(form.archive_zoneid, form.files),
        )

    async def restore_archive(self, _: Owner, definition_id: str, ms: int) -> RestoreResult:
        """Copy an archive to the active zone, which is archived first."""
        form = await self._zones.restore(require_definition_id(definition_id), ms)
        return msgspec.convert(form, RestoreResult, from_attributes=True)

    async def delete_archive(self, _: Owner, definition_id: str, ms: int) -> bool:
        """Remove an archive; `False` if there is none."""
        return await self._zones.delete(require_definition_id(definition_id), ms)


def _files(zone: str, forms: tuple[ZoneFileForm, ...]) -> tuple[ZoneFile, ...]:
    return tuple(ZoneFile(zone=zone, **asdict(form)) for form in forms)


def _text(content: str | bytes) -> str:
    """Return content as a request sends it."""
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Invalid(
            Code.INVALID_TEXT,
            "stdin is not UTF-8 text; convert it first, or run this where the server runs.",
        ) from None
