"""The verbs of active zones, local or remote."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast.domain.ids import Owner
from holdfast.zones.model import (
    ActiveZone,
    Archive,
    ArchiveResult,
    ArchiveSummary,
    OutputAppended,
    RestoreResult,
    StateWritten,
    ZoneState,
)

if TYPE_CHECKING:
    from holdfast.zones.lines import LineQuery, Lines
    from holdfast.zones.replay import Replay


class ZonesApi(Protocol):
    """Active zones of agents, and their archives."""

    async def show(self, owner: Owner, definition_id: str) -> ActiveZone: ...
    async def read_state(self, owner: Owner, definition_id: str) -> ZoneState: ...
    async def write_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten: ...
    async def append_output(
        self, owner: Owner, definition_id: str, line: str
    ) -> OutputAppended: ...
    async def append_lines(
        self, owner: Owner, definition_id: str, lines: Sequence[str], /
    ) -> OutputAppended: ...
    async def read_lines(
        self,
        owner: Owner,
        definition_id: str,
        query: "LineQuery | None" = None,
        *,
        archive: int | None = None,
    ) -> "Lines": ...
    async def read_content(
        self, owner: Owner, definition_id: str, name: str, *, archive: int | None = None
    ) -> bytes: ...
    def follow(
        self, owner: Owner, definition_id: str, *, start: int | None = None
    ) -> AsyncGenerator["Lines", None]: ...
    async def replay(
        self, owner: Owner, definition_id: str, *, window: int = ..., page: int = ...
    ) -> "Replay": ...
    async def archive(self, owner: Owner, definition_id: str) -> ArchiveResult | None: ...
    async def list_archives(
        self,
        owner: Owner,
        definition_id: str,
        *,
        limit: int | None = None,
        before: int | None = None,
    ) -> tuple[ArchiveSummary, ...]: ...
    async def read_archive(self, owner: Owner, definition_id: str, ms: int) -> Archive: ...
    async def restore_archive(
        self, owner: Owner, definition_id: str, ms: int, /
    ) -> RestoreResult: ...
    async def delete_archive(self, owner: Owner, definition_id: str, ms: int) -> bool: ...

    # The names by which other programs know these operations.
    async def write_session_state(
        self,
        owner: Owner,
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> StateWritten: ...
    async def read_session_state(self, owner: Owner, definition_id: str) -> ZoneState: ...
    async def append_session_output(
        self, owner: Owner, definition_id: str, line: str
    ) -> OutputAppended: ...
    async def archive_session(self, owner: Owner, definition_id: str) -> ArchiveResult | None: ...
