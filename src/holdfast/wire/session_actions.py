"""JSON forms of what is asked of sessions: to list, delete, interrupt, close, fork, export …"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field

from holdfast.children.model import ChildRequest
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.queries import SessionOrder, SessionQuery, StatusFilter
from holdfast.domain.sessions import ForkRequest, Status
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.agents import GrantForm, Tags, Tools, grant_form, grant_of
from holdfast.wire.scalars import Cursor, Limit, ModelRef, Number, Uuid, Words, split_commas
from holdfast.wire.sessions import (
    BudgetForm,
    ContextForm,
    SessionForm,
    Title,
    budget_form,
    budget_of,
    session_form,
)
from holdfast.workflows.session_export import ExportFormat

StatusWords = Annotated[
    str,
    Meta(
        pattern=r"^(pending|running|completed|failed)(,(pending|running|completed|failed))*$",
        description="Values of `status`, separated by commas.",
    ),
]
StateWords = Annotated[
    str,
    Meta(
        pattern=f"^({'|'.join(Status)})(,({'|'.join(Status)}))*$",
        description="Values of `state`, separated by commas.",
    ),
]
# The sessions of each status value; a session stays open after a failed turn.
STATUS_FILTERS: Final[Mapping[str, tuple[StatusFilter, ...]]] = {
    "pending": (
        StatusFilter(status=Status.PENDING),
        StatusFilter(status=Status.IDLE, is_waiting=True),
    ),
    "running": (StatusFilter(status=Status.RUNNING),),
    "completed": (
        StatusFilter(status=Status.IDLE, has_failed=False, is_waiting=False),
        StatusFilter(status=Status.COMPLETED),
        StatusFilter(status=Status.CANCELLED),
    ),
    "failed": (
        StatusFilter(status=Status.IDLE, has_failed=True, is_waiting=False),
        StatusFilter(status=Status.FAILED),
    ),
}
Reason = Annotated[str, Meta(min_length=1, max_length=255)]


class InterruptPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The reason for an interrupt, and the turn to stop."""

    reason: Reason | None = None
    # Only this turn is stopped, so an interrupt that arrives late does not stop the next one.
    turn: Number | None = None


class Interrupted(Struct, frozen=True, kw_only=True):
    """Whether a turn was stopped, which one, and the session after it."""

    session: SessionForm
    interrupted: bool
    turn: int | None


class ClosePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The final state of a session, and the reason."""

    ending: Literal["completed", "cancelled"] = field(default="completed", name="as")
    reason: Reason | None = None


class ResumePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Optional new context for the resumed session."""

    context: ContextForm | None = None


class Resumed(SessionForm, frozen=True, kw_only=True):
    """A resumed session; with no turns left, new messages are stored but not answered."""

    turns_left: int


class ChildPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A task for another agent, in a session below this one."""

    agent: Annotated[str, Meta(min_length=1, max_length=255)]
    task: Annotated[str, Meta(min_length=1)]
    id: Uuid | None = None
    title: Title | None = None
    budget: BudgetForm | None = None
    grant: GrantForm | None = None
    tools: tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...] | None = None


def child_request(body: ChildPost) -> ChildRequest:
    """Return the request of a body."""
    return ChildRequest(
        agent=body.agent,
        task=body.task,
        title=body.title,
        budget=budget_of(body.budget),
        grant=grant_of(body.grant),
        tools=body.tools,
    )


def child_post(request: ChildRequest, *, id: str) -> ChildPost:
    """Return the body of a request."""
    return ChildPost(
        agent=request.agent,
        task=request.task,
        id=id,
        title=request.title,
        budget=budget_form(request.budget),
        grant=grant_form(request.grant),
        tools=request.tools,
    )


class ChildrenQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of children."""

    limit: Limit = 100
    cursor: Cursor | None = None


class ToolsPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Definitions of tools that a client runs, for a session that exists."""

    tools: Annotated[Tools, Meta(min_length=1, max_length=256)]


class CompactPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An empty body."""


class Compacted(Struct, frozen=True, kw_only=True):
    """Whether the session was compacted, and the session after it."""

    compacted: bool
    session: SessionForm


class Verified(Struct, frozen=True, kw_only=True):
    """The result of verifying the hash chain; `head` is the hash of the last message."""

    session_id: Uuid
    messages: int
    head: str
    faults: tuple[str, ...]


def resumed_form(overview: SessionOverview, turns_left: int) -> Resumed:
    """Return the form of a resumed session."""
    return Resumed(**msgspec.structs.asdict(session_form(overview)), turns_left=turns_left)


def verified_form(verified: Verification) -> Verified:
    """Return the form of a verification."""
    return msgspec.convert(verified, Verified, from_attributes=True)


class ForkPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fork point, and the fields in which the fork differs from its parent."""

    id: Uuid | None = None
    at: Number | None = None
    title: Title | None = None
    tags: Tags | None = None
    model_id: ModelRef | None = None
    agent_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The format of an export, and its last message."""

    format: ExportFormat = ExportFormat.JSONL
    through: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)] | None = None


class ExportPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file that a workflow was written to."""

    target: Annotated[str, Meta(min_length=1, max_length=4_096)]


class Exported(Struct, frozen=True, kw_only=True):
    """The file of the export, and the sequence number of its event."""

    target: str
    sequence: int


def fork_request(body: ForkPost) -> ForkRequest:
    """Return the request to fork a session."""
    return ForkRequest(
        at=body.at,
        # The messages of a running turn are not complete, so the fork does not include them.
        is_settled=True,
        title=body.title,
        tags=None if body.tags is None else tuple(dict.fromkeys(body.tags)),
        model=body.model_id,
        agent=body.agent_id,
    )


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of a list of sessions."""

    status: StatusWords | None = None
    tag: tuple[str, ...] = ()
    q: Words | None = None
    forked_from: Uuid | None = None
    parent: Uuid | None = None
    state: StateWords | None = None
    order: SessionOrder = SessionOrder.CREATED_AT
    begins: Annotated[str, Meta(pattern="^[0-9a-fA-F-]{8,36}$")] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class DeletionQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What happens to the forks and the children of a deleted session."""

    cascade: bool = False
    detach: bool = False


def states_of(words: str | None) -> tuple[Status, ...]:
    """Return the internal statuses of a comma-separated list."""
    return tuple(map(Status, split_commas(words)))


def status_filters(words: str | None) -> tuple[StatusFilter, ...]:
    """Return the filters for a comma-separated list of status values."""
    return tuple(
        status_filter for word in split_commas(words) for status_filter in STATUS_FILTERS[word]
    )


def sessions_query(query: SessionQuery, cursor: str | None) -> SessionsQuery:
    """Return the query parameters of a query; its agent is part of the path."""
    if query.repo_id or query.is_bound or query.status_filters or query.before or query.offset:
        raise Invalid(
            Code.INVALID_INPUT,
            "Over HTTP, sessions can only be filtered by agent, status, tag, title and parent.",
        )
    return SessionsQuery(
        forked_from=query.forked_from,
        parent=query.parent,
        state=",".join(query.statuses) or None,
        tag=query.tags,
        q=query.text,
        order=query.order,
        limit=query.limit,
        cursor=cursor,
    )
