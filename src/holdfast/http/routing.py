"""Routes as data: a row describes a route completely; the table finds a route by its path.

The rows are in `v1/`, `repo_sessions.py` and `system_routes.py`.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import NoneType
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from msgspec import Struct

from holdfast.api import LocalHoldfast
from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.ids import AgentId, Owner, SessionId, is_uuid
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.limits import Reservation, ResponseBudget
from holdfast.http.requests import BODY_LARGEST
from holdfast.http.responses import Response, StreamResponse
from holdfast.http.sse import OpenStreams
from holdfast.services.journal import session_not_found

Q = TypeVar("Q")
B = TypeVar("B")


class NoQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes no parameters."""


class RouteRequest(Struct, Generic[Q, B], frozen=True, kw_only=True):
    """A request as a route handler receives it: authorized, validated and decoded."""

    holdfast: LocalHoldfast
    streams: OpenStreams
    response_budget: ResponseBudget
    caller: Caller | None
    route: "Route"
    path: Mapping[str, str]
    query: Q
    body: B
    headers: Mapping[str, str]
    # Returns when the client has gone.
    disconnected: Callable[[], Coroutine[Any, Any, None]]
    # Memory that is reserved for a large response.
    held: Reservation | None = None

    @property
    def owner(self) -> Owner:
        """Return the owner on whose behalf the request acts."""
        return self.required_caller.owner

    @property
    def required_caller(self) -> Caller:
        """Return the authenticated caller; only for routes that require one."""
        if self.caller is None:
            raise Internal(Code.INTERNAL, "A public route has no owner.")
        return self.caller


RouteHandler = Callable[[RouteRequest[Any, Any]], Awaitable[Response | StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One row of the route table.

    `needs` is the scope a caller must have; None makes the route public. `responses` maps each
    success status to the type of its body, or to several alternatives; `errors` lists the codes of
    this route beyond those of every route and of its placeholders. A `tolerant` route ignores
    unknown keys in body and query. Where a body has its own validation, `parse_body` converts its
    bytes to what the handler gets, and `body` only documents it. `refused` formats errors in the
    route's own protocol, once the caller is authenticated. `is_large` marks a read whose response
    may take megabytes; few of them are read at the same time, and the handler may run twice.
    """

    method: str
    path: str
    name: str
    handler: RouteHandler
    needs: Scope | None
    # A scope that is enough as well, for the part of the route that its handler allows.
    also: Scope | None = None
    responses: Mapping[int, Any]
    query: type[Struct] = NoQuery
    # A Struct, a tagged union of Structs, or `bytes` for content of any type.
    body: Any = None
    body_may_be_missing: bool = False
    body_largest: int = BODY_LARGEST
    parse_body: Callable[[bytes], Any] | None = None
    refused: Callable[[HoldfastError, Any], Any] | None = None
    errors: tuple[Code, ...] = ()
    tolerant: bool = False
    response_headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    media_type: str = "application/json"
    other_media_types: tuple[str, ...] = ()
    is_stream: bool = False
    is_large: bool = False
    has_no_head: bool = False
    # A body that the route accepts.
    example: Any = None

    @property
    def summary(self) -> str:
        """Return what the route does: the first paragraph of its handler's docstring."""
        return " ".join((self.handler.__doc__ or "").partition("\n\n")[0].split())

    @property
    def description(self) -> str:
        """Return the other paragraphs of the docstring."""
        return " ".join((self.handler.__doc__ or "").partition("\n\n")[2].split())

    @property
    def changes(self) -> bool:
        """Return whether a request may change state."""
        return self.method not in {"GET", "HEAD"}


class RouteMatch(Struct, frozen=True):
    """The match of a path: its routes by method, and the values of its placeholders."""

    routes: Mapping[str, Route]
    values: Mapping[str, str]

    def route(self, method: str) -> Route | None:
        """Return the route of a method; HEAD uses the GET route, without the body."""
        if method != "HEAD":
            return self.routes.get(method)
        route = self.routes.get("GET")
        return None if route is None or route.has_no_head else route

    @property
    def allowed(self) -> str:
        """Return the methods as the value of the `Allow` header."""
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
    """All routes, in a tree: a lookup takes one step per path segment."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes: Final = tuple(routes)
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, path: str) -> RouteMatch | None:
        """Return the match of a path as it was sent; literal segments win over placeholders.

        The path is split before it is percent-decoded: `%2F` is part of a value, not a separator.
        Literal segments are not decoded, so that a proxy in front checks the same path.
        """
        values: list[str] = []
        node: _Node | None = self._root
        for segment in path.split("/")[1:]:
            if node is None:
                return None
            following = node.named.get(segment)
            # An empty segment is not a value: `/v1/agents/` is not an agent with an empty name.
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
            # Bytes that are not UTF-8 match nothing.
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
            raise ValueError(f"Duplicate route: {route.method} {route.path}.")
        node.names = node.names or tuple(names)
        node.routes[route.method] = route


AGENT_SESSION_PATH: Final = "/v1/agents/{agent_id}/sessions/{session_id}"
SESSION_PATH: Final = "/v1/sessions/{session_id}"
H = TypeVar("H", bound=RouteHandler)


class Routes(list[Route]):
    """The routes of one noun, in order; each method returns a decorator of the handler.

    Query and body are the types in the handler's annotation, unless `query` or `body` is given. A
    path below `{session}` is served under both paths of a session.
    """

    def __init__(self, **defaults: Any) -> None:
        """`defaults` are fields that all routes have in common."""
        super().__init__()
        self._defaults = defaults

    def get(self, path: str, name: str, kind: Any = None, **fields: Any) -> Callable[[H], H]:
        """Add a route that reads."""
        return self.add("GET", path, name, kind, **fields)

    def post(self, path: str, name: str, kind: Any = None, **fields: Any) -> Callable[[H], H]:
        """Add a route that creates or acts."""
        return self.add("POST", path, name, kind, **fields)

    def add(
        self, method: str, path: str, name: str, kind: Any = None, **fields: Any
    ) -> Callable[[H], H]:
        """Add a route; `kind` is the type of its body, or one for each status, or None for 204."""
        responses = (
            kind if isinstance(kind, Mapping) else {204: None} if kind is None else {200: kind}
        )

        def add(handler: H) -> H:
            (request,) = islice(inspect.get_annotations(handler).values(), 1)
            query, body = request.__args__
            known: dict[str, Any] = {
                "query": NoQuery if query is Any else query,
                "body": None if body in (Any, NoneType) else body,
                "responses": responses,
                "needs": Scope.READ if method == "GET" else Scope.WRITE,
            }
            route = Route(
                method=method,
                path=path,
                name=name,
                handler=handler,
                **known | self._defaults | fields,
            )
            self.extend(session_routes(route) if "{session}" in path else (route,))
            return handler

        return add


def session_routes(route: Route) -> tuple[Route, Route]:
    """Return a route below `{session}` under both paths of a session."""
    under_agent, alone = (
        route.path.replace("{session}", path) for path in (AGENT_SESSION_PATH, SESSION_PATH)
    )
    return (
        replace(route, path=under_agent, name=f"agents.{route.name}"),
        replace(route, path=alone),
    )


def cacheable(kind: Any) -> dict[str, Any]:
    """Return the fields of a route whose response can be revalidated by its ETag."""
    etag = {200: ("etag",), 304: ("etag",)}
    return {"responses": {200: kind, 304: None}, "response_headers": etag}


async def requested_session(request: RouteRequest[Any, Any]) -> SessionId:
    """Return the session id of the path; not found under an agent that does not own it."""
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
