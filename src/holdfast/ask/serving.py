"""`serve_tools`: runs the calls of tools that agents define, here or for a server."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import require_int, require_str

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.calls import Call
    from holdfast.domain.ids import Owner, SessionId
    from holdfast.workers.model import (
        ClaimExtension,
        ClaimRequest,
        ClaimsExtension,
        Work,
        Worker,
        WorkerRequest,
    )


class WorkersApi(Protocol):
    """Workers, and the claims of clients on calls."""

    async def register(
        self, owner: "Owner", request: "WorkerRequest", *, id: str | None = None
    ) -> "Worker": ...
    async def list(self, owner: "Owner") -> "list[Worker]": ...
    async def next(
        self,
        owner: "Owner",
        worker_id: str,
        *,
        claims: Iterable[str] = (),
        limit: int = 4,
        wait_s: float = ...,
        claim: bool = False,
    ) -> "Work": ...
    async def extend(
        self, owner: "Owner", worker_id: str, claims: Iterable[str] = ()
    ) -> "ClaimsExtension": ...
    async def close(self, owner: "Owner", worker_id: str) -> None: ...
    async def claim(
        self, owner: "Owner", session_id: "SessionId", call_id: str, request: "ClaimRequest"
    ) -> "Call": ...
    async def extend_claim(
        self, owner: "Owner", session_id: "SessionId", call_id: str, claim: str
    ) -> "ClaimExtension": ...
    async def release(
        self, owner: "Owner", session_id: "SessionId", call_id: str, claim: str
    ) -> "Call": ...
    async def progress(
        self,
        owner: "Owner",
        session_id: "SessionId",
        call_id: str,
        claim: str,
        text: str,
        *,
        fraction: float | None = None,
    ) -> None: ...


class ServeVerbs(Protocol):
    """The verb that makes this process a worker."""

    async def serve_tools(
        self: "Holdfast",
        tools: Sequence[Callable[..., Any]],
        *,
        agent: str | None = None,
        session: str | None = None,
        concurrency: int = 8,
        grace: float = 10.0,
        update: bool = False,
        name: str | None = None,
    ) -> None:
        """Run the calls of tools that agents define with these functions, until cancelled.

        A function whose schema differs from the definition is refused, unless `update` stores its
        own with the agents. One that `agent` does not define is refused, too. When it is
        cancelled, calls that run may end within `grace` seconds.
        """
        from holdfast.ask.tool_server import ToolServer

        require_int(concurrency, field="concurrency")
        if concurrency < 1:
            text = "concurrency must be at least 1."
            raise Invalid(Code.INVALID_INPUT, text, {"field": "concurrency"})
        if agent is not None:
            require_str(agent, field="agent")
        agents = () if agent is None else (agent,)
        server = ToolServer(
            self, agents=agents, concurrency=concurrency, grace=grace, update=update, name=name
        )
        if agent is not None and session is None:
            await server.require_defined(tools, agent)
        await server.add(tools, session)
        await server.run()
