"""Requests and responses of what is done with a session: interrupt, close, resume, fork, export."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from holdfast.domain.sessions import ForkRequest
from holdfast.services.session_views import SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.agents import Tags
from holdfast.wire.scalars import ModelRef, Number, Uuid
from holdfast.wire.sessions import ContextForm, SessionForm, Title, session_form
from holdfast.workflows.session_export import ExportFormat

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
