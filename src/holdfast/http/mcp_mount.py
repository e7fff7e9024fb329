"""MCP over HTTP, mounted at one path; `holdfast.mcp` handles the messages."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal, Protocol

from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.domain.errors import Code, HoldfastError, Invalid
from holdfast.domain.tokens import Caller, Scope
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, Route, RouteRequest
from holdfast.wire.errors import ErrorForm

PATH: Final = "/mcp"
_INVALID_REQUEST: Final = -32600
_INTERNAL_ERROR: Final = -32603


class McpReply(Protocol):
    """The reply of the MCP handler."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def body(self) -> bytes: ...


# Called with the caller, the message, and the request headers.
McpHandler = Callable[[Caller, bytes, Mapping[str, str]], Awaitable[McpReply]]

Id = Annotated[int | str, Meta(description="Repeated in the response.")]


class RpcMessage(Struct, frozen=True, kw_only=True):
    """A JSON-RPC message; without an id it is a notification and gets no response."""

    jsonrpc: Literal["2.0"]
    method: str
    # Not called `id` in Python: it correlates a reply and is not the id of a resource.
    number: Id | UnsetType = field(name="id", default=UNSET)
    params: dict[str, Any] | UnsetType | None = UNSET


class RpcError(Struct, frozen=True, kw_only=True):
    """A JSON-RPC error."""

    code: int
    message: str
    data: Any = UNSET


class RpcReply(Struct, frozen=True, kw_only=True):
    """The response to a JSON-RPC message: a result or an error."""

    jsonrpc: Literal["2.0"]
    id: Id | None = None
    result: dict[str, Any] | UnsetType = UNSET
    error: RpcError | UnsetType = UNSET


def _rpc_error_reply(error: HoldfastError, details: Any) -> RpcReply:
    """Return a JSON-RPC error for a request that did not reach the MCP handler."""
    code = _INVALID_REQUEST if isinstance(error, Invalid) else _INTERNAL_ERROR
    return RpcReply(
        jsonrpc="2.0", error=RpcError(code=code, message=error.message, data=details), id=None
    )


def mcp_route(mcp_handler: McpHandler) -> Route:
    """Return the route of the MCP endpoint."""

    async def converse(request: RouteRequest[NoQuery, bytes]) -> Response:
        """Send a message of the Model Context Protocol.

        The Model Context Protocol over streamable HTTP: each POST is one JSON-RPC message, and the
        response is JSON. The server is stateless, so there is no session id, no GET and no DELETE.
        Tools that change something require the scope `write`; without it, their result is an error.
        `docs/mcp.md` lists tools, resources and prompts.
        """
        # The size of a reply is known and reserved only afterwards.
        async with request.response_budget.starting:
            request.response_budget.require(request.caller)
            reply = await mcp_handler(request.required_caller, request.body, request.headers)
        return Response(status=reply.status, content=reply.body or None)

    return Route(
        method="POST",
        path=PATH,
        name="mcp",
        handler=converse,
        needs=Scope.READ,
        body=RpcMessage,
        # The handler validates the message itself, and reports errors as JSON-RPC.
        parse_body=bytes,
        refused=_rpc_error_reply,
        errors=(Code.ANSWER_LIMIT,),
        responses={200: RpcReply, 202: None, 400: (ErrorForm, RpcReply), 404: RpcReply},
        example={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
    )
