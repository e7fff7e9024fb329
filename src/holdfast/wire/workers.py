"""JSON forms of workers, and of the calls that they are offered."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.domain.ids import LOCAL_OWNER, AgentId, CallId, SessionId
from holdfast.wire.agents import Tools, tool_of
from holdfast.wire.calls import CallForm, call_form, call_of
from holdfast.wire.scalars import Instant, Uuid, format_time, parse_time
from holdfast.workers.model import (
    NAME_LONGEST,
    TOOLS_MOST,
    WAIT_LONGEST,
    WORK_MOST,
    WORKER_LEASE,
    ClaimsExtension,
    OfferedCall,
    Work,
    Worker,
    WorkerRequest,
    WorkerTool,
)

Claims = Annotated[tuple[Uuid, ...], Meta(max_length=256)]


class WorkerPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A process that runs calls. A tool with parameters is compared with what agents define."""

    id: Uuid | None = None
    name: Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)]
    tools: Annotated[Tools, Meta(min_length=1, max_length=TOOLS_MOST)]
    agents: Annotated[
        tuple[str, ...], Meta(description="Only calls of these agents; empty for all.")
    ] = ()
    sessions: Annotated[
        dict[str, tuple[Uuid, ...]],
        Meta(description="By a tool's name: only calls of these sessions."),
    ] = {}
    update: Annotated[
        bool, Meta(description="Store the tools with the agents that define them differently.")
    ] = False


class WorkerToolForm(Struct, frozen=True, kw_only=True):
    """A tool that a worker runs, of some sessions or, if none is named, of all."""

    name: str
    sessions: tuple[Uuid, ...]


class WorkerForm(Struct, frozen=True, kw_only=True):
    """A worker, or a process that plays turns with functions of its own."""

    id: Uuid
    name: str
    capabilities: tuple[str, ...]
    tools: tuple[WorkerToolForm, ...]
    agents: tuple[Uuid, ...]
    until: Annotated[Instant, Meta(description="It is gone then, unless it is heard of again.")]
    lease_s: float


class WorkerList(Struct, frozen=True):
    """The workers that are not gone."""

    data: tuple[WorkerForm, ...]


class NextPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker asks for: calls, for which it waits, and the state of its claims."""

    wait_s: Annotated[float, Meta(ge=0, le=WAIT_LONGEST)] = WAIT_LONGEST
    limit: Annotated[int, Meta(ge=0, le=WORK_MOST)] = 4
    claim: Annotated[bool, Meta(description="Claim calls at once that may run twice.")] = False
    claims: Claims = ()


class OfferedCallForm(Struct, frozen=True, kw_only=True):
    """A call for a worker; without a `claim` it must be claimed before it is run."""

    kind: Literal["call"] = "call"
    session_id: Uuid
    call: CallForm
    claim: Uuid | None


class WorkForm(Struct, frozen=True, kw_only=True):
    """Calls for a worker, its calls that have ended, and its claims that are lost."""

    work: tuple[OfferedCallForm, ...]
    cancel: tuple[str, ...]
    lost: tuple[Uuid, ...]


class ExtendPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claims to extend."""

    claims: Claims = ()


class ClaimsExtended(Struct, frozen=True, kw_only=True):
    """Until when a worker is known, its claims that are lost, its calls that have ended."""

    until: Instant
    lost: tuple[Uuid, ...]
    cancel: tuple[str, ...]


def worker_request(body: WorkerPost) -> WorkerRequest:
    """Return the request of a body."""
    return WorkerRequest(
        name=body.name,
        tools=tuple(tool_of(*each) for each in enumerate(body.tools)),
        sessions={
            name: tuple(SessionId(each.lower()) for each in sessions)
            for name, sessions in body.sessions.items()
        },
        agents=body.agents,
        update=body.update,
    )


def worker_post(request: WorkerRequest, *, id: str) -> WorkerPost:
    """Return the body of a request."""
    return WorkerPost(
        id=id,
        name=request.name,
        tools=tuple(tool.as_given() for tool in request.tools),
        agents=request.agents,
        sessions={name: tuple(sessions) for name, sessions in request.sessions.items()},
        update=request.update,
    )


def worker_form(worker: Worker) -> WorkerForm:
    """Return the form of a worker."""
    return WorkerForm(
        id=worker.id,
        name=worker.name,
        capabilities=worker.capabilities,
        tools=tuple(
            WorkerToolForm(name=tool.name, sessions=tuple(tool.sessions)) for tool in worker.tools
        ),
        agents=tuple(worker.agents),
        until=format_time(worker.until),
        lease_s=WORKER_LEASE.total_seconds(),
    )


def worker_of(form: WorkerForm) -> Worker:
    """Return the worker of a form; a server does not name its owner."""
    return Worker(
        id=form.id,
        owner=LOCAL_OWNER,
        name=form.name,
        capabilities=form.capabilities,
        until=parse_time(form.until),
        tools=tuple(
            WorkerTool(name=tool.name, sessions=tuple(map(SessionId, tool.sessions)))
            for tool in form.tools
        ),
        agents=tuple(map(AgentId, form.agents)),
    )


def work_form(work: Work) -> WorkForm:
    """Return the form of what a worker is to do."""
    return WorkForm(
        work=tuple(
            OfferedCallForm(
                session_id=each.call.session_id, call=call_form(each.call), claim=each.claim
            )
            for each in work.calls
        ),
        cancel=tuple(work.cancelled),
        lost=work.lost,
    )


def work_of(form: WorkForm) -> Work:
    """Return what a worker is to do."""
    return Work(
        calls=tuple(OfferedCall(call=call_of(each.call), claim=each.claim) for each in form.work),
        cancelled=tuple(map(CallId, form.cancel)),
        lost=form.lost,
    )


def claims_extended(extension: ClaimsExtension) -> ClaimsExtended:
    """Return the form of extended claims."""
    return ClaimsExtended(
        until=format_time(extension.until),
        lost=extension.lost,
        cancel=tuple(extension.cancelled),
    )


def claims_extension(form: ClaimsExtended) -> ClaimsExtension:
    """Return the extended claims of a form."""
    return ClaimsExtension(
        until=parse_time(form.until), lost=form.lost, cancelled=tuple(map(CallId, form.cancel))
    )
