"""Agent processes of sessions: their workspace, their stored record, and how they are ended."""

from typing import Protocol

from holdfast.domain.agent_processes import ProcessEnding, ProcessRecord
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.messages import Media


class ProcessSlot(Protocol):
    """The slot of one session's agent process, as the runtime sees it."""

    @property
    def session(self) -> SessionId:
        """Return the session's id, which the process carries as its mark."""

    @property
    def key(self) -> SessionKey:
        """Return the session's unique key in the store."""

    async def folder(self) -> str:
        """Return the repository, resolved and validated at this moment; refused if it has moved."""

    async def scratch(self) -> str:
        """Return the private folder of the session, created if it is missing."""

    async def put(self, media: Media, content: bytes) -> str:
        """Write a content to a private file that the process can read; return its path."""

    async def known(self) -> ProcessRecord:
        """Return the stored record of the session's process."""

    async def keep(self, process_record: ProcessRecord, *, is_activity: bool = False) -> None:
        """Store the record; it is on disk when this returns.

        The end of a process is not stored if another one was started since. Activity of the process
        resets the idle timeout.
        """


class ProcessPool(Protocol):
    """Every agent process that this process has started."""

    def held(self) -> frozenset[SessionKey]:
        """Return the sessions whose agent processes run here."""

    async def end(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """End the agent process of a session, if it runs here; it has exited when this returns."""

    async def reap(self, process_record: ProcessRecord, session: SessionId) -> None:
        """End an orphaned agent process of another holder, if its identity is proven."""
