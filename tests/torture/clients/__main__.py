"""The clients, each in a process of its own: `python -m tests.torture.clients NAME JSON`."""

import asyncio
import importlib
import json
import os
import sys

from tests.torture.crew import STARVED


def main() -> None:
    """Run the named program with its options."""
    program, options = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"tests.torture.clients.{program}")
    try:
        asyncio.run(module.main(**options))
    except MemoryError:
        # The loop of Python itself had no memory to go on: a crash like others.
        os._exit(STARVED)


if __name__ == "__main__":
    main()
