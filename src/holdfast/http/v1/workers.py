"""Routes of workers: register, wait for calls, extend claims, list."""

import asyncio
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code
from holdfast.domain.tokens import Scope
from holdfast.http.auth import require_one_of
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, RouteRequest, Routes
from holdfast.http.v1.idempotency import chosen_id
from holdfast.wire.workers import (
    ClaimsExtended,
    ExtendPost,
    NextPost,
    WorkerForm,
    WorkerList,
    WorkerPost,
    WorkForm,
    claims_extended,
    work_form,
    worker_form,
    worker_request,
)
from holdfast.workers.model import Work
from holdfast.workers.service import worker_not_found

routes: Final = Routes(needs=Scope.TOOLS)


@routes.get("/v1/workers", "workers.list", WorkerList, needs=Scope.READ)
async def list_workers(request: RouteRequest[NoQuery, None]) -> Response:
    """List the workers, and the processes that play turns with functions of their own."""
    found = await request.holdfast.workers.list(request.owner)
    return Response(content=WorkerList(tuple(map(worker_form, found))))


@routes.post(
    "/v1/workers",
    "workers.register",
    {201: WorkerForm},
    errors=(
        Code.AGENT_INVALID,
        Code.AGENT_NOT_FOUND,
        Code.INVALID_ID,
        Code.INVALID_INPUT,
        Code.INVALID_TEXT,
        Code.SESSION_NOT_FOUND,
        Code.TOOL_CHANGED,
        Code.TOOL_INVALID,
        Code.TOOL_NAME_TAKEN,
    ),
    example={"name": "payments-1", "tools": ["refund"]},
)
async def register_worker(request: RouteRequest[NoQuery, WorkerPost]) -> Response:
    """Register a process that runs calls; with the id of a worker, replace what is known of it.

    With `update` it changes agents, which needs the scope write.
    """
    caller, holdfast, wanted = (
        request.required_caller,
        request.holdfast,
        worker_request(request.body),
    )
    if wanted.update:
        caller.require(Scope.WRITE)
    for tool in wanted.tools if caller.tools else ():
        require_one_of(tool.name, caller.tools, "tools")
    if caller.agents:
        refs = wanted.agents or caller.agents
        ids = [(await holdfast.agents.get(request.owner, ref)).id for ref in refs]
        named = tuple(require_one_of(each, caller.agents, "agents") for each in ids)
        wanted = replace(wanted, agents=named)
    worker = await holdfast.workers.register(request.owner, wanted, id=chosen_id(request))
    return Response(status=201, content=worker_form(worker))


async def _requested_worker(request: RouteRequest[Any, Any]) -> str:
    """Return the id of a worker; one that takes more than the token reaches is not found."""
    caller, worker_id = request.required_caller, request.path["worker_id"]
    if caller.is_bound:
        worker = await request.holdfast.workers.get(request.owner, worker_id)
        agents, tools = set(worker.agents), {tool.name for tool in worker.tools}
        is_reached = not caller.tools or tools <= set(caller.tools)
        if caller.agents and not (agents and agents <= set(caller.agents)):
            is_reached = False
        if not is_reached:
            raise worker_not_found()
    return worker_id


@routes.post(
    "/v1/workers/{worker_id}/next",
    "workers.next",
    WorkForm,
    errors=(Code.WORKER_NOT_FOUND,),
    example={"wait_s": 25, "limit": 4},
)
async def next_work(request: RouteRequest[NoQuery, NextPost]) -> Response:
    """Wait for calls; they are reserved for the worker for ten seconds, and stay requested.

    The worker claims a call before it runs it. `claims` are those of its calls at work: they are
    extended, and the response comes early when one is lost or its call has ended.
    """
    body, worker_id = request.body, await _requested_worker(request)
    asking = asyncio.ensure_future(
        request.holdfast.workers.next(
            request.owner,
            worker_id,
            claims=[claim.lower() for claim in body.claims],
            limit=body.limit,
            wait_s=body.wait_s,
            claim=body.claim,
        )
    )
    # A server that stops lets its workers ask another one; a worker that is gone takes no calls.
    ends = (
        asyncio.ensure_future(request.streams.closing.wait()),
        asyncio.ensure_future(request.disconnected()),
    )
    try:
        await asyncio.wait((asking, *ends), return_when=asyncio.FIRST_COMPLETED)
        work = asking.result() if asking.done() else Work()
    finally:
        for each in (asking, *ends):
            each.cancel()
    return Response(content=work_form(work))


@routes.post(
    "/v1/workers/{worker_id}/extend",
    "workers.extend",
    ClaimsExtended,
    errors=(Code.WORKER_NOT_FOUND,),
    example={"claims": ["0199f8a6-7f3c-7e6b-9c3a-2f1d5b8e4a10"]},
)
async def extend_worker(request: RouteRequest[NoQuery, ExtendPost]) -> Response:
    """Extend the registration of a worker and its claims."""
    extension = await request.holdfast.workers.extend(
        request.owner,
        await _requested_worker(request),
        [claim.lower() for claim in request.body.claims],
    )
    return Response(content=claims_extended(extension))


@routes.add("DELETE", "/v1/workers/{worker_id}", "workers.close", errors=(Code.WORKER_NOT_FOUND,))
async def close_worker(request: RouteRequest[NoQuery, None]) -> Response:
    """Forget a worker; its claims stay until they run out."""
    await request.holdfast.workers.close(request.owner, await _requested_worker(request))
    return Response(status=204)
