"""Prompts of a client on their way through a turn, and what is answered when it has ended."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.acp.agent.refusals import data_of
from holdfast.acp.agent.updates import usage_form
from holdfast.acp.transport.connection import Refused
from holdfast.acp.transport.framing import INTERNAL_ERROR, RpcError
from holdfast.domain.costs import Usage
from holdfast.domain.events import FailureCode, TurnEnded
from holdfast.domain.sessions import StopReason

CANCELLED: Final = "cancelled"
STOPS: Final[Mapping[StopReason, str]] = {
    StopReason.STOP: "end_turn",
    StopReason.LENGTH: "max_tokens",
    StopReason.TURN_LIMIT: "max_turn_requests",
    StopReason.BUDGET: "max_turn_requests",
    StopReason.REFUSAL: "refusal",
    StopReason.ABORTED: CANCELLED,
    StopReason.INTERRUPTED: CANCELLED,
}


class Prompt:
    """One `session/prompt` until it is answered; its turn is known once its message is written."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        self.turn: int | None = None
        self.is_cancelled = False
        # Its message was among the news that were told.
        self.is_heard = False
        self.ended: asyncio.Future[TurnEnded | None] = asyncio.get_running_loop().create_future()
        self.answered = asyncio.Event()

    def settle(self, ended: TurnEnded | None) -> None:
        """Note how its turn has ended; nothing means that it never will be played."""
        if not self.ended.done():
            self.ended.set_result(ended)

    def fail(self, error: Exception) -> None:
        """Note that nobody can tell how its turn ends."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def result(self, ended: TurnEnded | None) -> dict[str, Any]:
        """Return the answer, or raise the refusal of a turn that has failed."""
        if ended is None:
            return stopped(StopReason.ABORTED, Usage())
        if ended.stop_reason is StopReason.ERROR and not self.is_cancelled:
            raise Refused(_error(ended))
        return stopped(ended.stop_reason, ended.usage)


def stopped(stop: StopReason, usage: Usage) -> dict[str, Any]:
    """Return how a turn has stopped, in the protocol's words and in ours."""
    return {
        "stopReason": STOPS.get(stop, CANCELLED),
        "usage": usage_form(usage),
        "_meta": {"holdfast": {"stop": stop.value}},
    }


def _error(ended: TurnEnded) -> RpcError:
    failure = ended.failure
    code = failure.code if failure else FailureCode.INTERNAL
    message = failure.message if failure else "The turn has failed."
    return RpcError(INTERNAL_ERROR, message, data_of(code, message))
