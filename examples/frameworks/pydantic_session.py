"""A conversation of pydantic-ai in Holdfast, with a durable tool and a scripted model.

Needs `pip install 'holdfast[pydantic-ai]'`, and neither a key nor a network.
"""

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from holdfast import open_holdfast
from holdfast.integrations.pydantic_ai import HoldfastConversationStore, HoldfastDurability

payments: FunctionToolset[None] = FunctionToolset(id="payments")


@payments.tool_plain
async def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order}"


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for the refund, then say that it is done."""
    if len(messages) > 1:
        return ModelResponse(parts=[TextPart("Done: 5.00 is on its way.")])
    return ModelResponse(parts=[ToolCallPart("refund", {"order": "17", "cents": 500}, "call_1")])


async def main() -> None:
    agent = Agent(
        FunctionModel(scripted, model_name="scripted"),
        name="support",
        toolsets=[payments],
        capabilities=[HoldfastDurability()],
    )
    with tempfile.TemporaryDirectory() as folder:
        async with open_holdfast(Path(folder) / "home") as hf:
            store = HoldfastConversationStore(hf, agent="Support")
            name, prompt = "customer-17", "Refund it."
            async with store.turn(name, prompt):
                given = await store.load(name) or Conversation(conversation_id=name)
                result = await agent.run(prompt, conversation=given)
            print(result.output)
            for call in (await hf.calls.list(hf.owner)).items:
                print(call.name, call.arguments, call.state)


asyncio.run(main())
