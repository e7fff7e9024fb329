"""The search table: an index of words."""

from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from holdfast.domain.ids import AgentId, Owner, RepoId, SessionId
from holdfast.domain.messages import Message, Role
from holdfast.search.query import Terms

# Documents and bytes per transaction, limited so that other writers can run in between.
TOGETHER: Final = 512
_TOGETHER_BYTES: Final = 1 << 20


class SearchRequest(Struct, frozen=True, kw_only=True):
    """A search in an owner's documents; `before` is the position of the last result shown."""

    owner: Owner
    terms: Terms
    agent_id: AgentId | None = None
    repo_id: RepoId | None = None
    session_id: SessionId | None = None
    role: Role | None = None
    tool: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    limit: int


class FoundDocument(Struct, frozen=True, kw_only=True):
    """A matching document, verified, and its position in the listing."""

    place: int
    text: str
    created_at: datetime
    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    message: Message | None = None
    observation_id: str | None = None


class SearchBatch(Struct, frozen=True, kw_only=True):
    """Matching documents, highest position first, and the position after which to continue."""

    found: tuple[FoundDocument, ...]
    behind: int | None = None


class Backlog(Struct, frozen=True):
    """Documents that are not indexed yet and must be scanned by each search."""

    documents: int
    size: int

    @property
    def together(self) -> int:
        """Return how many of them fit in one transaction, so that other writers do not starve."""
        fitting = self.documents * _TOGETHER_BYTES // max(self.size, 1)
        return max(1, min(TOGETHER, fitting))


class SearchTable(Protocol):
    """Documents by word. Writes are searchable at once; the index is updated later."""

    async def find(self, request: SearchRequest) -> SearchBatch:
        """Return the documents that match the request, newest session first."""

    async def backlog(self) -> Backlog:
        """Return the size of the unindexed part."""

    async def catch_up(self, limit: int) -> int:
        """Index some of the backlog; return how many documents."""

    async def bury(self, limit: int) -> int:
        """Remove words of deleted documents from the index; return of how many documents."""

    async def sum(self) -> tuple[int, int]:
        """Return the number of words in the index, and a checksum over them."""

    async def empty(self) -> Backlog:
        """Empty the index, so that all documents are indexed again; return the backlog."""
