"""What a failing provider means for a turn: one table by kind, nothing else decides."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from holdfast.domain.events import Failure, FailureCode
from holdfast.ports import Failed, FailureKind

CODES: Final[Mapping[FailureKind, FailureCode]] = {
    FailureKind.RATE_LIMIT: FailureCode.PROVIDER_RATE_LIMIT,
    FailureKind.UNAVAILABLE: FailureCode.PROVIDER_UNAVAILABLE,
    FailureKind.AUTH: FailureCode.PROVIDER_AUTH,
    FailureKind.TOO_LONG: FailureCode.CONTEXT_OVERFLOW,
    FailureKind.BAD_REQUEST: FailureCode.INVALID_REQUEST,
    FailureKind.FILTERED: FailureCode.CONTENT_FILTER,
    FailureKind.CANCELLED: FailureCode.INTERRUPTED,
    FailureKind.UNKNOWN: FailureCode.INTERNAL,
}

# Empty where the adapter alone knows the remedy: the name of a key, the place in a file.
_REMEDIES: Final[Mapping[FailureKind, str]] = {
    FailureKind.RATE_LIMIT: "Wait a little, then send a message to try again.",
    FailureKind.UNAVAILABLE: "Send a message to try again.",
    FailureKind.AUTH: "",
    FailureKind.TOO_LONG: "Open a new session, or fork this one at an earlier message.",
    FailureKind.BAD_REQUEST: "",
    FailureKind.FILTERED: "Put it in other words.",
    FailureKind.CANCELLED: "Send a message to go on.",
    FailureKind.UNKNOWN: "",
}

FILTERED: Final = Failure(
    code=FailureCode.CONTENT_FILTER,
    message="The provider refused to answer. Put it in other words.",
)
CUT_BY_BUDGET: Final = Failure(
    code=FailureCode.BUDGET_EXCEEDED,
    message="The answer was cut off where the session's budget ends. Raise it to go on.",
)
TOOLS_FAIL: Final = Failure(
    code=FailureCode.TOOL_FAILED,
    message="No tool call has succeeded for five rounds, so the turn was stopped. "
    "Look at the results, then say how to go on.",
)
ROUNDS_USED: Final = Failure(
    code=FailureCode.TURN_LIMIT,
    message="The turn has used all its rounds of tools. Send a message to let it go on.",
)
EMPTY_TOOL_USE: Final = Failure(
    code=FailureCode.PROVIDER_UNAVAILABLE,
    message="The provider announced a tool call and sent none. Send a message to try again.",
)


def failure_of(failed: Failed) -> Failure:
    """Return the failure of a turn, with the adapter's message and what can be done."""
    remedy = _REMEDIES[failed.kind]
    if failed.kind is FailureKind.RATE_LIMIT and failed.retry_after:
        remedy = f"Wait {ceil(failed.retry_after)} s, then send a message to try again."
    return Failure(code=CODES[failed.kind], message=f"{failed.message} {remedy}".strip())


def internal(correlation_id: str | None) -> Failure:
    """Return the failure that nobody classified; only the log knows more."""
    return Failure(
        code=FailureCode.INTERNAL,
        message="Holdfast met an error while asking the model; the log tells more under this id.",
        correlation_id=correlation_id,
    )
