"""The door of the `holdfast` command: `--version` answers at once, the rest is loaded on demand.

Nothing heavy may be imported here, because every start pays for it.
"""

import sys

from holdfast import __version__


def main() -> int:
    """Run the command line of this process and return its exit code."""
    arguments = sys.argv[1:]
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--version" in flags:
        told = f'{{"version":"{__version__}"}}' if "--json" in flags else f"holdfast {__version__}"
        sys.stdout.write(f"{told}\n")
        return 0
    from holdfast.cli.app import run

    return run(arguments)
