"""JSON forms of tool calls and of their settlement."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from holdfast.domain.calls import Call, CallState, ClaimHolder, Settlement
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import ResultStatus, ToolResult
from holdfast.domain.tools import Effect
from holdfast.services.calls import (
    ERROR_LONGEST,
    CallAnswer,
    SettlementAction,
    SettlementRequest,
)
from holdfast.wire.messages import error_text
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
from holdfast.workers.model import (
    CLAIM_LONGEST,
    CLAIM_SECONDS,
    CLAIM_SHORTEST,
    NAME_LONGEST,
    ClaimExtension,
    ClaimRequest,
)

StateWord = Literal["intended", "requested", "started", "finished", "unknown"]


class ClaimHolderForm(Struct, frozen=True, kw_only=True):
    """The client that runs a call, and until when unless it extends its claim."""

    worker: Annotated[str, Meta(description="The name that the client gave itself.")]
    until: Annotated[Instant, Meta(description="When the claim ends unless it is extended.")]


class CallForm(Struct, frozen=True, kw_only=True):
    """A tool call; `settled` says how an unknown outcome was settled."""

    id: Annotated[str, Meta(description="The call's id.")]
    session_id: Annotated[Uuid, Meta(description="The session.")]
    turn: Annotated[int, Meta(description="The turn of the call.")]
    name: Annotated[str, Meta(description="The name of the tool.")]
    arguments: Annotated[dict[str, Any], Meta(description="The arguments.")]
    effect: Annotated[
        Effect, Meta(description="Whether a second run could repeat the side effect.")
    ]
    state: Annotated[StateWord, Meta(description="The state; it stays unknown after a settlement.")]
    settled: Annotated[Settlement | None, Meta(description="How an unknown outcome was settled.")]
    idempotency_key: Annotated[str, Meta(description="The idempotency key of a retry.")]
    started_at: Annotated[Instant | None, Meta(description="When it was started.")]
    ended_at: Annotated[Instant | None, Meta(description="When it ended.")]
    message_sequence: Annotated[
        int, Meta(description="The sequence number of the message with the call.")
    ]
    result_sequence: Annotated[
        int | None, Meta(description="The sequence number of the message with the result.")
    ]
    deadline_at: Annotated[
        Instant | None,
        Meta(description="Until when a client may answer a call; null unless it waits for one."),
    ]
    attempt: Annotated[int, Meta(description="How often clients were asked to run it.")]
    claim: Annotated["ClaimHolderForm | None", Meta(description="The client that runs it now.")]


class ToolErrorForm(Struct, frozen=True, kw_only=True):
    """The error of a failed call."""

    code: str
    message: str


class CallResultForm(CallForm, frozen=True, kw_only=True):
    """A call and its result; the result fields are null until the call ends."""

    status: ResultStatus | None = None
    result: Any = None
    error: ToolErrorForm | None = None


class RetriedCallForm(CallForm, frozen=True, kw_only=True):
    """A call that was settled with a retry, and the retry."""

    retry: CallResultForm


class CallList(Struct, frozen=True):
    """A page of calls, in order within each session."""

    data: tuple[CallForm, ...]
    next_cursor: str | None


class CallsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of a list of calls; `unknown` are unsettled ones, `settled` are settled ones."""

    state: CallState | None = None
    agent: Annotated[str, Meta(max_length=255)] | None = None
    tool: Annotated[str, Meta(max_length=255)] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SettlePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settlement of a call with an unknown outcome."""

    how: SettlementAction
    result: Any = None
    note: Annotated[str, Meta(max_length=500)] | None = None


class AnswerErrorForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Why a client could not run a call."""

    message: Annotated[str, Meta(min_length=1, max_length=ERROR_LONGEST)]


class CallResultPost(
    Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """The answer of a client that was asked to run a call: a result or an error, not both."""

    status: Annotated[
        Literal["ok", "error", "unknown", "released"],
        Meta(description="`released` gives a claimed call back that was not begun."),
    ]
    claim: Annotated[
        Uuid | UnsetType, Meta(description="The id of the claim under which it was run.")
    ] = UNSET
    result: Annotated[Any, Meta(description="Any JSON value, at most 16 MiB.")] = UNSET
    error: AnswerErrorForm | UnsetType = UNSET


class ClaimPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A claim on a call; repeating it with the same id changes nothing."""

    claim: Uuid
    worker: Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)] = "a client"
    lease_s: Annotated[float, Meta(ge=CLAIM_SHORTEST, le=CLAIM_LONGEST)] = CLAIM_SECONDS


class ClaimExtendPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claim to extend."""

    claim: Uuid


class ClaimExtended(Struct, frozen=True, kw_only=True):
    """Until when a claim lasts; with `cancel` its call has ended and need not be run."""

    until: Instant
    cancel: bool


class ProgressPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The progress of a claimed call."""

    claim: Uuid
    text: Annotated[str, Meta(max_length=500)]
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None


def claim_request(body: ClaimPost) -> ClaimRequest:
    """Return the claim of a body."""
    return ClaimRequest(claim=body.claim.lower(), worker=body.worker, lease_s=body.lease_s)


def claim_post(request: ClaimRequest) -> ClaimPost:
    """Return the body of a claim."""
    return ClaimPost(claim=request.claim, worker=request.worker, lease_s=request.lease_s)


def claim_extended(extension: ClaimExtension) -> ClaimExtended:
    """Return the form of an extended claim."""
    return ClaimExtended(until=format_time(extension.until), cancel=extension.is_cancelled)


def claim_extension(form: ClaimExtended) -> ClaimExtension:
    """Return the extended claim of a form."""
    return ClaimExtension(until=parse_time(form.until), is_cancelled=form.cancel)


def call_form(call: Call) -> CallForm:
    """Return the form of a call."""
    return CallForm(
        id=call.id,
        session_id=call.session_id,
        turn=call.turn,
        name=call.name,
        arguments=call.arguments,
        effect=call.effect,
        state=_state_word(call.state),
        settled=call.settlement,
        idempotency_key=call.idempotency_key,
        started_at=format_time_or_none(call.started_at),
        ended_at=format_time_or_none(call.ended_at),
        message_sequence=call.sequence,
        result_sequence=call.result_sequence,
        deadline_at=format_time_or_none(call.deadline_at),
        attempt=call.attempt,
        claim=None
        if call.claim is None
        else ClaimHolderForm(worker=call.claim.worker, until=format_time(call.claim.until)),
    )


def call_result_form(call: Call, result: ToolResult | None) -> CallResultForm:
    """Return a call with its result."""
    fields = asdict(call_form(call))
    if result is None:
        return CallResultForm(**fields)
    error, message = result.error, error_text(result.status, result.error)
    return CallResultForm(
        **fields,
        status=result.status,
        result=result.result,
        error=None if error is None else ToolErrorForm(code=error.code, message=message or ""),
    )


def retried_call_form(call: Call, retry: CallResultForm) -> RetriedCallForm:
    """Return a call that was settled with a retry."""
    return RetriedCallForm(**asdict(call_form(call)), retry=retry)


def _state_word(state: CallState) -> StateWord:
    match state:
        case CallState.INTENDED:
            return "intended"
        case CallState.REQUESTED:
            return "requested"
        case CallState.STARTED:
            return "started"
        case CallState.FINISHED:
            return "finished"
        case CallState.UNKNOWN | CallState.SETTLED:
            # The outcome stays unknown after every settlement.
            return "unknown"


def settlement_of(body: SettlePost, *, by: str) -> SettlementRequest:
    """Return the settlement of a body."""
    return SettlementRequest(how=body.how, by=by, result=body.result, note=body.note)


def settle_post(request: SettlementRequest) -> SettlePost:
    """Return the body of a settlement; the server records who sent it."""
    return SettlePost(how=request.how, result=request.result, note=request.note)


def answer_of(body: CallResultPost) -> CallAnswer:
    """Return the answer of a body."""
    has_both = body.result is not UNSET and body.error is not UNSET
    if has_both:
        raise Invalid(
            Code.INVALID_INPUT, "Give a result or an error, not both.", {"field": "error"}
        )
    return CallAnswer(
        status=ResultStatus(body.status),
        result=None if body.result is UNSET else body.result,
        error=None if isinstance(body.error, UnsetType) else body.error.message,
        claim=None if isinstance(body.claim, UnsetType) else body.claim.lower(),
    )


def released_claim(body: CallResultPost) -> str:
    """Return the claim of a body that gives a call back."""
    is_plain = body.result is UNSET and body.error is UNSET
    if isinstance(body.claim, UnsetType) or not is_plain:
        text = "A call is given back with its claim, and without a result or an error."
        raise Invalid(Code.INVALID_INPUT, text, {"field": "claim"})
    return body.claim.lower()


def release_post(claim: str) -> CallResultPost:
    """Return the body that gives a call back."""
    return CallResultPost(status="released", claim=claim)


def result_post(answer: CallAnswer) -> CallResultPost:
    """Return the body of an answer."""
    return CallResultPost(
        status=answer.status.value,  # type: ignore[arg-type]
        result=UNSET if answer.result is None else answer.result,
        error=UNSET if answer.error is None else AnswerErrorForm(message=answer.error),
        claim=UNSET if answer.claim is None else answer.claim,
    )


def call_of(form: CallForm) -> Call:
    """Return the call of a form; an unknown outcome with a settlement is settled."""
    return Call(
        id=CallId(form.id),
        session_id=SessionId(form.session_id),
        turn=form.turn,
        name=form.name,
        arguments=form.arguments,
        state=CallState(form.state) if form.settled is None else CallState.SETTLED,
        effect=form.effect,
        idempotency_key=form.idempotency_key,
        settlement=form.settled,
        sequence=form.message_sequence,
        result_sequence=form.result_sequence,
        started_at=parse_time_or_none(form.started_at),
        ended_at=parse_time_or_none(form.ended_at),
        deadline_at=parse_time_or_none(form.deadline_at),
        attempt=form.attempt,
        claim=None
        if form.claim is None
        else ClaimHolder(worker=form.claim.worker, until=parse_time(form.claim.until)),
    )
