"""Ask a question and print the answer as it comes.

    python examples/ask.py "What is 6*7?"

It needs no key: without one the offline model answers.
"""

import asyncio
import sys

from holdfast import Answer, TextDelta, open_holdfast


async def ask(question: str) -> None:
    async with open_holdfast() as hf:
        async for item in hf.stream(question):
            match item:
                case TextDelta(text=text):
                    print(text, end="", flush=True)
                case Answer(stop_reason=reason, cost=cost):
                    print(f"\n[{reason}, {cost}, kept as session {item.session_id}]")


asyncio.run(ask(sys.argv[1] if len(sys.argv) > 1 else "What is (3.5*4)/2?"))
