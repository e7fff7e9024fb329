"""What commands need of the records beside conversations: claims of agents, and their desks."""

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from holdfast.domain.ids import Owner
    from holdfast.observations.queries import (
        CheckpointState,
        Correction,
        EntityPage,
        EntityQuery,
        History,
        HistoryQuery,
        ObservationPage,
        Removal,
        SubmitResult,
        TimelinePage,
        TimelineQuery,
    )
    from holdfast.zones.lines import LineQuery, Lines
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
    from holdfast.zones.replay import Replay


class Observations(Protocol):
    """What agents say they did, wherever they ran, and what all of it comes to."""

    async def submit(
        self,
        owner: "Owner",
        payload: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "SubmitResult": ...
    async def submit_entity(
        self,
        owner: "Owner",
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "SubmitResult": ...
    async def correct(
        self,
        owner: "Owner",
        correction: "Correction",
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "SubmitResult": ...
    async def delete(
        self,
        owner: "Owner",
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "Removal": ...
    async def restore(
        self,
        owner: "Owner",
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> "Removal": ...
    async def show(
        self,
        owner: "Owner",
        session_id: str,
        *,
        at: str | None = None,
        at_ingested: str | None = None,
    ) -> "History": ...
    async def query(
        self, owner: "Owner", query: "HistoryQuery | None" = None, *, cursor: str | None = None
    ) -> "EntityPage": ...
    async def entities(
        self, owner: "Owner", query: "EntityQuery", *, cursor: str | None = None
    ) -> "EntityPage": ...
    async def list_observations(
        self, owner: "Owner", session_id: str, *, limit: int = ..., cursor: str | None = None
    ) -> "ObservationPage": ...
    async def checkpoint(
        self,
        owner: "Owner",
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> "CheckpointState": ...
    async def timeline(
        self,
        owner: "Owner",
        entity_id: str,
        query: "TimelineQuery | None" = None,
        *,
        cursor: str | None = None,
    ) -> "TimelinePage": ...


class Zones(Protocol):
    """What lies on agents' desks, and what was cleared from them."""

    async def show(self, owner: "Owner", definition_id: str) -> "ActiveZone": ...
    async def read_state(self, owner: "Owner", definition_id: str) -> "ZoneState": ...
    async def write_state(
        self,
        owner: "Owner",
        definition_id: str,
        content: str | bytes,
        *,
        if_modified_ms: int | None = None,
    ) -> "StateWritten": ...
    async def append_lines(
        self, owner: "Owner", definition_id: str, lines: "Sequence[str]", /
    ) -> "OutputAppended": ...
    async def read_lines(
        self,
        owner: "Owner",
        definition_id: str,
        query: "LineQuery | None" = None,
        *,
        archive: int | None = None,
    ) -> "Lines": ...
    def follow(
        self, owner: "Owner", definition_id: str, *, start: int | None = None
    ) -> "AsyncGenerator[Lines, None]": ...
    async def replay(
        self, owner: "Owner", definition_id: str, *, window: int = ..., page: int = ...
    ) -> "Replay": ...
    async def archive(self, owner: "Owner", definition_id: str) -> "ArchiveResult | None": ...
    async def list_archives(
        self, owner: "Owner", definition_id: str, *, limit: int | None = None
    ) -> "tuple[ArchiveSummary, ...]": ...
    async def read_archive(self, owner: "Owner", definition_id: str, ms: int) -> "Archive": ...
    async def restore_archive(
        self, owner: "Owner", definition_id: str, ms: int, /
    ) -> "RestoreResult": ...
    async def delete_archive(self, owner: "Owner", definition_id: str, ms: int) -> bool: ...
