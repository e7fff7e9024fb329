"""A connection to one MCP server, from handshake to close, owned by its own task.

Transports: the pipes of a process that Holdfast starts, and HTTP over the tools' own client, which
resolves, checks and pins every request (SSRF). Imported lazily, because it imports the MCP package.
"""

import asyncio
import hashlib
import logging
from asyncio import StreamReader, StreamWriter, TaskGroup
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, cast

import httpx2
import msgspec
from mcp import types
from mcp.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from holdfast.domain.text import visible
from holdfast.domain.tools import Effect, ResultCode
from holdfast.process.cancellation import run_to_end
from holdfast.process.child import KILL_SECONDS, ChildNotStarted, ChildOrder, SupervisedChild
from holdfast.process.launcher import Launcher
from holdfast.process.streams import OutputBuffer
from holdfast.tools.mcp.declarations import ListedTool
from holdfast.tools.tool import ToolFailure, UnansweredRequest
from holdfast.tools.web.connection import RESERVED_HEADERS, WebSettings
from holdfast.tools.web.exchange import WebRequest, WebResponse, send_request
from holdfast.tools.web.ssrf import Url, read_url

log = logging.getLogger(__name__)
_PAGES_AT_MOST: Final = 50
_TOOLS_AT_MOST: Final = 512
_WORDS_LONGEST: Final = 4000
_LEAVES_WITHIN: Final = 8.0
# A server that supports this key executes a repeated call only once.
KEY: Final = "holdfast/idempotency_key"
Transport = AbstractAsyncContextManager[Any]


class McpConnection:
    """A connected server; `trouble` is the reason why the last request failed."""

    def __init__(self, transport: Callable[["McpConnection"], Transport]) -> None:
        self.trouble: ToolFailure | None = None
        self._client: Client | None = None
        self._settled = asyncio.Event()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._own(transport(self)))

    @property
    def is_alive(self) -> bool:
        """Return whether the server can still be called."""
        return self._client is not None and not self._stop.is_set()

    def record_failure(self, trouble: ToolFailure) -> None:
        """Record why a request failed; an `UnansweredRequest` is never overwritten."""
        if not isinstance(self.trouble, UnansweredRequest):
            self.trouble = trouble

    def record_end(self) -> None:
        """Record that the server has ended."""
        self._stop.set()

    async def ready(self, within: float) -> None:
        """Wait for the handshake; raise if it fails or times out."""
        try:
            async with asyncio.timeout(within):
                await self._settled.wait()
        except TimeoutError:
            raise _unavailable("it did not answer in time") from None
        if self._client is None:
            raise self._reason(_unavailable("its answer is not a valid MCP answer"))

    async def list_tools(self, within: float) -> tuple[ListedTool, ...]:
        """Return the tools that the server offers now."""
        self.trouble = None
        try:
            async with asyncio.timeout(within):
                return tuple([each async for each in self._pages()])
        except TimeoutError:
            raise _unavailable("it did not list its tools in time") from None
        except (MCPError, ValueError):
            raise self._reason(_unavailable("it did not list its tools")) from None

    async def call(
        self, name: str, arguments: dict[str, Any], *, key: str, within: float
    ) -> dict[str, Any]:
        """Call a tool of the server; cancellation is sent to the server.

        Raises `UnansweredRequest` if the server may have executed the call.
        """
        self.trouble = None
        asked = {"name": name, "arguments": arguments, "_meta": {KEY: key}}
        params = types.CallToolRequestParams.model_validate(asked)
        try:
            async with asyncio.timeout(within):
                # Not `call_tool`, which would run regular expressions from the server on its
                # response (ReDoS).
                answer = await self._session.send_request(
                    types.CallToolRequest(params=params), types.CallToolResult
                )
        except TimeoutError:
            raise UnansweredRequest(
                ResultCode.TIMEOUT, f"The server did not answer within {within:g} seconds."
            ) from None
        except MCPError as error:
            refused = _server_error(error)
            is_open = isinstance(refused, UnansweredRequest)
            raise (refused if is_open else self._reason(refused)) from None
        except ValueError:
            raise UnansweredRequest(
                ResultCode.FAILED, "The server's answer is not valid MCP, or contains a request."
            ) from None
        return _answer_form(answer)

    async def close(self) -> None:
        """Close gracefully within a time limit, then by force; afterwards the process is gone."""
        self._stop.set()
        if self._client is None:
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=_LEAVES_WITHIN)
        self._task.cancel()
        await asyncio.wait({self._task})

    def _reason(self, otherwise: ToolFailure) -> ToolFailure:
        return self.trouble or otherwise

    @property
    def _session(self) -> Any:
        if self._client is None:
            raise _unavailable("it is not connected")
        return self._client.session

    async def _own(self, transport: Transport) -> None:
        # The package requires that the same task enters and leaves its context, so it gets its own.
        client_info = types.Implementation(name="holdfast", version="1")
        try:
            async with Client(transport, client_info=client_info, cache=None) as client:
                self._client = client
                self._settled.set()
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 — a server failure is recorded, not raised
            self.trouble = self._reason(_unavailable("its answer is not a valid MCP answer"))
            log.info("an MCP server is disconnected: %s", type(error).__name__)
        finally:
            self._stop.set()
            self._settled.set()

    async def _pages(self) -> AsyncIterator[ListedTool]:
        cursor, count = None, 0
        for _ in range(_PAGES_AT_MOST):
            page = await self._session.list_tools(
                params=types.PaginatedRequestParams(cursor=cursor) if cursor else None
            )
            for tool in page.tools:
                count += 1
                if count > _TOOLS_AT_MOST:
                    return
                yield _listed_tool(tool)
            cursor = page.next_cursor
            if cursor is None:
                return


def _listed_tool(tool: types.Tool) -> ListedTool:
    hints = tool.annotations or types.ToolAnnotations()
    hint = Effect.IDEMPOTENT if hints.idempotent_hint else Effect.UNSAFE
    kept = {"name", "title", "description", "input_schema", "output_schema", "annotations"}
    definition = msgspec.json.encode(tool.model_dump(mode="json", include=kept), order="sorted")
    return ListedTool(
        name=tool.name,
        description=tool.description or "",
        schema=tool.input_schema,
        definition=hashlib.sha256(definition).hexdigest(),
        size=len(definition),
        hint=Effect.PURE if hints.read_only_hint else hint,
    )


def _answer_form(answer: types.CallToolResult) -> dict[str, Any]:
    """Return text and structured content of a response; other content is only described."""
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
        words = text[:_WORDS_LONGEST] or "no reason given"
        raise ToolFailure(ResultCode.FAILED, f"The server reports an error: {words}")
    form: dict[str, Any] = {"text": text}
    if answer.structured_content is not None:
        form["structured"] = answer.structured_content
    return {**form, "omitted": omitted} if omitted else form


def _server_error(error: MCPError) -> ToolFailure:
    if error.code == types.CONNECTION_CLOSED:
        return UnansweredRequest(ResultCode.UNAVAILABLE, "The server disconnected during the call.")
    words = str(error)[:_WORDS_LONGEST]
    if error.code == types.REQUEST_TIMEOUT:
        return UnansweredRequest(ResultCode.TIMEOUT, f"The server failed: {words}")
    is_misfit = error.code == types.INVALID_PARAMS
    code = ResultCode.INVALID_ARGUMENTS if is_misfit else ResultCode.FAILED
    return ToolFailure(code, f"The server rejected the call: {words}")


def _unavailable(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.UNAVAILABLE, why)


LINE_LARGEST: Final = 8 << 20
# Retained bytes of a server's standard error: the beginning and the end.
STDERR_MOST: Final = 16 << 10
_DRAIN_SECONDS: Final = 0.5
_EXIT_SECONDS: Final = 1.0


@asynccontextmanager
async def open_stdio(
    launcher: Launcher, order: ChildOrder, connection: McpConnection
) -> AsyncIterator[MessageStream]:
    """Start the process and yield both message streams.

    Leaving the context always ends the process and its descendants; so does the death of Holdfast.
    """
    process = _Process(await launcher.start(order, limit=LINE_LARGEST, is_heard=True), order)
    stdin, stdout = process.streams
    try:
        async with create_client_server_memory_streams() as (ours, theirs), TaskGroup() as tasks:
            reading = tasks.create_task(_read(stdout, theirs, connection))
            writing = tasks.create_task(_write(stdin, theirs))
            watching = tasks.create_task(_watch(process, reading, connection))
            yield ours
            for task in (reading, writing, watching):
                task.cancel()
    finally:
        await run_to_end(process.end(connection), stop=process.child.stop)


class _Process:
    """A server process and its standard error output."""

    def __init__(self, child: SupervisedChild, order: ChildOrder) -> None:
        self.child = child
        self.streams = cast("StreamWriter", child.stdin), child.stdout
        self.gone = asyncio.ensure_future(child.wait_ended())
        self._name = visible(order.argv[0])
        self._stderr = OutputBuffer(STDERR_MOST)
        stderr = cast("StreamReader", child.stderr)
        # Read continuously, because a process blocks when its stderr pipe is full.
        self._reading_stderr = asyncio.ensure_future(self._stderr.fill(stderr))

    async def end(self, connection: McpConnection) -> None:
        """Close its input, then send SIGTERM, then kill it."""
        self.streams[0].close()
        await asyncio.wait([self.gone], timeout=_EXIT_SECONDS)
        if not self.gone.done():
            self.child.stop()
            await asyncio.wait([self.gone], timeout=KILL_SECONDS)
        await self.child.close()
        await asyncio.wait([self.gone])
        if isinstance(refused := self.gone.exception(), ChildNotStarted):
            connection.record_failure(_not_started(refused))
        self._reading_stderr.cancel()
        await asyncio.gather(self._reading_stderr, return_exceptions=True)
        if complaints := self._stderr.text().strip():
            log.info("an MCP server (%s) reported a problem: %s", self._name, visible(complaints))


async def _watch(process: _Process, reading: asyncio.Task[None], connection: McpConnection) -> None:
    await asyncio.wait([process.gone])
    # Its last messages may still be in the pipe.
    await asyncio.wait([reading], timeout=_DRAIN_SECONDS)
    connection.record_end()


async def _read(stdout: StreamReader, theirs: MessageStream, connection: McpConnection) -> None:
    to_us = theirs[1]
    try:
        async with to_us:
            while True:
                line = await stdout.readuntil(b"\n")
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    # Some servers print log lines to stdout; they are not messages.
                    continue
                await to_us.send(SessionMessage(message))
    except asyncio.LimitOverrunError:
        log.warning("an MCP server sent a line of more than %d bytes; it is stopped", LINE_LARGEST)
    except Exception:  # noqa: BLE001 — the process ended or the reader is gone
        log.debug("an MCP server closed its output")
    finally:
        connection.record_end()


async def _write(stdin: StreamWriter, theirs: MessageStream) -> None:
    with suppress(OSError):
        async for each in theirs[0]:
            if isinstance(each, Exception):
                continue
            line = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            stdin.write(line.encode() + b"\n")
            await stdin.drain()


def _not_started(refused: ChildNotStarted) -> ToolFailure:
    if refused.stage.endswith("-changed"):
        why = "its program or its folder was replaced during the start"
    elif refused.stage == "start":
        why = f"its command cannot be run: {refused.reason}"
    else:
        why = f"it could not be sandboxed here: {refused}"
    return ToolFailure(ResultCode.UNAVAILABLE, why)


MESSAGE_LARGEST: Final = 8 << 20


@asynccontextmanager
async def open_http(server: "McpServerTransport") -> AsyncIterator[Any]:
    """Yield both message streams of a server over streamable HTTP."""
    async with (
        server.client() as client,
        streamable_http_client(
            server.url.text, http_client=client, max_sse_event_size=MESSAGE_LARGEST
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def open_sse(server: "McpServerTransport") -> AsyncIterator[Any]:
    """Yield both message streams of a server over server-sent events."""
    async with sse_client(server.url.text, httpx_client_factory=server.client) as streams:
        yield streams


class McpServerTransport(httpx2.AsyncBaseTransport):
    """Sends the requests of a client to one server, each to a checked address (SSRF).

    `headers` come from the user's configuration and are sent with every request. `on_failure`
    receives the reason of a failed one.
    """

    def __init__(
        self,
        url: Url,
        web: WebSettings,
        *,
        local: bool,
        headers: Mapping[str, str],
        on_failure: Callable[[ToolFailure], None],
    ) -> None:
        self.url = url
        self._web = web
        self._local = local
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._on_failure = on_failure

    def client(self, *_: Any, **__: Any) -> httpx2.AsyncClient:
        """Return a client that ignores all given settings."""
        # No redirects even within the server, no proxies, and no cookies.
        return httpx2.AsyncClient(transport=self, trust_env=False, max_redirects=0)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            answer = await self._request(request)
        except ToolFailure as trouble:
            self._on_failure(trouble)
            # A response instead of an exception, which would also end all other calls to the
            # server.
            return httpx2.Response(503)
        body = _Body(answer, self._on_failure)
        return httpx2.Response(answer.status, headers=list(answer.headers), stream=body)

    async def _request(self, request: httpx2.Request) -> WebResponse:
        url = read_url(str(request.url), schemes=(self.url.scheme,))
        if url.origin != self.url.origin:
            raise ToolFailure(
                ResultCode.DOMAIN_NOT_ALLOWED, "The server redirects to another host."
            )
        theirs = {name.lower(): value for name, value in request.headers.items()}
        headers = (theirs | self._headers).items()
        sent = tuple(each for each in headers if not RESERVED_HEADERS.fullmatch(each[0]))
        content = await request.aread()
        answer = await send_request(
            WebRequest(url=url, method=request.method, headers=sent, body=content),
            self._web,
            local=self._local,
        )
        if answer.header("content-encoding") not in ("", "identity"):
            await answer.aclose()
            raise UnansweredRequest(
                ResultCode.FAILED, "The server's answer has an encoding that was not requested."
            )
        return answer


class _Body(httpx2.AsyncByteStream):
    def __init__(self, answer: WebResponse, on_failure: Callable[[ToolFailure], None]) -> None:
        self._answer = answer
        self._on_failure = on_failure
        # An event stream is unbounded; the size of each event is limited by its parser.
        is_stream = answer.header("content-type").startswith("text/event-stream")
        self._largest = None if is_stream else MESSAGE_LARGEST

    async def __aiter__(self) -> AsyncIterator[bytes]:
        taken = 0
        try:
            async for chunk in self._answer.chunks():
                taken += len(chunk)
                if self._largest is not None and taken > self._largest:
                    raise ToolFailure(
                        ResultCode.TOO_LARGE,
                        f"The server's answer has more than {self._largest} bytes.",
                    )
                yield chunk
        except ToolFailure as trouble:
            # A truncated body is not a message; the failure is reported to the one waiting call.
            self._on_failure(trouble)

    async def aclose(self) -> None:
        await self._answer.aclose()
