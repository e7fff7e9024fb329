"""MCP over stateless HTTP: one message, one response. Loads the SDK at the first request."""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from holdfast.api import LocalHoldfast
from holdfast.domain.tokens import Caller

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


BODY_LARGEST: Final = 8 << 20
# Messages up to this size are parsed on the event loop.
_SMALL_MESSAGE: Final = 16 << 10
# Prefixes of the headers that the protocol reads.
_HEADERS: Final = ("mcp-", "user-agent")


class HttpReply(Struct, frozen=True):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class McpEndpoint:
    """Handles MCP messages while its context is entered."""

    def __init__(self, holdfast: LocalHoldfast, version: str) -> None:
        self._holdfast = holdfast
        self._version = version
        self._opening = asyncio.Lock()
        self._manager: StreamableHTTPSessionManager | None = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    async def __call__(
        self, caller: Caller, message: bytes, headers: Mapping[str, str]
    ) -> HttpReply:
        """Handle one message of a caller."""
        manager = await self._ready()
        refused = await _error_reply(message)
        if refused is not None:
            return HttpReply(400, {}, refused)
        exchange = _Exchange(message)
        await manager.handle_request(_scope(caller, headers), exchange.receive, exchange.send)
        return exchange.reply()

    async def _ready(self) -> "StreamableHTTPSessionManager":
        """Return the SDK's session manager, loaded with the first message."""
        async with self._opening:
            if self._manager is None:
                # In a thread, because importing the SDK takes one to two seconds.
                manager = await asyncio.to_thread(_session_manager, self._holdfast, self._version)
                entered = asyncio.Event()
                self._task = asyncio.create_task(self._run(manager, entered))
                await entered.wait()
                self._manager = manager
            return self._manager

    async def _run(self, manager: "StreamableHTTPSessionManager", entered: asyncio.Event) -> None:
        # The SDK requires that the same task enters and exits the manager, so it has its own task.
        async with manager.run():
            entered.set()
            await self._stop.wait()


async def _error_reply(message: bytes) -> bytes | None:
    """Return the error response for an invalid message; None for a valid one."""
    from mcp import types

    from holdfast.mcp.messages import NOT_A_MESSAGE, MessageError, parse_message

    # Large messages are parsed in a thread, because that would block the event loop.
    if len(message) <= _SMALL_MESSAGE:
        found = parse_message(message)
    else:
        found = await asyncio.to_thread(parse_message, message)
    if not isinstance(found, MessageError | types.JSONRPCRequest | types.JSONRPCNotification):
        # A response from the client is invalid, because the server sends no requests.
        found = MessageError(types.INVALID_REQUEST, NOT_A_MESSAGE, found.id)
    if not isinstance(found, MessageError):
        return None
    return found.message().model_dump_json(by_alias=True, exclude_unset=True).encode()


def _session_manager(holdfast: LocalHoldfast, version: str) -> "StreamableHTTPSessionManager":
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from holdfast.mcp.server import build_server

    return StreamableHTTPSessionManager(
        build_server(holdfast, version),
        json_response=True,
        stateless=True,
        max_request_body_size=BODY_LARGEST,
    )


def _scope(caller: Caller, headers: Mapping[str, str]) -> dict[str, Any]:
    from holdfast.mcp.server import CALLER

    passed = {name: value.strip() for name, value in headers.items() if name.startswith(_HEADERS)}
    # The response is always JSON, whatever the client accepts.
    passed |= {"accept": "application/json", "content-type": "application/json"}
    return {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in passed.items()],
        CALLER: caller,
    }


class _Exchange:
    """ASGI channel for one message and its response."""

    def __init__(self, message: bytes) -> None:
        self._message: bytes | None = message
        self._status = 500
        self._headers: dict[str, str] = {}
        self._body = b""

    async def receive(self) -> dict[str, Any]:
        """Return the message once; then wait forever, because the client never disconnects."""
        if self._message is None:
            await asyncio.Event().wait()
        message, self._message = self._message, None
        return {"type": "http.request", "body": message, "more_body": False}

    async def send(self, event: Any) -> None:
        """Collect a part of the response."""
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self._headers = {
                name.decode(): value.decode("latin-1") for name, value in event["headers"]
            }
        else:
            self._body += event.get("body", b"")

    def reply(self) -> HttpReply:
        """Return the complete response."""
        kept = {name: value for name, value in self._headers.items() if name != "content-length"}
        return HttpReply(self._status, kept, self._body)
