"""The clients, each in a process of its own: `python -m tests.torture.clients NAME JSON`."""

import asyncio
import importlib
import json
import os
import sys
from typing import Any

from tests.torture.crew import STARVED


def run(program: str, options: dict[str, Any]) -> None:
    """Run a program to its end."""
    module = importlib.import_module(f"tests.torture.clients.{program}")
    try:
        asyncio.run(module.main(**options))
    except MemoryError:
        # The loop of Python itself had no memory to go on: a crash like others.
        os._exit(STARVED)


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
