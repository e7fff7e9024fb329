"""Routes as data: a row says everything about a route; the table finds a route by its path.

The rows are in `v1/`, `api/` and `system_routes.py`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.ids import AgentId, Owner, SessionId, is_uuid
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.limits import Room
from holdfast.http.responses import Response, StreamResponse
from holdfast.http.services import House
from holdfast.http.sse import OpenStreams
from holdfast.services.journal import session_not_found

Q = TypeVar("Q")
B = TypeVar("B")


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes none."""


class RouteRequest(Struct, Generic[Q, B], frozen=True, kw_only=True):
    """A request as a route sees it: judged, decoded, and with a name for who asks."""

    holdfast: House
    streams: OpenStreams
    room: Room
    caller: Caller | None
    route: "Route"
    path: Mapping[str, str]
    query: Q
    body: B
    headers: Mapping[str, str]

    @property
    def owner(self) -> Owner:
        """Return for whom the request acts."""
        return self.required_caller.owner

    @property
    def required_caller(self) -> Caller:
        """Return who asks, on a route that is not open to everybody."""
        if self.caller is None:
            raise Internal(Code.INTERNAL, "A route that is open to everybody acts for nobody.")
        return self.caller


RouteHandler = Callable[[RouteRequest[Any, Any]], Awaitable[Response | StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One row of the table.

    `needs` is the scope a caller must have; None leaves the route open to everybody. `gives`
    maps each status of success to the type of its body, or to several of which it has one;
    `refuses` lists the codes of this route beyond those that every route can answer with.
    `tells` maps a status of success to the headers that its answer has beyond those that every
    answer has, and `kinds` are the media types it may have beside its own. A `tolerant` route
    passes over keys it does not know, in body and query. Where a body has rules and refusals of
    its own, `reads` makes of its bytes what the route is given, and `body` only describes it.
    Where callers speak a protocol of their own, `refused` puts what is wrong into its words, from
    the moment on that it is known who asks.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: RouteHandler
    needs: Scope | None
    responses: Mapping[int, Any]
    query: type[Struct] = NoQuery
    # A Struct, or a union of Structs that a tag tells apart.
    body: Any = None
    body_may_be_missing: bool = False
    parse_body: Callable[[bytes], Any] | None = None
    refused: Callable[[HoldfastError, Any], Any] | None = None
    error_codes: tuple[Code, ...] = ()
    tolerant: bool = False
    response_headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    media_type: str = "application/json"
    other_media_types: tuple[str, ...] = ()
    is_stream: bool = False
    has_no_head: bool = False
    description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Tell whether a request may change something."""
        return self.method not in {"GET", "HEAD"}


class RouteMatch(Struct, frozen=True):
    """What stands at a path: its routes by method, and the values of its placeholders."""

    routes: Mapping[str, Route]
    values: Mapping[str, str]

    def route(self, method: str) -> Route | None:
        """Return the route of a method; HEAD is answered as GET is, without the body."""
        if method != "HEAD":
            return self.routes.get(method)
        route = self.routes.get("GET")
        return None if route is None or route.has_no_head else route

    @property
    def allowed(self) -> str:
        """Return the methods as `Allow` lists them."""
        head = {"HEAD"} if self.route("HEAD") else set()
        return ", ".join(sorted({*self.routes, *head}))


class _Node:
    """One segment of the known paths."""

    __slots__ = ("named", "names", "placeholder", "routes")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.placeholder: _Node | None = None
        self.names: tuple[str, ...] = ()
        self.routes: dict[str, Route] = {}


class RouteTable:
    """All routes, found by path in as many steps as the path has segments."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes: Final = tuple(routes)
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, path: str) -> RouteMatch | None:
        """Return what stands at a path as it was sent; names win over placeholders.

        Split before it is decoded: what is written `%2F` is a part of a value and no way further,
        and a name has one spelling, so that whatever stands before us judges the same path.
        """
        values: list[str] = []
        node: _Node | None = self._root
        for segment in path.split("/")[1:]:
            if node is None:
                return None
            following = node.named.get(segment)
            # An empty segment is no value: `/v1/agents/` is not the agent without a name.
            if following is None and segment:
                following = node.placeholder
                values.append(segment)
            node = following
        if node is None or not node.routes:
            return None
        try:
            if "%" in path:
                values = [unquote_to_bytes(value).decode() for value in values]
        except UnicodeDecodeError:
            # What is no text names nothing.
            return None
        return RouteMatch(node.routes, dict(zip(node.names, values, strict=True)))

    def _add(self, route: Route) -> None:
        node = self._root
        names: list[str] = []
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                names.append(segment[1:-1])
                node.placeholder = node.placeholder or _Node()
                node = node.placeholder
            else:
                node = node.named.setdefault(segment, _Node())
        if route.method in node.routes:
            raise ValueError(f"{route.method} {route.path} is in the table twice.")
        node.names = node.names or tuple(names)
        node.routes[route.method] = route


AGENT_SESSION_PATH: Final = "/v1/agents/{agent_id}/sessions/{session_id}"
SESSION_PATH: Final = "/v1/sessions/{session_id}"


def session_routes(route: Route) -> tuple[Route, Route]:
    """Return the route below both paths of a session; its own path is the rest of them."""
    missing = {Code.AGENT_NOT_FOUND} - {*route.error_codes}
    return (
        replace(
            route,
            path=AGENT_SESSION_PATH + route.path,
            name=f"agents.{route.name}",
            error_codes=(*route.error_codes, *missing),
        ),
        replace(route, path=SESSION_PATH + route.path),
    )


async def requested_session(request: RouteRequest[Any, Any]) -> SessionId:
    """Return the session of the path; under another agent than its own it is not there."""
    session_id = request.path["session_id"]
    if not is_uuid(session_id):
        raise session_not_found()
    found = SessionId(session_id)
    if "agent_id" in request.path:
        session = await request.holdfast.sessions.get(request.owner, found)
        agent = await request.holdfast.agents.get(request.owner, request.path["agent_id"])
        if session.agent_id != AgentId(agent.id):
            raise session_not_found()
    return found
