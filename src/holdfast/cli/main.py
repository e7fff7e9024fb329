"""The door of the `holdfast` command: `--version` answers at once, the rest is loaded on demand.

Nothing heavy may be imported here, because every start pays for it.
"""

import gc
import os
import sys
from typing import Final

from holdfast import __version__

# The exit code of everything that may work later; `cli.errors` would have to be loaded for it.
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
        # Not even enough to say it as errors are said.
        os.write(2, _OUT_OF_MEMORY)
        return UNAVAILABLE
    finally:
        # What was loaded goes with the process: to look through it for garbage first takes as long
        # as the work of most commands.
        gc.freeze()
