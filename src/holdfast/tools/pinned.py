"""MCP over HTTP, on the one client that tools have: every request is resolved, judged, pinned.

Imported where it is used, because the protocol's package is.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from holdfast.domain.tools import ResultCode
from holdfast.tools.exchanges import Answer, Request, ask
from holdfast.tools.fetching import OURS, WebSettings
from holdfast.tools.tool import ToolTrouble, Unanswered
from holdfast.tools.urls import Url, read_url

MESSAGE_LARGEST: Final = 8 << 20


class Endpoint:
    """Where a server listens; `told` hears why a request could not be made.

    `headers` are the user's own for this server, and go with every request.
    """

    def __init__(
        self,
        url: Url,
        web: WebSettings,
        *,
        local: bool,
        headers: Mapping[str, str],
        told: Callable[[ToolTrouble], None],
    ) -> None:
        self.url = url
        self.web = web
        self.local = local
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.told = told


@asynccontextmanager
async def over_http(endpoint: Endpoint) -> AsyncIterator[Any]:
    """Yield both directions of a server over streamable HTTP."""
    async with (
        _client(endpoint) as client,
        streamable_http_client(
            endpoint.url.text, http_client=client, max_sse_event_size=MESSAGE_LARGEST
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def over_events(endpoint: Endpoint) -> AsyncIterator[Any]:
    """Yield both directions of a server over server-sent events."""

    def made(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        return _client(endpoint)

    async with sse_client(endpoint.url.text, httpx_client_factory=made) as streams:
        yield streams


def _client(endpoint: Endpoint) -> httpx2.AsyncClient:
    # No redirects even within the server, no proxies, and cookies never reach it.
    return httpx2.AsyncClient(transport=_Pinned(endpoint), trust_env=False, max_redirects=0)


class _Pinned(httpx2.AsyncBaseTransport):
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            answer = await self._asked(request)
        except ToolTrouble as trouble:
            self._endpoint.told(trouble)
            # An answer and no error, because that would end every other call to the server too.
            return httpx2.Response(503)
        body = _Body(answer, self._endpoint.told)
        return httpx2.Response(answer.status, headers=list(answer.headers), stream=body)

    async def _asked(self, request: httpx2.Request) -> Answer:
        endpoint = self._endpoint
        url = read_url(str(request.url), schemes=(endpoint.url.scheme,))
        if url.origin != endpoint.url.origin:
            raise ToolTrouble(ResultCode.DOMAIN_NOT_ALLOWED, "The server names another host.")
        theirs = {name.lower(): value for name, value in request.headers.items()}
        headers = (theirs | endpoint.headers).items()
        sent = tuple(each for each in headers if not OURS.fullmatch(each[0]))
        content = await request.aread()
        answer = await ask(
            Request(url=url, method=request.method, headers=sent, body=content),
            endpoint.web,
            local=endpoint.local,
        )
        if answer.header("content-encoding") not in ("", "identity"):
            answer.close()
            raise Unanswered(ResultCode.FAILED, "The server packs what was not to be packed.")
        return answer


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: Answer, told: Callable[[ToolTrouble], None]) -> None:
        self._answer = answer
        self._told = told
        # A stream of events has no end by itself; each event is bounded where it is put together.
        is_stream = answer.header("content-type").startswith("text/event-stream")
        self._largest = None if is_stream else MESSAGE_LARGEST

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        try:
            async for chunk in self._answer.chunks():
                taken += len(chunk)
                if self._largest is not None and taken > self._largest:
                    raise ToolTrouble(
                        ResultCode.TOO_LARGE,
                        f"The server answers with more than {self._largest} bytes.",
                    )
                yield chunk
        except ToolTrouble as trouble:
            # What was cut off is no message, and is told as such to the one call that waits.
            self._told(trouble)

    async def aclose(self) -> None:
        self._answer.close()
