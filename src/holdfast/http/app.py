"""The ASGI application: dispatches requests to routes, sends responses, builds the route table.

Sockets and HTTP parsing are in `server.py`; each route's work is in `v1/`,
`repo_sessions.py` (for `/api`) and `system_routes.py`.
"""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from holdfast.api import LocalHoldfast
from holdfast.domain.errors import Code, HoldfastError, Invalid, out_of_memory
from holdfast.domain.tokens import Caller
from holdfast.http import repo_sessions
from holdfast.http.auth import Authenticator, require_allowed_models
from holdfast.http.bodies import SEND_SECONDS, chunks_of, read_in_turn
from holdfast.http.errors import (
    error_response,
    internal_error,
    method_not_allowed,
    path_not_found,
    server_stopping,
    status_of,
)
from holdfast.http.limits import LARGE, Reservation, ResponseBudget
from holdfast.http.mcp_mount import McpHandler, mcp_route
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import encode_document
from holdfast.http.requests import (
    ClientDisconnectedError,
    Request,
    decode_body,
    decode_query,
    parse_body,
    read_body,
    request_of,
    run_until,
)
from holdfast.http.responses import RenderedResponse, Response, StreamResponse, render
from holdfast.http.routing import Route, RouteMatch, RouteRequest, RouteTable
from holdfast.http.security import (
    SECURITY_HEADERS,
    ServerNames,
    is_allowed_host,
    require_same_origin,
    require_same_site,
    server_names,
)
from holdfast.http.sse import LIFE_SECONDS, OpenStreams
from holdfast.http.system_routes import Probe, system_routes
from holdfast.http.v1 import (
    agents,
    approvals,
    calls,
    events,
    history,
    messages,
    models,
    sessions,
    workers,
    zones,
)
from holdfast.http.web_ui import error_page, prefers_html

access_log = logging.getLogger("holdfast.access")
log = logging.getLogger(__name__)
# nginx's status for a client that disconnected; only in the log, never sent.
CLIENT_CLOSED_REQUEST: Final = 499
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_RAW_HEADERS: Final = {
    name: (name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()
}
_RAW_HEADER_PAIRS: Final = tuple(_RAW_HEADERS.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class AppContext:
    """Names and shared state of the application: hosts, request id prefix, metrics."""

    names: ServerNames
    name: str
    metrics: Metrics
    streams: OpenStreams
    response_budget: ResponseBudget = field(default_factory=ResponseBudget)


class Application:
    """Handles requests with a table of routes."""

    def __init__(
        self,
        holdfast: LocalHoldfast,
        table: RouteTable,
        callers: Authenticator,
        context: AppContext,
    ) -> None:
        self._holdfast = holdfast
        self._table = table
        self._callers = callers
        self._context = context
        self._numbers = itertools.count(1)
        self.metrics: Final = context.metrics
        self.streams: Final = context.streams
        self.routes: Final = table.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; websocket and lifespan scopes are not supported."""
        began = time.perf_counter()
        request = request_of(scope, receive)
        name = f"{self._context.name}-{next(self._numbers)}"
        exchange = _Exchange(_request_id(request, name), request, send)
        try:
            answer = await self._respond(request, exchange)
            await exchange.finish(answer, request)
        except ClientDisconnectedError:
            exchange.status = CLIENT_CLOSED_REQUEST
        finally:
            self._log_access(exchange, request, time.perf_counter() - began)

    async def _respond(
        self, request: Request, exchange: "_Exchange"
    ) -> RenderedResponse | StreamResponse:
        """Return the response; every exception becomes a response in Holdfast's error format."""
        try:
            if not is_allowed_host(request.headers, self._context.names.hosts):
                raise Invalid(
                    Code.INVALID_HOST,
                    "The Host header does not name this server; send exactly one, with the "
                    "server's name and port.",
                )
            answer = await self._dispatch(request, exchange)
            if isinstance(answer, StreamResponse):
                return answer
            if isinstance(answer.content, bytes):
                self._reserve(exchange, request, len(answer.content))
            whole = await _render_response(answer, request)
            self._reserve(exchange, request, len(whole.body))
            return whole
        except HoldfastError as error:
            if status_of(error) >= 500:
                log.exception("request failed", exc_info=error)
            return await _render_response(exchange.error_response_for(error, request), request)
        except ClientDisconnectedError:
            raise
        except asyncio.CancelledError:
            # The server stops and its grace period is over; what was committed stays committed.
            return await _render_response(exchange.error_response_for(server_stopping()), request)
        except MemoryError:
            return await _render_response(exchange.error_response_for(out_of_memory()), request)
        # Any exception: it is reported as an internal error, and its text is only in the log.
        except Exception:
            log.exception("request failed")
            return await _render_response(exchange.error_response_for(internal_error()), request)

    def _reserve(self, exchange: "_Exchange", request: Request, size: int) -> None:
        """Count a large body against the budget, once."""
        if size > LARGE and exchange.held is None:
            # A change is already committed: only the response to a read can still be refused.
            always = request.method not in _SAFE_METHODS
            exchange.held = self._context.response_budget.take(exchange.caller, size, always=always)

    async def _dispatch(self, request: Request, exchange: "_Exchange") -> Response | StreamResponse:
        found = self._table.find(request.path)
        route = found.route(request.method) if found else None
        exchange.route = route
        exchange.caller = await self._authorize(request, route)
        if found is None:
            raise path_not_found()
        if route is None:
            return method_not_allowed(found.allowed)
        asked = await self._build_request(request, route, found, exchange.caller)
        if route.is_large:
            return await run_until(asked.disconnected, read_in_turn(asked))
        return await route.handler(asked)

    async def _authorize(self, request: Request, route: Route | None) -> Caller | None:
        """Return the caller; without authorization the error does not reveal which routes exist."""
        if route is not None and route.needs is None:
            return None
        caller = await self._callers.authenticate(request)
        if route is not None:
            # A browser attaches the cookie by itself, so these need the proof of their origin.
            is_delicate = caller.is_cookie and (route.changes or route.is_stream)
            require_site = require_same_origin if is_delicate else require_same_site
            require_site(request.headers, self._context.names.origins)
            is_also_allowed = route.also is not None and caller.scope.allows(route.also)
            if route.needs is not None and not is_also_allowed:
                caller.require(route.needs)
        return caller

    async def _build_request(
        self, request: Request, route: Route, match: RouteMatch, caller: Caller | None
    ) -> RouteRequest[Any, Any]:
        query = decode_query(request.query, route.query, tolerant=route.tolerant)
        raw = await read_body(request, route.body_largest) if route.changes else b""
        body = await _body(request, route, raw)
        if caller is not None:
            require_allowed_models(caller, body)
        return RouteRequest(
            holdfast=self._holdfast,
            streams=self._context.streams,
            response_budget=self._context.response_budget,
            caller=caller,
            route=route,
            path=match.values,
            query=query,
            body=body,
            headers=request.headers,
            disconnected=partial(_wait_for_disconnect, request),
        )

    def _log_access(self, exchange: "_Exchange", request: Request, seconds: float) -> None:
        """Log the request: the path without its query, which may contain secrets."""
        route = exchange.route
        self.metrics.count(route.name if route else "none", exchange.status, seconds)
        if not access_log.isEnabledFor(logging.INFO):
            return
        access_log.info(
            "request",
            extra={
                "fields": {
                    "method": request.method,
                    "path": request.path,
                    "route": route.name if route else None,
                    "status": exchange.status,
                    "milliseconds": round(1000 * seconds, 3),
                    "bytes": exchange.size,
                    "request_id": exchange.request_id,
                    "token_id": exchange.caller.token_id if exchange.caller else None,
                }
            },
        )


class _Exchange:
    """One request and its response on the wire, and the data for its log line."""

    def __init__(self, request_id: str, request: Request, send: Send) -> None:
        self.request_id = request_id
        self.route: Route | None = None
        self.caller: Caller | None = None
        self.held: Reservation | None = None
        self.status = 0
        self.size = 0
        self._waiting: RenderedResponse | None = None
        self._is_over = False
        self._send = send
        self._extensions = request.extensions

    def error_response_for(self, error: HoldfastError, request: Request | None = None) -> Response:
        """Return the response for an error, in the route's own format once the caller is known."""
        if request is not None and prefers_html(request):
            return error_page(error, request.path)
        answer = error_response(error, path=request.path if request else "")
        if self.caller is None or self.route is None or self.route.refused is None:
            return answer
        return replace(answer, content=self.route.refused(error, answer.content))

    async def finish(self, answer: RenderedResponse | StreamResponse, request: Request) -> None:
        """Send the response."""
        try:
            if isinstance(answer, StreamResponse):
                await self._stream(answer, request)
            else:
                await self._finish(answer, request)
        finally:
            if self.held is not None:
                self.held.release()
            if isinstance(answer, StreamResponse) and answer.close is not None:
                await answer.close()

    async def _finish(self, answer: RenderedResponse, request: Request) -> None:
        has_no_content = answer.status in (204, 304)
        if not has_no_content:
            answer.headers["content-length"] = str(len(answer.body))
        await self._start(answer)
        body = b"" if has_no_content or request.method == "HEAD" else answer.body
        self.size = len(body)
        if len(body) > LARGE:
            await self._send_slowly(body)
        else:
            await self._send({"type": "http.response.body", "body": body})

    async def _send_slowly(self, body: bytes) -> None:
        """Write a large body with back-pressure; disconnect a reader that stops reading."""
        self._call_extension("last")
        try:
            for chunk in chunks_of(body):
                async with asyncio.timeout(SEND_SECONDS):
                    await self._send(
                        {"type": "http.response.body", "body": chunk, "more_body": True}
                    )
        except TimeoutError:
            self.abort()
            return
        await self._send({"type": "http.response.body", "body": b""})

    async def _stream(self, answer: StreamResponse, request: Request) -> None:
        """Send chunks until the stream ends or the client disconnects."""
        self._call_extension("last")
        # Buffered until the first chunk, which comes at once: uvloop writes both together.
        self._waiting = RenderedResponse(
            answer.status, {"content-type": answer.media_type, **answer.headers}, b""
        )
        if request.method != "HEAD":
            try:
                await run_until(partial(_wait_for_disconnect, request), answer.run(self))
            except ClientDisconnectedError:
                pass
            except Exception:
                log.exception("stream failed")
                # Otherwise the client would take the truncated body for a complete one.
                self.abort()
        if not self._is_over:
            await self.send(b"", is_last=True)

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write a chunk of a stream."""
        if self._waiting is not None:
            head, self._waiting = self._waiting, None
            await self._start(head)
        self._is_over = is_last
        self.size += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    def abort(self) -> None:
        """Drop the connection and everything that is still buffered."""
        self._call_extension("abort")

    def close_after(self) -> None:
        """Close the connection after the last chunk."""
        self._call_extension("close")

    def _call_extension(self, extensions: str) -> None:
        if extensions in self._extensions:
            self._extensions[extensions]()

    async def _start(self, whole: RenderedResponse) -> None:
        self.status = whole.status
        own = [(n.encode(), v.encode("latin-1")) for n, v in whole.headers.items()]
        is_usual = _RAW_HEADERS.keys().isdisjoint(whole.headers)
        usual = _RAW_HEADER_PAIRS if is_usual else _raw_headers_without(whole.headers)
        headers = [*usual, *own, (b"x-request-id", self.request_id.encode())]
        await self._send(
            {"type": "http.response.start", "status": whole.status, "headers": headers}
        )


def _request_id(request: Request, ours: str) -> str:
    chosen = request.headers.get("x-request-id")
    return chosen if chosen is not None and _REQUEST_ID.fullmatch(chosen) else ours


def _raw_headers_without(names: Iterable[str]) -> list[tuple[bytes, bytes]]:
    return [pair for name, pair in _RAW_HEADERS.items() if name not in names]


async def _body(request: Request, route: Route, raw: bytes) -> Any:
    if route.body is None:
        return None
    if route.body is bytes:
        return raw
    if not raw and route.body_may_be_missing:
        return route.body() if route.parse_body is None else route.parse_body(b"{}")
    if route.parse_body is None:
        return decode_body(request, raw, route.body)
    return await parse_body(request, raw, route.parse_body)


async def _render_response(answer: Response, request: Request) -> RenderedResponse:
    return await render(answer, request.headers, is_read=request.method in _SAFE_METHODS)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


V1_ROUTES: Final[tuple[Route, ...]] = (
    *agents.routes,
    *models.routes,
    *sessions.routes,
    *messages.routes,
    *events.routes,
    *messages.media_routes,
    *approvals.routes,
    *calls.routes,
    *workers.routes,
    *sessions.child_routes,
    *models.cost_routes,
    *history.search_routes,
    *zones.routes,
    *history.routes,
    *models.defaults_routes,
    *agents.program_routes,
)


@dataclass(frozen=True, kw_only=True)
class AppOptions:
    """How the server is reached (port, host names, TLS), its version, and stream timing."""

    port: int
    names: tuple[str, ...] = ()
    has_tls: bool = False
    is_behind_proxy: bool = False
    version: str = "0"
    name: str = "request"
    jitter: Callable[[], float] = lambda: 0.5
    life: float = LIFE_SECONDS
    # Handles MCP messages; without it there is no MCP route.
    mcp_handler: McpHandler | None = None


def create_app(holdfast: LocalHoldfast, probe: Probe, options: AppOptions) -> Application:
    """Return the application; `probe` raises while the store cannot be written."""
    metrics = Metrics()
    names = server_names(
        options.port,
        options.names,
        has_tls=options.has_tls,
        is_behind_proxy=options.is_behind_proxy,
    )
    table = build_route_table(probe, metrics, names, options.version, options.mcp_handler)
    context = AppContext(
        names=names,
        name=options.name,
        metrics=metrics,
        streams=OpenStreams(holdfast, metrics, options.jitter, life=options.life),
    )
    return Application(holdfast, table, Authenticator(holdfast.tokens), context)


def build_route_table(
    probe: Probe,
    metrics: Metrics,
    names: ServerNames,
    version: str,
    mcp_handler: McpHandler | None = None,
) -> RouteTable:
    """Return the table of all routes; one of them serves the OpenAPI document of the table."""

    # Built on first request: the table contains the route that describes it.
    @cache
    def description() -> bytes:
        return encode_document(table.routes, version)

    mounted = () if mcp_handler is None else (mcp_route(mcp_handler),)
    own = system_routes(probe, metrics, description, names)
    table = RouteTable((*own, *V1_ROUTES, *repo_sessions.routes, *mounted))
    return table
