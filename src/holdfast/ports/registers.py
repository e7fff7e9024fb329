"""The tables of what notebooks refer to: who answers, with what, where, and who may ask."""

from datetime import datetime
from typing import Protocol

from holdfast.domain.agents import Agent
from holdfast.domain.ids import AgentId, ModelId, Owner, RepoId, TokenId
from holdfast.domain.models import Model
from holdfast.domain.queries import AgentQuery
from holdfast.domain.repos import Repo
from holdfast.domain.tokens import SignInCode, Token


class AgentTable(Protocol):
    """Agents by owner."""

    async def add(self, agent: Agent, digest: bytes = b"") -> None:
        """Add an agent; a taken slug or id is the caller's business to have checked.

        The digest of the request makes a retry recognisable.
        """

    async def digest(self, owner: Owner, agent_id: AgentId) -> bytes | None:
        """Return the digest of the request that made the agent, if this owner has it."""

    async def save(self, agent: Agent) -> None:
        """Replace a stored agent."""

    async def by_id(self, owner: Owner, agent_id: AgentId) -> Agent | None:
        """Return the agent, if this owner has it."""

    async def by_slug(self, owner: Owner, slug: str) -> Agent | None:
        """Return the agent of that slug, if this owner has it."""

    async def page(self, query: AgentQuery) -> list[Agent]:
        """Return the matching agents, newest first."""

    async def is_used(self, owner: Owner, agent_id: AgentId) -> bool:
        """Tell whether a session was opened with the agent."""

    async def remove(self, owner: Owner, agent_id: AgentId) -> None:
        """Remove the agent."""


class ModelTable(Protocol):
    """Models, shared by all owners."""

    async def add(self, model: Model) -> None:
        """Add a model; one that is there stays as it is."""

    async def save(self, model: Model) -> None:
        """Add a model or replace it."""

    async def by_id(self, model_id: ModelId) -> Model | None:
        """Return the model."""

    async def all(self) -> list[Model]:
        """Return every model, by provider and name."""


class RepoTable(Protocol):
    """Repositories by owner."""

    async def add(self, repo: Repo) -> None:
        """Add a repository."""

    async def by_id(self, owner: Owner, repo_id: RepoId) -> Repo | None:
        """Return the repository, if this owner has it."""

    async def by_path(self, owner: Owner, path: str) -> Repo | None:
        """Return the repository registered at a resolved path."""

    async def all(self, owner: Owner) -> list[Repo]:
        """Return the owner's repositories by name."""

    async def is_used(self, repo_id: RepoId) -> bool:
        """Tell whether a session is bound to the repository."""

    async def remove(self, repo_id: RepoId) -> None:
        """Remove the repository."""


class TokenTable(Protocol):
    """Tokens and sign-in codes, by the digests of their secrets."""

    async def add(self, token: Token, digest: bytes) -> None:
        """Add a token; a second live local one of the same home is refused."""

    async def save(self, token: Token) -> None:
        """Replace a stored token; its secret, owner and kind stay."""

    async def by_digest(self, digest: bytes) -> Token | None:
        """Return the token of a secret, whoever owns it and whether or not it has ended."""

    async def by_id(self, owner: Owner, token_id: TokenId) -> Token | None:
        """Return the token, if this owner has it."""

    async def local(self) -> list[Token]:
        """Return the local tokens that are not revoked, one per home."""

    async def of_owner(self, owner: Owner) -> list[Token]:
        """Return the owner's tokens, oldest first."""

    async def all(self) -> list[Token]:
        """Return everybody's tokens, oldest first."""

    async def forget(self, before: datetime) -> None:
        """Remove tokens of the page that ran out before an instant."""

    async def add_code(self, code: SignInCode, digest: bytes) -> None:
        """Add a sign-in code."""

    async def take_code(self, digest: bytes) -> SignInCode | None:
        """Remove a sign-in code and return it; nobody finds it a second time."""

    async def forget_codes(self, before: datetime) -> None:
        """Remove sign-in codes that ran out before an instant."""
