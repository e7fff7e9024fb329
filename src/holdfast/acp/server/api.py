"""The interface that the ACP server needs from Holdfast, local or remote."""

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalMode, ApprovalState
    from holdfast.domain.events import Event, Gap
    from holdfast.domain.ids import Owner, SessionId
    from holdfast.domain.messages import Message, Part
    from holdfast.domain.models import Model
    from holdfast.domain.queries import Page, SessionQuery
    from holdfast.domain.repos import Repo
    from holdfast.domain.sessions import Session, SessionContext, SessionRequest
    from holdfast.services.session_lifecycle import Interruption, Resumption


class AcpSettings(Protocol):
    """The settings that the ACP server reads."""

    @property
    def default_model(self) -> str: ...
    @property
    def approval(self) -> "ApprovalMode": ...


class AcpSessions(Protocol):
    """Sessions."""

    async def get(self, owner: "Owner", session_id: "SessionId") -> "Session": ...
    async def list(
        self, query: "SessionQuery", *, cursor: str | None = None
    ) -> "Page[Session]": ...
    async def update(
        self, owner: "Owner", session_id: "SessionId", changes: Mapping[str, Any]
    ) -> "Session": ...
    async def interrupt(
        self, owner: "Owner", session_id: "SessionId", *, turn: int | None = None
    ) -> "Interruption": ...
    async def resume(
        self, owner: "Owner", session_id: "SessionId", *, context: "SessionContext | None" = None
    ) -> "Resumption": ...
    async def delete(self, owner: "Owner", session_id: "SessionId") -> "tuple[SessionId, ...]": ...


class AcpMessages(Protocol):
    """Messages."""

    async def get(self, owner: "Owner", session_id: "SessionId", message_id: str) -> "Message": ...
    async def list(
        self, owner: "Owner", session_id: "SessionId", *, after: int = 0, limit: int = ...
    ) -> "Page[Message]": ...


class AcpEvents(Protocol):
    """Events."""

    async def list(
        self, owner: "Owner", session_id: "SessionId", *, after: int = 0, limit: int = 1_000
    ) -> "Page[Event | Gap]": ...


class AcpApprovals(Protocol):
    """Approvals."""

    async def list(
        self,
        owner: "Owner",
        session_id: "SessionId | None" = None,
        *,
        state: "ApprovalState | None" = None,
    ) -> "Page[Approval]": ...
    async def get(
        self, owner: "Owner", session_id: "SessionId", approval_id: str
    ) -> "Approval": ...
    async def answer(
        self,
        owner: "Owner",
        session_id: "SessionId",
        approval_id: str,
        answer: "ApprovalAnswer",
        *,
        digest: str | None = None,
    ) -> "Approval": ...


class AcpModels(Protocol):
    """The model catalogue."""

    async def catalogue(self) -> "tuple[Model, ...]": ...


class AcpRepos(Protocol):
    """Repositories and folders in which agents may work."""

    async def require_folder(self, owner: "Owner", path: str) -> str: ...
    async def add(
        self, owner: "Owner", path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> "Repo": ...


class AcpMedia(Protocol):
    """Media of messages."""

    async def keep(
        self, owner: "Owner", session_id: "SessionId", content: bytes, *, mime_type: str
    ) -> str: ...
    async def read(self, owner: "Owner", session_id: "SessionId", handle: str) -> bytes: ...


class AcpMcpServers(Protocol):
    """MCP servers that a client supplies."""

    async def bring(
        self, owner: "Owner", session_id: "SessionId", servers: tuple[Mapping[str, Any], ...]
    ) -> None: ...


class AcpBackend(Protocol):
    """A Holdfast instance, local or remote."""

    @property
    def config(self) -> AcpSettings: ...
    @property
    def owner(self) -> "Owner": ...
    @property
    def approvals(self) -> AcpApprovals: ...
    @property
    def events(self) -> AcpEvents: ...
    @property
    def guests(self) -> AcpMcpServers: ...
    @property
    def media(self) -> AcpMedia: ...
    @property
    def messages(self) -> AcpMessages: ...
    @property
    def models(self) -> AcpModels: ...
    @property
    def repos(self) -> AcpRepos: ...
    @property
    def sessions(self) -> AcpSessions: ...

    async def open(
        self, agent: str = ..., request: "SessionRequest | None" = None
    ) -> "Session": ...
    async def send(
        self, session_id: "SessionId", content: "tuple[Part, ...]", *, id: str | None = None
    ) -> "Message": ...
    def follow(
        self, session_id: "SessionId", *, after: int = 0
    ) -> "AsyncGenerator[Event | Gap, None]": ...
