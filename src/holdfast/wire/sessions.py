"""JSON forms of sessions: what is taken, what is returned, and the bodies of interrupt, close,
resume, fork and export.

Sessions of `/api` have other names and shapes: `repo_sessions.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.domain.agent_processes import ProcessState, process_state
from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.queries import SessionOrder, StatusFilter
from holdfast.domain.sessions import (
    Budget,
    ForkRequest,
    OnExceed,
    Selection,
    Session,
    SessionContext,
    SessionRequest,
    SessionState,
    Status,
    StopReason,
)
from holdfast.domain.tools import FsTier
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.agents import GrantForm, Tags, grant_of
from holdfast.wire.costs import CostForm, UsageForm, cost_form, usage_form
from holdfast.wire.scalars import (
    Cursor,
    Instant,
    Limit,
    ModelRef,
    Number,
    Uuid,
    Words,
    format_time,
    format_time_or_none,
    is_given,
    split_commas,
)
from holdfast.workflows.session_export import ExportFormat

StatusWord = Literal["pending", "running", "completed", "failed"]


def status_word(session: Session | SessionState) -> StatusWord:
    """Return the word for where a session stands."""
    match session.status:
        case Status.PENDING:
            return "pending"
        case Status.RUNNING:
            return "running"
        case Status.FAILED:
            return "failed"
        case Status.IDLE if session.last_stop is StopReason.ERROR:
            return "failed"
        case _:
            return "completed"


class SelectionForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lines of a file that the person has marked."""

    file: Annotated[str, Meta(description="The file.")]
    start_line: Annotated[int, Meta(description="The first selected line.")]
    end_line: Annotated[int, Meta(description="The last selected line.")]


class ContextForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The workspace a session runs against."""

    working_dir: Annotated[str, Meta(description="The working folder.")]
    active_file: Annotated[str | None, Meta(description="The file that is open in the editor.")] = (
        None
    )
    selection: Annotated[SelectionForm | None, Meta(description="The selected lines.")] = None
    git_ref: Annotated[str | None, Meta(description="The checked-out branch or commit.")] = None
    fs_scope_tier: Annotated[
        FsTier, Meta(description="The part of the file system that tools may use.")
    ] = FsTier.SANDBOXED
    variables: Annotated[dict[str, str], Meta(description="Named values for the agent.")] = {}


def context_form(context: SessionContext) -> ContextForm:
    """Return a workspace as it is shown."""
    fields = msgspec.structs.asdict(context)
    marked = context.selection
    fields["selection"] = marked and SelectionForm(**msgspec.structs.asdict(marked))
    return ContextForm(**fields)


def context_of(form: ContextForm) -> SessionContext:
    """Return the workspace that a form tells of."""
    fields = msgspec.structs.asdict(form)
    marked = form.selection
    fields["selection"] = marked and Selection(**msgspec.structs.asdict(marked))
    return SessionContext(**fields)


Title = Annotated[str, Meta(min_length=1, max_length=255)]
StatusWords = Annotated[
    str,
    Meta(
        pattern=r"^(pending|running|completed|failed)(,(pending|running|completed|failed))*$",
        description="Words of `status`, with commas between them.",
    ),
]
StateWords = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(Status)})(,({'|'.join(Status)}))*$",
        description="The house's own words of `state`, with commas between them.",
    ),
]
# Which sessions each word stands for; a turn that failed leaves its session open.
STATUS_FILTERS: Final[Mapping[str, tuple[StatusFilter, ...]]] = {
    "pending": (StatusFilter(status=Status.PENDING),),
    "running": (StatusFilter(status=Status.RUNNING),),
    "completed": (
        StatusFilter(status=Status.IDLE, has_failed=False),
        StatusFilter(status=Status.COMPLETED),
        StatusFilter(status=Status.CANCELLED),
    ),
    "failed": (
        StatusFilter(status=Status.IDLE, has_failed=True),
        StatusFilter(status=Status.FAILED),
    ),
}


class BudgetForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How much a session may cost."""

    microcents: Annotated[Number, Meta(description="The limit in millionths of a cent.")]
    on_exceed: Annotated[OnExceed, Meta(description="The effect of reaching the limit.")] = (
        OnExceed.PAUSE
    )


class ForkPointForm(Struct, frozen=True, kw_only=True):
    """Where a fork leaves its parent."""

    session_id: Annotated[Uuid, Meta(description="The parent session.")]
    sequence: Annotated[int, Meta(description="The last message that both sessions have.")]


class SessionAgentForm(Struct, frozen=True, kw_only=True):
    """Who answers in a session, as it was when the session was opened."""

    slug: Annotated[str, Meta(description="The agent's slug.")]
    name: Annotated[str, Meta(description="The agent's display name.")]
    runtime: Annotated[
        Literal["llm", "acp"],
        Meta(description="llm for Holdfast's own loop, acp for an external program."),
    ]
    model_ids: Annotated[tuple[Uuid, ...], Meta(description="Its models, in order of preference.")]


class ProgramForm(Struct, frozen=True, kw_only=True):
    """The agent's own program, which is not the session: it may end and be started again."""

    state: Annotated[ProcessState, Meta(description="The state of the process.")]
    exit_code: Annotated[int | None, Meta(description="The exit code, after it has exited.")]
    signal: Annotated[int | None, Meta(description="The signal that ended it.")]


class SessionForm(Struct, frozen=True, kw_only=True):
    """A session as `/v1` shows it; `state` is the house's own word for `status`."""

    id: Annotated[Uuid, Meta(description="The session's id.")]
    agent_id: Annotated[Uuid, Meta(description="The agent's id.")]
    title: Annotated[str | None, Meta(description="The title: data, never an instruction.")]
    tags: Annotated[tuple[str, ...], Meta(description="The tags.")]
    model_id: Annotated[
        Uuid | None, Meta(description="The model chosen for this session; null for the agent's.")
    ]
    status: Annotated[StatusWord, Meta(description="The state in four words.")]
    created_at: Annotated[Instant, Meta(description="When it was opened.")]
    started_at: Annotated[Instant | None, Meta(description="When its first turn started.")]
    finished_at: Annotated[
        Instant | None,
        Meta(description="When it last finished; null while a turn is pending or running."),
    ]
    updated_at: Annotated[Instant, Meta(description="When it was last written to.")]
    state: Annotated[Status, Meta(description="The exact state.")]
    turn: Annotated[int, Meta(description="The newest turn.")]
    settled: Annotated[int, Meta(description="The newest turn that has ended.")]
    last_stop: Annotated[StopReason | None, Meta(description="The stop reason of that turn.")]
    reason: Annotated[str | None, Meta(description="Why the session was closed.")]
    repo_id: Annotated[str | None, Meta(description="The repository it is bound to.")]
    forked_from: Annotated[
        ForkPointForm | None, Meta(description="The fork point, if it is a fork.")
    ]
    turn_cap: Annotated[int, Meta(description="The maximum number of turns.")]
    approval: Annotated[ApprovalMode, Meta(description="Which calls need an approval.")]
    context: Annotated[ContextForm, Meta(description="The workspace.")]
    budget: Annotated[BudgetForm | None, Meta(description="The cost limit.")]
    usage: Annotated[UsageForm, Meta(description="Tokens used so far.")]
    cost: Annotated[CostForm, Meta(description="The cost so far.")]
    message_count: Annotated[int, Meta(description="Number of messages, inherited ones included.")]
    last_event: Annotated[int, Meta(description="The number of the newest event.")]
    metadata: Annotated[
        dict[str, Any], Meta(description="Free-form data of clients and of the agent's program.")
    ]
    agent: Annotated[
        SessionAgentForm, Meta(description="The agent as it was when the session was opened.")
    ]
    # Only of an agent that is a program of its own.
    process: (
        Annotated[
            ProgramForm,
            Meta(description="The agent's process; only for an agent that is a program."),
        ]
        | UnsetType
    ) = UNSET


class SessionList(Struct, frozen=True):
    """A page of sessions."""

    data: tuple[SessionForm, ...]
    next_cursor: str | None


class SessionPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new session; everything has a default."""

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
    tools: tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...] | None = None


class SessionPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to a session: what is absent stays, null clears what may be empty."""

    title: Title | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    model_id: ModelRef | UnsetType | None = UNSET
    approval: ApprovalMode | UnsetType = UNSET


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which sessions."""

    status: StatusWords | None = None
    tag: tuple[str, ...] = ()
    q: Words | None = None
    forked_from: Uuid | None = None
    state: StateWords | None = None
    order: SessionOrder = SessionOrder.CREATED_AT
    begins: Annotated[str, Meta(pattern="^[0-9a-fA-F-]{8,36}$")] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class DeletionQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What becomes of forks that point into a deleted session."""

    cascade: bool = False
    detach: bool = False


def session_form(overview: SessionOverview) -> SessionForm:
    """Return a session as it is shown."""
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
        budget=_budget_form(session.budget),
        usage=usage_form(spent.usage),
        cost=cost_form(
            spent.microcents,
            priced=not spent.unpriced_requests,
            estimated=spent.is_upper_bound,
        ),
        message_count=session.message_count,
        last_event=session.last_event,
        metadata=session_metadata(session),
        agent=_agent_form(session.agent),
        process=_process_form(session),
    )


def session_metadata(session: Session) -> dict[str, Any]:
    """Return a session's metadata, and what its agent program has reported about itself."""
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
        tools=None if body.tools is None else tuple(dict.fromkeys(body.tools)),
        approval=body.approval,
        turn_cap=body.turn_cap,
        budget=None if body.budget is None else Budget(**msgspec.structs.asdict(body.budget)),
        metadata=body.metadata,
    )


def changes_of(body: SessionPatch) -> dict[str, Any]:
    """Return what a body changes, by the house's names."""
    given = {
        name: getattr(body, name)
        for name in ("title", "metadata", "approval")
        if is_given(getattr(body, name))
    }
    if not isinstance(body.tags, UnsetType):
        given["tags"] = tuple(dict.fromkeys(body.tags))
    if is_given(body.model_id):
        given["model"] = body.model_id
    return given


def states_of(words: str | None) -> tuple[Status, ...]:
    """Return the house's words of a list."""
    return tuple(map(Status, split_commas(words)))


def status_filters(words: str | None) -> tuple[StatusFilter, ...]:
    """Return which sessions a list of status words stands for."""
    return tuple(
        status_filter for word in split_commas(words) for status_filter in STATUS_FILTERS[word]
    )


def _agent_form(agent: Agent) -> SessionAgentForm:
    chain = agent.runtime.models if isinstance(agent.runtime, LlmRuntime) else ()
    return SessionAgentForm(
        slug=agent.slug,
        name=agent.name,
        runtime="llm" if isinstance(agent.runtime, LlmRuntime) else "acp",
        model_ids=tuple(each.model_id for each in chain),
    )


def _finished_at(session: Session) -> str | None:
    # What was finished before is not what is going on now.
    if session.status in (Status.PENDING, Status.RUNNING):
        return None
    return format_time_or_none(session.finished_at)


def _fork_form(session: Session) -> ForkPointForm | None:
    point = session.forked_from
    if point is None:
        return None
    return ForkPointForm(session_id=point.session_id, sequence=point.sequence)


def _budget_form(budget: Budget | None) -> BudgetForm | None:
    if budget is None:
        return None
    return BudgetForm(microcents=budget.microcents, on_exceed=budget.on_exceed)


Reason = Annotated[str, Meta(min_length=1, max_length=255)]


class InterruptPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a turn is stopped."""

    reason: Reason | None = None
    # Only this one: when it has ended meanwhile, the one behind it goes on.
    turn: Number | None = None


class Interrupted(Struct, frozen=True, kw_only=True):
    """Whether a turn was stopped, and which; and the session after it."""

    session: SessionForm
    interrupted: bool
    turn: int | None


class ClosePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How and why a session ends."""

    ending: Literal["completed", "cancelled"] = field(default="completed", name="as")
    reason: Reason | None = None


class ResumePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nothing has to be said; with a context the session moves there."""

    context: ContextForm | None = None


class Resumed(SessionForm, frozen=True, kw_only=True):
    """A session that goes on; without turns left, what is said in it is kept and not answered."""

    turns_left: int


class CompactPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nothing can be said."""


class Compacted(Struct, frozen=True, kw_only=True):
    """Whether something was summed up; and the session after it."""

    compacted: bool
    session: SessionForm


class Verified(Struct, frozen=True, kw_only=True):
    """Whether a session's messages are what was written; `head` is the hash they end with."""

    session_id: Uuid
    messages: int
    head: str
    faults: tuple[str, ...]


def resumed_form(overview: SessionOverview, turns_left: int) -> Resumed:
    """Return a session that was resumed."""
    return Resumed(**msgspec.structs.asdict(session_form(overview)), turns_left=turns_left)


def verified_form(verified: Verification) -> Verified:
    """Return the result of a session's verification."""
    return msgspec.convert(verified, Verified, from_attributes=True)


class ForkPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a fork begins, and what is unlike in its parent."""

    id: Uuid | None = None
    at: Number | None = None
    title: Title | None = None
    tags: Tags | None = None
    model_id: ModelRef | None = None
    agent_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """In which form, and up to which message."""

    format: ExportFormat = ExportFormat.JSONL
    through: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | None = None


class ExportPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a workflow was written to."""

    target: Annotated[str, Meta(min_length=1, max_length=4_096)]


class Exported(Struct, frozen=True, kw_only=True):
    """What was written down, and the number of the event that says so."""

    target: str
    sequence: int


def fork_request(body: ForkPost) -> ForkRequest:
    """Return the request to fork a session."""
    return ForkRequest(
        at=body.at,
        # What a turn that runs has written so far is left to that turn.
        is_settled=True,
        title=body.title,
        tags=None if body.tags is None else tuple(dict.fromkeys(body.tags)),
        model=body.model_id,
        agent=body.agent_id,
    )
