"""Workers of a server, and the functions of this process that it calls."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.client.requests import RemotePart, build_path, new_id
from holdfast.client.sessions import session_path
from holdfast.client.transport import ANSWER_SECONDS
from holdfast.domain.calls import Call
from holdfast.domain.ids import Owner, SessionId
from holdfast.services.background_tasks import Background
from holdfast.wire.calls import (
    CallForm,
    ClaimExtended,
    ClaimExtendPost,
    ProgressPost,
    call_of,
    claim_extension,
    claim_post,
    release_post,
)
from holdfast.wire.workers import (
    ClaimsExtended,
    ExtendPost,
    NextPost,
    WorkerForm,
    WorkerList,
    WorkForm,
    claims_extension,
    work_of,
    worker_of,
    worker_post,
)
from holdfast.workers.model import (
    WAIT_LONGEST,
    ClaimExtension,
    ClaimRequest,
    ClaimsExtension,
    Work,
    Worker,
    WorkerRequest,
)

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.ask.tool_server import ToolServer

_WORKERS: Final = "/v1/workers"
# Seconds that functions at work have to end when the connection is closed.
SERVE_GRACE: Final = 1.0


class RemoteWorkers(RemotePart):
    """Workers of a server, and claims on its calls."""

    async def register(
        self, owner: Owner, request: WorkerRequest, *, id: str | None = None
    ) -> Worker:
        """Register a worker, or replace what is known of it."""
        body = worker_post(request, id=id or new_id())
        return worker_of(await self._requests.post(_WORKERS, body, WorkerForm))

    async def list(self, owner: Owner) -> list[Worker]:
        """Return the workers that are not gone."""
        page = await self._requests.get(_WORKERS, WorkerList)
        return [worker_of(form) for form in page.data]

    async def next(
        self,
        owner: Owner,
        worker_id: str,
        *,
        claims: Iterable[str] = (),
        limit: int = 4,
        wait_s: float = WAIT_LONGEST,
        claim: bool = False,
    ) -> Work:
        """Wait for calls; not repeated by itself, because the worker asks again anyway."""
        body = NextPost(wait_s=wait_s, limit=limit, claim=claim, claims=tuple(claims))
        path = build_path("v1", "workers", worker_id, "next")
        seconds = wait_s + ANSWER_SECONDS
        return work_of(await self._requests.post(path, body, WorkForm, seconds=seconds))

    async def extend(
        self, owner: Owner, worker_id: str, claims: Iterable[str] = ()
    ) -> ClaimsExtension:
        """Extend the registration of a worker and its claims."""
        path = build_path("v1", "workers", worker_id, "extend")
        body = ExtendPost(claims=tuple(claims))
        return claims_extension(await self._requests.post(path, body, ClaimsExtended))

    async def close(self, owner: Owner, worker_id: str) -> None:
        """Forget a worker."""
        await self._requests.delete(build_path("v1", "workers", worker_id))

    async def claim(
        self, owner: Owner, session_id: SessionId, call_id: str, request: ClaimRequest
    ) -> Call:
        """Claim a requested call."""
        path = session_path(session_id, "calls", call_id, "claim")
        return call_of(await self._requests.post(path, claim_post(request), CallForm))

    async def extend_claim(
        self, owner: Owner, session_id: SessionId, call_id: str, claim: str
    ) -> ClaimExtension:
        """Extend a claim."""
        path = session_path(session_id, "calls", call_id, "extend")
        body = ClaimExtendPost(claim=claim)
        return claim_extension(await self._requests.post(path, body, ClaimExtended))

    async def release(self, owner: Owner, session_id: SessionId, call_id: str, claim: str) -> Call:
        """Give a call back that was claimed and not begun."""
        path = session_path(session_id, "calls", call_id, "result")
        return call_of(await self._requests.post(path, release_post(claim), CallForm))

    async def progress(
        self,
        owner: Owner,
        session_id: SessionId,
        call_id: str,
        claim: str,
        text: str,
        *,
        fraction: float | None = None,
    ) -> None:
        """Report the progress of a claimed call."""
        path = session_path(session_id, "calls", call_id, "progress")
        await self._requests.send(path, ProgressPost(claim=claim, text=text, fraction=fraction))


class ServedFunctions:
    """Functions of this process that a server calls; they are served in the background."""

    def __init__(self, hf: "Holdfast", background: Background) -> None:
        self._hf = hf
        self._background = background
        self._server: ToolServer | None = None

    def definitions(self, tools: Iterable[Callable[..., Any]]) -> "list[dict[str, Any]]":
        """Return functions as a server stores them."""
        # Imported here, because most programs give a server no functions.
        from holdfast.functions.tool import as_tool

        return [as_tool(each).definition for each in tools]

    async def add(
        self, tools: Sequence[Callable[..., Any]], session_id: SessionId | None = None
    ) -> None:
        """Serve functions, for one session or for all."""
        from holdfast.ask.tool_server import ToolServer

        server = self._server or ToolServer(self._hf, grace=SERVE_GRACE)
        await server.add(tools, session_id)
        if self._server is None:
            self._server = server
            self._background.start(server.run())
        elif self._server is not server:
            # Another task has begun to serve in between.
            await self._server.add(tools, session_id)
