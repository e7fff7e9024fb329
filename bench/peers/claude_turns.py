"""Turns a second of a store for the Claude Agent SDK: `FOLDER`; prints ours and a file's as JSON.

The program's own store is a file of lines; here each batch of it is synced, as ours is.
"""

import asyncio
import json
import os
import sys
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from holdfast import open_holdfast
from holdfast.integrations.claude_agent_sdk import HoldfastSessionStore

FOLDER = Path(sys.argv[1])
ROUNDS, TURNS = 7, 30


class LineFile:
    """Appends entries to a file and syncs it."""

    async def append(self, key: dict[str, str], entries: list[Any]) -> None:
        """Append a batch in a thread, as the SDK's stores do."""
        await asyncio.to_thread(self._append, FOLDER / f"{key['session_id']}.jsonl", entries)

    def _append(self, path: Path, entries: list[Any]) -> None:
        with path.open("a") as file:
            file.writelines(f"{json.dumps(entry)}\n" for entry in entries)
            file.flush()
            os.fsync(file.fileno())


def entry(kind: str, text: str) -> dict[str, Any]:
    """Return an entry of a transcript."""
    message = {"role": kind, "content": [{"type": "text", "text": text}], "model": "claude-x"}
    return {"type": kind, "uuid": str(uuid.uuid4()), "message": message}


async def rate(store: Any, session_id: str) -> float:
    """Return how many turns of two batches a second a store takes."""
    key = {"project_key": "-bench", "session_id": session_id}
    started = time.perf_counter()
    for number in range(TURNS):
        await store.append(key, [entry("user", f"Question {number}")])
        await store.append(key, [entry("assistant", "A short answer.")])
    return TURNS / (time.perf_counter() - started)


async def main() -> None:
    """Alternate, in a new session each time; the first round warms up."""
    ours, own = [], []
    async with open_holdfast(FOLDER / "home") as hf:
        store, file = HoldfastSessionStore(hf), LineFile()
        for number in range(ROUNDS + 1):
            ours.append(await rate(store, f"s{number}"))
            own.append(await rate(file, f"s{number}"))
    print(json.dumps([median(ours[1:]), median(own[1:])]))


asyncio.run(main())
