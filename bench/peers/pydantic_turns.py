"""Turns a second of pydantic-ai: `FOLDER`; prints ours and a JSON file with fsync as JSON."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.test import TestModel

from holdfast import open_holdfast
from holdfast.integrations.pydantic_ai import HoldfastConversationStore

FOLDER = Path(sys.argv[1])
ROUNDS, TURNS = 7, 30
AGENT = Agent(TestModel(custom_output_text="A short answer."))


async def ours(store: Any, name: str) -> float:
    """Return how many turns a second an agent plays that answers at once."""
    started = time.perf_counter()
    for number in range(TURNS):
        given = await store.load(name) or Conversation(conversation_id=name)
        await store.save(await AGENT.run(f"Question {number}", conversation=given))
    return TURNS / (time.perf_counter() - started)


def written(path: Path, messages: list[Any]) -> None:
    """Replace a file, on disk."""
    with path.with_suffix(".new").open("wb") as file:
        file.write(ModelMessagesTypeAdapter.dump_json(messages))
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)


def read(path: Path) -> list[Any]:
    """Return the messages of a file."""
    return ModelMessagesTypeAdapter.validate_json(path.read_bytes())


async def filed(path: Path) -> float:
    """Return the same of an application that keeps the messages in a file."""
    started = time.perf_counter()
    for number in range(TURNS):
        known = read(path) if number else []
        result = await AGENT.run(f"Question {number}", message_history=known)
        written(path, result.all_messages())
    return TURNS / (time.perf_counter() - started)


async def main() -> None:
    """Alternate, in new conversations of one store each; the first round warms up."""
    kept, own = [], []
    async with open_holdfast(FOLDER / "home") as hf:
        for number in range(ROUNDS + 1):
            kept.append(await ours(HoldfastConversationStore(hf), f"c{number}"))
            own.append(await filed(FOLDER / f"{number}.json"))
    print(json.dumps([median(kept[1:]), median(own[1:])]))


asyncio.run(main())
