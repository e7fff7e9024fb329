"""A session of the OpenAI Agents SDK in Holdfast, with a durable tool and a scripted model.

Needs `pip install 'holdfast[openai-agents]'`, and neither a key nor a network.
"""

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from holdfast import open_holdfast
from holdfast.integrations.openai_agents import HoldfastSession, durable_tools


@function_tool
def refund(order: str, cents: int) -> str:
    """Refund an order."""
    return f"refunded {cents} cents of order {order}"


async def main() -> None:
    set_tracing_disabled(True)
    model = ScriptedModel(
        [
            [function_call("refund", {"order": "17", "cents": 500}, call_id="call_1")],
            [assistant_message("Done: 5.00 is on its way.")],
        ]
    )
    agent = Agent(name="Support", model=model, tools=durable_tools([refund]))
    with tempfile.TemporaryDirectory() as folder:
        async with open_holdfast(Path(folder) / "home") as hf:
            session = HoldfastSession("customer-17", hf, agent="Support")
            async with session.run() as hooks:
                result = await Runner.run(agent, "Refund it.", session=session, hooks=hooks)
            print(result.final_output)
            for call in (await hf.calls.list(hf.owner)).items:
                print(call.name, call.arguments, call.state)


asyncio.run(main())
