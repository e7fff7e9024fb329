"""JSON forms of approvals: the question, its options and the answer."""

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, convert, field

from holdfast.domain.approvals import (
    ALLOW_ALWAYS,
    Approval,
    ApprovalChoice,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
)
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.tools import ToolClass
from holdfast.wire.events import options
from holdfast.wire.scalars import (
    Cursor,
    Instant,
    Limit,
    Uuid,
    format_time,
    format_time_or_none,
    parse_time,
    parse_time_or_none,
)


class OptionForm(Struct, frozen=True):
    """An option: one of the answers that a question offers."""

    id: str
    name: str
    kind: str


class ApprovalForm(Struct, frozen=True, kw_only=True):
    """An approval: a question, and its answer after it was answered."""

    id: Uuid
    session_id: Uuid
    tool_call_id: str | None
    question: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    options: tuple[OptionForm, ...]
    state: ApprovalState
    scope: ApprovalScope | None
    answered_by: str | None
    note: str | None
    created_at: Instant
    expires_at: Instant | None
    answered_at: Instant | None
    tool_class: ToolClass = field(name="class")
    covers: str | None
    preview: dict[str, str]
    amount: int | None


class ApprovalList(Struct, frozen=True):
    """A page of approvals, oldest first."""

    data: tuple[ApprovalForm, ...]
    next_cursor: str | None


class AnswerPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An answer; with `digest` it is refused if the question has changed."""

    decision: Literal["allow", "deny"]
    scope: ApprovalScope = ApprovalScope.ONCE
    option_id: str | None = None
    digest: str | None = None
    note: Annotated[str, Meta(max_length=500)] | None = None


class RevokePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An empty body."""


class ApprovalsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of a list of approvals."""

    state: ApprovalState | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


def approval_form(approval: Approval) -> ApprovalForm:
    """Return the form of an approval."""
    question = approval.question
    is_answered = approval.state in (ApprovalState.ALLOWED, ApprovalState.DENIED)
    return ApprovalForm(
        id=approval.id,
        session_id=approval.session_id,
        tool_call_id=question.call_id,
        question=question.question,
        tool=question.tool,
        arguments=question.arguments,
        digest=question.digest,
        options=options_of(approval),
        state=approval.state,
        scope=approval.scope if is_answered else None,
        answered_by=approval.answered_by,
        note=approval.note,
        created_at=format_time(approval.asked_at),
        expires_at=format_time_or_none(approval.expires_at),
        answered_at=format_time_or_none(approval.answered_at),
        tool_class=question.tool_class,
        covers=question.memory,
        preview=question.preview,
        amount=question.amount,
    )


def options_of(approval: Approval) -> tuple[OptionForm, ...]:
    """Return the options of a question: those of its agent, otherwise Holdfast's own."""
    if approval.question.choices:
        return tuple(
            OptionForm(id=each.id, name=each.name, kind=each.kind)
            for each in approval.question.choices
        )
    offered = options(is_for_session=approval.question.memory is not None)
    return convert(offered, tuple[OptionForm, ...])


def answer_of(body: AnswerPost, approval: Approval, *, by: str) -> Decision:
    """Return the answer of a body; its option must be offered and match the decision."""
    if approval.question.choices:
        return _answer_with_option(body, approval, by=by)
    allows = body.decision == "allow"
    lasting = body.scope is ApprovalScope.SESSION
    meant = "deny" if not allows else "allow_session" if lasting else "allow_once"
    offered = {option.id for option in options_of(approval)}
    if body.option_id is not None and (body.option_id not in offered or body.option_id != meant):
        raise Conflict(
            Code.OPTION_NOT_OFFERED,
            f"This question can be answered with {', '.join(sorted(offered))}; send the option "
            "that matches the decision and its scope.",
            {"options": sorted(offered)},
        )
    return Decision(
        state=ApprovalState.ALLOWED if allows else ApprovalState.DENIED,
        by=by,
        scope=body.scope,
        note=body.note,
    )


def _answer_with_option(body: AnswerPost, approval: Approval, *, by: str) -> Decision:
    """Return the answer to an external agent, which defines its own options."""
    kinds = {each.id: each.kind for each in approval.question.choices}
    kind = kinds.get(body.option_id or "")
    if body.option_id is not None and (kind is None or not kind.startswith(_KINDS[body.decision])):
        raise Conflict(
            Code.OPTION_NOT_OFFERED,
            f"This question can be answered with {', '.join(kinds)}; send an option that "
            "matches the decision.",
            {"options": list(kinds)},
        )
    scope = ApprovalScope.SESSION if kind == ALLOW_ALWAYS else body.scope
    return Decision(
        state=ApprovalState.ALLOWED if body.decision == "allow" else ApprovalState.DENIED,
        by=by,
        scope=scope,
        note=body.note,
        choice=body.option_id,
    )


_KINDS: Final = {"allow": "allow", "deny": "reject"}


def answer_post(answer: Decision, digest: str | None) -> AnswerPost:
    """Return the body of an answer; the server records who sent it."""
    return AnswerPost(
        decision="allow" if answer.state is ApprovalState.ALLOWED else "deny",
        scope=answer.scope,
        option_id=answer.choice,
        digest=digest,
        note=answer.note,
    )


def approval_of(form: ApprovalForm) -> Approval:
    """Return the approval of a form, with its answer if it has one."""
    return Approval(
        session_id=SessionId(form.session_id),
        question=Question(
            id=ApprovalId(form.id),
            call_id=None if form.tool_call_id is None else CallId(form.tool_call_id),
            tool=form.tool,
            tool_class=form.tool_class,
            arguments=form.arguments,
            question=form.question,
            digest=form.digest,
            preview=form.preview,
            memory=form.covers,
            amount=form.amount,
            choices=_choices_of(form.options),
        ),
        state=form.state,
        scope=form.scope or ApprovalScope.ONCE,
        answered_by=form.answered_by,
        note=form.note,
        asked_at=parse_time(form.created_at),
        expires_at=parse_time_or_none(form.expires_at),
        answered_at=parse_time_or_none(form.answered_at),
    )


def _choices_of(offered: tuple[OptionForm, ...]) -> tuple[ApprovalChoice, ...]:
    """Return the options of an external agent; empty if they are Holdfast's own."""
    own = convert(options(is_for_session=True), tuple[OptionForm, ...])
    if {each.id for each in offered} <= {each.id for each in own}:
        return ()
    return tuple(ApprovalChoice(id=each.id, name=each.name, kind=each.kind) for each in offered)
