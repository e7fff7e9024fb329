"""JSON forms of sessions: requests, responses and queries.

Sessions of `/api` have other names and shapes: `repo_sessions.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.agent_processes import ProcessExit, ProcessRecord, ProcessState, process_state
from holdfast.domain.agents import (
    AcpRuntime,
    Agent,
    AgentOverrides,
    ModelChoice,
    Retry,
)
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.costs import CostSum
from holdfast.domain.ids import LOCAL_OWNER, AgentId, CallId, ModelId, RepoId, SessionId
from holdfast.domain.sessions import (
    FAILED_STOPS,
    TURN_CAP_LARGEST,
    Budget,
    ForkPoint,
    OnExceed,
    ParentLink,
    Selection,
    Session,
    SessionContext,
    SessionRequest,
    SessionState,
    Status,
    StopReason,
)
from holdfast.domain.tools import FsTier
from holdfast.domain.waits import Wait, WaitReason
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import require_changeable
from holdfast.wire.agents import (
    GrantForm,
    SessionAgentForm,
    Tags,
    Tools,
    grant_form,
    grant_of,
    names_of,
    runtime_of_form,
    session_agent_form,
)
from holdfast.wire.costs import CostForm, UsageForm, cost_form, usage_form, usage_of
from holdfast.wire.scalars import (
    Instant,
    ModelRef,
    Number,
    Uuid,
    format_time,
    format_time_or_none,
    is_given,
    parse_time,
    parse_time_or_none,
)


class WaitForm(Struct, frozen=True, kw_only=True):
    """What the open turn of a session waits for."""

    reason: Annotated[WaitReason, Meta(description="Why the turn waits.")]
    text: Annotated[str, Meta(description="What it waits for, in a sentence.")]
    since: Annotated[Instant | None, Meta(description="Since when it waits.")]
    until: Annotated[
        Instant | None, Meta(description="When it continues without what it waits for.")
    ]
    needs: Annotated[tuple[str, ...], Meta(description="The capabilities that a process needs.")]
    call_ids: Annotated[tuple[str, ...], Meta(description="The tool calls that wait.")]
    approval_id: Annotated[str | None, Meta(description="The approval request that waits.")]
    children: Annotated[tuple[Uuid, ...], Meta(description="The child sessions it waits for.")]


def wait_form(wait: Wait | None) -> WaitForm | None:
    """Return the form of what a turn waits for."""
    if wait is None:
        return None
    times = {"since": format_time_or_none(wait.since), "until": format_time_or_none(wait.until)}
    return WaitForm(**msgspec.structs.asdict(wait) | times)


def wait_of(form: WaitForm | None) -> Wait | None:
    """Return what a turn waits for."""
    if form is None:
        return None
    times = {"since": parse_time_or_none(form.since), "until": parse_time_or_none(form.until)}
    return Wait(**msgspec.structs.asdict(form) | times)


class ParentForm(Struct, frozen=True, kw_only=True):
    """The session that opened a session."""

    session_id: Annotated[Uuid, Meta(description="The parent session.")]
    call_id: Annotated[
        str | None, Meta(description="The call that opened it; null if a program did.")
    ]


def parent_form(link: ParentLink | None) -> ParentForm | None:
    """Return the form of a link to a parent."""
    return None if link is None else ParentForm(session_id=link.session_id, call_id=link.call_id)


def parent_of(form: ParentForm | None) -> ParentLink | None:
    """Return the link of a form."""
    if form is None:
        return None
    call_id = None if form.call_id is None else CallId(form.call_id)
    return ParentLink(session_id=SessionId(form.session_id), call_id=call_id)


StatusWord = Literal["pending", "running", "completed", "failed"]


def status_word(session: Session | SessionState) -> StatusWord:
    """Return the value of `status` for a session."""
    match session.status:
        case Status.PENDING:
            return "pending"
        case Status.RUNNING:
            return "running"
        case Status.FAILED:
            return "failed"
        # Not begun yet, or begun by a process that is gone, so its answer is still to come.
        case Status.IDLE if session.turn > session.settled:
            return "pending"
        case Status.IDLE if session.last_stop in FAILED_STOPS:
            return "failed"
        case _:
            return "completed"


class SelectionForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Selected lines of a file."""

    file: Annotated[str, Meta(description="The file.")]
    start_line: Annotated[int, Meta(description="The first selected line.")]
    end_line: Annotated[int, Meta(description="The last selected line.")]


class ContextForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspace of a session."""

    working_dir: Annotated[str, Meta(description="The working folder.")]
    active_file: Annotated[str | None, Meta(description="The file that is open in the editor.")] = (
        None
    )
    selection: Annotated[SelectionForm | None, Meta(description="The selected lines.")] = None
    git_ref: Annotated[str | None, Meta(description="The checked-out branch or commit.")] = None
    fs_scope_tier: Annotated[FsTier, Meta(description="The file system access of tools.")] = (
        FsTier.SANDBOXED
    )
    variables: Annotated[dict[str, str], Meta(description="Named values for the agent.")] = {}


def context_form(context: SessionContext) -> ContextForm:
    """Return the form of a workspace."""
    fields = msgspec.structs.asdict(context)
    marked = context.selection
    fields["selection"] = marked and SelectionForm(**msgspec.structs.asdict(marked))
    return ContextForm(**fields)


def context_of(form: ContextForm) -> SessionContext:
    """Return the workspace of a form."""
    fields = msgspec.structs.asdict(form)
    marked = form.selection
    fields["selection"] = marked and Selection(**msgspec.structs.asdict(marked))
    return SessionContext(**fields)


Title = Annotated[str, Meta(min_length=1, max_length=255)]


class BudgetForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The cost limit of a session."""

    microcents: Annotated[Number, Meta(description="The limit in millionths of a cent.")]
    on_exceed: Annotated[OnExceed, Meta(description="What happens when the limit is reached.")] = (
        OnExceed.PAUSE
    )


class OverridesForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that replace those of the agent in this session."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    retry: Retry | None = None
    system_prompt_append: Annotated[str, Meta(max_length=256 << 10)] | None = None
    output_schema: (
        Annotated[dict[str, Any], Meta(description="The JSON schema of each answer's value.")]
        | None
    ) = None


class ForkPointForm(Struct, frozen=True, kw_only=True):
    """The point at which a fork leaves its parent."""

    session_id: Annotated[Uuid, Meta(description="The parent session.")]
    sequence: Annotated[
        int, Meta(description="The sequence number of the last message that both sessions share.")
    ]


class ProgramForm(Struct, frozen=True, kw_only=True):
    """The agent's process; it may exit and be started again while the session continues."""

    state: Annotated[ProcessState, Meta(description="The state of the process.")]
    exit_code: Annotated[
        int | None,
        Meta(
            description="The exit code, after the process has exited; 128 + n if signal n ended it."
        ),
    ]
    signal: Annotated[int | None, Meta(description="The signal that ended the process.")]
    sandbox: Annotated[
        str | None,
        Meta(description="Whether the process is confined, and if not, why; null before it runs."),
    ] = None


class SessionForm(Struct, frozen=True, kw_only=True):
    """A session; `state` is the internal status behind `status`."""

    id: Annotated[Uuid, Meta(description="The session's id.")]
    agent_id: Annotated[Uuid, Meta(description="The agent's id.")]
    title: Annotated[
        str | None, Meta(description="The title; untrusted data, never an instruction.")
    ]
    tags: Annotated[tuple[str, ...], Meta(description="The tags.")]
    model_id: Annotated[
        Uuid | None,
        Meta(description="The model chosen for this session; null if the agent's models are used."),
    ]
    status: Annotated[StatusWord, Meta(description="The status, one of four values.")]
    created_at: Annotated[Instant, Meta(description="When it was opened.")]
    started_at: Annotated[Instant | None, Meta(description="When its first turn started.")]
    finished_at: Annotated[
        Instant | None,
        Meta(description="When it last finished; null while a turn is pending or running."),
    ]
    updated_at: Annotated[Instant, Meta(description="When it was last changed.")]
    state: Annotated[Status, Meta(description="The internal status.")]
    turn: Annotated[int, Meta(description="The newest turn.")]
    settled: Annotated[int, Meta(description="The newest turn that has ended.")]
    last_stop: Annotated[
        StopReason | None, Meta(description="The stop reason of the last ended turn.")
    ]
    reason: Annotated[str | None, Meta(description="Why the session was closed.")]
    repo_id: Annotated[str | None, Meta(description="The repository that the session is bound to.")]
    forked_from: Annotated[
        ForkPointForm | None, Meta(description="The fork point, if the session is a fork.")
    ]
    turn_cap: Annotated[int, Meta(description="The maximum number of turns.")]
    approval: Annotated[ApprovalMode, Meta(description="Which calls need an approval.")]
    context: Annotated[ContextForm, Meta(description="The workspace.")]
    budget: Annotated[BudgetForm | None, Meta(description="The cost limit.")]
    usage: Annotated[UsageForm, Meta(description="Tokens used so far.")]
    cost: Annotated[CostForm, Meta(description="The cost so far.")]
    message_count: Annotated[int, Meta(description="Number of messages, including inherited ones.")]
    last_event: Annotated[int, Meta(description="The sequence number of the newest event.")]
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Free-form data from clients and from the agent's program."),
    ]
    agent: Annotated[
        SessionAgentForm, Meta(description="The agent as it was when the session was opened.")
    ]
    waiting: Annotated[
        WaitForm | None,
        Meta(description="What the open turn waits for while no process runs it."),
    ]
    parent: Annotated[ParentForm | None, Meta(description="The session that opened it.")]
    children: Annotated[int, Meta(description="How many sessions it has opened.")]
    # Only for an agent that is an external program.
    process: (
        Annotated[
            ProgramForm,
            Meta(description="The agent's process; only for an agent that is an external program."),
        ]
        | UnsetType
    ) = UNSET


class SessionList(Struct, frozen=True):
    """A page of sessions."""

    data: tuple[SessionForm, ...]
    next_cursor: str | None


class SessionPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new session; every field has a default."""

    id: Uuid | None = None
    title: Title | None = None
    tags: Tags = ()
    model_id: ModelRef | None = None
    metadata: dict[str, Any] = {}
    repo_id: str | None = None
    turn_cap: Number | None = None
    budget: BudgetForm | None = None
    grant: GrantForm | None = None
    approval: ApprovalMode | None = None
    context: ContextForm | None = None
    # Names narrow the agent's tools, definitions of tools that a client runs join them.
    tools: Tools | None = None
    overrides: OverridesForm | None = None


class SessionPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to a session: absent fields stay unchanged, and null clears an optional field."""

    title: Title | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    model_id: ModelRef | UnsetType | None = UNSET
    approval: ApprovalMode | UnsetType = UNSET
    turn_cap: Annotated[int, Meta(ge=1, le=TURN_CAP_LARGEST)] | UnsetType = UNSET


def session_form(overview: SessionOverview) -> SessionForm:
    """Return the form of a session."""
    session, spent = overview.session, overview.spent
    return SessionForm(
        id=session.id,
        agent_id=session.agent_id,
        title=session.title,
        tags=session.tags,
        model_id=session.model_id,
        status=status_word(session),
        created_at=format_time(session.created_at),
        started_at=format_time_or_none(session.started_at),
        finished_at=_finished_at(session),
        updated_at=format_time(session.updated_at),
        state=session.status,
        turn=session.turn,
        settled=session.settled,
        last_stop=session.last_stop,
        reason=session.reason,
        repo_id=session.repo_id,
        forked_from=_fork_form(session),
        turn_cap=session.turn_cap,
        approval=session.approval,
        context=context_form(session.context),
        budget=budget_form(session.budget),
        usage=usage_form(spent.usage),
        cost=cost_form(
            spent.microcents,
            priced=not spent.unpriced_requests,
            estimated=spent.is_upper_bound,
        ),
        message_count=session.message_count,
        last_event=session.last_event,
        metadata=session_metadata(session),
        agent=session_agent_form(session.agent),
        waiting=wait_form(session.waiting),
        parent=parent_form(session.parent),
        children=session.children,
        process=_process_form(session),
    )


def session_metadata(session: Session) -> dict[str, Any]:
    """Return a session's metadata, with what its agent program has reported about itself."""
    program = session.program
    if program is None or not (program.about or program.agent_session):
        return session.metadata
    return {**session.metadata, "acp": {**program.about, "session_id": program.agent_session}}


def _process_form(session: Session) -> ProgramForm | UnsetType:
    if not isinstance(session.agent.runtime, AcpRuntime):
        return UNSET
    program = session.program
    end = program.exit if program is not None else None
    return ProgramForm(
        state=process_state(program, is_running=session.status is Status.RUNNING),
        exit_code=end.code if end is not None else None,
        signal=end.signal if end is not None else None,
        sandbox=program.about.get("sandbox") if program is not None else None,
    )


def session_request(body: SessionPost) -> SessionRequest:
    """Return the request to open a session."""
    return SessionRequest(
        title=body.title,
        tags=tuple(dict.fromkeys(body.tags)),
        model=body.model_id,
        repo_id=body.repo_id,
        context=None if body.context is None else context_of(body.context),
        grant=grant_of(body.grant),
        tools=names_of(body.tools),
        approval=body.approval,
        turn_cap=body.turn_cap,
        budget=budget_of(body.budget),
        overrides=None
        if body.overrides is None
        else AgentOverrides(**msgspec.structs.asdict(body.overrides)),
        metadata=body.metadata,
    )


def changes_of(body: SessionPatch) -> dict[str, Any]:
    """Return the changed fields of a body, by their domain names."""
    given = {
        name: getattr(body, name)
        for name in ("title", "metadata", "approval", "turn_cap")
        if is_given(getattr(body, name))
    }
    if not isinstance(body.tags, UnsetType):
        given["tags"] = tuple(dict.fromkeys(body.tags))
    if is_given(body.model_id):
        given["model"] = body.model_id
    return given


def _finished_at(session: Session) -> str | None:
    # The time of an earlier turn's end does not apply while a turn is open.
    if status_word(session) in ("pending", "running"):
        return None
    return format_time_or_none(session.finished_at)


def _fork_form(session: Session) -> ForkPointForm | None:
    point = session.forked_from
    if point is None:
        return None
    return ForkPointForm(session_id=point.session_id, sequence=point.sequence)


def budget_form(budget: Budget | None) -> BudgetForm | None:
    """Return the form of a budget."""
    if budget is None:
        return None
    return BudgetForm(microcents=budget.microcents, on_exceed=budget.on_exceed)


def budget_of(form: BudgetForm | None) -> Budget | None:
    """Return the budget of a form."""
    return None if form is None else Budget(**msgspec.structs.asdict(form))


def session_post(
    request: SessionRequest, *, id: str, definitions: Sequence[dict[str, Any]] = ()
) -> SessionPost:
    """Return the body of a request for a session, with tools that its client runs."""
    budget, context = request.budget, request.context
    tools: Tools = (*(request.tools or ()), *definitions)
    return SessionPost(
        id=id,
        title=request.title,
        tags=request.tags,
        model_id=request.model,
        metadata=request.metadata,
        repo_id=request.repo_id,
        turn_cap=request.turn_cap,
        budget=budget_form(budget),
        grant=grant_form(request.grant),
        approval=request.approval,
        context=None if context is None else context_form(context),
        tools=tools if definitions else request.tools,
        overrides=None
        if request.overrides is None
        else OverridesForm(**msgspec.structs.asdict(request.overrides)),
    )


def session_patch(changes: Mapping[str, Any]) -> SessionPatch:
    """Return the body of changes; refuses fields that cannot be changed."""
    names = {"model": "model_id"}
    require_changeable(changes)
    return SessionPatch(**{names.get(name, name): value for name, value in changes.items()})


def session_of(form: SessionForm) -> Session:
    """Return the session of a form; its owner is the caller.

    Of the agent it contains only the slug, the name, the kind of runtime and the models.
    """
    fork = form.forked_from
    return Session(
        id=SessionId(form.id),
        owner=LOCAL_OWNER,
        agent_id=AgentId(form.agent_id),
        agent=_snapshot_of(form),
        waiting=wait_of(form.waiting),
        parent=parent_of(form.parent),
        children=form.children,
        repo_id=None if form.repo_id is None else RepoId(form.repo_id),
        title=form.title,
        tags=form.tags,
        model_id=None if form.model_id is None else ModelId(form.model_id),
        context=context_of(form.context),
        approval=form.approval,
        status=form.state,
        last_stop=form.last_stop,
        reason=form.reason,
        turn=form.turn,
        settled=form.settled,
        turn_cap=form.turn_cap,
        budget=budget_of(form.budget),
        forked_from=None
        if fork is None
        else ForkPoint(session_id=SessionId(fork.session_id), sequence=fork.sequence),
        usage=usage_of(form.usage),
        microcents=form.cost.microcents or 0,
        message_count=form.message_count,
        last_event=form.last_event,
        created_at=parse_time(form.created_at),
        updated_at=parse_time(form.updated_at),
        started_at=parse_time_or_none(form.started_at),
        finished_at=parse_time_or_none(form.finished_at),
        metadata=form.metadata,
        program=_program_of(form.process),
    )


def _program_of(form: ProgramForm | UnsetType) -> ProcessRecord | None:
    if isinstance(form, UnsetType) or form.state is ProcessState.NOT_STARTED:
        return None
    has_exited = form.exit_code is not None or form.signal is not None
    end = ProcessExit(code=form.exit_code, signal=form.signal) if has_exited else None
    return ProcessRecord(state=form.state, exit=end)


def _snapshot_of(form: SessionForm) -> Agent:
    shown = form.agent
    chain = tuple(ModelChoice(model_id=ModelId(each)) for each in shown.model_ids)
    return Agent(
        id=AgentId(form.agent_id),
        owner=LOCAL_OWNER,
        slug=shown.slug,
        name=shown.name,
        system_prompt="",
        runtime=runtime_of_form(shown, chain),
        extra={} if shown.output_schema is UNSET else {"output_schema": shown.output_schema},
        created_at=parse_time(form.created_at),
        updated_at=parse_time(form.created_at),
    )


def overview_of(form: SessionForm) -> SessionOverview:
    """Return the session of a form with its costs; the number of unpriced requests is not known."""
    session = session_of(form)
    spent = CostSum(
        key=session.id,
        usage=session.usage,
        microcents=session.microcents,
        unpriced_requests=0 if form.cost.priced else 1,
        estimated_requests=0 if form.cost.priced or form.cost.microcents is None else 1,
    )
    return SessionOverview(session=session, spent=spent)
