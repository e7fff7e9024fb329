"""`connect`: the API of a Holdfast server over HTTP.

Each verb makes one request and returns a domain value. A server knows the owner by the token, so
the owner that a verb takes first is not sent.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec

from holdfast.api import Defaults
from holdfast.client.agents import RemoteAgents, RemoteMcpServers, RemoteModels, RemoteRepos
from holdfast.client.approvals import RemoteApprovals, RemoteCalls
from holdfast.client.messages import RemoteEvents, RemoteExports, RemoteMedia, RemoteMessages
from holdfast.client.observations import RemoteObservations, RemoteSearch
from holdfast.client.requests import Requests, Timeouts, build_path, build_query, new_id
from holdfast.client.sessions import (
    RemoteCompactions,
    RemoteCosts,
    RemoteSessions,
    RemoteSessionViews,
    session_path,
)
from holdfast.client.stream import FollowRequest, ResumingStream
from holdfast.client.transport import Transport
from holdfast.client.zones import RemoteZones
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import LOCAL_OWNER, SessionId
from holdfast.domain.messages import Message, Part, require_content
from holdfast.domain.sessions import (
    OnBusy,
    Session,
    SessionRequest,
    require_on_busy,
    require_session_request,
)
from holdfast.domain.text import require_int, require_str
from holdfast.services.agents import BUILT_IN
from holdfast.wire.events import EventsQuery, Words
from holdfast.wire.messages import MessageForm, message_of, user_post
from holdfast.wire.models import DefaultsForm
from holdfast.wire.sessions import SessionForm, session_of, session_post

_decoder: Final = msgspec.json.Decoder(Event)


class RemoteHoldfast:
    """The API of one server. Requests that may be repeated are retried when the connection breaks.

    Requests that create something carry an id, so retries are idempotent.
    """

    def __init__(self, requests: Requests) -> None:
        # For routes without a verb here.
        self.requests: Final = requests
        # A server shows the caller's own objects, and does not name their owner.
        self.owner: Final = LOCAL_OWNER
        self.agents: Final = RemoteAgents(requests)
        self.approvals: Final = RemoteApprovals(requests)
        self.calls: Final = RemoteCalls(requests)
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
        self.zones: Final = RemoteZones(requests)
        self._defaults: Defaults | None = None

    async def defaults(self) -> Defaults:
        """Return the server's defaults; requested once."""
        if self._defaults is None:
            form = await self.requests.get("/v1/defaults", DefaultsForm)
            self._defaults = Defaults(model=form.model, approval=form.approval)
        return self._defaults

    async def open(
        self, agent: str = BUILT_IN, request: SessionRequest | None = None, *, id: str | None = None
    ) -> Session:
        """Open a session; it is on the server's disk when this returns."""
        require_str(agent, field="agent")
        require_session_request(request)
        body = session_post(request or SessionRequest(), id=id or new_id())
        path = build_path("v1", "agents", agent, "sessions")
        return session_of(await self.requests.post(path, body, SessionForm))

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
        query = EventsQuery(words=Words.HOUSE, until="settled" if until_settled else None)
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
) -> AsyncIterator[RemoteHoldfast]:
    """Connect to a server; the first request is made by the first verb.

    `tls` is for servers whose certificate the system does not trust.
    """
    headers = {"user-agent": "holdfast"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    requests = Requests(Transport(url, headers, tls), timeouts or Timeouts())
    try:
        yield RemoteHoldfast(requests)
    finally:
        await requests.transport.aclose()
