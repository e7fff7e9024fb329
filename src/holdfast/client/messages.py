"""Messages, media, events and exports of a server's sessions."""

from typing import NoReturn

from holdfast.client.requests import Requests, new_id
from holdfast.client.sessions import session_path
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.queries import LIMIT_MOST, MESSAGES_MOST, Page
from holdfast.wire.events import EventsQuery, HouseEventList, Words
from holdfast.wire.messages import (
    MessageForm,
    MessageList,
    MessagePartsQuery,
    MessagesQuery,
    message_of,
    recorded_post,
)
from holdfast.wire.session_actions import Exported, ExportPost, ExportQuery
from holdfast.workflows.session_export import FILES, Export, ExportFormat, ExportStream, Line


class RemoteMessages:
    """Messages of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def record(self, owner: Owner, session_id: SessionId, draft: MessageDraft) -> Message:
        """Store a message that was made elsewhere; starts no turn."""
        id_ = draft.id or new_id()
        path = session_path(session_id, "messages")
        form = await self._requests.post(path, recorded_post(draft, id=id_), MessageForm)
        return message_of(form)

    async def get(self, owner: Owner, session_id: SessionId, message_id: str) -> Message:
        """Return a message."""
        path = session_path(session_id, "messages", message_id)
        query = MessagePartsQuery(parts="all")
        return message_of(await self._requests.get(path, MessageForm, query))

    async def list(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = MESSAGES_MOST,
    ) -> Page[Message]:
        """Return a page of messages; its cursor is the number to continue after."""
        path = session_path(session_id, "messages")
        found: list[Message] = []
        cursor: str | None = None
        while True:
            # A large page is read in several requests, because one response may not fit in memory.
            most = min(limit - len(found), LIMIT_MOST)
            query = MessagesQuery(
                after=after, before=before, limit=most, cursor=cursor, parts="all"
            )
            page = await self._requests.get(path, MessageList, query)
            found += map(message_of, page.data)
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = str(found[-1].sequence) if cursor is not None else None
        return Page(items=tuple(found), next_cursor=more)


class RemoteEvents:
    """Events of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def list(
        self, owner: Owner, session_id: SessionId, *, after: int = 0, limit: int = 1_000
    ) -> Page[Event | Gap]:
        """Return a page of events and gaps."""
        path = session_path(session_id, "events")
        found: list[Event | Gap] = []
        cursor: str | None = None
        while True:
            most = min(limit - len(found), LIMIT_MOST)
            query = EventsQuery(after=after, limit=most, cursor=cursor, words=Words.HOUSE)
            page = await self._requests.get(path, HouseEventList, query)
            found += sorted((*page.data, *page.gaps), key=_number)
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = str(_number(found[-1])) if cursor is not None else None
        return Page(items=tuple(found), next_cursor=more)


class RemoteExports:
    """Exports of a server's sessions."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def export(
        self,
        owner: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line | None = None,
    ) -> Export:
        """Return an exported session; `line` has no effect, because the server writes the lines."""
        query = ExportQuery(format=form, through=through)
        content = await self._requests.content(session_path(session_id, "export"), query)
        ending, media_type = FILES[form]
        return Export(file_name=f"{session_id}.{ending}", media_type=media_type, content=content)

    async def stream(
        self,
        owner: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line | None = None,
    ) -> ExportStream:
        """Return an exported session as a stream; not retried."""
        query = ExportQuery(format=form, through=through)
        ending, media_type = FILES[form]
        return ExportStream(
            file_name=f"{session_id}.{ending}",
            media_type=media_type,
            pieces=self._requests.pieces(session_path(session_id, "export"), query),
        )

    async def record(self, owner: Owner, session_id: SessionId, target: str) -> Event:
        """Record where a workflow was written to, and return the event."""
        path = session_path(session_id, "export")
        done = await self._requests.post(path, ExportPost(target=target), Exported)
        events = RemoteEvents(self._requests)
        page = await events.list(owner, session_id, after=done.sequence - 1, limit=1)
        return next(each for each in page.items if isinstance(each, Event))


class RemoteMedia:
    """Media of a server's messages: they can be read, not uploaded."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def keep(
        self, owner: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> NoReturn:
        """Refuse: the server has no route for uploads."""
        raise Invalid(
            Code.INVALID_INPUT,
            "Media cannot be uploaded to a server; describe the content in words, or run this "
            "where the server runs.",
        )

    async def read(self, owner: Owner, session_id: SessionId, handle: str) -> bytes:
        """Return the content of a media handle."""
        name = handle.removeprefix("media://")
        return await self._requests.content(session_path(session_id, "media", name))


def _number(item: Event | Gap) -> int:
    return item.to_sequence if isinstance(item, Gap) else item.sequence
