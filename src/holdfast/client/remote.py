"""The verbs of `Holdfast` over HTTP, and `connect`."""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.api import Defaults
from holdfast.ask.children import SpawnVerbs
from holdfast.ask.serving import ServeVerbs
from holdfast.ask.verbs import AskVerbs
from holdfast.client.observations import RemoteObservations, RemoteSearch
from holdfast.client.requests import RemotePart, Requests, Timeouts, build_path, build_query, new_id
from holdfast.client.sessions import (
    RemoteChildren,
    RemoteCompactions,
    RemoteCosts,
    RemoteSessions,
    RemoteSessionViews,
    session_path,
)
from holdfast.client.stream import FollowRequest, ResumingStream
from holdfast.client.transport import Transport, token_of_environment
from holdfast.client.workers import RemoteWorkers, ServedFunctions
from holdfast.client.zones import RemoteZones
from holdfast.domain.agents import Agent
from holdfast.domain.approvals import Approval, ApprovalState, Decision
from holdfast.domain.calls import Call, CallState
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import LOCAL_OWNER, Owner, SessionId, is_uuid, session_as_owner
from holdfast.domain.messages import Message, Part, require_content
from holdfast.domain.models import Model, ModelRequest
from holdfast.domain.queries import LIMIT_MOST, MESSAGES_MOST, AgentQuery, Page
from holdfast.domain.recordings import OnOpenCalls, Recorded
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import (
    OnBusy,
    Session,
    SessionRequest,
    require_on_busy,
    require_session_request,
)
from holdfast.domain.text import require_int, require_str
from holdfast.own_loops import LoopVerbs
from holdfast.services.agents import BUILT_IN, EnsureVerb
from holdfast.services.background_tasks import Background
from holdfast.services.calls import CallAnswer, SettlementRequest
from holdfast.wire.agents import (
    AgentForm,
    AgentList,
    AgentPatch,
    AgentPost,
    agent_changes,
    agent_of,
    agents_query,
)
from holdfast.wire.approvals import (
    ApprovalForm,
    ApprovalList,
    ApprovalsQuery,
    RevokePost,
    answer_post,
    approval_of,
)
from holdfast.wire.calls import (
    CallForm,
    CallList,
    CallsQuery,
    call_of,
    result_post,
    settle_post,
)
from holdfast.wire.events import EventsQuery, StoredEventList, Words
from holdfast.wire.messages import (
    MediaUpload,
    MessageForm,
    MessageList,
    MessagePartsQuery,
    MessagesQuery,
    message_of,
    recorded_post,
    user_post,
)
from holdfast.wire.models import DefaultsForm, ModelForm, ModelList, model_post, model_value
from holdfast.wire.recordings import RecordedForm, record_post, recorded_of
from holdfast.wire.repo_sessions import RepoForm, RepoList, RepoPost, repo_of
from holdfast.wire.session_actions import Exported, ExportPost, ExportQuery, ToolsPost
from holdfast.wire.sessions import SessionForm, session_of, session_post
from holdfast.workflows.session_export import FILES, Export, ExportFormat, ExportStream, Line


class RemoteAgents(RemotePart, EnsureVerb):
    """Agents of a server."""

    async def create(
        self, owner: Owner, fields: Mapping[str, Any], *, id: str | None = None
    ) -> Agent:
        """Create an agent from its fields; only `name` is required."""
        sent = {"system_prompt": "", **agent_changes(fields)}
        body = AgentPost(id=id or new_id(), **sent)
        return agent_of(await self._requests.post("/v1/agents", body, AgentForm))

    async def get(self, owner: Owner, ref: str) -> Agent:
        """Return an agent by its id or slug."""
        return agent_of(await self._requests.get(_agent_path(ref), AgentForm))

    async def list(self, query: AgentQuery, *, cursor: str | None = None) -> Page[Agent]:
        """Return a page of agents, newest first."""
        page = await self._requests.get("/v1/agents", AgentList, agents_query(query, cursor))
        return Page(items=tuple(map(agent_of, page.data)), next_cursor=page.next_cursor)

    async def update(self, owner: Owner, ref: str, changes: Mapping[str, Any]) -> Agent:
        """Change an agent; omitted fields stay unchanged."""
        body = AgentPatch(**agent_changes(changes))
        return agent_of(await self._requests.patch(_agent_path(ref), body, AgentForm))

    async def archive(self, owner: Owner, ref: str) -> Agent:
        """Archive an agent; its sessions continue."""
        await self._requests.delete(_agent_path(ref))
        return await self.get(owner, ref)


class RemoteModels(RemotePart):
    """Models of a server."""

    async def add(self, request: ModelRequest) -> Model:
        """Add a model, or replace the description of a known one."""
        form = await self._requests.post("/v1/models", model_post(request), ModelForm)
        return model_value(form)

    async def catalogue(self) -> tuple[Model, ...]:
        """Return every model that can be used on the server."""
        return tuple(await self.list())

    async def check(self, *refs: str) -> None:
        """Do nothing: the server validates a model when it is used."""

    async def get(self, ref: str) -> Model:
        """Return a model by its id or `provider:name`."""
        return model_value(await self._requests.get(build_path("v1", "models", ref), ModelForm))

    async def list(self) -> list[Model]:
        """Return all models by provider and name."""
        return [model_value(form) for form in await self._forms()]

    async def _forms(self) -> tuple[ModelForm, ...]:
        return (await self._requests.get("/v1/models", ModelList)).data


class RemoteRepos(RemotePart):
    """Repositories of a server."""

    async def add(
        self, owner: Owner, path: str, *, name: str | None = None, at_terminal: bool = False
    ) -> Repo:
        """Register a Git work tree of the server's machine; `at_terminal` has no effect."""
        body = RepoPost(path=path, name=name)
        return repo_of(await self._requests.post("/api/repos", body, RepoForm))

    async def list(self, owner: Owner) -> list[Repo]:
        """Return the repositories by name."""
        return [repo_of(form) for form in await self._forms()]

    async def remove(self, owner: Owner, repo_id: str) -> None:
        """Unregister a repository that no session is bound to."""
        await self._requests.delete(build_path("api", "repos", repo_id))

    async def require_folder(self, owner: Owner, path: str) -> str:
        """Return the folder unchanged: the server validates it when a session is opened."""
        return path

    async def _forms(self) -> tuple[RepoForm, ...]:
        return (await self._requests.get("/api/repos", RepoList)).repos


class RemoteMcpServers:
    """MCP servers of clients, which a server does not take."""

    async def attach(
        self, owner: Owner, session_id: SessionId, servers: tuple[Mapping[str, Any], ...]
    ) -> None:
        """Refuse MCP servers: those of a server are configured there."""
        if servers:
            names = ", ".join(str(each["id"]) for each in servers)
            raise Invalid(
                Code.INVALID_INPUT,
                f"These MCP servers cannot be attached over the network: {names}. Configure "
                "them in the server's own holdfast.toml.",
            )


def _agent_path(ref: str) -> str:
    return build_path("v1", "agents", ref)


class RemoteApprovals(RemotePart):
    """Approvals of a server."""

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: ApprovalState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Approval]:
        """Return a page of approvals, of one session or of all, oldest first."""
        if session_id is None:
            _require_owner(owner)
        path = "/v1/approvals" if session_id is None else session_path(session_id, "approvals")
        query = ApprovalsQuery(state=state, limit=limit, cursor=cursor)
        page = await self._requests.get(path, ApprovalList, query)
        return Page(items=tuple(map(approval_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Return an approval."""
        path = session_path(session_id, "approvals", approval_id)
        return approval_of(await self._requests.get(path, ApprovalForm))

    async def answer(
        self,
        owner: Owner,
        session_id: SessionId,
        approval_id: str,
        answer: Decision,
        *,
        digest: str | None = None,
    ) -> Approval:
        """Answer an approval; the server records the token that answered."""
        path = session_path(session_id, "approvals", approval_id)
        body = answer_post(answer, digest)
        return approval_of(await self._requests.post(path, body, ApprovalForm))

    async def revoke(self, owner: Owner, session_id: SessionId, approval_id: str) -> Approval:
        """Revoke an answer that covers the whole session."""
        path = session_path(session_id, "approvals", approval_id, "revoke")
        return approval_of(await self._requests.post(path, RevokePost(), ApprovalForm))


class RemoteCalls(RemotePart):
    """Tool calls of a server."""

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: CallState | None = None,
        agent: str | None = None,
        tool: str | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Call]:
        """Return a page of calls, of one session or of all."""
        if session_id is None:
            _require_owner(owner)
        path = "/v1/calls" if session_id is None else session_path(session_id, "calls")
        query = CallsQuery(state=state, agent=agent, tool=tool, limit=limit, cursor=cursor)
        page = await self._requests.get(path, CallList, query)
        return Page(items=tuple(map(call_of, page.data)), next_cursor=page.next_cursor)

    async def get(self, owner: Owner, session_id: SessionId, call_id: str) -> Call:
        """Return a call."""
        path = session_path(session_id, "calls", call_id)
        return call_of(await self._requests.get(path, CallForm))

    async def settle(
        self, owner: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call:
        """Settle a call with an unknown outcome; the server records the token that settled it."""
        path = session_path(session_id, "calls", call_id, "settle")
        return call_of(await self._requests.post(path, settle_post(request), CallForm))

    async def answer(
        self, owner: Owner, session_id: SessionId, call_id: str, answer: CallAnswer
    ) -> Call:
        """Answer a call that a client was asked to run; the first answer counts."""
        path = session_path(session_id, "calls", call_id, "result")
        return call_of(await self._requests.post(path, result_post(answer), CallForm))


class RemoteMessages(RemotePart):
    """Messages of a server."""

    async def record(self, owner: Owner, session_id: SessionId, draft: MessageDraft) -> Message:
        """Store a message that was made elsewhere; starts no turn."""
        id_ = draft.id or new_id()
        path = session_path(session_id, "messages")
        form = await self._requests.post(path, recorded_post(draft, id=id_), MessageForm)
        return message_of(form)

    async def record_turns(
        self,
        owner: Owner,
        session_id: SessionId,
        drafts: tuple[MessageDraft, ...],
        *,
        on_open_calls: OnOpenCalls = "unknown",
    ) -> Recorded:
        """Store whole turns that were played elsewhere; at most 8 MiB in one request."""
        body = record_post(drafts, on_open_calls, new_id)
        path = session_path(session_id, "record")
        return recorded_of(await self._requests.post(path, body, RecordedForm))

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


class RemoteEvents(RemotePart):
    """Events of a server."""

    async def list(
        self, owner: Owner, session_id: SessionId, *, after: int = 0, limit: int = 1_000
    ) -> Page[Event | Gap]:
        """Return a page of events and gaps."""
        path = session_path(session_id, "events")
        found: list[Event | Gap] = []
        cursor: str | None = None
        while True:
            most = min(limit - len(found), LIMIT_MOST)
            query = EventsQuery(after=after, limit=most, cursor=cursor, words=Words.INTERNAL)
            page = await self._requests.get(path, StoredEventList, query)
            found += sorted((*page.data, *page.gaps), key=_number)
            cursor = page.next_cursor
            if cursor is None or len(found) >= limit:
                break
        more = str(_number(found[-1])) if cursor is not None else None
        return Page(items=tuple(found), next_cursor=more)


class RemoteExports(RemotePart):
    """Exports of a server's sessions."""

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


class RemoteMedia(RemotePart):
    """Media of a server's messages: they can be read, not uploaded."""

    async def keep(
        self, owner: Owner, session_id: SessionId, content: bytes, *, mime_type: str
    ) -> str:
        """Upload content for a session and return its handle."""
        path = session_path(session_id, "media")
        return (await self._requests.upload(path, content, mime_type, MediaUpload)).ref

    async def read(self, owner: Owner, session_id: SessionId, handle: str) -> bytes:
        """Return the content of a media handle."""
        name = handle.removeprefix("media://")
        return await self._requests.content(session_path(session_id, "media", name))


def _number(item: Event | Gap) -> int:
    return item.to_sequence if isinstance(item, Gap) else item.sequence


_decoder: Final = msgspec.json.Decoder(Event)


class RemoteHoldfast(AskVerbs, SpawnVerbs, ServeVerbs, LoopVerbs):
    """The API of one server. Idempotent requests are retried when the connection breaks.

    Requests that create something carry an id, so they are idempotent.
    """

    def __init__(self, requests: Requests, background: Background) -> None:
        # For routes without a method here.
        self.requests: Final = requests
        # Those that were given to the server; they run until the connection is closed.
        self.functions: Final = ServedFunctions(self, background)
        # A server shows the caller's own objects, and does not name their owner.
        self.owner: Final = LOCAL_OWNER
        self.agents: Final = RemoteAgents(requests)
        self.approvals: Final = RemoteApprovals(requests)
        self.calls: Final = RemoteCalls(requests)
        self.children: Final = RemoteChildren(requests)
        self.compactions: Final = RemoteCompactions(requests)
        self.events: Final = RemoteEvents(requests)
        self.exports: Final = RemoteExports(requests)
        self.mcp_servers: Final = RemoteMcpServers()
        self.media: Final = RemoteMedia(requests)
        self.messages: Final = RemoteMessages(requests)
        self.models: Final = RemoteModels(requests)
        self.observations: Final = RemoteObservations(requests)
        self.repos: Final = RemoteRepos(requests)
        self.search: Final = RemoteSearch(requests)
        self.session_views: Final = RemoteSessionViews(requests)
        self.sessions: Final = RemoteSessions(requests)
        self.costs: Final = RemoteCosts(requests)
        self.workers: Final = RemoteWorkers(requests)
        self.zones: Final = RemoteZones(requests)
        self._defaults: Defaults | None = None

    async def defaults(self) -> Defaults:
        """Return the server's defaults; requested once."""
        if self._defaults is None:
            form = await self.requests.get("/v1/defaults", DefaultsForm)
            self._defaults = Defaults(
                model=form.model, approval=form.approval, turn_cap=form.attended_turn_cap
            )
        return self._defaults

    async def open(
        self,
        agent: str = BUILT_IN,
        request: SessionRequest | None = None,
        *,
        id: str | None = None,
        tools: Sequence[Callable[..., Any] | str] = (),
    ) -> Session:
        """Open a session; it is on the server's disk when this returns.

        `tools` are names, and functions: the session stores their definitions, and this process
        runs their calls.
        """
        require_str(agent, field="agent")
        require_session_request(request)
        functions = [each for each in tools if not isinstance(each, str)]
        if names := tuple(each for each in tools if isinstance(each, str)):
            request = replace(request or SessionRequest(), tools=names)
        definitions = self.functions.definitions(functions)
        body = session_post(request or SessionRequest(), id=id or new_id(), definitions=definitions)
        path = build_path("v1", "agents", agent, "sessions")
        session = session_of(await self.requests.post(path, body, SessionForm))
        if functions:
            await self.functions.add(functions, session.id)
        return session

    async def attach(self, session_id: SessionId, tools: Sequence[Callable[..., Any]]) -> None:
        """Add functions to the tools of a session; this process runs their calls."""
        body = ToolsPost(tools=tuple(self.functions.definitions(tools)))
        await self.requests.post(session_path(session_id, "tools"), body, SessionForm)
        await self.functions.add(tools, session_id)

    async def send(
        self,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Message:
        """Store a message; it is on the server's disk when this returns, and its turn follows."""
        require_str(session_id, field="session_id")
        parts, busy = require_content(content), require_on_busy(on_busy)
        body = user_post(parts, id=id or new_id(), on_busy=busy)
        path = session_path(session_id, "messages")
        return message_of(await self.requests.post(path, body, MessageForm))

    def follow(
        self, session_id: SessionId, *, after: int = 0, until_settled: bool = False
    ) -> AsyncGenerator[Event | Gap, None]:
        """Yield the session's events after a number, then new ones: each once, in order.

        A broken or silent stream is resumed after the last event. Raises only where a retry cannot
        help: 400, 401, 403, 404 or 409, a server that never answered, or repeated invalid data.
        With `until_settled` the stream ends when no turn runs or waits.
        """
        require_str(session_id, field="session_id")
        require_int(after, field="after")
        return self._follow(session_id, after, until_settled=until_settled)

    async def _follow(
        self, session_id: SessionId, after: int, *, until_settled: bool
    ) -> AsyncGenerator[Event | Gap, None]:
        query = EventsQuery(words=Words.INTERNAL, until="settled" if until_settled else None)
        target = session_path(session_id, "events") + build_query(query)
        request = FollowRequest(target=target, after=after, decode=_decoder.decode)
        async with aclosing(ResumingStream(self.requests, request).items()) as items:
            async for item in items:
                if isinstance(item, Event):
                    yield item
                else:
                    yield Gap(
                        from_sequence=item.from_sequence,
                        to_sequence=item.to_sequence,
                        reason=item.reason,
                    )

    async def read(self, session_id: SessionId, *, after: int = 0) -> tuple[Message, ...]:
        """Return the session's messages after a sequence number, at most 10,000."""
        require_str(session_id, field="session_id")
        require_int(after, field="after")
        return (await self.messages.list(self.owner, session_id, after=after)).items


@asynccontextmanager
async def connect(
    url: str,
    token: str | None = None,
    *,
    timeouts: Timeouts | None = None,
    tls: ssl.SSLContext | None = None,
    tools: Sequence[Callable[..., Any]] = (),
) -> AsyncIterator[RemoteHoldfast]:
    """Connect to a server; the first request is made by the first verb.

    `tools` are functions that this process runs for agents that define them. `tls` is for servers
    whose certificate the system does not trust. Without a token HOLDFAST_TOKEN is sent, unless
    HOLDFAST_SERVER names another server.
    """
    headers = {"user-agent": "holdfast"}
    token = token_of_environment(url) if token is None else token
    if token is not None:
        # A token read from its file may end with a line break.
        headers["authorization"] = f"Bearer {token.strip()}"
    requests = Requests(Transport(url, headers, tls), timeouts or Timeouts())
    try:
        async with Background() as background:
            hf = RemoteHoldfast(requests, background)
            if tools:
                await hf.functions.add(tools)
            yield hf
    finally:
        await requests.transport.aclose()


def _require_owner(owner: Owner) -> None:
    """Refuse the id of a session in place of the owner, who is otherwise not looked at."""
    if is_uuid(owner):
        raise session_as_owner()
