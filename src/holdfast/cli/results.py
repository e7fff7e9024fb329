"""What came of a call, read from the record."""

from typing import TYPE_CHECKING

from holdfast.domain.calls import Call, CallState
from holdfast.domain.messages import ResultStatus, ToolResult

if TYPE_CHECKING:
    from holdfast.cli.house import House


async def result_of(holdfast: "House", call: Call) -> ToolResult | None:
    """Return the one result of a call, if it has it."""
    number = call.result_sequence
    if number is None:
        return None
    page = await holdfast.messages.list(holdfast.owner, call.session_id, after=number - 1, limit=1)
    parts = [part for message in page.items for part in message.parts]
    return next((part for part in parts if isinstance(part, ToolResult)), None)


async def standing(holdfast: "House", call: Call) -> str:
    """Return how far a call has come; one that failed, or never ran, says so."""
    if call.settlement is not None:
        return call.settlement.value
    if call.state is not CallState.FINISHED:
        return call.state.value
    result = await result_of(holdfast, call)
    if result is None or result.status is ResultStatus.OK:
        return call.state.value
    return result.status.value
