"""Ask a question and print the answer as it comes.

    python examples/ask.py "What is 6*7?"

It needs no key: without one the offline model answers.
"""

import asyncio
import sys

from holdfast import Event, StepDelta, TurnEnded, open_holdfast


async def ask(question: str) -> None:
    async with open_holdfast() as hf:
        session = await hf.open()
        await hf.send(session.id, question)
        async for item in hf.follow(session.id):
            match item:
                case Event(payload=StepDelta(text=text)):
                    print(text, end="", flush=True)
                case Event(payload=TurnEnded(stop_reason=reason)):
                    print(f"\n[{reason}, kept as session {session.id}]")
                    return


asyncio.run(ask(sys.argv[1] if len(sys.argv) > 1 else "What is (3.5*4)/2?"))
