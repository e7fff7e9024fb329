"""How a prompt's reply ends a turn: a table of stop reasons, and one of refusals."""

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
from holdfast.domain.drafts import MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.sessions import StopReason

_TEXT_LONGEST: Final = 1_000
# Many programs answer "Internal error", and say what it was in their data.
_REASONS: Final = ("details", "message", "reason")

TOO_MANY_REQUESTS: Final = Failure(
    code=FailureCode.TURN_LIMIT,
    message="The agent has made as many requests as it may make in one turn; send a message "
    "to have it go on.",
)
AGENT_CANCELLED: Final = Failure(
    code=FailureCode.INTERRUPTED,
    message="The agent cancelled the turn by itself; send a message to have it go on.",
)
FLOODED: Final = Failure(
    code=FailureCode.AGENT_FLOOD,
    message="The agent has sent more than one turn may hold, and was stopped.",
)

# What the agent says, and how the turn then ends; `cancelled` depends on who wanted it.
STOPS: Final[Mapping[str, Outcome]] = {
    "end_turn": Outcome(stop_reason=StopReason.STOP),
    "max_tokens": Outcome(stop_reason=StopReason.LENGTH),
    "max_turn_requests": Outcome(stop_reason=StopReason.TURN_LIMIT, failure=TOO_MANY_REQUESTS),
    "refusal": Outcome(stop_reason=StopReason.REFUSAL),
    "cancelled": Outcome(stop_reason=StopReason.INTERRUPTED, failure=AGENT_CANCELLED),
}
ABORTED: Final = Outcome(stop_reason=StopReason.ABORTED)

# Ends after which nobody can say what became of the calls that were open.
ABNORMAL_STOPS: Final = frozenset({StopReason.ERROR, StopReason.ABORTED, StopReason.INTERRUPTED})


def turn_outcome(result: object, *, is_cancelled: bool) -> tuple[Outcome, MessageDraft | None]:
    """Return how a reply ends the turn, and what is to be said about a reason nobody knows."""
    reason = read_object(result).get("stopReason")
    if reason == "cancelled" and is_cancelled:
        return ABORTED, None
    known = STOPS.get(reason) if isinstance(reason, str) else None
    if known is not None:
        return known, None
    said = read_text(reason, longest=_TEXT_LONGEST)
    candidates = f"reason {said!r}, which is not known here" if said else "no reason"
    return STOPS["end_turn"], build_notice(f"The agent ended its turn with {candidates}.")


def refusal_outcome(refusal: JsonRpcError, *, is_cancelled: bool) -> Outcome:
    """Return how an error reply ends the turn."""
    if is_cancelled or refusal.code == CANCELLED:
        return ABORTED
    said = refusal_text(refusal)
    if refusal.code == AUTH_REQUIRED:
        failure = Failure(
            code=FailureCode.AGENT_AUTH_REQUIRED,
            message=f"The agent wants somebody to sign in ({said}).",
        )
    else:
        failure = Failure(
            code=FailureCode.AGENT_ERROR, message=f"The agent answered with an error ({said})."
        )
    return Outcome(stop_reason=StopReason.ERROR, failure=failure)


def refusal_text(refusal: JsonRpcError) -> str:
    """Return what a refusal says: its code, its words, and the reason that is told beside them."""
    said = read_text(refusal.message, longest=_TEXT_LONGEST) or "no words"
    data = refusal.data
    candidates = (data, *(read_object(data).get(name) for name in _REASONS))
    reason = next(
        filter(None, (read_word(each, longest=_TEXT_LONGEST) for each in candidates)), None
    )
    # Some say it twice.
    return f"{refusal.code}: {said}" + (f": {reason}" if reason and reason not in said else "")


def is_unknown_session(refusal: JsonRpcError, *, is_first_prompt: bool) -> bool:
    """Tell whether a refusal means that the program has lost the conversation.

    Some say so in a way that means anything; only the first prompt after a start is told by it.
    """
    vague = refusal.code in {INVALID_PARAMS, INTERNAL_ERROR}
    return refusal.code == NOT_FOUND or (vague and is_first_prompt)


def build_notice(words: str) -> MessageDraft:
    """Return what is to be said to a reader beside the answer."""
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.INFORMATION, text=words),))
