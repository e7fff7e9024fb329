"""Programs of sessions: where one may work, what is known of it, and how it is put to an end."""

from typing import Protocol

from holdfast.domain.agent_processes import ProcessEnding, ProcessRecord
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.messages import Media


class ProcessSlot(Protocol):
    """The place of one session's program, as whoever runs the program sees it."""

    @property
    def session(self) -> SessionId:
        """Return the session's id, which the program is marked with."""

    @property
    def owner(self) -> Owner:
        """Return whose session it is: only those of one owner may share a program."""

    @property
    def key(self) -> SessionKey:
        """Return what tells this session from every other of the store."""

    async def folder(self) -> str:
        """Return the repository, resolved and judged at this moment; refused if it has moved."""

    async def put(self, media: Media, content: bytes) -> str:
        """Write a content into a private file that the program can read; return its path."""

    async def known(self) -> ProcessRecord:
        """Return what is kept about the session's program."""

    async def keep(self, process_record: ProcessRecord, *, is_activity: bool = False) -> None:
        """Keep what is known from now on; it is on disk when this returns.

        That a program ended is not kept where another one has been started since. Activity is
        what the program did: it counts against idleness.
        """


class ProcessPool(Protocol):
    """Every program that this process has started."""

    def held(self) -> frozenset[SessionKey]:
        """Return the sessions whose programs live here."""

    async def end(self, key: SessionKey, why: ProcessEnding = ProcessEnding.CLOSED) -> None:
        """End the program of a session, if one lives here; it is gone when this returns."""

    async def reap(self, process_record: ProcessRecord, session: SessionId) -> None:
        """End a program that another process has left behind, if it is proven to be that one."""


class AgentProcessTable(Protocol):
    """What is kept about programs, by session."""

    async def save(self, key: SessionKey, process_record: ProcessRecord) -> None:
        """Keep what is known about a session's program."""

    async def get(self, key: SessionKey) -> ProcessRecord | None:
        """Return what is kept about a session's program."""

    async def alive(self) -> list[tuple[SessionKey, ProcessRecord]]:
        """Return every program that has been started and is not known to have ended."""
