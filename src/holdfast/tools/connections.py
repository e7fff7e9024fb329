"""A connection to one MCP server, from the handshake to the end, in a task of its own.

Imported where it is used: the protocol's package takes a second or two. When to connect, and
what a server may be called, is decided elsewhere.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec
from mcp import types
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from holdfast.domain.tools import Effect, ResultCode
from holdfast.tools.servers import Listed, Wanted
from holdfast.tools.tool import ToolTrouble, Unanswered

log = logging.getLogger(__name__)

_PAGES_AT_MOST: Final = 50
_TOOLS_AT_MOST: Final = 512
_WORDS_LONGEST: Final = 4000
_LEAVES_WITHIN: Final = 8.0

# A server that knows it does one call once, however often it hears of it.
KEY: Final = "holdfast/idempotency_key"

Transport = AbstractAsyncContextManager[Any]


class Connection:
    """A server that is being talked to; `trouble` is why a request of ours did not get through."""

    def __init__(self, transport: Callable[["Connection"], Transport]) -> None:
        self.trouble: ToolTrouble | None = None
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._own(transport(self)))

    @property
    def is_alive(self) -> bool:
        """Tell whether somebody is still there to be asked."""
        return self._client is not None and not self._stop.is_set()

    def heard(self, trouble: ToolTrouble) -> None:
        """Note why a request did not get through; that one may have got through counts more."""
        if not isinstance(self.trouble, Unanswered):
            self.trouble = trouble

    def ended(self) -> None:
        """Note that the server is gone."""
        self._stop.set()

    async def ready(self, within: float) -> None:
        """Wait for the handshake; raise when it fails or takes too long."""
        try:
            async with asyncio.timeout(within):
                await self._settled.wait()
        except TimeoutError:
            raise _unavailable("it did not answer in time") from None
        if self._client is None:
            raise self._reason(_unavailable("it did not answer as an MCP server does"))

    async def listed(self, within: float) -> tuple[Listed, ...]:
        """Return the tools that the server has at this moment."""
        self.trouble = None
        try:
            async with asyncio.timeout(within):
                return tuple([each async for each in self._pages()])
        except TimeoutError:
            raise _unavailable("it did not list its tools in time") from None
        except (MCPError, ValueError):
            raise self._reason(_unavailable("it did not list its tools")) from None

    async def call(self, wanted: Wanted, within: float) -> dict[str, Any]:
        """Return what the server's tool answers; cancelling tells the server.

        Raises `Unanswered` where the server may have done it all the same.
        """
        self.trouble = None
        asked = {"name": wanted.name, "arguments": wanted.arguments, "_meta": {KEY: wanted.key}}
        params = types.CallToolRequestParams.model_validate(asked)
        try:
            async with asyncio.timeout(within):
                # Not by the package's own verb: it would run the server's patterns on its answer.
                answer = await self._session.send_request(
                    types.CallToolRequest(params=params), types.CallToolResult
                )
        except TimeoutError:
            raise Unanswered(
                ResultCode.TIMEOUT, f"The server did not answer within {within:g} seconds."
            ) from None
        except MCPError as error:
            refused = _refused(error)
            is_open = isinstance(refused, Unanswered)
            raise (refused if is_open else self._reason(refused)) from None
        except ValueError:
            raise Unanswered(
                ResultCode.FAILED, "The server's answer is not MCP, or asks something back."
            ) from None
        return _told(answer)

    async def close(self) -> None:
        """End it, politely as long as that goes; the process behind it is gone afterwards."""
        self._stop.set()
        if self._client is None:
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=_LEAVES_WITHIN)
        self._task.cancel()
        await asyncio.wait({self._task})

    def _reason(self, otherwise: ToolTrouble) -> ToolTrouble:
        return self.trouble or otherwise

    @property
    def _session(self) -> Any:
        if self._client is None:
            raise _unavailable("it is not connected")
        return self._client.session

    async def _own(self, transport: Transport) -> None:
        # The package wants to be left by the task that entered it, so it gets one to itself.
        told = types.Implementation(name="holdfast", version="1")
        try:
            async with Client(transport, client_info=told, cache=None) as client:
                self._client = client
                self._settled.set()
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 — a fault of the server is never ours
            self.trouble = self._reason(_unavailable("it did not answer as an MCP server does"))
            log.info("an MCP server is gone: %s", type(error).__name__)
        finally:
            self._stop.set()
            self._settled.set()

    async def _pages(self) -> AsyncIterator[Listed]:
        cursor, count = None, 0
        for _ in range(_PAGES_AT_MOST):
            page = await self._session.list_tools(
                params=types.PaginatedRequestParams(cursor=cursor) if cursor else None
            )
            for tool in page.tools:
                count += 1
                if count > _TOOLS_AT_MOST:
                    return
                yield _listed(tool)
            cursor = page.next_cursor
            if cursor is None:
                return


def _listed(tool: types.Tool) -> Listed:
    hints = tool.annotations or types.ToolAnnotations()
    hint = Effect.IDEMPOTENT if hints.idempotent_hint else Effect.UNSAFE
    kept = {"name", "title", "description", "input_schema", "output_schema", "annotations"}
    definition = msgspec.json.encode(tool.model_dump(mode="json", include=kept), order="sorted")
    return Listed(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        definition=hashlib.sha256(definition).hexdigest(),
        size=len(definition),
        hint=Effect.PURE if hints.read_only_hint else hint,
    )


def _told(answer: types.CallToolResult) -> dict[str, Any]:
    """Return the text and the structured part of an answer; of anything else, that it was there."""
    texts, omitted = [], []
    for block in answer.content:
        match block:
            case types.TextContent():
                texts.append(block.text)
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                texts.append(resource.text)
            case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
                omitted.append(f"resource of {len(resource.blob) * 3 // 4} bytes")
            case types.ResourceLink():
                texts.append(block.uri)
            case types.ImageContent() | types.AudioContent():
                omitted.append(f"{block.type} of {len(block.data) * 3 // 4} bytes")
    text = "\n".join(texts).replace("\x00", "\ufffd")
    if answer.is_error:
        words = text[:_WORDS_LONGEST] or "it does not say why"
        raise ToolTrouble(ResultCode.FAILED, f"The server reports an error: {words}")
    told: dict[str, Any] = {"text": text}
    if answer.structured_content is not None:
        told["structured"] = answer.structured_content
    return {**told, "omitted": omitted} if omitted else told


def _refused(error: MCPError) -> ToolTrouble:
    if error.code == types.CONNECTION_CLOSED:
        return Unanswered(ResultCode.UNAVAILABLE, "The server went away during the call.")
    words = str(error)[:_WORDS_LONGEST]
    if error.code == types.REQUEST_TIMEOUT:
        return Unanswered(ResultCode.TIMEOUT, f"The server gave up: {words}")
    is_misfit = error.code == types.INVALID_PARAMS
    code = ResultCode.INVALID_ARGUMENTS if is_misfit else ResultCode.FAILED
    return ToolTrouble(code, f"The server refuses the call: {words}")


def _unavailable(why: str) -> ToolTrouble:
    return ToolTrouble(ResultCode.UNAVAILABLE, why)
