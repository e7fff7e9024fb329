"""Desks and their archives, asked for over the network."""

from typing import TypeVar

from holdfast.client.requests import Requests, path_of
from holdfast.client.transport import ANSWER_SECONDS
from holdfast.http.v1.archives_forms import (
    ArchivedForm,
    ArchiveForm,
    ArchiveList,
    ArchivesQuery,
    ArchiveSummaryForm,
    DeletedForm,
    RestoredForm,
)
from holdfast.http.v1.zones_forms import (
    DeskForm,
    LinesForm,
    LinesQuery,
    OutputAppendedForm,
    OutputPost,
    ReplayForm,
    ReplayQuery,
    StateForm,
    StatePut,
    StateWrittenForm,
)

T = TypeVar("T")


class Zones:
    """What lies on agents' desks, and what was cleared from them.

    What changes a desk is sent once: whoever hears nothing looks before it is done again.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def show(self, id: str) -> DeskForm:
        """Return what lies on a desk, and who sits at it."""
        return await self._requests.get(_desk(id), DeskForm)

    async def read_state(self, id: str) -> StateForm:
        """Return the snapshot of a desk; without content there is nothing to restore."""
        return await self._requests.get(_desk(id, "state"), StateForm)

    async def write_state(
        self, id: str, content: str, *, if_modified_ms: int | None = None
    ) -> StateWrittenForm:
        """Replace the snapshot of a desk; with a time, only if it was last changed then."""
        body = StatePut(content=content, if_modified_ms=if_modified_ms)
        return await self._requests.put(_desk(id, "state"), body, StateWrittenForm)

    async def append(self, id: str, line: str) -> OutputAppendedForm:
        """Append a line to a desk's output, or several with their ends between them."""
        body = OutputPost(line=line)
        return await self._changed(_desk(id, "output"), body, OutputAppendedForm)

    async def lines(
        self, id: str, query: LinesQuery | None = None, *, archive: int | None = None
    ) -> LinesForm:
        """Return lines of a desk's output, or of an archive's."""
        return await self._requests.get(_place(id, archive, "output"), LinesForm, query)

    async def replay(self, id: str, query: ReplayQuery | None = None) -> ReplayForm:
        """Return what to show of a desk at once."""
        return await self._requests.get(_desk(id, "replay"), ReplayForm, query)

    async def file(self, id: str, name: str, *, archive: int | None = None) -> bytes:
        """Return the bytes of a file of a desk, or of an archive."""
        return await self._requests.content(_place(id, archive, "files", name))

    async def archive(self, id: str) -> ArchivedForm:
        """Clear a desk into a new archive; where nothing lies on it, none is made."""
        return await self._changed(_desk(id, "archive"), None, ArchivedForm)

    async def archives(
        self, id: str, query: ArchivesQuery | None = None
    ) -> tuple[ArchiveSummaryForm, ...]:
        """Return the archives of an id, newest first."""
        return (await self._requests.get(_desk(id, "archives"), ArchiveList, query)).data

    async def read_archive(self, id: str, ms: int) -> ArchiveForm:
        """Return an archive."""
        return await self._requests.get(_place(id, ms), ArchiveForm)

    async def restore(self, id: str, ms: int) -> RestoredForm:
        """Copy an archive to the desk; what lies there is archived first."""
        return await self._changed(_place(id, ms, "restore"), None, RestoredForm)

    async def delete(self, id: str, ms: int) -> bool:
        """Remove an archive; `False` if there is none."""
        return (await self._requests.remove(_place(id, ms), DeletedForm)).deleted

    async def _changed(self, path: str, body: OutputPost | None, kind: type[T]) -> T:
        return await self._requests.post(path, body, kind, seconds=ANSWER_SECONDS)


def _desk(id: str, *more: str) -> str:
    return path_of("v1", "zones", id, *more)


def _place(id: str, archive: int | None, *more: str) -> str:
    return _desk(id, *more) if archive is None else _desk(id, "archives", str(archive), *more)
