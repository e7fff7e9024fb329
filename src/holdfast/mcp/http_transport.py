"""MCP over HTTP: one message in, one answer out, no state in between. Loads the SDK with the first
request.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from holdfast.domain.tokens import Caller
from holdfast.mcp.tool_types import House

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


BODY_LARGEST: Final = 8 << 20
# So many bytes are judged within a moment.
_SMALL_MESSAGE: Final = 16 << 10
# What the protocol reads beside the message.
_HEADERS: Final = ("mcp-", "user-agent")


class HttpReply(Struct, frozen=True):
    """An answer: its status, its headers and its bytes."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class McpEndpoint:
    """Answers messages for whoever sends them, as long as it is entered."""

    def __init__(self, holdfast: House, version: str) -> None:
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
        """Answer one message of a caller."""
        manager = await self._ready()
        refused = await _error_reply(message)
        if refused is not None:
            return HttpReply(400, {}, refused)
        exchange = _Exchange(message)
        await manager.handle_request(_scope(caller, headers), exchange.receive, exchange.send)
        return exchange.reply()

    async def _ready(self) -> "StreamableHTTPSessionManager":
        """Return what runs the protocol, loaded when the first message comes."""
        async with self._opening:
            if self._manager is None:
                # Beside the loop: the package takes a second or two.
                manager = await asyncio.to_thread(_session_manager, self._holdfast, self._version)
                entered = asyncio.Event()
                self._task = asyncio.create_task(self._run(manager, entered))
                await entered.wait()
                self._manager = manager
            return self._manager

    async def _run(self, manager: "StreamableHTTPSessionManager", entered: asyncio.Event) -> None:
        # The package wants to be left by the task that entered it, so it gets one to itself.
        async with manager.run():
            entered.set()
            await self._stop.wait()


async def _error_reply(message: bytes) -> bytes | None:
    """Return the answer to what is no message for us; nothing where it is one."""
    from mcp import types

    from holdfast.mcp.messages import NOT_A_MESSAGE, MessageError, parse_message

    # Beside the loop where it takes long.
    if len(message) <= _SMALL_MESSAGE:
        found = parse_message(message)
    else:
        found = await asyncio.to_thread(parse_message, message)
    if not isinstance(found, MessageError | types.JSONRPCRequest | types.JSONRPCNotification):
        # Nobody was asked anything, so nobody waits for an answer of the client.
        found = MessageError(types.INVALID_REQUEST, NOT_A_MESSAGE, found.id)
    if not isinstance(found, MessageError):
        return None
    return found.message().model_dump_json(by_alias=True, exclude_unset=True).encode()


def _session_manager(holdfast: House, version: str) -> "StreamableHTTPSessionManager":
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
    # Whatever the client takes, JSON is what it gets.
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
    """One message on its way in and its answer on the way out."""

    def __init__(self, message: bytes) -> None:
        self._message: bytes | None = message
        self._status = 500
        self._headers: dict[str, str] = {}
        self._body = b""

    async def receive(self) -> dict[str, Any]:
        """Give the message, once; then there is nothing more, and nobody leaves."""
        if self._message is None:
            await asyncio.Event().wait()
        message, self._message = self._message, None
        return {"type": "http.request", "body": message, "more_body": False}

    async def send(self, event: Any) -> None:
        """Take a piece of the answer."""
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self._headers = {
                name.decode(): value.decode("latin-1") for name, value in event["headers"]
            }
        else:
            self._body += event.get("body", b"")

    def reply(self) -> HttpReply:
        """Return the whole answer."""
        kept = {name: value for name, value in self._headers.items() if name != "content-length"}
        return HttpReply(self._status, kept, self._body)
