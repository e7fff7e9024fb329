"""Give a model functions of your own program, and have one of them approved.

    python examples/own_tool.py

A script plays the model, so this needs no key. The refund is asked about, because its rule says so;
it is recorded before it runs, and a crash in the middle of it leaves it `unknown`, never repeated.
"""

import asyncio
import json
import tempfile
from pathlib import Path

from holdfast import (
    Ask,
    Event,
    LocalHoldfast,
    SessionRequest,
    ToolCallContext,
    ToolEnded,
    ToolFailed,
    ToolProgressed,
    TurnEnded,
    open_holdfast,
    tool,
)
from holdfast.domain.approvals import ApprovalState, Decision
from holdfast.domain.events import ApprovalRequested

ORDERS = {"17": 4_200}
STEPS = [
    {"tool_calls": [{"name": "price", "arguments": {"order": "17"}}]},
    {"tool_calls": [{"name": "refund", "arguments": {"order": "17", "cents": 4_200}}]},
    {"tool_calls": [{"name": "price", "arguments": {"order": "18"}}]},
    {"text": "Order 17 is refunded; there is no order 18."},
]


@tool(effect="pure")
def price(order: str) -> int:
    """Return the price of an order in cents.

    Args:
        order: The order's number.
    """
    if order not in ORDERS:
        raise ToolFailed(f"There is no order {order}.")
    return ORDERS[order]


@tool(approval=lambda arguments: Ask(f"Refund {arguments['cents']} cents?"))
async def refund(order: str, cents: int, *, call: ToolCallContext) -> str:
    """Refund an order."""
    call.progress("asking the bank", 0.5)
    await asyncio.sleep(0.01)
    return f"refunded {cents} of order {order}"


async def show(hf: LocalHoldfast, event: Event) -> None:
    """Print an event, and answer a question with yes."""
    match event.payload:
        case ApprovalRequested(approval_id=asked, question=question):
            print(f"[{question.splitlines()[0]} yes]")
            yes = Decision(state=ApprovalState.ALLOWED, by="own_tool.py")
            await hf.approvals.answer(hf.owner, event.session_id, asked, yes)
        case ToolProgressed(text=text):
            print(f"[{text}]")
        case ToolEnded(name=name, status=status, result=result, failure=failure):
            print(f"[{name}: {status}, {failure.message if failure else result}]")


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "model.json"
        script.write_text(json.dumps(STEPS))
        async with open_holdfast() as hf:
            request = SessionRequest(model=f"scripted:{script}")
            session = await hf.open(request=request, tools=[price, refund])
            await hf.send(session.id, "Refund the orders 17 and 18.")
            async for item in hf.follow(session.id):
                if isinstance(item, Event):
                    await show(hf, item)
                    if isinstance(item.payload, TurnEnded):
                        break
            print((await hf.read(session.id))[-1].text)


asyncio.run(main())
