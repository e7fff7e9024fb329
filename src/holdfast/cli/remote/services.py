"""The services of a server, combined: its URL, its token and its methods."""

import ipaddress
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict

from holdfast.cli.remote.agents import RemoteAgents, RemoteModels, RemoteRepos
from holdfast.cli.remote.attachments import RemoteGuests, RemoteMedia
from holdfast.cli.remote.history import RemoteObservations
from holdfast.cli.remote.search import RemoteSearch
from holdfast.cli.remote.sessions import (
    RemoteEvents,
    RemoteExports,
    RemoteMessages,
    RemoteSessions,
    house_events,
)
from holdfast.cli.remote.values import OWNER, message_of, parts_form, session_of
from holdfast.cli.remote.work import RemoteApprovals, RemoteCalls
from holdfast.cli.remote.zones import RemoteZones
from holdfast.client import Client, SessionPost, Timeouts
from holdfast.client.stream import FollowRequest, ResumingStream
from holdfast.config import Config
from holdfast.domain.errors import Code, Denied
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import Message, Part
from holdfast.domain.secrets import Secret
from holdfast.domain.sessions import OnBusy, Session, SessionRequest
from holdfast.services.agents import BUILT_IN
from holdfast.wire.agents import GrantForm
from holdfast.wire.messages import UserPost
from holdfast.wire.models import DefaultsForm
from holdfast.wire.sessions import BudgetForm, context_form

if TYPE_CHECKING:
    from holdfast.services.secrets import Secrets


TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105 — its name, not its value
# Short timeout: a person waits, and can decide whether to try again.
PATIENCE: Final = Timeouts(request=3.0)

_events = msgspec.json.Decoder(Event)


class RemoteHouse:
    """All services, over HTTP."""

    def __init__(self, client: Client, config: Config) -> None:
        """`config` is that of this machine, with the server's defaults."""
        self._client = client
        self.config: Final = config
        self.owner: Final = OWNER
        self.agents: Final = RemoteAgents(client)
        self.approvals: Final = RemoteApprovals(client)
        self.calls: Final = RemoteCalls(client)
        self.events: Final = RemoteEvents(client)
        self.exports: Final = RemoteExports(client)
        self.guests: Final = RemoteGuests()
        self.media: Final = RemoteMedia(client)
        self.messages: Final = RemoteMessages(client)
        self.models: Final = RemoteModels(client)
        self.observations: Final = RemoteObservations(client)
        self.repos: Final = RemoteRepos(client)
        self.search: Final = RemoteSearch(client)
        self.sessions: Final = RemoteSessions(client)
        self.zones: Final = RemoteZones(client)
        self.compactions: Final = self.sessions
        self.costs: Final = self.sessions

    async def open(self, agent: str = BUILT_IN, request: SessionRequest | None = None) -> Session:
        """Open a session."""
        wish = request or SessionRequest()
        body = SessionPost(
            title=wish.title,
            tags=wish.tags,
            model_id=wish.model,
            metadata=wish.metadata,
            repo_id=wish.repo_id,
            turn_cap=wish.turn_cap,
            budget=None if wish.budget is None else BudgetForm(**asdict(wish.budget)),
            grant=None if wish.grant is None else GrantForm(**asdict(wish.grant)),
            approval=wish.approval,
            context=None if wish.context is None else context_form(wish.context),
            tools=wish.tools,
        )
        return session_of(await self._client.sessions.open(agent, body))

    async def send(
        self,
        session_id: SessionId,
        content: str | tuple[Part, ...],
        *,
        id: str | None = None,
        on_busy: OnBusy = OnBusy.QUEUE,
    ) -> Message:
        """Store a message; the server runs its turn."""
        said: str | UserPost
        if isinstance(content, str):
            said = content
        else:
            said = UserPost(parts=parts_form(content), on_busy=on_busy)
        send = self._client.messages.send
        return message_of(await send(session_id, said, id=id, on_busy=on_busy))

    async def follow(
        self, session_id: SessionId, *, after: int = 0
    ) -> AsyncGenerator[Event | Gap, None]:
        """Yield the session's events after a number, then new ones."""
        wish = FollowRequest(target=house_events(session_id), after=after, decode=_events.decode)
        async with aclosing(ResumingStream(self._client.requests, wish).items()) as items:
            async for item in items:
                if isinstance(item, Event):
                    yield item
                else:
                    yield Gap(
                        from_sequence=item.from_sequence,
                        to_sequence=item.to_sequence,
                        reason=item.reason,
                    )


@asynccontextmanager
async def remote_house(url: str, config: Config, secrets: "Secrets") -> AsyncIterator[RemoteHouse]:
    """Connect to a server; its token is redacted in logs from then on."""
    token = await _token(url, config)
    if token is not None:
        secrets.remember(TOKEN_VARIABLE, Secret(token))
    async with Client(url, token, timeouts=PATIENCE) as client:
        told = await client.requests.get("/v1/defaults", DefaultsForm)
        known = msgspec.structs.replace(config, default_model=told.model, approval=told.approval)
        yield RemoteHouse(client, known)


async def _token(url: str, config: Config) -> str | None:
    """Return the token for a server: the configured one, else the home's own on this machine."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given
    if not is_here(url):
        raise Denied(
            Code.UNAUTHENTICATED,
            f"Put a token of that server into {TOKEN_VARIABLE}; `holdfast token create` makes one "
            "where the server runs.",
        )
    from holdfast.store.sqlite.token_file import SecretFile

    # Only sent to this machine, because the token gives access to everything in this home.
    return await SecretFile(config.home).read()


def is_here(url: str) -> bool:
    """Return whether a URL is on this machine; of host names only `localhost` is trusted."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
