"""The ASGI application: from a request to its route and from its result to bytes; and the table of
all routes.

Sockets and HTTP parsing are `server.py` and `protocol.py`; each route's work is in `v1/` and
`api/`.
"""

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from holdfast.domain.errors import Code, HoldfastError, Invalid, out_of_memory
from holdfast.domain.tokens import Caller
from holdfast.http.api.sessions import API_ROUTES
from holdfast.http.auth import Callers, require_nameable
from holdfast.http.bodies import SEND_SECONDS, chunks_of
from holdfast.http.errors import (
    error_answer,
    failed,
    path_not_found,
    status_of,
    stopping,
    wrong_method,
)
from holdfast.http.limits import LARGE, Held, Room
from holdfast.http.mcp_mount import Guest, mcp_route
from holdfast.http.metrics import Metrics
from holdfast.http.openapi.document import described
from holdfast.http.requests import (
    CallerGoneError,
    Request,
    decoded_body,
    decoded_query,
    read_body,
    read_by,
    request_of,
)
from holdfast.http.responses import Answer, Rendered, Stream, rendered
from holdfast.http.routing import Asked, Found, Route, Table
from holdfast.http.security import HEADERS, Names, is_asked_by_name, names_of
from holdfast.http.services import House
from holdfast.http.sse import LIFE_SECONDS, Streams
from holdfast.http.system_routes import Probe, own_routes
from holdfast.http.v1 import (
    agents,
    approvals,
    calls,
    costs,
    events,
    history,
    messages,
    models,
    search,
    sessions,
    zones,
)
from holdfast.http.v1 import (
    agents as v1_agents,
)
from holdfast.http.v1 import (
    history as v1_history,
)
from holdfast.http.v1 import (
    messages as v1_messages,
)
from holdfast.http.v1 import (
    models as v1_models,
)
from holdfast.http.v1 import (
    sessions as v1_sessions,
)
from holdfast.http.web_ui import is_for_eyes, refusal_page

log = logging.getLogger("holdfast.access")
faults = logging.getLogger(__name__)
# What proxies write down for a caller who did not wait; nobody gets to see it.
GONE: Final = 499
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READS: Final = frozenset({"GET", "HEAD"})
_USUAL: Final = {name: (name.encode(), value.encode()) for name, value in HEADERS.items()}
_USUAL_PAIRS: Final = tuple(_USUAL.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the application is called, by callers and by itself in request ids; its count."""

    names: Names
    name: str
    metrics: Metrics
    streams: Streams
    room: Room = field(default_factory=Room)


class Application:
    """Answers requests from a table of routes."""

    def __init__(self, house: House, table: Table, callers: Callers, rules: Rules) -> None:
        self._house = house
        self._table = table
        self._callers = callers
        self._rules = rules
        self._numbers = itertools.count(1)
        self.metrics: Final = rules.metrics
        self.streams: Final = rules.streams
        self.routes: Final = table.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the server takes neither websockets nor lifespans."""
        began = time.perf_counter()
        request = request_of(scope, receive)
        name = f"{self._rules.name}-{next(self._numbers)}"
        exchange = _Exchange(_request_id(request, name), request, send)
        try:
            answer = await self._answer(request, exchange)
            await exchange.finish(answer, request)
        except CallerGoneError:
            exchange.status = GONE
        finally:
            self._note(exchange, request, time.perf_counter() - began)

    async def _answer(self, request: Request, exchange: "_Exchange") -> Rendered | Stream:
        """Return what goes out: whatever happens, it is an answer in our own form."""
        try:
            if not is_asked_by_name(request.headers, self._rules.names.hosts):
                raise Invalid(
                    Code.INVALID_HOST, "Ask for this server by its own name and port, and once."
                )
            answer = await self._routed(request, exchange)
            if isinstance(answer, Stream):
                return answer
            if isinstance(answer.content, bytes):
                self._hold(exchange, request, len(answer.content))
            whole = await _whole(answer, request)
            self._hold(exchange, request, len(whole.body))
            return whole
        except HoldfastError as error:
            if status_of(error) >= 500:
                faults.exception("a request failed", exc_info=error)
            return await _whole(exchange.refused(error, request), request)
        except CallerGoneError:
            raise
        except asyncio.CancelledError:
            # The server stops and has waited long enough; what was written stays written.
            return await _whole(exchange.refused(stopping()), request)
        except MemoryError:
            return await _whole(exchange.refused(out_of_memory()), request)
        # Whatever it is: a fault of ours is told as one, and its text stays in the log.
        except Exception:  # noqa: BLE001
            faults.exception("a request failed")
            return await _whole(exchange.refused(failed()), request)

    def _hold(self, exchange: "_Exchange", request: Request, size: int) -> None:
        """Count a large body against the budget, once."""
        if size > LARGE and exchange.held is None:
            # What was changed is changed: only a read can still be refused.
            always = request.method not in _READS
            exchange.held = self._rules.room.take(exchange.caller, size, always=always)

    async def _routed(self, request: Request, exchange: "_Exchange") -> Answer | Stream:
        found = self._table.find(request.path)
        route = found.route(request.method) if found else None
        exchange.route = route
        exchange.caller = await self._judged(request, route)
        if found is None:
            raise path_not_found()
        if route is None:
            return wrong_method(found.allowed)
        return await route.act(await self._asked(request, route, found, exchange.caller))

    async def _judged(self, request: Request, route: Route | None) -> Caller | None:
        """Return who asks; whoever may not ask is not told what there is."""
        if route is not None and route.needs is None:
            return None
        caller = await self._callers.caller_of(request)
        if route is not None:
            self._callers.require_own_origin(request, route, caller)
            if route.needs is not None:
                caller.require(route.needs)
        return caller

    async def _asked(
        self, request: Request, route: Route, found: Found, caller: Caller | None
    ) -> Asked[Any, Any]:
        query = decoded_query(request.query, route.query, tolerant=route.tolerant)
        raw = await read_body(request) if route.changes else b""
        body = await _body(request, route, raw)
        if caller is not None:
            require_nameable(caller, body)
        return Asked(
            house=self._house,
            streams=self._rules.streams,
            room=self._rules.room,
            caller=caller,
            route=route,
            path=found.values,
            query=query,
            body=body,
            headers=request.headers,
        )

    def _note(self, exchange: "_Exchange", request: Request, seconds: float) -> None:
        """Write the access line: the path without its query, which may hold anything."""
        route = exchange.route
        self.metrics.count(route.name if route else "none", exchange.status, seconds)
        if not log.isEnabledFor(logging.INFO):
            return
        log.info(
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
    """One request and its answer on the wire, and what is told of them afterwards."""

    def __init__(self, request_id: str, request: Request, send: Send) -> None:
        self.request_id = request_id
        self.route: Route | None = None
        self.caller: Caller | None = None
        self.held: Held | None = None
        self.status = 0
        self.size = 0
        self._waiting: Rendered | None = None
        self._is_over = False
        self._send = send
        self._means = request.means

    def refused(self, error: HoldfastError, request: Request | None = None) -> Answer:
        """Return the answer for an error, in the words of the route once it is known who asks."""
        if request is not None and is_for_eyes(request):
            return refusal_page(error, request.path)
        answer = error_answer(error, path=request.path if request else "")
        if self.caller is None or self.route is None or self.route.refused is None:
            return answer
        return replace(answer, content=self.route.refused(error, answer.content))

    async def finish(self, answer: Rendered | Stream, request: Request) -> None:
        """Send the answer."""
        try:
            if isinstance(answer, Stream):
                await self._stream(answer, request)
            else:
                await self._finish(answer, request)
        finally:
            if self.held is not None:
                self.held.release()
            if isinstance(answer, Stream) and answer.close is not None:
                await answer.close()

    async def _finish(self, answer: Rendered, request: Request) -> None:
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
        """Write a large body as fast as it is read; a reader that stops is disconnected."""
        self._use("last")
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

    async def _stream(self, answer: Stream, request: Request) -> None:
        """Send chunks until there are no more, or nobody is left to read them."""
        self._use("last")
        # Kept until the first chunk, which comes at once, so that both are one packet.
        self._waiting = Rendered(
            answer.status, {"content-type": answer.media_type, **answer.headers}, b""
        )
        if request.method != "HEAD":
            try:
                await _while_heard(request, answer.play(self))
            except Exception:  # noqa: BLE001 — a fault of ours, whatever it is
                faults.exception("a stream broke")
                # Otherwise its reader would take what it has for all there is.
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
        """Drop the connection with all that waits to be sent."""
        self._use("abort")

    def close_after(self) -> None:
        """Close the connection behind the last chunk."""
        self._use("close")

    def _use(self, means: str) -> None:
        if means in self._means:
            self._means[means]()

    async def _start(self, whole: Rendered) -> None:
        self.status = whole.status
        own = [(n.encode(), v.encode("latin-1")) for n, v in whole.headers.items()]
        is_usual = _USUAL.keys().isdisjoint(whole.headers)
        usual = _USUAL_PAIRS if is_usual else _usual_without(whole.headers)
        headers = [*usual, *own, (b"x-request-id", self.request_id.encode())]
        await self._send(
            {"type": "http.response.start", "status": whole.status, "headers": headers}
        )


def _request_id(request: Request, ours: str) -> str:
    chosen = request.headers.get("x-request-id")
    return chosen if chosen is not None and _REQUEST_ID.fullmatch(chosen) else ours


def _usual_without(names: Iterable[str]) -> list[tuple[bytes, bytes]]:
    return [pair for name, pair in _USUAL.items() if name not in names]


async def _body(request: Request, route: Route, raw: bytes) -> Any:
    if route.body is None:
        return None
    if not raw and route.body_may_be_missing:
        return route.body() if route.reads is None else route.reads(b"{}")
    if route.reads is None:
        return decoded_body(request, raw, route.body)
    return await read_by(request, raw, route.reads)


async def _whole(answer: Answer, request: Request) -> Rendered:
    return await rendered(answer, request.headers, is_read=request.method in _READS)


async def _while_heard(request: Request, playing: Coroutine[Any, Any, None]) -> None:
    """Play a stream; it is cut off when its reader leaves."""
    here = asyncio.current_task()
    assert here is not None  # noqa: S101 — for the type checker: this is a coroutine
    leaving = asyncio.create_task(_disconnected(request))

    def leave(_: object) -> None:
        here.cancel()

    # At once, and not at the next event: a reader that left holds nothing of ours.
    leaving.add_done_callback(leave)
    try:
        await playing
    except asyncio.CancelledError:
        if not leaving.done():
            raise
        here.uncancel()
    finally:
        leaving.remove_done_callback(leave)
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


V1_ROUTES: Final[tuple[Route, ...]] = (
    *agents.ROUTES,
    *models.ROUTES,
    *sessions.ROUTES,
    *v1_sessions.LIFECYCLE_ROUTES,
    *messages.ROUTES,
    *events.ROUTES,
    *v1_messages.MEDIA_ROUTES,
    *approvals.ROUTES,
    *calls.ROUTES,
    *costs.ROUTES,
    *search.ROUTES,
    *zones.ROUTES,
    *history.ROUTES,
    *v1_history.TIMELINE_ROUTES,
    *v1_models.DEFAULTS_ROUTES,
    *v1_agents.PROGRAM_ROUTES,
)


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where the server is reached: its port, further names it answers to, and its own name."""

    port: int
    names: tuple[str, ...] = ()
    has_tls: bool = False
    is_behind_proxy: bool = False
    version: str = "0"
    name: str = "request"
    luck: Callable[[], float] = lambda: 0.5
    life: float = LIFE_SECONDS
    # Who answers at the path of another protocol; without, there is no such path.
    guest: Guest | None = None


def application(house: House, probe: Probe, door: Door) -> Application:
    """Return the application; `probe` raises while the store cannot be written."""
    metrics = Metrics()
    names = names_of(
        door.port, door.names, has_tls=door.has_tls, is_behind_proxy=door.is_behind_proxy
    )
    table = table_of(probe, metrics, names, door.version, door.guest)
    rules = Rules(
        names=names,
        name=door.name,
        metrics=metrics,
        streams=Streams(house, metrics, door.luck, life=door.life),
    )
    return Application(house, table, Callers(house.tokens, names.origins), rules)


def table_of(
    probe: Probe, metrics: Metrics, names: Names, version: str, guest: Guest | None = None
) -> Table:
    """Return the table of all routes; one of them describes it."""

    # Described when it is asked for: the table contains the route that describes it.
    @cache
    def description() -> bytes:
        return described(table.routes, version)

    guests = () if guest is None else (mcp_route(guest),)
    own = own_routes(probe, metrics, description, names)
    table = Table((*own, *V1_ROUTES, *API_ROUTES, *guests))
    return table
