"""Sessions of a server, with their messages, events and costs."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec.structs import asdict

from holdfast.cli.remote.values import message_of, report_of, session_of, usage_of
from holdfast.client import (
    Client,
    ClosePost,
    CostsQuery,
    DeletionQuery,
    ForkPost,
    InterruptPost,
    MessagesQuery,
    SessionForm,
    SessionPatch,
    SessionsQuery,
)
from holdfast.client.requests import build_query
from holdfast.client.sessions import session_path
from holdfast.domain.costs import CostQuery, CostReport, CostSum
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.queries import LIMIT_MOST, MESSAGES_MOST, Page, SessionQuery
from holdfast.domain.sessions import Created, ForkRequest, Session, SessionContext, Status
from holdfast.services.session_lifecycle import DeletePolicy, Interruption, Resumption
from holdfast.services.sessions import Verification
from holdfast.wire.events import EventsQuery, HouseEventList, Words
from holdfast.wire.messages import MessageForm, MessagePartsQuery
from holdfast.wire.sessions import (
    Compacted,
    CompactPost,
    ExportQuery,
    ResumePost,
    Verified,
    context_form,
)
from holdfast.workflows.session_export import FILES, Export, ExportFormat, ExportStream, Line

# Long timeout, because a model writes the summary.
COMPACT_SECONDS: Final = 600.0


class RemoteSessions:
    """Sessions of a server; whether a cost is complete is cached from the last response."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: dict[SessionId, SessionForm] = {}

    async def get(self, _: Owner, session_id: SessionId) -> Session:
        """Return a session."""
        return self._noted(await self._client.sessions.get(session_id))

    async def list(self, query: SessionQuery, *, cursor: str | None = None) -> Page[Session]:
        """Return a page of sessions."""
        wanted = SessionsQuery(
            state=",".join(query.statuses) or None,
            tag=query.tags,
            q=query.text,
            order=query.order,
            limit=query.limit,
        )
        page = await self._client.sessions.list(wanted, agent=query.agent_id).page(cursor)
        return Page(items=tuple(map(self._noted, page.data)), next_cursor=page.next_cursor)

    async def find(self, _: Owner, beginning: str, *, limit: int = 5) -> tuple[SessionId, ...]:
        """Return the ids that begin with a prefix."""
        wanted = SessionsQuery(begins=beginning, limit=limit)
        page = await self._client.sessions.list(wanted).page()
        return tuple(SessionId(each.id) for each in page.data)

    async def update(self, _: Owner, session_id: SessionId, changes: Mapping[str, Any]) -> Session:
        """Change a session."""
        return self._noted(await self._client.sessions.update(session_id, SessionPatch(**changes)))

    async def interrupt(
        self, _: Owner, session_id: SessionId, *, turn: int | None = None
    ) -> Interruption:
        """Stop the running turn, or only the given one."""
        done = await self._client.sessions.interrupt(session_id, InterruptPost(turn=turn))
        session = self._noted(done.session)
        is_settled = done.turn is None or done.turn <= session.settled
        return Interruption(session=session, turn=done.turn, is_settled=is_settled)

    async def resume(
        self, _: Owner, session_id: SessionId, *, context: SessionContext | None = None
    ) -> Resumption:
        """Reopen a closed session."""
        request = ResumePost(context=None if context is None else context_form(context))
        done = await self._client.sessions.resume(session_id, request)
        return Resumption(session=self._noted(done), turns_left=done.turns_left)

    async def close(
        self,
        _: Owner,
        session_id: SessionId,
        *,
        status: Status = Status.COMPLETED,
        reason: str | None = None,
    ) -> Session:
        """Close a session."""
        is_cancelled = status is Status.CANCELLED
        request = ClosePost(ending="cancelled" if is_cancelled else "completed", reason=reason)
        return self._noted(await self._client.sessions.close(session_id, request))

    async def make_fork(
        self, _: Owner, session_id: SessionId, request: ForkRequest
    ) -> Created[Session]:
        """Fork a session at a message; always new, because it gets a new id."""
        body = ForkPost(
            at=request.at,
            title=request.title,
            tags=request.tags,
            model_id=request.model,
            agent_id=request.agent,
        )
        made = self._noted(await self._client.sessions.fork(session_id, body))
        return Created(thing=made, is_new=True)

    async def delete(
        self, _: Owner, session_id: SessionId, *, policy: DeletePolicy = DeletePolicy.REFUSE
    ) -> tuple[SessionId, ...]:
        """Delete a session permanently, and return the ids of all deleted sessions."""
        gone = [session_id]
        if policy is DeletePolicy.CASCADE:
            for parent in gone:
                forks = self._client.sessions.list(SessionsQuery(forked_from=parent))
                gone += [SessionId(fork.id) async for fork in forks]
        request = DeletionQuery(
            cascade=policy is DeletePolicy.CASCADE, detach=policy is DeletePolicy.DETACH
        )
        await self._client.sessions.delete(session_id, forks=request)
        return tuple(gone)

    async def verify(self, _: Owner, session_id: SessionId) -> Verification:
        """Verify a session's messages on the server."""
        found = await self._client.requests.get(session_path(session_id, "verify"), Verified)
        return Verification(**asdict(found) | {"session_id": SessionId(found.session_id)})

    async def compact(self, _: Owner, session_id: SessionId) -> bool:
        """Compact a session on the server."""
        path = session_path(session_id, "compact")
        done = await self._client.requests.post(
            path, CompactPost(), Compacted, seconds=COMPACT_SECONDS
        )
        self._noted(done.session)
        return done.compacted

    async def of_sessions(
        self, owner: Owner, sessions: Iterable[SessionId]
    ) -> dict[SessionId, CostSum]:
        """Return the cost of each session; without the number of its requests."""
        found: dict[SessionId, CostSum] = {}
        for each in sessions:
            if each not in self._seen:
                await self.get(owner, each)
            form = self._seen[each]
            found[each] = CostSum(
                key=each,
                usage=usage_of(form.usage),
                microcents=form.cost.microcents or 0,
                unpriced_requests=0 if form.cost.priced else 1,
                estimated_requests=0 if form.cost.priced or form.cost.microcents is None else 1,
            )
        return found

    async def report(self, query: CostQuery) -> CostReport:
        """Return the costs."""
        wanted = CostsQuery(
            group_by=query.group_by,
            session_id=query.session_id,
            agent_id=query.agent_id,
            since=query.since,
            until=query.until,
        )
        return report_of(await self._client.costs.report(wanted))

    def _noted(self, form: SessionForm) -> Session:
        self._seen[SessionId(form.id)] = form
        return session_of(form)


class RemoteMessages:
    """Messages of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, _: Owner, session_id: SessionId, message_id: str) -> Message:
        """Return a message."""
        path = session_path(session_id, "messages", message_id)
        request = MessagePartsQuery(parts="all")
        return message_of(await self._client.requests.get(path, MessageForm, request))

    async def list(
        self,
        _: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = MESSAGES_MOST,
    ) -> Page[Message]:
        """Return a page of messages; its cursor is the number to continue after."""
        found: list[Message] = []
        cursor: str | None = None
        while True:
            # A large page is read in several requests.
            most = min(limit - len(found), LIMIT_MOST)
            wanted = MessagesQuery(after=after, before=before, limit=most, parts="all")
            page = await self._client.messages.list(session_id, wanted).page(cursor)
            found += map(message_of, page.data)
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = str(found[-1].sequence) if cursor is not None else None
        return Page(items=tuple(found), next_cursor=more)


class RemoteEvents:
    """Events of a server, in the internal format."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(
        self, _: Owner, session_id: SessionId, *, after: int = 0, limit: int = 1_000
    ) -> Page[Event | Gap]:
        """Return a page of events and gaps."""
        found: list[Event | Gap] = []
        cursor: str | None = None
        while True:
            most = min(limit - len(found), LIMIT_MOST)
            query = EventsQuery(after=after, limit=most, cursor=cursor, words=Words.HOUSE)
            target = session_path(session_id, "events")
            page = await self._client.requests.get(target, HouseEventList, query)
            found += sorted((*page.data, *page.gaps), key=_number)
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = str(_number(found[-1])) if cursor is not None else None
        return Page(items=tuple(found), next_cursor=more)


class RemoteExports:
    """Exports of a server's sessions."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def export(
        self,
        _: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line | None = None,
    ) -> Export:
        """Return an exported session; each line has the server's format."""
        wanted = ExportQuery(format=form, through=through)
        content = await self._client.sessions.export(session_id, wanted)
        ending, media_type = FILES[form]
        return Export(file_name=f"{session_id}.{ending}", media_type=media_type, content=content)

    async def stream(
        self,
        _: Owner,
        session_id: SessionId,
        form: ExportFormat,
        *,
        through: int | None = None,
        line: Line | None = None,
    ) -> ExportStream:
        """Return an exported session as a stream from the server."""
        wanted = ExportQuery(format=form, through=through)
        ending, media_type = FILES[form]
        return ExportStream(
            file_name=f"{session_id}.{ending}",
            media_type=media_type,
            pieces=self._client.sessions.export_pieces(session_id, wanted),
        )

    async def record(self, owner: Owner, session_id: SessionId, target: str) -> Event:
        """Record on the server where a workflow was written to."""
        noted = await self._client.sessions.note_export(session_id, target)
        page = await RemoteEvents(self._client).list(owner, session_id, after=noted.sequence - 1)
        return next(each for each in page.items if isinstance(each, Event))


def house_events(session_id: SessionId) -> str:
    """Return the path of a session's event stream in the internal format."""
    return session_path(session_id, "events") + build_query(EventsQuery(words=Words.HOUSE))


def _number(item: Event | Gap) -> int:
    return item.to_sequence if isinstance(item, Gap) else item.sequence
