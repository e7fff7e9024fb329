"""What a process and all that come from it execute, seen by the kernel."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A call that came to an end; one that failed has executed nothing.
EXECUTED = re.compile(r'execve(?:at)?\((?:\d+|AT_FDCWD)?(?:, )?"((?:[^"\\]|\\.)*)".*\) += 0$')
RESUMED = re.compile(r'execve(?:at)?\((?:\d+|AT_FDCWD)?(?:, )?"((?:[^"\\]|\\.)*)".*<unfinished')


def has_tracer() -> bool:
    """Tell whether executions can be seen here."""
    return shutil.which("strace") is not None


def executions(argv: Sequence[str], log: Path, *, within: float = 300) -> list[str]:
    """Run a program to its end and return the real path of everything that was executed."""
    # With a filter of the kernel's, because stopping at every call takes ten times as long.
    trace = ["strace", "-f", "--seccomp-bpf", "-q", "-s", "4096", "-o", str(log)]
    trace += ["-e", "trace=execve,execveat"]
    subprocess.run(
        [*trace, *argv],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        timeout=within,
        check=True,
        capture_output=True,
    )
    return list(_executed(log.read_text("utf-8", "replace").splitlines()))


def python(*words: str) -> tuple[str, ...]:
    """Return how a Python program of ours is started."""
    return (sys.executable, *words)


def _executed(lines: Sequence[str]) -> Iterator[str]:
    unfinished: dict[str, str] = {}
    for line in lines:
        pid = line.partition(" ")[0]
        if found := EXECUTED.search(line):
            yield os.path.realpath(found[1])
        elif found := RESUMED.search(line):
            unfinished[pid] = found[1]
        elif "resumed>" in line and "execve" in line and pid in unfinished:
            path = unfinished.pop(pid)
            if line.endswith("= 0"):
                yield os.path.realpath(path)
