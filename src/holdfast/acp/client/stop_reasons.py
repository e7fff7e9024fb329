"""How the reply to a prompt ends a turn: a table of stop reasons, and the mapping of errors."""

from collections.abc import Mapping
from typing import Final

from holdfast.acp.client.lenient_json import read_object, read_text, read_word
from holdfast.acp.rpc.framing import (
    AUTH_REQUIRED,
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    NOT_FOUND,
    JsonRpcError,
)
from holdfast.domain.drafts import MessageDraft, Outcome, notice_draft
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import NoticeCode
from holdfast.domain.sessions import StopReason

_TEXT_LONGEST: Final = 1_000
# Many agents answer "Internal error" and put the real reason into `data`.
_REASONS: Final = ("details", "message", "reason")

TOO_MANY_REQUESTS: Final = Failure(
    code=FailureCode.TURN_LIMIT,
    message="The agent has reached its limit of requests in one turn; send a message to continue.",
)
AGENT_CANCELLED: Final = Failure(
    code=FailureCode.INTERRUPTED,
    message="The agent cancelled the turn itself; send a message to continue.",
)
FLOODED: Final = Failure(
    code=FailureCode.AGENT_FLOOD,
    message="The agent has sent more than a turn may contain, and was stopped.",
)

# The agent's stop reason and our outcome; `cancelled` also depends on who cancelled.
STOPS: Final[Mapping[str, Outcome]] = {
    "end_turn": Outcome(stop_reason=StopReason.STOP),
    "max_tokens": Outcome(stop_reason=StopReason.LENGTH),
    "max_turn_requests": Outcome(stop_reason=StopReason.TURN_LIMIT, failure=TOO_MANY_REQUESTS),
    "refusal": Outcome(stop_reason=StopReason.REFUSAL),
    "cancelled": Outcome(stop_reason=StopReason.INTERRUPTED, failure=AGENT_CANCELLED),
}
ABORTED: Final = Outcome(stop_reason=StopReason.ABORTED)

# After these the outcome of open calls is unknown.
ABNORMAL_STOPS: Final = frozenset({StopReason.ERROR, StopReason.ABORTED, StopReason.INTERRUPTED})


def turn_outcome(result: object, *, is_cancelled: bool) -> tuple[Outcome, MessageDraft | None]:
    """Return the outcome for a reply, and a notice about an unknown stop reason."""
    reason = read_object(result).get("stopReason")
    if reason == "cancelled" and is_cancelled:
        return ABORTED, None
    known = STOPS.get(reason) if isinstance(reason, str) else None
    if known is not None:
        return known, None
    said = read_text(reason, longest=_TEXT_LONGEST)
    candidates = f"the unknown reason {said!r}" if said else "no reason"
    notice = f"The agent ended its turn with {candidates}."
    return STOPS["end_turn"], notice_draft(NoticeCode.INFORMATION, notice)


def refusal_outcome(refusal: JsonRpcError, *, is_cancelled: bool) -> Outcome:
    """Return the outcome for an error reply."""
    if is_cancelled or refusal.code == CANCELLED:
        return ABORTED
    said = refusal_text(refusal)
    if refusal.code == AUTH_REQUIRED:
        failure = Failure(
            code=FailureCode.AGENT_AUTH_REQUIRED,
            message=f"The agent requires a sign-in ({said}).",
        )
    else:
        failure = Failure(
            code=FailureCode.AGENT_ERROR, message=f"The agent answered with an error ({said})."
        )
    return Outcome(stop_reason=StopReason.ERROR, failure=failure)


def refusal_text(refusal: JsonRpcError) -> str:
    """Return the code and message of an error, and the reason in its data."""
    said = read_text(refusal.message, longest=_TEXT_LONGEST) or "no message"
    data = refusal.data
    candidates = (data, *(read_object(data).get(name) for name in _REASONS))
    reason = next(
        filter(None, (read_word(each, longest=_TEXT_LONGEST) for each in candidates)), None
    )
    # Some agents repeat the message as the reason.
    return f"{refusal.code}: {said}" + (f": {reason}" if reason and reason not in said else "")


def is_unknown_session(refusal: JsonRpcError, *, is_first_prompt: bool) -> bool:
    """Return whether an error means that the agent has lost the session.

    Some agents use a generic code for this, which is only conclusive on the first prompt.
    """
    vague = refusal.code in {INVALID_PARAMS, INTERNAL_ERROR}
    return refusal.code == NOT_FOUND or (vague and is_first_prompt)
