"""The figures on a slower disk: each sync takes so much longer, ours and the yardstick's alike.

A machine's own disk may commit in a tenth of a millisecond; most take one to ten. Whoever wants
to know what holds there need not have one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

SOURCE: Final = Path(__file__).parent / "slow_disk.c"


def measured_slowly(milliseconds: float, arguments: Sequence[str]) -> int:
    """Run the figures anew, in a process whose syncs are slow; return its exit code."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        print("To measure on a slower disk a C compiler is needed: install gcc.", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        slow = slow_syncs(compiler, Path(folder), milliseconds)
        command = [sys.executable, "-m", "bench", *arguments]
        return subprocess.run(command, check=False, env=os.environ | slow).returncode


def slow_syncs(compiler: str, folder: Path, milliseconds: float) -> dict[str, str]:
    """Return the environment in which a program's syncs take longer."""
    library = folder / "slow_disk.so"
    build = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(build, check=True)
    # A database server may run as another user.
    folder.chmod(0o755)
    return {"LD_PRELOAD": str(library), "BENCH_SYNC_US": str(round(milliseconds * 1000))}
