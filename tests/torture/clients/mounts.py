"""Mounts what must not be reached into a working directory, tries every tool there, and tells.

Runs in a mount namespace of its own, so nothing of it is seen outside and nothing is left.
"""

import json
import subprocess
from pathlib import Path

from holdfast.domain.tools import FsTier
from tests.torture.arenas import CALLS, Arena

PATHS = (
    *("kernel/self/environ", "kernel/version", "kernel", "kernel/self/root", "kernel/self/cwd/x"),
    *("ours", "ours/canary.txt", "ours/sub", "ours/new.txt", "ours/sub/new/deep.txt"),
    *("memory/a.txt", "memory", "."),
)


async def main(folder: str, tier: str) -> None:
    """Print the calls that escaped and those that were allowed."""
    arena = Arena(Path(folder), tier=FsTier(tier))
    for name in ("kernel", "ours", "memory"):
        (arena.inside / name).mkdir()
    _mount("--rbind", "/proc", str(arena.inside / "kernel"))
    _mount("--bind", str(arena.home), str(arena.inside / "ours"))
    _mount("-t", "tmpfs", "tmpfs", str(arena.inside / "memory"))
    escapes, allowed = [], []
    for path in PATHS:
        for tool in CALLS:
            done = await arena.attempt(tool, path)
            if done is None:
                continue
            if arena.escaped(done):
                escapes.append(f"{tool} {path}")
            elif done.error is None:
                allowed.append(f"{tool} {path}")
    print(json.dumps({"escapes": escapes, "allowed": allowed, "tried": len(PATHS) * len(CALLS)}))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)
