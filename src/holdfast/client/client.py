"""The client: one server, its nouns as groups of verbs, and streams that resume by themselves."""

import ssl
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from holdfast.client.agents import Agents, Models
from holdfast.client.following import NOW, Following, Gap, Wish
from holdfast.client.history import History
from holdfast.client.patience import Patience
from holdfast.client.requests import Requests, query_of
from holdfast.client.search import Search
from holdfast.client.sessions import Messages, Sessions, of
from holdfast.client.transport import Transport
from holdfast.client.work import Approvals, Calls, Costs, Repos
from holdfast.client.zones import Zones
from holdfast.http.v1.events_forms import EventsQuery
from holdfast.http.v1.words import Deltas, EventForm

_events = msgspec.json.Decoder(EventForm)


class Client:
    """A server, as whoever has the token may use it. Use it with `async with`.

    Whatever makes something carries an id of ours, and every request is sent again when its
    connection breaks; so each is done once, however often it had to be sent.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`tls` is for servers whose certificate this machine does not trust by itself."""
        headers = {"user-agent": "holdfast"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        requests = Requests(Transport(url, headers, tls), patience or Patience())
        # For routes that have no verb here.
        self.requests: Final = requests
        self.agents: Final = Agents(requests)
        self.approvals: Final = Approvals(requests)
        self.calls: Final = Calls(requests)
        self.costs: Final = Costs(requests)
        self.history: Final = History(requests)
        self.messages: Final = Messages(requests)
        self.models: Final = Models(requests)
        self.repos: Final = Repos(requests)
        self.search: Final = Search(requests)
        self.sessions: Final = Sessions(requests)
        self.zones: Final = Zones(requests)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.requests.transport.close()

    def follow(
        self,
        session_id: str,
        *,
        after: int | Literal["now"] = 0,
        deltas: Deltas = Deltas.STEP,
        until_settled: bool = False,
    ) -> AsyncGenerator[EventForm | Gap, None]:
        """Yield the session's news after a number, then what comes: each once, in order.

        A stream that breaks or falls silent is taken up again where it was. An error ends it
        only where coming back cannot help: 400, 401, 403, 404 or 409, no server from the
        beginning, or one that keeps telling nonsense. With `until_settled` it ends when no
        turn runs or waits.
        """
        query = EventsQuery(
            since=NOW if after == NOW else None,
            deltas=deltas,
            until="settled" if until_settled else None,
        )
        target = of(session_id, "events") + query_of(query)
        wish = Wish(target=target, after=after, decode=_events.decode)
        return Following(self.requests, wish).news()
