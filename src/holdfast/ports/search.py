"""The table of search: which words stand where."""

from datetime import datetime
from typing import Final, Protocol

from msgspec import Struct

from holdfast.domain.ids import AgentId, Owner, RepoId, SessionId
from holdfast.domain.messages import Message, Role
from holdfast.search.query import Terms

# Documents in one transaction, and what they weigh; others write between two of them.
TOGETHER: Final = 512
_TOGETHER_BYTES: Final = 1 << 20


class SearchRequest(Struct, frozen=True, kw_only=True):
    """Which documents of an owner; `before` is the place of the last one that was shown."""

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
    """A document that was found, proven, and where it stands among all of them."""

    place: int
    text: str
    created_at: datetime
    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    message: Message | None = None
    observation_id: str | None = None


class SearchBatch(Struct, frozen=True, kw_only=True):
    """What was found, the highest place first, and behind which place more may be found."""

    found: tuple[FoundDocument, ...]
    behind: int | None = None


class Backlog(Struct, frozen=True):
    """How much is not in the index yet and has to be read through by who searches."""

    documents: int
    size: int

    @property
    def together(self) -> int:
        """Return how many of them one transaction takes, so that others do not wait for long."""
        fitting = self.documents * _TOGETHER_BYTES // max(self.size, 1)
        return max(1, min(TOGETHER, fitting))


class SearchTable(Protocol):
    """Documents by their words. What is written is found at once; an index follows it."""

    async def find(self, wish: SearchRequest) -> SearchBatch:
        """Return the documents that hold what is asked for, newest session first."""

    async def backlog(self) -> Backlog:
        """Return how much the index lacks."""

    async def catch_up(self, limit: int) -> int:
        """Put some of what the index lacks into it; return how many documents."""

    async def bury(self, limit: int) -> int:
        """Take words of removed documents out of the index; return of how many documents."""

    async def sum(self) -> tuple[int, int]:
        """Return how many words the index holds, and a sum over all of them."""

    async def empty(self) -> Backlog:
        """Take everything out of the index, so that all of it is put in again; return how much."""
