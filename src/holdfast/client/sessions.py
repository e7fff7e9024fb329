"""HTTP client for sessions and messages."""

from collections.abc import AsyncGenerator

from msgspec.structs import replace

from holdfast.client.requests import Listing, Requests, build_path, new_id
from holdfast.domain.queries import LIMIT_MOST
from holdfast.domain.sessions import OnBusy
from holdfast.wire.messages import (
    AssistantPost,
    CallPost,
    MessageForm,
    MessageList,
    MessagesQuery,
    ResultPost,
    SystemPost,
    TextContent,
    UserPost,
)
from holdfast.wire.sessions import (
    ClosePost,
    DeletionQuery,
    Exported,
    ExportPost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    SessionForm,
    SessionList,
    SessionPatch,
    SessionPost,
    SessionsQuery,
)

RecordedPost = AssistantPost | SystemPost | CallPost | ResultPost


class SessionClient:
    """Sessions."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def open(self, agent: str, request: SessionPost | None = None) -> SessionForm:
        """Open a session with an agent, given by its id or slug."""
        given = request or SessionPost()
        body = given if given.id is not None else replace(given, id=new_id())
        path = build_path("v1", "agents", agent, "sessions")
        return await self._requests.post(path, body, SessionForm)

    async def get(self, session_id: str) -> SessionForm:
        """Return a session."""
        return await self._requests.get(session_path(session_id), SessionForm)

    def list(
        self, query: SessionsQuery | None = None, *, agent: str | None = None
    ) -> Listing[SessionForm]:
        """List sessions of all agents or of one, newest first."""
        wanted = query or SessionsQuery()
        path = "/v1/sessions" if agent is None else build_path("v1", "agents", agent, "sessions")

        async def fetch(cursor: str | None) -> SessionList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(path, SessionList, page_query)

        return Listing(fetch)

    async def update(self, session_id: str, changes: SessionPatch) -> SessionForm:
        """Update a session; omitted fields stay unchanged."""
        return await self._requests.patch(session_path(session_id), changes, SessionForm)

    async def interrupt(self, session_id: str, request: InterruptPost | None = None) -> Interrupted:
        """Interrupt the running turn; text that was already streamed is saved."""
        path = session_path(session_id, "interrupt")
        return await self._requests.post(path, request or InterruptPost(), Interrupted)

    async def resume(self, session_id: str, request: ResumePost | None = None) -> Resumed:
        """Reopen a closed session; no effect on an open one."""
        path = session_path(session_id, "resume")
        return await self._requests.post(path, request or ResumePost(), Resumed)

    async def close(self, session_id: str, request: ClosePost | None = None) -> SessionForm:
        """Close a session."""
        path = session_path(session_id, "close")
        return await self._requests.post(path, request or ClosePost(), SessionForm)

    async def fork(self, session_id: str, request: ForkPost | None = None) -> SessionForm:
        """Open a session that continues from a message of this one."""
        given = request or ForkPost()
        body = given if given.id is not None else replace(given, id=new_id())
        return await self._requests.post(session_path(session_id, "fork"), body, SessionForm)

    async def delete(self, session_id: str, *, forks: DeletionQuery | None = None) -> None:
        """Delete a session permanently; `forks` decides what happens to its forks."""
        await self._requests.delete(session_path(session_id), forks)

    async def export(self, session_id: str, query: ExportQuery | None = None) -> bytes:
        """Export a session as JSON Lines, as readable text or as a workflow."""
        return await self._requests.content(session_path(session_id, "export"), query)

    def export_pieces(
        self, session_id: str, query: ExportQuery | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Stream an export, for sessions too long to hold in memory."""
        return self._requests.pieces(session_path(session_id, "export"), query)

    async def note_export(self, session_id: str, target: str) -> Exported:
        """Record where a session's workflow was exported to."""
        path = session_path(session_id, "export")
        return await self._requests.post(path, ExportPost(target=target), Exported)


class MessageClient:
    """Messages of a session."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def send(
        self,
        session_id: str,
        content: str | UserPost,
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> MessageForm:
        """Send a user message; it is durable on disk when this returns, and its turn follows."""
        body = content
        if isinstance(body, str):
            body = UserPost(content=TextContent(text=body), on_busy=on_busy)
        return await self._post_message(session_id, replace(body, id=id or body.id or new_id()))

    async def record(self, session_id: str, content: RecordedPost) -> MessageForm:
        """Record a message from elsewhere; starts no turn."""
        return await self._post_message(session_id, replace(content, id=content.id or new_id()))

    async def get(self, session_id: str, message_id: str) -> MessageForm:
        """Return a message."""
        return await self._requests.get(
            session_path(session_id, "messages", message_id), MessageForm
        )

    def list(self, session_id: str, query: MessagesQuery | None = None) -> Listing[MessageForm]:
        """List messages by sequence number."""
        wanted = query or MessagesQuery()
        if wanted.limit is None and wanted.before is None:
            # Pages, because all messages in one response may not fit in memory.
            wanted = replace(wanted, limit=LIMIT_MOST)

        async def fetch(cursor: str | None) -> MessageList:
            page_query = replace(wanted, cursor=cursor or wanted.cursor)
            return await self._requests.get(
                session_path(session_id, "messages"), MessageList, page_query
            )

        return Listing(fetch)

    async def _post_message(self, session_id: str, body: UserPost | RecordedPost) -> MessageForm:
        return await self._requests.post(session_path(session_id, "messages"), body, MessageForm)


def session_path(session_id: str, *rest: str) -> str:
    """Return a path below a session."""
    return build_path("v1", "sessions", session_id, *rest)
