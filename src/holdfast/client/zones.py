"""Active zones and archives of a server.

Ids are validated here, because not every text can be a path segment. Changes are sent once and
never retried; after a lost response, read before repeating.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from msgspec import convert

from holdfast.client.requests import RemotePart, build_path
from holdfast.client.transport import ANSWER_SECONDS
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.queries import require_limit
from holdfast.wire.zones import (
    ActiveZoneForm,
    ArchivedForm,
    ArchiveForm,
    ArchiveList,
    ArchivesQuery,
    DeletedForm,
    LinesForm,
    LinesQuery,
    OutputAppendedForm,
    OutputPost,
    ReplayForm,
    ReplayQuery,
    RestoredForm,
    StateForm,
    StatePut,
    StateWrittenForm,
    active_zone_of,
    archive_of,
)
from holdfast.zones.lines import LINES_MOST, LineQuery, Lines
from holdfast.zones.model import (
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    OutputAppended,
    RestoreResult,
    StateWritten,
    ZoneState,
    archives_limit,
    require_definition_id,
)
from holdfast.zones.replay import PAGE, WINDOW, Replay
from holdfast.zones.service import follow_output

# Longer than the local interval, because every poll is a request.
POLL_SECONDS: Final = 0.5

T = TypeVar("T")


class RemoteZones(RemotePart):
    """Active zones of a server, and their archives."""

    async def show(self, owner: Owner, definition_id: str) -> ActiveZone:
        """Return the active zone of an agent and the session bound to it."""
        return active_zone_of(await self._requests.get(_path(definition_id), ActiveZoneForm))

    async def read_state(self, owner: Owner, definition_id: str) -> ZoneState:
        """Return the snapshot of an active zone."""
        form = await self._requests.get(_path(definition_id, "state"), StateForm)
        return convert(form, ZoneState, from_attributes=True)

    async def write_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten:
        """Replace the snapshot; with `if_modified_ms`, only if it was last changed then."""
        path = _path(definition_id, "state")
        body = StatePut(content=_text(content), if_modified_ms=if_modified_ms)
        form = await self._requests.put(path, body, StateWrittenForm)
        return convert(form, StateWritten, from_attributes=True)

    async def append_output(self, owner: Owner, definition_id: str, line: str) -> OutputAppended:
        """Append a line to the output."""
        return await self.append_lines(owner, definition_id, (line,))

    async def append_lines(
        self, owner: Owner, definition_id: str, lines: Sequence[str]
    ) -> OutputAppended:
        """Append several lines atomically."""
        ended = [line if line.endswith("\n") else f"{line}\n" for line in lines]
        path = _path(definition_id, "output")
        form = await self._change(path, OutputPost(line="".join(ended)), OutputAppendedForm)
        return convert(form, OutputAppended, from_attributes=True)

    async def read_lines(
        self,
        owner: Owner,
        definition_id: str,
        query: LineQuery | None = None,
        *,
        archive: int | None = None,
    ) -> Lines:
        """Return output lines of an active zone or of an archive."""
        wanted = query or LineQuery()
        require_limit(wanted.limit, most=LINES_MOST)
        sent = LinesQuery(
            start=max(wanted.start, 0), limit=wanted.limit, generation=wanted.generation
        )
        at = () if archive is None else ("archives", str(archive))
        form = await self._requests.get(_path(definition_id, *at, "output"), LinesForm, sent)
        return convert(form, Lines, from_attributes=True)

    async def read_content(
        self, owner: Owner, definition_id: str, name: str, *, archive: int | None = None
    ) -> bytes:
        """Return the content of a file in the active zone or in an archive."""
        at = () if archive is None else ("archives", str(archive))
        return await self._requests.content(_path(definition_id, *at, "files", name))

    async def follow(
        self, owner: Owner, definition_id: str, *, start: int | None = None
    ) -> AsyncGenerator[Lines, None]:
        """Yield output lines from a number on, else from the end, then new ones."""

        async def read(query: LineQuery) -> Lines:
            return await self.read_lines(owner, definition_id, query)

        async with aclosing(follow_output(read, start, pause=POLL_SECONDS)) as pages:
            async for page in pages:
                yield page

    async def replay(
        self, owner: Owner, definition_id: str, *, window: int = WINDOW, page: int = PAGE
    ) -> Replay:
        """Return the initial view of an active zone."""
        path = _path(definition_id, "replay")
        require_limit(window, most=LINES_MOST, field="window")
        require_limit(page, most=LINES_MOST, field="page")
        form = await self._requests.get(path, ReplayForm, ReplayQuery(window=window, page=page))
        return convert(form, Replay, from_attributes=True)

    async def archive(self, owner: Owner, definition_id: str) -> ArchiveResult | None:
        """Move an active zone to a new archive; None if it is empty."""
        form = await self._change(_path(definition_id, "archive"), None, ArchivedForm)
        if form.archive_zoneid is None:
            return None
        return convert(form, ArchiveResult, from_attributes=True)

    async def list_archives(
        self,
        owner: Owner,
        definition_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
    ) -> tuple[ArchiveSummary, ...]:
        """Return the archives of an agent, newest first; with `before`, those older than a time."""
        cursor = None if before is None else str(before)
        query = ArchivesQuery(limit=archives_limit(limit), cursor=cursor)
        page = await self._requests.get(_path(definition_id, "archives"), ArchiveList, query)
        return tuple(convert(each, ArchiveSummary, from_attributes=True) for each in page.data)

    async def read_archive(self, owner: Owner, definition_id: str, ms: int) -> Archive:
        """Return an archive."""
        path = _path(definition_id, "archives", str(ms))
        return archive_of(await self._requests.get(path, ArchiveForm))

    async def restore_archive(self, owner: Owner, definition_id: str, ms: int) -> RestoreResult:
        """Copy an archive to the active zone, which is archived first."""
        path = _path(definition_id, "archives", str(ms), "restore")
        form = await self._change(path, None, RestoredForm)
        return convert(form, RestoreResult, from_attributes=True)

    async def delete_archive(self, owner: Owner, definition_id: str, ms: int) -> bool:
        """Delete an archive; `False` if there is none."""
        path = _path(definition_id, "archives", str(ms))
        return (await self._requests.remove(path, DeletedForm)).deleted

    async def _change(self, path: str, body: OutputPost | None, kind: type[T]) -> T:
        return await self._requests.post(path, body, kind, seconds=ANSWER_SECONDS)

    # The names by which other programs know these operations.
    write_session_state = write_state
    read_session_state = read_state
    append_session_output = append_output
    archive_session = archive


def _path(definition_id: str, *rest: str) -> str:
    return build_path("v1", "zones", require_definition_id(definition_id), *rest)


def _text(content: str | bytes) -> str:
    """Return content as a request sends it."""
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Invalid(
            Code.INVALID_TEXT,
            "stdin is not UTF-8 text; convert it first, or run the command on the server's "
            "machine.",
        ) from None
