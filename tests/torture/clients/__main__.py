"""The clients, each in a process of its own: `python -m tests.torture.clients NAME JSON`."""

import asyncio
import importlib
import json
import sys


def main() -> None:
    """Run the named program with its options."""
    program, options = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"tests.torture.clients.{program}")
    asyncio.run(module.main(**options))


if __name__ == "__main__":
    main()
