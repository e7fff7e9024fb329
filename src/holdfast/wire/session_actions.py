"""JSON forms of actions on a session: interrupt, close, resume, compact, verify, fork, export."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from holdfast.children.model import ChildRequest
from holdfast.domain.sessions import ForkRequest
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.agents import GrantForm, Tags, Tools, grant_form, grant_of
from holdfast.wire.scalars import Cursor, Limit, ModelRef, Number, Uuid
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
