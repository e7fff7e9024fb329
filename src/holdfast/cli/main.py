"""Entry point of `holdfast`: handles `--version` at once and loads everything else on demand.

Nothing heavy may be imported here, because it slows down every start.
"""

import gc
import os
import sys
from typing import Final

from holdfast import __version__

# Exit code of temporary failures; defined here because importing `cli.errors` is slow.
UNAVAILABLE: Final = 7
_OUT_OF_MEMORY: Final = b"holdfast: There was not enough memory; free some and try again.\n"


def main() -> int:
    """Run the command line of this process and return its exit code."""
    arguments = sys.argv[1:]
    flags = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--version" in flags:
        version_text = (
            f'{{"version":"{__version__}"}}' if "--json" in flags else f"holdfast {__version__}"
        )
        sys.stdout.write(f"{version_text}\n")
        return 0
    try:
        from holdfast.cli.app import run

        return run(arguments)
    except MemoryError:
        # Not even enough memory for the error renderer.
        os.write(2, _OUT_OF_MEMORY)
        return UNAVAILABLE
    finally:
        # The process is about to exit: a final garbage collection would take as long as most
        # commands.
        gc.freeze()
